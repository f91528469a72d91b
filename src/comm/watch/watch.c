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
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ends;
    bool ended;
    int64_t began;
    char who[160]; // asked of MPI before, as the thread may not
    char place[256];
};

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
watch_over(void *argument)
{
    wm_watch_t *watch = argument;
    int64_t due = watch->began + wm_hang_limit();
    wm_lock(&watch->lock);
    while (!watch->ended) {
        struct timespec until = {due / 1000000, due % 1000000 * 1000};
        if (pthread_cond_timedwait(&watch->ends, &watch->lock, &until)
            != ETIMEDOUT)
            continue;
        tell(watch);
        due = wm_engine_now() + AGAIN_US;
    }
    pthread_mutex_unlock(&watch->lock);
    return NULL;
}

static bool
start(wm_watch_t *watch)
{
    pthread_condattr_t monotonic;
    sigset_t all, old;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&watch->lock, NULL);
    pthread_cond_init(&watch->ends, &monotonic);
    pthread_condattr_destroy(&monotonic);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); // signals are the program's
    bool started = pthread_create(&watch->thread, NULL, watch_over, watch)
                   == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return started;
}

static void
drop(wm_watch_t *watch)
{
    pthread_cond_destroy(&watch->ends);
    pthread_mutex_destroy(&watch->lock);
    free(watch);
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
    snprintf(watch->place, sizeof watch->place,
             "warpmpi: %s: wm.Comm waits for the other ranks\n", watch->who);
    watch->began = wm_engine_now();
    if (!start(watch)) {
        drop(watch);
        return NULL;
    }
    wm_hang_set_place(watch->place);
    return watch;
}

void
wm_watch_end(wm_watch_t *watch)
{
    if (watch == NULL)
        return;
    wm_hang_set_place(NULL);
    wm_lock(&watch->lock);
    watch->ended = true;
    pthread_cond_signal(&watch->ends);
    pthread_mutex_unlock(&watch->lock);
    pthread_join(watch->thread, NULL);
    drop(watch);
}
