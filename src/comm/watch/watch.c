// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "comm/watch/watch.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "comm/engine/engine.h"
#include "comm/watch/hang.h"
#include "comm/watch/report.h"
#include "cuda/lock.h"

#define AGAIN_US 60000000

struct wm_watch {
    struct wm_watch *next;
    int64_t began, due; // when it is told of
    char who[160];      // asked of MPI before, as the thread may not
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static wm_watch_t *watched;
static bool running; // a thread, which ends when it finds none to watch
static int64_t wakes_at;

static void
tell(const wm_watch_t *watch)
{
    wm_words_t words = {.length = 0};
    wm_words_add(&words,
                 "%s: wm.Comm has waited %.*f s for the other ranks: is the "
                 "communicator wrapped on all of them?",
                 watch->who, wm_engine_now() - watch->began < 9500000,
                 (double)(wm_engine_now() - watch->began) / 1e6);
    wm_words_print(&words);
}

static void *
watch_over(void *unused)
{
    wm_lock(&lock);
    while (watched != NULL) {
        int64_t now = wm_engine_now(), due = INT64_MAX;
        for (wm_watch_t *watch = watched; watch != NULL; watch = watch->next) {
            if (watch->due <= now) {
                tell(watch);
                watch->due = now + AGAIN_US;
            }
            due = watch->due < due ? watch->due : due;
        }
        wakes_at = due;
        pthread_mutex_unlock(&lock);
        struct timespec until = {due / 1000000, due % 1000000 * 1000};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL)
               == EINTR)
            ;
        wm_lock(&lock);
    }
    running = false;
    pthread_mutex_unlock(&lock);
    return unused;
}

// A thread for each would cost more than what MPI does, so one stays until it
// wakes next. Lock held.
static bool
start(void)
{
    pthread_t thread;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); // signals are the program's
    bool started = pthread_create(&thread, NULL, watch_over, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (started)
        pthread_detach(thread);
    return started;
}

wm_watch_t *
wm_watch_begin(MPI_Comm user)
{
    int size = 0;
    MPI_Comm_size(user, &size);
    wm_watch_t *watch = size > 1 && wm_hang_limit() > 0
                            ? calloc(1, sizeof *watch)
                            : NULL;
    if (watch == NULL)
        return NULL;
    int rank = 0;
    wm_words_t words = {.length = 0};
    MPI_Comm_rank(user, &rank);
    wm_words_add(&words, "rank %d of ", rank);
    wm_report_comm(&words, user);
    snprintf(watch->who, sizeof watch->who, "%.130s (size %d)", words.text,
             size);
    char place[256];
    snprintf(place, sizeof place,
             "warpmpi: %s: wm.Comm waits for the other ranks\n", watch->who);
    watch->began = wm_engine_now();
    watch->due = watch->began + wm_hang_limit();
    wm_lock(&lock);
    watch->next = watched;
    watched = watch;
    if (!running || watch->due < wakes_at) { // the limit is shorter now
        running = start() || running;
        wakes_at = watch->due;
    }
    pthread_mutex_unlock(&lock);
    wm_hang_set_place(place);
    return watch;
}

void
wm_watch_end(wm_watch_t *watch)
{
    if (watch == NULL)
        return;
    wm_hang_set_place(NULL);
    wm_lock(&lock);
    wm_watch_t **link = &watched;
    while (*link != watch)
        link = &(*link)->next;
    *link = watch->next;
    pthread_mutex_unlock(&lock);
    free(watch);
}
