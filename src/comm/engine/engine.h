// SPDX-License-Identifier: BSD-3-Clause
// The engine: one lock and one list of operations a process. Whoever waits in
// our code advances all of them; under MPI_THREAD_MULTIPLE a progress thread,
// which never asks for the GIL, does when nobody is inside, and sleeps when
// there is nothing to do. Any thread; the GIL must be released by callers
// that wait, or take the lock: MPI may need it under the lock, for a reduction
// whose operation is a Python function.
#ifndef WM_COMM_ENGINE_ENGINE_H
#define WM_COMM_ENGINE_ENGINE_H

#include "comm/engine/op.h"

// Starts the engine at the first communicator; WM_ERR_STATE before MPI_Init
// and after MPI_Finalize.
WM_MUST_CHECK int
wm_engine_start(wm_error_t *err);

// Returns true if it was; until then there is no operation and no request of
// ours. Any thread.
bool
wm_engine_is_started(void);

// When ranks have been met: whether they have cores enough to spin.
void
wm_engine_count_cores(void);

// WM_ERR_STATE when MPI is not running: it was initialized, or has sessions.
WM_MUST_CHECK int
wm_engine_check(wm_error_t *err);

// The same where it was not initialized: the engine needs MPI_COMM_SELF, and
// to be told of MPI_Finalize.
WM_MUST_CHECK int
wm_engine_check_world(wm_error_t *err);

// The program has begun a session of MPI's (1), or finalized one (-1).
void
wm_engine_count_session(int change);

void
wm_engine_lock(void);

bool
wm_engine_try_lock(void);

void
wm_engine_unlock(void);

// Puts an operation on the list, with a reference of the engine's own. Lock
// held, or not.
void
wm_engine_add_lock_held(wm_op_t *op);
void
wm_engine_add(wm_op_t *op);

// A message was begun that nobody waits for yet: MPI is called now and then
// where many are.
void
wm_engine_begun_lock_held(void);

// Takes one off that could not begin; the reference passes to the caller.
void
wm_engine_remove_lock_held(wm_op_t *op);

// Tells all operations. Lock held.
void
wm_engine_peer_died(const wm_peer_t *peer);

// How many operations are under way; any thread.
int
wm_engine_active(void);

// Whether this is the progress thread, which must wait for no device: of what
// the program's streams may be waiting for it knows nothing.
bool
wm_engine_is_background(void);

// Returns true if this thread may wait for others: it is not the progress
// thread, and does not hold the lock.
bool
wm_engine_may_wait(void);

// After the lock was given back: wakes the progress thread if it sleeps for
// good. For operations that nobody waits for at once.
void
wm_engine_notify(void);

// The program is in our code, and needs nothing of the progress thread.
void
wm_engine_visit(void);

// Steps everything once, or not at all when another thread is at it. Of many
// operations that wait for MPI some are left to a later call.
void
wm_engine_poll(void);

// The same, and an operation is not left, nor what it waits for; NULL: none
// is. For who asks once, and may not come again for long.
void
wm_engine_look(const wm_op_t *op);

// Steps everything once, whoever else is at it.
void
wm_engine_step(void);

// The operations under way, linked by next. Lock held.
wm_op_t *
wm_engine_first(void);

// Whether what is under way goes on though nobody is in our code.
bool
wm_engine_is_threaded(void);

// Whether nobody waits, and no thread of ours has anything to step. Also for
// handlers of signals.
bool
wm_engine_is_idle(void);

// Microseconds of a clock that never goes back.
int64_t
wm_engine_now(void);

// One turn of waiting for something else: polls, and now and then lets others
// run. `turn` counts from 1.
void
wm_engine_turn(unsigned turn);

// Looks on while a thread waits: begin() when the wait is no longer short,
// then look(), now and then, without the lock; microseconds.
typedef struct wm_watcher {
    void (*begin)(struct wm_watcher *watcher, int64_t now);
    void (*look)(struct wm_watcher *watcher, const wm_op_t *op, int64_t now);
} wm_watcher_t;

// Advances everything until *flag is not 0. `interrupted`, unless NULL, is
// called with the operation every 50 ms or so and ends the wait when it
// returns true. Returns false where it did, or MPI is finalized, and not at
// all where the program is not alive then. See comm/diagnostics/wait.h.
bool
wm_engine_wait(const _Atomic int *flag, wm_op_t *op, wm_watcher_t *watcher,
               bool (*interrupted)(wm_op_t *op));

#endif
