// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "comm/engine/child.h"

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

static bool running; // MPI was running when a child was last forked
static _Atomic bool child;
static int child_status; // GIL held

static void
before_fork(void)
{
    int begun = 0, ended = 1;
    MPI_Initialized(&begun);
    if (begun)
        MPI_Finalized(&ended);
    running = !ended;
}

static void
in_child(void)
{
    if (running)
        atomic_store(&child, true);
}

int
wm_child_watch(wm_error_t *err)
{
    return pthread_atfork(before_fork, NULL, in_child) == 0
               ? 0
               : wm_error_set(err, WM_ERR_STATE, 0,
                              "cannot register a fork handler");
}

bool
wm_is_child(void)
{
    return atomic_load_explicit(&child, memory_order_relaxed);
}

int
wm_child_refuse(wm_error_t *err)
{
    return !wm_is_child()
               ? 0
               : wm_error_set(err, WM_ERR_STATE, 0,
                              "MPI cannot be used in a forked child: use "
                              "multiprocessing's 'spawn' start method, or "
                              "start ranks by mpirun");
}

void
wm_child_set_status(int status)
{
    child_status = status;
}

void
wm_child_end(void)
{
    fflush(NULL);
    _exit(child_status);
}

void
wm_child_refuse_end(void)
{
    fputs("warpmpi: a forked child ends here, with status 1: MPI_Finalize() "
          "would never return in it. End it by sys.exit() or os._exit(), or "
          "use multiprocessing's 'spawn' start method\n",
          stderr);
    child_status = 1;
    wm_child_end();
}
