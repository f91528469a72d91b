// SPDX-License-Identifier: BSD-3-Clause
// An operation: work under way from the call that began it to its end, such as
// one end of a message, a probe, or a request of MPI's. Each kind has a struct
// of its own that begins with this one. Reference-counted: the engine holds
// one reference while the operation is on its list, the caller one, its MPI
// request one. The engine lock protects the fields.
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

// The state of a caller's memory after the end was reported to the caller.
typedef enum {
    WM_DONE_TOLD = 1, // it may still be in use
    WM_DONE_ENDED,    // nobody uses it any more
} wm_done_t;

// The use that a step makes of MPI. Each use costs a round of MPI progress.
typedef enum {
    WM_ASKS_NOTHING = 0,
    WM_ASKS_TOO,
    WM_ASKS_ALONE, // it waits for MPI alone
} wm_asks_t;

typedef struct {
    bool received; // a message has come, or will: a status describes it
    bool cancelled;
    int source, tag;
    uint64_t nbytes; // bytes that fit into the buffer
} wm_result_t;

// The message or call of an operation, for reports.
typedef struct {
    bool is_message; // false: `performs`, or a call of MPI's own
    // The call of a window that `rank` performs, such as "Put"; NULL: none.
    const char *performs;
    bool receives;
    bool matched;    // a message has matched it
    int rank, tag;   // as given
    bool sized;      // the size of its buffer is known
    uint64_t nbytes; // that size
    wm_peer_t *peer; // NULL: not known yet
    uint64_t mark;   // changes whenever it makes progress
} wm_about_t;

// The functions of a kind of operation; NULL if a kind needs none.
typedef struct {
    // Makes one step. Returns true when the operation has ended: then the
    // engine reports the end to the caller, unless wm_op_complete() has, and
    // releases its reference.
    bool (*step)(wm_op_t *op);
    wm_asks_t (*asks)(const wm_op_t *op);
    void (*about)(const wm_op_t *op, wm_about_t *about);
    // Returns the caller's memory, which is released when nobody needs it.
    wm_buffer_t *(*buffer)(wm_op_t *op);
    // Cancels the operation if that is possible. Returns true if the result
    // will tell whether the cancellation was in time.
    bool (*cancel)(wm_op_t *op);
    // Called when the wait was interrupted. Returns true if the operation is
    // withdrawn, and ends. A message that still comes is put back for the next
    // receive.
    bool (*interrupt)(wm_op_t *op);
    // Forbids matching (`held`), or allows it again. Returns false if the
    // operation has matched, and must not be interrupted.
    bool (*hold)(wm_op_t *op, bool held);
    // Called on the caller's thread, without the lock, if `news` is set and
    // the operation is not done.
    void (*synchronize)(wm_op_t *op);
    // Fills MPI's part of the status, for calls of MPI's own.
    void (*status)(const wm_op_t *op, MPI_Status *status);
    void (*peer_died)(wm_op_t *op, const wm_peer_t *peer);
    // Frees the kind's resources; the operation itself is freed after that.
    void (*free)(wm_op_t *op);
} wm_op_kind_t;

struct wm_op {
    const wm_op_kind_t *kind;
    wm_op_t *next, *prev; // on the engine's list
    wm_op_t *finished;    // on the list of operations to release
    _Atomic int done;     // wm_done_t; 0: not done
    _Atomic int news;     // wakes the caller: done, or kind->synchronize
    _Atomic int references;
    bool holds_comm; // see wm_op_fail
    bool has_request;
    MPI_Request request;   // the generalized request
    _Atomic bool freed;    // MPI has freed that request
    _Atomic bool orphaned; // only MPI has a reference: see request.c
    wm_handle_t *handle;   // persistent request that ends with it, or NULL
    // NULL: no communicator. It may be freed once the operation has left the
    // engine's list, unless the operation has failed.
    wm_comm_t *comm;
    wm_op_t *parts_of[2]; // it ends after these; NULL: none
    wm_result_t result;
    wm_error_t error; // code 0: none; see wm_op_new
};

// Size of pooled operations: no operation is larger.
#define WM_OP_BYTES 2048

// Returns a new operation of `size` bytes, zeroed except for the text of the
// error, with one reference for the caller; NULL: out of memory.
void *
wm_op_new(const wm_op_kind_t *kind, size_t size, wm_comm_t *comm);

// Takes a reference.
void
wm_op_retain(wm_op_t *op);

// Releases a reference; the last one releases the buffer. Engine lock not
// held.
void
wm_op_release(wm_op_t *op);

// Releases the reference of a caller who knows of the end. Also releases the
// buffer if nobody uses it, since the thread that ended the operation may
// release its own reference later.
void
wm_op_release_told(wm_op_t *op);

// Reports the end to the caller before the operation has ended: sets done, and
// completes the MPI request. Lock held.
void
wm_op_complete(wm_op_t *op);

// Reports the end, when the operation has left the engine. Lock held.
void
wm_op_finish(wm_op_t *op);

// Returns true if the operation has left the engine's list. Then there may be
// no communicator any more. Lock held.
bool
wm_op_has_left(const wm_op_t *op);

// Sets op->error from `err`; the first error stays. The operation then holds
// its communicator until the last reference goes, as whoever waits for the
// operation tells the communicator's error handler. Does not report the end:
// see wm_op_complete().
void
wm_op_fail(wm_op_t *op, const wm_error_t *err);

// Returns the caller's memory; NULL if there is none, or if the parts have it.
wm_buffer_t *
wm_op_buffer(wm_op_t *op);

// Returns the operation itself or, if it has parts, the part that has not
// ended. wm_op_about() describes the same one.
const wm_op_t *
wm_op_message(const wm_op_t *op);

wm_about_t
wm_op_about(const wm_op_t *op);

// Returns the operation that stands for all messages that end in the call that
// begins them: one static object. The caller gets a reference.
wm_op_t *
wm_op_ended(void);

bool
wm_op_is_ended(const wm_op_t *op);

// Cancels an operation; see wm_op_kind_t. Engine lock not held.
bool
wm_op_cancel(wm_op_t *op);

#endif
