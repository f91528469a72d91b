// SPDX-License-Identifier: BSD-3-Clause
// An engine of collectives: one way to do a call, such as kernels of all GPUs,
// or MPI. Each is a row, whose functions are in a file of the engine, and a
// name in WM_COLL_ENGINE_ROWS; coll_engines.c chooses one for each call.
// docs/design.md, "Adding an engine of collectives", tells what each function
// must promise. NULL: the engine needs no such function.
//
// Locks: a blocking call calls these functions without the lock of the
// progress engine (engine.h), unless it has waited long. A nonblocking one
// calls them with the lock, but for prepare, and a schedule's task all of
// them: then none may wait. A function that needs the lock takes it again.
#ifndef WM_COMM_COLL_CALL_COLL_ENGINE_H
#define WM_COMM_COLL_CALL_COLL_ENGINE_H

#include "comm/coll/call/call.h"
#include "comm/coll/call/on_stream.h"

#ifdef WM_TOYS // tests/toys
#define WM_COLL_TOYS(X) X(ring) X(gpu_ring) X(toy_movers)
#else
#define WM_COLL_TOYS(X)
#endif

// In order of preference. The last one, MPI, can do every call.
#define WM_COLL_ENGINE_ROWS(X)                                                \
    X(hierarchy) /* coll/hierarchy/hierarchy_engine.c */                      \
    WM_COLL_TOYS(X)                                                           \
    X(copies)  /* coll/direct/copies.c */                                     \
    X(kernels) /* coll/stream/kernels_engine.c */                             \
    X(nccl)    /* coll/nccl/nccl_engine.c */                                  \
    X(mpi)     /* coll/mpi/mpi_engine.c */

// The number of each row, which is that of its bit.
enum {
#define X(name) WM_COLL_NUMBER_##name,
    WM_COLL_ENGINE_ROWS(X)
#undef X
};

typedef struct wm_coll_op wm_coll_op_t; // comm/coll/direct/coll_op.h

// The facts of a call that all its ranks know alike. type, op: of a reduction
// that kernels know, as engines do no others; else 0.
typedef struct {
    const wm_comm_t *comm; // whose engines that span it are known
    wm_coll_kind_t kind;
    wm_reduce_type_t type;
    wm_reduce_op_t op;
} wm_coll_facts_t;

// The memory that an engine takes in a call; both buffers are alike.
enum {
    WM_COLL_TAKES_DEVICE = 1, // of a GPU
    WM_COLL_TAKES_HOST = 2,   // contiguous memory that no GPU is using
    WM_COLL_TAKES_GAPS = 4,   // of a GPU, also with gaps
    WM_COLL_TAKES_ALL = 7,
};

// The forms of a collective, whose calls have numbers of their own; a
// persistent one, when it is made, has one among the blocking ones. Calls on a
// stream are a fourth form, without numbers and without a wm_coll_op_t.
typedef enum {
    WM_COLL_FORM_BLOCKING,
    WM_COLL_FORM_NONBLOCKING,
    WM_COLL_FORM_PERSISTENT,
    WM_COLL_FORM_TASK, // of a blocking call's schedule: its callers wait
} wm_coll_form_t;

// The result of a call, or of a step.
typedef enum {
    // MPI's function has failed: err->detail is its error, which tells no
    // more.
    WM_COLL_MPIS_ERROR = -100,
    WM_COLL_FAILED = -1, // or another wm_code_t: the error is written
    WM_COLL_DONE = 0,    // or begun, by functions that begin a call
    // mpi4py must do it by MPI, as the core does not read the arguments: the
    // ranks have agreed so, or need not agree, as MPI does all such calls.
    WM_COLL_BY_MPI,
    WM_COLL_UNNUMBERED,
    WM_COLL_UNDER_WAY, // step again
} wm_coll_result_t;

// An engine that keeps a call between two starts of a persistent collective.
typedef struct {
    // Returns true if the next start may restart this call, which was done.
    // All ranks alike.
    bool (*repeats)(const wm_coll_op_t *op);
    // Between starts the call holds up nobody. Returns false if it cannot be
    // kept on this rank.
    bool (*rest)(wm_coll_op_t *op);
    // Returns true if the call is ready to restart, with the same memory.
    bool (*resume)(wm_coll_op_t *op);
    // Starts it again, after all ranks have resumed theirs.
    void (*restart)(wm_coll_op_t *op, wm_barrier_t *barrier);
} wm_coll_restart_t;

