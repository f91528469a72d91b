// SPDX-License-Identifier: BSD-3-Clause
#define _POSIX_C_SOURCE 200809L // nanosleep
#include "comm/coll/movers/mover_abort.h"

#include <stdlib.h>
#include <time.h>

#include "comm/engine/engine.h"
#include "cuda/device.h"
#include "cuda/freeing.h"
#include "cuda/lock.h"

#define LOOK_US 1000

typedef struct mover_abort {
    struct mover_abort *next;
    const wm_movers_t *movers;
    int device;
    void *handle, *parent;
    const _Atomic int *graphs; // NULL: none
    int64_t begun;             // or when a graph was last seen
} mover_abort_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static mover_abort_t *list; // mutex
static _Atomic int count;   // of the list

void
wm_mover_abort_now(const wm_movers_t *movers, int device, void *handle,
                   void *parent)
{
    wm_scope_t scope;
    if (wm_device_enter(device, &scope, NULL) < 0)
        return; // the context is lost, and all that it has
    movers->abort(handle, parent);
    wm_device_leave(&scope);
}

static void
mover_abort_add(mover_abort_t *abort)
{
    wm_lock(&mutex);
    abort->next = list;
    list = abort;
    atomic_fetch_add(&count, 1);
    pthread_mutex_unlock(&mutex);
}

static void
mover_abort_remove(const mover_abort_t *abort)
{
    wm_lock(&mutex);
    mover_abort_t **at = &list;
    while (*at != abort)
        at = &(*at)->next;
    *at = abort->next;
    atomic_fetch_sub(&count, 1);
    pthread_mutex_unlock(&mutex);
}

static void *
mover_abort_run(void *context)
{
    mover_abort_t *abort = context;
    wm_mover_abort_now(abort->movers, abort->device, abort->handle,
                       abort->parent);
    mover_abort_remove(abort);
    free(abort);
    return NULL;
}

void
wm_mover_abort(const wm_movers_t *movers, int device, void *handle,
               void *parent, const _Atomic int *graphs)
{
    if (handle == NULL && parent == NULL)
        return;
    mover_abort_t *abort = malloc(sizeof *abort);
    if (abort != NULL) {
        *abort = (mover_abort_t){.movers = movers,
                                 .device = device,
                                 .handle = handle,
                                 .parent = parent,
                                 .graphs = graphs,
                                 .begun = wm_engine_now()};
        mover_abort_add(abort);
        if (wm_thread_start(mover_abort_run, abort, NULL))
            return;
        mover_abort_remove(abort);
        free(abort);
    }
    wm_mover_abort_now(movers, device, handle,
                       parent); // else kernels never leave
}

void
wm_mover_abort_forget(const _Atomic int *graphs)
{
    wm_lock(&mutex);
    for (mover_abort_t *abort = list; abort != NULL; abort = abort->next)
        if (abort->graphs == graphs)
            abort->graphs = NULL;
    pthread_mutex_unlock(&mutex);
}

bool
wm_mover_abort_frees(void)
{
    bool frees = false;
    if (atomic_load(&count) == 0)
        return false;
    int64_t now = wm_engine_now();
    wm_lock(&mutex);
    for (mover_abort_t *abort = list; abort != NULL; abort = abort->next)
        if (abort->graphs != NULL && atomic_load(abort->graphs) > 0)
            abort->begun = now;
        else
            frees |= now - abort->begun < WM_FREEING_US;
    pthread_mutex_unlock(&mutex);
    return frees;
}

void
wm_mover_abort_finish(void)
{
    if (!wm_mover_abort_frees())
        return;
    void *held = wm_gil_release();
    while (wm_mover_abort_frees())
        nanosleep(&(struct timespec){.tv_nsec = LOOK_US * 1000}, NULL);
    wm_gil_retake(held);
}
