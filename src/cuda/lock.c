// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "cuda/lock.h"

#include <signal.h>
#include <stddef.h>

static void *(*let_go)(void);
static void (*take_back)(void *held);
static bool (*is_alive)(void);

void
wm_lock_set_holder(void *(*letting_go)(void), void (*taking_back)(void *),
                   bool (*alive)(void))
{
    let_go = letting_go;
    take_back = taking_back;
    is_alive = alive;
}

bool
wm_holder_is_alive(void)
{
    return is_alive == NULL || is_alive();
}

void *
wm_gil_release(void)
{
    return let_go != NULL ? let_go() : NULL;
}

void
wm_gil_retake(void *held)
{
    if (held != NULL)
        take_back(held);
}

// A thread that waits for the GIL does not hold this lock: a process that ends
// may never give the GIL. It still holds other locks of the caller.
void
wm_lock(pthread_mutex_t *mutex)
{
    while (pthread_mutex_trylock(mutex) != 0) {
        void *held = wm_gil_release();
        pthread_mutex_lock(mutex);
        if (held == NULL)
            return;
        pthread_mutex_unlock(mutex);
        wm_gil_retake(held);
    }
}

bool
wm_thread_start(void *(*run)(void *), void *context, pthread_t *joined)
{
    pthread_t thread;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    bool started = pthread_create(&thread, NULL, run, context) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (started && joined != NULL)
        *joined = thread;
    else if (started)
        pthread_detach(thread);
    return started;
}
