// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "comm/diagnostics/watchdog.h"

#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <time.h>

#include "comm/diagnostics/report.h"
#include "cuda/lock.h"

#define WATCHED 8 // calls of so many threads; of others nothing is reported

// The calls that are watched; `lock`.
static struct {
    int64_t began, due; // time of the next report
    char call[400];     // with the rank, as the thread may not ask MPI
    const char *advice; // NULL: the place is free
} watched[WATCHED];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t wakes_at;
static wm_watchdog_look_t *_Atomic look;
static _Atomic int calls;    // under way
static _Atomic int makers;   // threads that make a communicator
static _Atomic int most;     // of these at a time
static _Atomic bool running; // the thread, until it has nothing to watch
static _Atomic bool asked;   // by the signal
static sem_t news;           // wakes the thread before its time

// Reports a watched call if that is due, or asked for.
static void
watchdog_report_lock_held(int at, int64_t now, bool is_asked)
{
    bool late = watched[at].due <= now;
    double waited = (double)(now - watched[at].began) / 1e6;
    wm_words_t words = {.length = 0};
    if (late)
        wm_words_add(&words, "%s has waited %.*f s for the other ranks: %s",
                     watched[at].call, waited < 9.5, waited,
                     watched[at].advice);
    else if (is_asked)
        wm_words_add(&words, "%s waits for the other ranks", watched[at].call);
    if (words.length > 0 && atomic_load(&most) > 1)
        wm_words_add(&words, "; " WM_WATCHDOG_MAKERS, atomic_load(&most));
    if (words.length > 0)
        wm_words_print(&words);
    if (late)
        watched[at].due = now + WM_REPORT_AGAIN_US;
}

// Reports the watched calls. Returns the time of the next look.
static int64_t
watchdog_look_lock_held(int64_t now, bool is_asked)
{
    bool some = atomic_load(&calls) > 0;
    int64_t due = INT64_MAX;
    for (int i = 0; i < WATCHED; ++i) {
        if (watched[i].advice == NULL)
            continue;
        watchdog_report_lock_held(i, now, is_asked);
        due = watched[i].due < due ? watched[i].due : due;
    }
    wm_watchdog_look_t *other = atomic_load(&look);
    int64_t next = other != NULL ? other(now, is_asked && !some, some) : due;
    return next < due ? next : due;
}

// Sleeps until the engine's clock shows `due`, or there is news.
static void
watchdog_sleep(int64_t due)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    int64_t left = due - wm_engine_now(), end = until.tv_nsec / 1000 + left;
    until.tv_sec += end / 1000000;
    until.tv_nsec = end % 1000000 * 1000;
    if (left > 0)
        while (sem_timedwait(&news, &until) != 0 && errno == EINTR)
            ;
}

static void *
watchdog_run(void *unused)
{
    wm_lock(&lock);
    while (atomic_load(&calls) > 0 || atomic_load(&look) != NULL) {
        bool is_asked = atomic_exchange(&asked, false);
        int64_t due = watchdog_look_lock_held(wm_engine_now(), is_asked);
        wakes_at = due;
        pthread_mutex_unlock(&lock);
        watchdog_sleep(due);
        wm_lock(&lock);
    }
    atomic_store(&running, false);
    pthread_mutex_unlock(&lock);
    return unused;
}

// Starts the thread, or wakes it if it would sleep beyond `due`. A thread that
// has nothing to watch stays until it wakes: one for each call would cost more
// than MPI's call.
static void
watchdog_wake_lock_held(int64_t due)
{
    static bool made;
    if (atomic_load(&running) && due < wakes_at)
        sem_post(&news);
    else if (!atomic_load(&running)
             && (made || (made = sem_init(&news, 0, 0) == 0)))
        atomic_store(&running, wm_thread_start(watchdog_run, NULL, NULL));
}

int
wm_watchdog_begin(MPI_Comm user, int64_t limit, const char *call,
                  const char *advice)
{
    int rank = 0, size = 0;
    wm_words_t words = {.length = 0};
    MPI_Comm_size(user, &size);
    if (limit == 0 || size < 2)
        return 0;
    MPI_Comm_rank(user, &rank);
    wm_words_add(&words, "rank %d of ", rank);
    wm_report_comm(&words, user);
    wm_words_add(&words, " (size %d): %s", size, call);
    wm_lock(&lock);
    int at = 0;
    while (at < WATCHED && watched[at].advice != NULL)
        ++at;
    if (at < WATCHED) {
        snprintf(watched[at].call, sizeof watched[at].call, "%.399s",
                 words.text);
        watched[at].advice = advice;
        watched[at].began = wm_engine_now();
        watched[at].due = watched[at].began + limit;
        atomic_fetch_add(&calls, 1);
        watchdog_wake_lock_held(watched[at].due);
    }
    pthread_mutex_unlock(&lock);
    return at < WATCHED ? at + 1 : 0;
}

void
wm_watchdog_end(int number)
{
    if (number == 0)
        return;
    wm_lock(&lock);
    watched[number - 1].advice = NULL;
    atomic_fetch_sub(&calls, 1);
    pthread_mutex_unlock(&lock);
}

int
wm_watchdog_count_makers(int change)
{
    int now = atomic_fetch_add(&makers, change) + change;
    int before = atomic_load(&most);
    while (now > before && !atomic_compare_exchange_weak(&most, &before, now))
        ;
    return atomic_load(&most);
}

bool
wm_watchdog_set_look(wm_watchdog_look_t *function)
{
    wm_lock(&lock); // not while the former one runs
    atomic_store(&look, function);
    if (function != NULL)
        watchdog_wake_lock_held(INT64_MIN);
    bool there = atomic_load(&running);
    pthread_mutex_unlock(&lock);
    return there;
}

bool
wm_watchdog_ask(bool idle)
{
    if (!atomic_load(&running)
        || !(atomic_load(&calls) > 0 || (idle && atomic_load(&look) != NULL)))
        return false;
    atomic_store(&asked, true);
    sem_post(&news);
    return true;
}
