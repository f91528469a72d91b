// SPDX-License-Identifier: BSD-3-Clause
// Halo exchange (wm.Halo): the edges of fields become the ghosts of the
// neighbours' fields. Fields in GPU memory that all ranks of the communicator
// map are copied by one kernel of each rank, and the kernels of neighbours
// order themselves (kernels/halo.h); other fields go by messages, which the
// caller sends. Fields that are exchanged together are a set. All ranks make
// its places known in the first exchange. In later ones they only agree, at a
// barrier, that all have the set; plans and captures have agreed before.
// Threads take turns in the calls of a halo. GIL released by the caller,
// engine lock not held.
#ifndef WM_COMM_RMA_HALO_EXCHANGE_H
#define WM_COMM_RMA_HALO_EXCHANGE_H

#include "array/array.h"
#include "comm/comm/comm.h"
#include "comm/rma/halo_shape.h"

#define WM_HALO_FIELDS 16     // most fields in a set
#define WM_HALO_EXCHANGE (-1) // in place of an operation

typedef struct wm_halo wm_halo_t;
// A field; all is borrowed.
typedef struct {
    const wm_array_t *array;
    const wm_pointer_t *memory;
    const wm_producer_t *producer;
} wm_halo_field_t;

typedef enum {
    // On a stream of `device`, in a capture or not, or, with `device` -1, on
    // the stream of the fields' producer if they have one, on a captured one
    // of several, else on one of ours that the fields' users are ordered
    // behind.
    WM_HALO_ENQUEUE,
    // On a stream of ours, behind the named stream or the producers, which do
    // not wait for it. Fields that the library orders by itself wait.
    WM_HALO_START,
    // Makes the named stream, or later uses of the fields, wait for that.
    WM_HALO_FINISH,
    // Only makes the set, for a plan, which keeps it.
    WM_HALO_PREPARE,
} wm_halo_step_t;

// A call; all is borrowed.
typedef struct {
    wm_halo_step_t step;
    const wm_halo_field_t *fields;
    int count;
    // The operation of a reduction (array/reduce.h), WM_REDUCE_OPS for one
    // that MPI computes, or WM_HALO_EXCHANGE.
    int op;
    int device; // -1: no stream is named
    CUstream stream;
} wm_halo_call_t;

// The set of a call.
typedef struct {
    bool by_messages; // nothing is enqueued: the caller sends messages
    uint32_t id;
} wm_halo_found_t;

// Makes a halo. `block`: cells of this rank's block, ghosts included, that
// staggered fields are compared with; NULL: no field is staggered. `lines`:
// bytes of ghosts up to which an exchange is a short one, by LL lines, the
// same on all ranks; -1: as is best. Keeps the communicator.
WM_MUST_CHECK int
wm_halo_new(wm_comm_t *comm, const wm_halo_shape_t *shape,
            const int64_t *block, int64_t lines, wm_halo_t **made,
            wm_error_t *err);

// Frees everything, once no exchange is under way and no graph with one is
// left: that may be a later call of this module. wm_halo_free() first waits
// for the exchanges. NULL: no-op.
void
wm_halo_free(wm_halo_t *halo);
void
wm_halo_drop(wm_halo_t *halo);

// Makes a call. Collective: on one host all ranks take part, and a rank that
// has failed calls it, too (`code`, with `err`). If all know their fields as
// those of one set, this takes a barrier; else the set is made: all ranks
// raise if the fields of one do not fit those of its neighbours. An array is
// the same if its memory, type, shape and strides are. In a capture no rank
// waits for another: WM_ERR_STATE if this rank does not know the set, and
// other errors are raised on this rank alone. The capture is that of the named
// stream, or of one that produces a field, also of the other fields.
WM_MUST_CHECK int
wm_halo_run(wm_halo_t *halo, const wm_halo_call_t *call, int code,
            wm_halo_found_t *found, wm_error_t *err);

// Makes a call with a set that all ranks know, without them: that with this
// number, of a plan, or for 0 the newest one of the fields. Raises
// WM_ERR_STATE if the fields are not those of the set.
WM_MUST_CHECK int
wm_halo_repeat(wm_halo_t *halo, const wm_halo_call_t *call, uint32_t id,
               wm_halo_found_t *found, wm_error_t *err);

#endif
