// SPDX-License-Identifier: BSD-3-Clause
// An operation: whatever is under way, from the call that began it to its end,
// as the engine and its caller see it: one end of a message, a probe, a
// request of MPI's. Each kind has a struct of its own that begins with this
// one. Reference-counted: the engine holds one while it is on the list, the
// caller one, its MPI request one. Fields are the engine lock's.
#ifndef WM_COMM_ENGINE_OP_H
#define WM_COMM_ENGINE_OP_H

#include <mpi.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/error.h"

typedef struct wm_op wm_op_t;
typedef struct wm_comm wm_comm_t;     // comm/comm/comm.h
typedef struct wm_peer wm_peer_t;     // comm/node/node.h
typedef struct wm_buffer wm_buffer_t; // comm/engine/buffer.h
typedef struct wm_handle wm_handle_t; // comm/engine/handle.h

// What a caller who has been told the end knows of the memory it was given.
typedef enum {
    WM_DONE_TOLD = 1, // it may still be in use
    WM_DONE_ENDED,    // nobody uses it any more
} wm_done_t;

// What a step does in MPI, which is a turn of MPI's each time.
typedef enum {
    WM_ASKS_NOTHING = 0,
    WM_ASKS_TOO,
    WM_ASKS_ALONE, // and can do nothing else
} wm_asks_t;

typedef struct {
    bool received; // a message, or it will be: a status tells of it
    bool cancelled;
    int source, tag;
    uint64_t nbytes; // that fit into the buffer
} wm_result_t;

// What an operation is of, for who tells of it.
typedef struct {
    bool is_message; // else a call of MPI's own
    bool receives;
    bool matched;    // a message has come for it
    int rank, tag;   // as given
    bool sized;      // the bytes of its buffer are known
    uint64_t nbytes; // they
    wm_peer_t *peer; // NULL: not known yet
    uint64_t mark;   // another one as soon as it is further
} wm_about_t;

// What differs; NULL for what a kind has nothing to say to.
typedef struct {
    // One step; true when it has ended: the engine tells the caller, unless he
    // was told before (wm_op_complete), and lets go of it.
    bool (*step)(wm_op_t *op);
    wm_asks_t (*asks)(const wm_op_t *op);
    void (*about)(const wm_op_t *op, wm_about_t *about);
    // The caller's memory, released when nobody needs it any more.
    wm_buffer_t *(*buffer)(wm_op_t *op);
    // Cancels what can be; whether the result tells if it was in time.
    bool (*cancel)(wm_op_t *op);
    // The wait for it was interrupted. Whether it is taken back, and ends; a
    // message that comes nevertheless is put back for the next.
    bool (*interrupt)(wm_op_t *op);
    // It shall match nothing now, or may again; false where it has matched,
    // and must not be interrupted.
    bool (*hold)(wm_op_t *op, bool held);
    // On the caller's thread, without the lock: `news`, and it is not done.
    void (*synchronize)(wm_op_t *op);
    // MPI's part of its status, of calls of MPI's own.
    void (*status)(const wm_op_t *op, MPI_Status *status);
    void (*peer_died)(wm_op_t *op, const wm_peer_t *peer);
    // Frees what it holds; the operation itself is freed behind it.
    void (*free)(wm_op_t *op);
} wm_op_kind_t;

struct wm_op {
    const wm_op_kind_t *kind;
    wm_op_t *next, *previous; // on the engine's list
    wm_op_t *finished;        // on the list of those to be let go
    _Atomic int done;         // wm_done_t, 0: not yet
    _Atomic int news; // wakes the waiting caller: done, or kind->synchronize
    _Atomic int references;
    bool has_request;
    MPI_Request request;   // the generalized one
    _Atomic bool freed;    // MPI has let go of that
    _Atomic bool orphaned; // MPI alone has a reference: see wm_request_orphan
    wm_handle_t *handle;   // a persistent request that ends with it, or NULL
    wm_comm_t *comm;       // NULL: of none
    wm_op_t *parts_of[2];  // it ends when these have
    wm_result_t result;
    wm_error_t error; // code 0: none; see wm_op_new
};

// What is kept for the next: no operation is larger.
#define WM_OP_BYTES 2048

// A new operation of `size` bytes, zeroed but for the text of the error, with
// one reference for the caller; NULL when memory is exhausted.
void *
wm_op_new(const wm_op_kind_t *kind, size_t size, wm_comm_t *comm);

void
wm_op_retain(wm_op_t *op);

// Gives back a reference; the last releases the buffer. Engine lock not held.
void
wm_op_release(wm_op_t *op);

// The reference of a caller who was told the end, and then has his buffer
// back: another thread that has told him may let go of the operation later.
void
wm_op_release_told(wm_op_t *op);

// Tells the caller the end, before the operation's own: sets done, completes
// the MPI request. Lock held.
void
wm_op_complete(wm_op_t *op);

// Likewise at its end, when it has left the engine. Lock held.
void
wm_op_end(wm_op_t *op);

// Sets op->error from `err`; the first error stays. Tells nobody: the end is
// told by wm_op_complete.
void
wm_op_fail(wm_op_t *op, const wm_error_t *err);

// The caller's memory; NULL where it has none, or its parts have it.
wm_buffer_t *
wm_op_buffer(wm_op_t *op);

// What it is of: of two parts, the one that has not ended.
const wm_op_t *
wm_op_message(const wm_op_t *op);

void
wm_op_about(const wm_op_t *op, wm_about_t *about);

// What stands for a message that ended as it began: one operation for all,
// never written. A reference for the caller.
wm_op_t *
wm_op_ended(void);

bool
wm_op_is_ended(const wm_op_t *op);

// Cancels what can be cancelled; see wm_op_kind_t. Engine lock not held.
bool
wm_op_cancel(wm_op_t *op);

#endif
