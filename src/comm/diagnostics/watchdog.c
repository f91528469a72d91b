// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "comm/diagnostics/watchdog.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "comm/engine/engine.h"
#include "comm/diagnostics/hang.h"
#include "comm/diagnostics/report.h"
#include "comm/engine/modules.h"
#include "cuda/lock.h"

#define AGAIN_US 60000000

struct wm_watchdog {
    struct wm_watchdog *next;
    int64_t began, due; // time of the next report
    char who[160];      // filled at the start, as the thread may not ask MPI
    char call[240];
    const char *advice;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static wm_watchdog_t *watched;
static bool running; // the thread, which ends with the last watchdog
static int64_t wakes_at;

static void
watchdog_tell(const wm_watchdog_t *watchdog)
{
    wm_words_t words = {.length = 0};
    wm_words_add(&words, "%s: %s has waited %.*f s for the other ranks: %s",
                 watchdog->who, watchdog->call,
                 wm_engine_now() - watchdog->began < 9500000,
                 (double)(wm_engine_now() - watchdog->began) / 1e6,
                 watchdog->advice);
    wm_words_print(&words);
}

static void *
watchdog_run(void *unused)
{
    wm_lock(&lock);
    while (watched != NULL) {
        int64_t now = wm_engine_now(), due = INT64_MAX;
        for (wm_watchdog_t *watchdog = watched; watchdog != NULL;
             watchdog = watchdog->next) {
            if (watchdog->due <= now) {
                watchdog_tell(watchdog);
                watchdog->due = now + AGAIN_US;
            }
            due = watchdog->due < due ? watchdog->due : due;
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

wm_watchdog_t *
wm_watchdog_begin(MPI_Comm user, const char *call, const char *advice)
{
    int size = 0;
    MPI_Comm_size(user, &size);
    wm_watchdog_t *watchdog = size > 1 && wm_hang_limit() > 0
                                  ? calloc(1, sizeof *watchdog)
                                  : NULL;
    if (watchdog == NULL)
        return NULL;
    int rank = 0;
    wm_words_t words = {.length = 0};
    MPI_Comm_rank(user, &rank);
    wm_words_add(&words, "rank %d of ", rank);
    wm_report_comm(&words, user);
    snprintf(watchdog->who, sizeof watchdog->who, "%.130s (size %d)",
             words.text, size);
    snprintf(watchdog->call, sizeof watchdog->call, "%s", call);
    watchdog->advice = advice;
    char place[sizeof watchdog->who + sizeof watchdog->call + 64];
    snprintf(place, sizeof place,
             "warpmpi: %s: %s waits for the other ranks\n", watchdog->who,
             call);
    watchdog->began = wm_engine_now();
    watchdog->due = watchdog->began + wm_hang_limit();
    wm_lock(&lock);
    watchdog->next = watched;
    watched = watchdog;
    if (!running || watchdog->due < wakes_at) { // a shorter limit
        // It stays until its next wake: one thread for each watchdog would
        // cost more than MPI's call.
        running = wm_thread_start(watchdog_run) || running;
        wakes_at = watchdog->due;
    }
    pthread_mutex_unlock(&lock);
    wm_hang_set_place(place);
    return watchdog;
}

static void
watchdog_end(wm_watchdog_t *watchdog)
{
    if (watchdog == NULL)
        return;
    wm_hang_set_place(NULL);
    wm_lock(&lock);
    wm_watchdog_t **link = &watched;
    while (*link != watchdog)
        link = &(*link)->next;
    *link = watchdog->next;
    pthread_mutex_unlock(&lock);
    free(watchdog);
}

static _Thread_local wm_watchdog_t *of_comm; // the thread makes a communicator

static void
watchdog_wait_begin(MPI_Comm user)
{
    wm_engine_lock();
    // The row of hang.c reports an error to all ranks.
    (void)!wm_hang_configure(NULL);
    wm_engine_unlock();
    of_comm = wm_watchdog_begin(user, "wm.Comm",
                                "do all ranks make this wm.Comm?");
}

static void
watchdog_wait_end(void)
{
    watchdog_end(of_comm);
    of_comm = NULL;
}

const wm_module_t wm_watchdog_module = {
    .wait_begin = watchdog_wait_begin,
    .wait_end = watchdog_wait_end,
};
