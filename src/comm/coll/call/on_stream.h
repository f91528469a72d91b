// SPDX-License-Identifier: BSD-3-Clause
// The functions of an engine (coll_engine.h) for the caller's stream.
#ifndef WM_COMM_COLL_CALL_ON_STREAM_H
#define WM_COMM_COLL_CALL_ON_STREAM_H

#include "comm/coll/call/call.h"

// A stream of the caller's.
typedef struct {
    int device;
    CUstream stream;
    uint64_t capture; // see wm_stream_capture(); 0: it is not captured
    bool *given; // between hosts: set when work is given for which others wait
} wm_coll_stream_t;

// An engine that does calls on the caller's stream, where no rank waits on the
// host for another one. `state`: of its open(); NULL: it is not open.
typedef struct {
    // Its calls may be captured into a graph. `unopened`: also before it is
    // open, so that a capture does not open it.
    bool captures, unopened;
    // The progress thread looks after its calls until they have ended.
    bool watches;
    // Returns the error that this rank's arguments have for the engine: in a
    // call that opens it, so that all raise before. NULL: enqueue() finds all.
    int (*check)(wm_comm_t *comm, const wm_coll_t *call,
                 const wm_coll_stream_t *on, wm_error_t *err);
    // Enqueues a call. `call` is NULL if this rank's arguments are wrong and
    // `err` is written. On one host the others must hear of it, in this call
    // or, if another engine does this call there, in the next one of this
    // engine. Between hosts a notice tells them (stream_calls.h), and the rank
    // only takes part in what all do together.
    int (*enqueue)(wm_comm_t *comm, void *state, const wm_coll_t *call,
                   const wm_coll_stream_t *on, wm_error_t *err);
    // For the request of a call. place: marks the last call. look: the stream
    // has passed that call; returns its error, 0, or 1 to be called again.
    // fail: no request was made after all.
    uint64_t (*place)(const wm_comm_t *comm, const void *state);
    int (*look)(wm_comm_t *comm, void *state, uint64_t place, wm_error_t *err);
    void (*fail)(wm_comm_t *comm);
    // Raises, once, the error of a call that has ended on its stream. Cheap.
    // NULL: its calls raise all their errors.
    int (*find_failure)(wm_comm_t *comm, void *state, wm_error_t *err);
    // Raises, once, such an error of any communicator, also of a freed one: a
    // wait for a stream or a device has ended. Any thread; no locks. any:
    // returns false if there can be none; cheap. NULL: as above.
    bool (*any)(void);
    int (*find_failures)(wm_error_t *err);
} wm_coll_on_stream_t;

#endif
