// SPDX-License-Identifier: BSD-3-Clause
// The engine: one lock and one list of operations for each process. Any thread
// that waits in our code advances all operations. Under MPI_THREAD_MULTIPLE a
// progress thread does so when no thread is in our code; it never asks for the
// GIL, and sleeps when there is nothing to do. Any thread. Callers that wait,
// or take the lock, must not hold the GIL: MPI may need it under the lock, for
// a reduction whose operation is a Python function.
#ifndef WM_COMM_ENGINE_ENGINE_H
#define WM_COMM_ENGINE_ENGINE_H

#include "comm/engine/op.h"

// Starts the engine for the first communicator. Returns WM_ERR_STATE before
// MPI_Init and after MPI_Finalize.
WM_MUST_CHECK int
wm_engine_start(wm_error_t *err);

// Returns true if the engine was started; before that there is no operation
// and no request of ours. Any thread.
bool
wm_engine_is_started(void);

// Finds out if ranks have enough cores to spin: `ranks` of this machine, and
// of these `beside` in this process's container, whose quota they share.
// Called when more ranks are known. Lock held.
void
wm_engine_count_cores(int ranks, int beside);

// Returns WM_ERR_STATE if MPI is not running: it must be initialized, or have
// sessions.
WM_MUST_CHECK int
wm_engine_check(wm_error_t *err);

// Returns WM_ERR_STATE also if MPI has sessions only: the engine needs
// MPI_COMM_SELF, and must know of MPI_Finalize.
WM_MUST_CHECK int
wm_engine_check_world(wm_error_t *err);

// Counts a session of MPI that the program has begun (1) or finalized (-1).
void
wm_engine_count_session(int change);

// Takes the lock. The thread that holds it may take it again, so a step of an
// operation may begin others; it then waits for none.
void
wm_engine_lock(void);

// Takes the lock if it is free; else returns false, also if this thread holds
// it.
bool
wm_engine_try_lock(void);

void
wm_engine_unlock(void);

// Adds an operation to the list, with a reference for the engine. Lock held,
// or not.
void
wm_engine_add_lock_held(wm_op_t *op);
void
wm_engine_add(wm_op_t *op);

// Notes that a message was begun for which nobody waits yet. Every few such
// messages, MPI gets a call.
void
wm_engine_begun_lock_held(void);

// Removes an operation that could not begin; its reference passes to the
// caller.
void
wm_engine_remove_lock_held(wm_op_t *op);

// Tells all operations that a peer has died. Lock held.
void
wm_engine_peer_died(const wm_peer_t *peer);

// Returns the number of operations under way; any thread.
int
wm_engine_active(void);

// Returns true on the progress thread. That must wait for no device: it does
// not know what the program's streams are waiting for.
bool
wm_engine_is_background(void);

// Returns true if this thread may wait for others: it is not the progress
// thread, and does not hold the lock.
bool
wm_engine_may_wait(void);

// Wakes the progress thread if it sleeps without an end. Called after the lock
// was released, for operations that nobody waits for at once.
void
wm_engine_notify(void);

// Notes that the program is in our code, and does not need the progress
// thread.
void
wm_engine_visit(void);

// Steps all operations once; no-op if another thread holds the lock. If many
// operations wait for MPI, some are left to a later call.
void
wm_engine_poll(void);

// Steps all operations likewise, but never leaves out `op`, nor its parts;
// NULL: leaves out none. For callers who ask once, and may not come again for
// long.
void
wm_engine_look(const wm_op_t *op);

// Steps all operations once, even if it must wait for the lock.
void
wm_engine_step(void);

// Returns the first operation under way; linked by next. Lock held.
wm_op_t *
wm_engine_first(void);

// Returns true if operations go on while no thread is in our code.
bool
wm_engine_is_threaded(void);

// Returns true if no thread waits, and no thread of ours has an operation to
// step. Signal handlers may call it.
bool
wm_engine_is_idle(void);

// Returns true if a thread waits.
bool
wm_engine_is_entered(void);

// Returns microseconds of a clock that never goes back.
int64_t
wm_engine_now(void);

// Between two reports of a long wait.
#define WM_REPORT_AGAIN_US 60000000

// Makes one turn of a wait for something else: polls, and now and then yields
// the core. `turn` counts from 1.
void
wm_engine_turn(unsigned turn);

// Observes a waiting thread, without the lock: begin() when the wait is no
// longer short, then look(), now and then. `now` is in microseconds.
typedef struct wm_watcher {
    void (*begin)(struct wm_watcher *watcher, int64_t now);
    void (*look)(struct wm_watcher *watcher, const wm_op_t *op, int64_t now);
} wm_watcher_t;

// Advances all operations until *flag is not 0. `interrupted`, unless NULL, is
// called with the operation about every 50 ms, and ends the wait if it returns
// true. Returns false if interrupted or if MPI was finalized; never returns
// once the program has ended. See comm/diagnostics/wait.h.
bool
wm_engine_wait(const _Atomic int *flag, wm_op_t *op, wm_watcher_t *watcher,
               bool (*interrupted)(wm_op_t *op));

#endif
