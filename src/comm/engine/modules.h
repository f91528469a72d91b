// SPDX-License-Identifier: BSD-3-Clause
// Modules of src/comm sign in here: a name in WM_MODULES and, in the module's
// own file, a row of the functions by which the engine and communicators,
// which are below the module, call the module. Unused functions are NULL.
#ifndef WM_COMM_ENGINE_MODULES_H
#define WM_COMM_ENGINE_MODULES_H

#include "comm/engine/op.h"

// In the order in which they are called.
#define WM_MODULES(X)                                                         \
    X(link)           /* link/link.c */                                       \
    X(eager)          /* protocol/eager.c */                                  \
    X(require)        /* comm/require.c */                                    \
    X(hang)           /* diagnostics/hang.c */                                \
    X(comm)           /* comm/comm.c */                                       \
    X(host_only)      /* comm/host_only.c */                                  \
    X(reclaim)        /* node/reclaim.c */                                    \
    X(node)           /* node/node.c: at the end, says that we leave */       \
    X(batch)          /* protocol/batch.c */                                  \
    X(fuse)           /* transfer/fuse.c */                                   \
    X(stream_failure) /* coll/stream/stream_failure.c */                      \
    X(graph_memory)   /* coll/call/graph_memory.c */                          \
    X(captured)       /* protocol/captured_match.c */                         \
    X(graph_waits)    /* diagnostics/graph_waits.c */                         \
    X(drain)          /* diagnostics/drain.c: then no operation is left */    \
    X(device_eager)   /* protocol/device_eager.c */                           \
    X(leftovers)      /* diagnostics/leftovers.c */                           \
    X(fault)          /* diagnostics/fault.c */                               \
    X(partitioned)    /* message/partitioned.c */                             \
    X(nonblocking)    /* coll/run/nonblocking.c */                            \
    X(coll_engines)   /* coll/run/coll_engines.c */                           \
    X(movers)         /* coll/movers/mover_comm.c */                          \
    X(stream_watch)   /* coll/run/stream_watch.c */                           \
    X(waiter)         /* rma/waiter.c */                                      \
    X(unexpected)     /* message/unexpected.c */

typedef struct {
    // begin: the engine starts; lock held.
    void (*begin)(void);
    // round: called before and after the steps of a round, if *queued is not 0
    // or queued is NULL; lock held.
    void (*round)(void);
    const uint32_t *queued;
    // serve: called now and then by the progress thread or, without one, by a
    // waiting thread. `waited` is true if a thread waits.
    void (*serve)(bool waited);
    // rest: returns the microseconds for which the progress thread may sleep
    // with nothing to do; 0: until an operation begins.
    int64_t (*rest)(void);
    // end: called in MPI_Finalize after the progress thread has ended; lock
    // not held.
    void (*end)(void);
    // With WARPMPI_CHECK only. requested: an operation got an MPI request
    // (lock held). request_freed: MPI has freed that request.
    void (*requested)(const wm_op_t *op);
    void (*request_freed)(const wm_op_t *op);
    // For a new communicator. configure: reads settings (lock held).
    // wait_begin, wait_end: called before and after all ranks wait for each
    // other.
    int (*configure)(wm_error_t *err);
    void (*wait_begin)(MPI_Comm user);
    void (*wait_end)(void);
    // retain, release: an operation refers to its communicator after the
    // engine's list no longer has the operation. Any thread.
    void (*retain)(wm_comm_t *comm);
    void (*release)(wm_comm_t *comm);
    // freed: the user has freed a communicator. is_used: returns true if
    // anything still refers to it (lock held). drop: nothing does; frees the
    // module's data.
    void (*freed)(wm_comm_t *comm);
    bool (*is_used)(const wm_comm_t *comm);
    void (*drop)(wm_comm_t *comm);
} wm_module_t;

#define X(name) extern const wm_module_t wm_##name##_module;
WM_MODULES(X)
#undef X

extern const wm_module_t *const wm_modules[]; // NULL ends them

// Calls a function, by its name in wm_module_t, of all modules.
#define WM_EACH_MODULE(function, ...)                                         \
    for (const wm_module_t *const *one = wm_modules; *one != NULL; ++one)     \
        if ((*one)->function != NULL)                                         \
    (*one)->function(__VA_ARGS__)

// Functions with more to do than that. The first error ends
// wm_modules_configure().
void
wm_modules_begin(void);
void
wm_modules_round(void);
int64_t
wm_modules_rest(void); // the shortest
WM_MUST_CHECK int
wm_modules_configure(wm_error_t *err);
bool
wm_modules_is_used(const wm_comm_t *comm);

#endif
