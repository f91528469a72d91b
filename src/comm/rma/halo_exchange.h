// SPDX-License-Identifier: BSD-3-Clause
// Halo exchange (wm.Halo): the edges of fields become the ghosts of the
// neighbours' fields. Fields in GPU memory that all ranks of the communicator
// map are copied by one kernel of each rank, and the kernels of neighbours
// order themselves (kernels/halo.h); other fields go by messages, which the
// caller sends. Fields that are exchanged together are a set. All ranks make
// its places known in the first exchange, and later ones meet nobody on the
// host. One thread at a time; GIL released by the caller where the functions
// are collective or enqueue; engine lock not held.
#ifndef WM_COMM_RMA_HALO_EXCHANGE_H
#define WM_COMM_RMA_HALO_EXCHANGE_H

#include "array/array.h"
#include "comm/comm/comm.h"
#include "comm/rma/halo_shape.h"

#define WM_HALO_FIELDS 16     // most fields in a set
#define WM_HALO_EXCHANGE (-1) // in place of an operation

#define WM_HALO_LINES_BYTES ((size_t)256 << 10) // most ghosts of a short one

typedef struct wm_halo wm_halo_t;
typedef struct wm_halo_set wm_halo_set_t;

// A field; all is borrowed.
typedef struct {
    const wm_array_t *array;
    const wm_pointer_t *memory;
    const wm_producer_t *producer;
} wm_halo_field_t;

// Makes a halo. `block`: cells of this rank's block, ghosts included, that
// staggered fields are compared with; NULL: no field is staggered. Keeps the
// communicator.
WM_MUST_CHECK int
wm_halo_new(wm_comm_t *comm, const wm_halo_shape_t *shape,
            const int64_t *block, wm_halo_t **made, wm_error_t *err);

// Waits for our streams, and frees everything. NULL: no-op.
void
wm_halo_free(wm_halo_t *halo);

// Frees likewise, but does not wait: if an exchange is under way, a later call
// of this module frees.
void
wm_halo_drop(wm_halo_t *halo);

// Finds the set of these fields; borrowed. Collective: on one host all ranks
// meet, and a rank that has failed calls it, too (`code`, with `err`). If all
// know their fields as those of one set, this takes a barrier; else the set is
// made: all ranks raise if the fields of one do not fit those of its
// neighbours. An array is the same if its memory, type, shape and strides are.
// In a capture a known set is found without the others. `op`: the operation
// of a reduction (array/reduce.h), WM_REDUCE_OPS for one that MPI computes, or
// WM_HALO_EXCHANGE.
WM_MUST_CHECK int
wm_halo_find_set(wm_halo_t *halo, const wm_halo_field_t *fields, int count,
                 int op, int device, CUstream stream, int code,
                 wm_halo_set_t **set, wm_error_t *err);

// Sets the bytes of ghosts up to which exchanges are short ones, by LL lines,
// for tests and benchmarks; the same on all ranks. Concerns new sets.
void
wm_halo_set_lines_limit(size_t nbytes);

// Returns the newest set of these fields, or the set with this number if the
// fields are its fields; NULL: there is none. Local.
wm_halo_set_t *
wm_halo_find(const wm_halo_t *halo, const wm_halo_field_t *fields, int count,
             int op);
wm_halo_set_t *
wm_halo_find_by_id(const wm_halo_t *halo, uint32_t id,
                   const wm_halo_field_t *fields, int count);

// Returns the set's number, for a plan, which keeps the set.
uint32_t
wm_halo_set_keep(wm_halo_set_t *set);

// Returns true if the caller sends messages for the set.
bool
wm_halo_set_by_messages(const wm_halo_set_t *set);

// Enqueues an exchange, or a reduction, of fields of the set: on a stream of
// `device`, in a capture or not, or, with `device` -1, on the stream of the
// fields' producer if they have one, else on one of ours that the fields'
// users are ordered behind.
WM_MUST_CHECK int
wm_halo_enqueue(wm_halo_t *halo, const wm_halo_set_t *set,
                const wm_halo_field_t *fields, int device, CUstream stream,
                wm_error_t *err);

// Begins an exchange on a stream of ours, behind the named stream or the
// producers, which do not wait for it; wm_halo_finish() makes the named
// stream, or later uses of the fields, wait for it. Fields that the library
// orders by itself wait from the start on.
WM_MUST_CHECK int
wm_halo_start(wm_halo_t *halo, const wm_halo_set_t *set,
              const wm_halo_field_t *fields, int device, CUstream stream,
              wm_error_t *err);
WM_MUST_CHECK int
wm_halo_finish(wm_halo_t *halo, const wm_halo_set_t *set,
               const wm_halo_field_t *fields, int device, CUstream stream,
               wm_error_t *err);

#endif