// A library that an engine calls, opened at run time.
typedef struct {
    const char *title; // as people know it
    const char *cure;  // what to do where it is missing, or not alike
    // Opens it. *version: such as "2.28.9"; *path: where it was found; both
    // live as long as the process. Fails with the reason: there is none.
    int (*find)(const char **version, const char **path, wm_error_t *err);
} wm_coll_library_t;

typedef struct {
    const char *name;                 // as reports tell it
    const wm_coll_library_t *library; // NULL: it needs none
    // Its nonblocking calls must start in one order on all ranks: each waits
    // until the one before has set op->begun.
    bool in_order;
    // Orders its work behind the buffers' users itself; else `direct` of the
    // participant does (direct.h).
    bool orders;
    unsigned takes; // WM_COLL_TAKES_…
    // Returns true if the engine does such calls. NULL: it does all.
    bool (*does)(const wm_coll_facts_t *facts);
    // Returns true if the engine may serve calls of a communicator: by facts
    // that all its ranks know alike.
    bool (*spans)(const wm_comm_t *comm);
    // Opens the engine for a communicator: collective, in the first blocking
    // call that all ranks leave to it, in the first call on a stream, or when
    // a persistent call is made. Nonblocking calls use open engines alone.
    // `device`: the GPU of the call on this rank; -1: none. Ranks exchange
    // data by wm_coll_gather(). *state is the engine's, NULL at first. If it
    // fails on one rank, no rank uses the engine there, unless a call on a
    // stream finds no other one: then this call raises, and the next one opens
    // it again. NULL: it is open.
    int (*open)(wm_comm_t *comm, int device, void **state, wm_error_t *err);
    // Ends, after a failure on some rank, what waits on streams for other
    // ranks: no call of the engine follows. Engine lock held. NULL: nothing.
    void (*revoke)(wm_comm_t *comm, void *state, const wm_error_t *why);
    // Called when nobody uses the communicator any more, on each rank on its
    // own; also, with the `state` NULL, if the engine was never opened.
    void (*comm_drop)(wm_comm_t *comm, void *state);
    // Called when a wait for a call of the engine has failed, as by a dead
    // rank; for calls on a stream, now and then. Looks for dead ranks and ends
    // what waits for them. May come more than once.
    void (*abort)(wm_comm_t *comm, void *state);
    // Returns true if the engine can serve this rank in a call of this form
    // (state: of open(), NULL if it is not open),
    // which it does, and whose memory it takes, as far as is known without
    // work. Cheap.
    bool (*serves)(const wm_coll_op_t *op, const void *state);
    // Begins to make this rank's data ready for an engine that serves it, and
    // fills what others need to know of it. Clears the engine's bit of
    // op->engines if the engine cannot serve this rank after all. On an error
    // the rank still takes part.
    int (*prepare)(wm_coll_op_t *op, unsigned bit, wm_error_t *err);
    // Returns 1 when the data may be published, 0 if not yet, or an error.
    int (*is_ready)(wm_coll_op_t *op, wm_error_t *err);
    // Starts the call, once all ranks have chosen this engine and compared
    // their arguments. Does not wait, except MPI's row in a blocking call.
    // WM_COLL_BY_MPI, on all ranks alike: MPI does the call after all; of
    // MPI's row: mpi4py does.
    wm_coll_result_t (*start)(wm_coll_op_t *op, wm_error_t *err);
    // Goes on after WM_COLL_UNDER_WAY; never waits. *waits becomes true if
    // nothing more can be done now. The rank reports op->wrong at the end.
    wm_coll_result_t (*step)(wm_coll_op_t *op, bool *waits, wm_error_t *err);
    // Frees what start() took, also in the middle of a call after an error:
    // then first waits for work that uses the caller's memory.
    void (*drop)(wm_coll_op_t *op);
    const wm_coll_restart_t *restart;
    const wm_coll_on_stream_t *on_stream;
} wm_coll_engine_t;

#define X(name) extern const wm_coll_engine_t wm_##name##_engine;
WM_COLL_ENGINE_ROWS(X)
#undef X

#endif
