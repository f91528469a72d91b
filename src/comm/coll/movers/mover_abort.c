// SPDX-License-Identifier: BSD-3-Clause
#define _POSIX_C_SOURCE 200809L // nanosleep
#include "comm/coll/movers/mover_abort.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "comm/engine/engine.h"
#include "cuda/device.h"
#include "cuda/lock.h"

#define FINISH_US 500000
#define LOOK_US 1000

typedef struct {
    const wm_movers_t *movers;
    int device;
    void *handle, *parent;
} mover_abort_t;

static _Atomic int running;
static _Atomic int64_t begun; // when the last one was

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

static void *
mover_abort_run(void *context)
{
    mover_abort_t *abort = context;
    wm_mover_abort_now(abort->movers, abort->device, abort->handle,
                       abort->parent);
    free(abort);
    atomic_fetch_sub(&running, 1);
    return NULL;
}

void
wm_mover_abort(const wm_movers_t *movers, int device, void *handle,
               void *parent)
{
    if (handle == NULL && parent == NULL)
        return;
    mover_abort_t *abort = malloc(sizeof *abort);
    atomic_store(&begun, wm_engine_now());
    atomic_fetch_add(&running, 1);
    if (abort != NULL) {
        *abort = (mover_abort_t){movers, device, handle, parent};
        if (wm_thread_start(mover_abort_run, abort, NULL))
            return;
        free(abort);
    }
    wm_mover_abort_now(movers, device, handle,
                       parent); // else kernels never leave
    atomic_fetch_sub(&running, 1);
}

void
wm_mover_abort_finish(void)
{
    while (atomic_load(&running) > 0
           && wm_engine_now() - atomic_load(&begun) < FINISH_US)
        nanosleep(&(struct timespec){.tv_nsec = LOOK_US * 1000}, NULL);
}
