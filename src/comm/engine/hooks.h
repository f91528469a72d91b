// SPDX-License-Identifier: BSD-3-Clause
// Functions of upper modules that lower modules call: one table, filled in
// src/comm/hooks.c.
#ifndef WM_COMM_ENGINE_HOOKS_H
#define WM_COMM_ENGINE_HOOKS_H

#include "comm/engine/op.h"

typedef struct {
    // begin: the engine starts; lock held. local_ranks: returns the number of
    // ranks on this host.
    void (*begin)(void);
    int (*local_ranks)(void);
    // round: called before and after the steps of a round; lock held.
    void (*round)(void);
    // serve: called now and then by the progress thread or, without one, by a
    // waiting thread. `waited` is true if a thread waits.
    void (*serve)(bool waited);
    // rest: returns the microseconds for which the progress thread may sleep
    // with nothing to do; 0: until an operation begins.
    int64_t (*rest)(void);
    // end: called in MPI_Finalize after the progress thread has ended; lock
    // not held.
    void (*end)(void);
    // requested: an operation got an MPI request (lock held). request_freed:
    // MPI has freed that request.
    void (*requested)(const wm_op_t *op);
    void (*request_freed)(const wm_op_t *op);
    // For a new communicator. configure: reads settings (lock held).
    // wait_begin, wait_end: called before and after all ranks wait for each
    // other.
    int (*configure)(wm_error_t *err);
    void *(*wait_begin)(MPI_Comm user);
    void (*wait_end)(void *watchdog);
    // freed: the user has freed a communicator. is_used: returns true if
    // anything still refers to it (lock held). drop: nothing does; frees the
    // data of all modules.
    void (*freed)(wm_comm_t *comm);
    bool (*is_used)(const wm_comm_t *comm);
    void (*drop)(wm_comm_t *comm);
} wm_hooks_t;

extern const wm_hooks_t wm_hooks;

#endif
