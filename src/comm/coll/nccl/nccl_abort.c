// SPDX-License-Identifier: BSD-3-Clause
#define _POSIX_C_SOURCE 200809L // nanosleep
#include "comm/coll/nccl/nccl_abort.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "cuda/device.h"
#include "cuda/lock.h"

#define FINISH_US 500000
#define LOOK_US 1000

typedef struct {
    int device;
    wm_nccl_handle_t *handle, *parent;
} nccl_abort_t;

static _Atomic int running;

void
wm_nccl_abort_now(int device, wm_nccl_handle_t *handle,
                  wm_nccl_handle_t *parent)
{
    wm_scope_t scope;
    if (wm_device_enter(device, &scope, NULL) < 0)
        return; // the context is lost, and NCCL with it
    if (handle != NULL)
        (void)wm_nccl.CommAbort(handle);
    if (parent != NULL)
        (void)wm_nccl.CommAbort(parent);
    wm_device_leave(&scope);
}

static void *
nccl_abort_run(void *context)
{
    nccl_abort_t *abort = context;
    wm_nccl_abort_now(abort->device, abort->handle, abort->parent);
    free(abort);
    atomic_fetch_sub(&running, 1);
    return NULL;
}

void
wm_nccl_abort(int device, wm_nccl_handle_t *handle, wm_nccl_handle_t *parent)
{
    if (handle == NULL && parent == NULL)
        return;
    nccl_abort_t *abort = malloc(sizeof *abort);
    atomic_fetch_add(&running, 1);
    if (abort != NULL) {
        *abort = (nccl_abort_t){device, handle, parent};
        if (wm_thread_start(nccl_abort_run, abort, NULL))
            return;
        free(abort);
    }
    wm_nccl_abort_now(device, handle, parent); // else kernels never leave
    atomic_fetch_sub(&running, 1);
}

void
wm_nccl_abort_finish(void)
{
    for (int i = 0; i < FINISH_US / LOOK_US && atomic_load(&running) > 0; ++i)
        nanosleep(&(struct timespec){.tv_nsec = LOOK_US * 1000}, NULL);
}
