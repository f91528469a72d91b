// SPDX-License-Identifier: BSD-3-Clause
// What the lowest modules call of those above them, which they do not know:
// one table, filled in src/comm/hooks.c.
#ifndef WM_COMM_ENGINE_HOOKS_H
#define WM_COMM_ENGINE_HOOKS_H

#include "comm/engine/op.h"

typedef struct {
    // When the engine starts, lock held; and how many ranks this host has.
    void (*begin)(void);
    int (*local_ranks)(void);
    // Before and after the steps of a round, lock held.
    void (*round)(void);
    // The progress thread, or without one whoever waits, now and then; whether
    // somebody waits.
    void (*serve)(bool waited);
    // For how long it may rest with nothing to do, in microseconds; 0: until
    // something is begun.
    int64_t (*rest)(void);
    // In MPI_Finalize, when that thread has ended; lock not held.
    void (*end)(void);
    // An operation was given an MPI request (lock held); that was let go.
    void (*requested)(const wm_op_t *op);
    void (*let_go)(const wm_op_t *op);
    // A communicator is made: settings are read (lock held), and before and
    // after all ranks wait for each other.
    int (*configure)(wm_error_t *err);
    void *(*wait_begin)(MPI_Comm user);
    void (*wait_end)(void *watchdog);
    // Its user has freed it; whether anything refers to it still (lock held);
    // nothing does: what modules have hung on it is freed.
    void (*freed)(wm_comm_t *comm);
    bool (*is_used)(const wm_comm_t *comm);
    void (*drop)(wm_comm_t *comm);
} wm_hooks_t;

extern const wm_hooks_t wm_hooks;

#endif
