// SPDX-License-Identifier: BSD-3-Clause
// Shared arrays (wm.shared_empty): an array of each rank, of any shape, that
// the GPUs, or the processes, of all ranks reach, with counters by which
// streams, kernels and the host signal each other (warpmpi/shared.cuh). All
// ranks make one together. Each drops it alone: the memory comes back once all
// have. An array outlives its communicator, whose end only ends the calls.
// GIL released by the caller, engine lock not held, where a call waits.
#ifndef WM_COMM_RMA_SHARED_ARRAY_H
#define WM_COMM_RMA_SHARED_ARRAY_H

#include <warpmpi/shared.cuh>

#include "array/array.h"
#include "comm/comm/comm.h"
#include "comm/node/symm_memory.h"

#define WM_SHARED_VALUE ((int64_t)1 << 48) // values are smaller

// What a rank wants.
typedef struct {
    wm_dtype_t dtype;
    int ndim;
    int64_t shape[WM_MAX_NDIM];
    int device;       // -1: the CPU
    int slots;        // alike on all ranks
    const char *call; // name of the call, for errors
    // Why this rank cannot take part; NULL: it can. Then all ranks raise.
    const char *failure;
} wm_shared_wish_t;

typedef struct wm_shared_array wm_shared_array_t;

// Makes an array; collective. If one rank fails, all raise; if one is out of
// memory, all raise WM_ERR_MEMORY.
WM_MUST_CHECK int
wm_shared_array_make(wm_comm_t *comm, const wm_shared_wish_t *wish,
                     wm_shared_array_t **made, wm_error_t *err);

// Waits until all ranks have called it; if one has failed, and why it has, all
// raise, and the rank itself WM_ERR_PYTHON.
WM_MUST_CHECK int
wm_shared_array_arrive(wm_shared_array_t *array, const char *failure,
                       wm_error_t *err);

// Gives the array up, when no object here refers to it any more. Never waits,
// neither for a rank nor for a GPU. Any thread, GIL held or not.
void
wm_shared_array_drop(wm_shared_array_t *array);

// Facts: the device (-1: the CPU), the number of slots, whether the memory is
// the host's, and a rank's array as a bare description, whose memory is that
// of this process.
int
wm_shared_array_rank(const wm_shared_array_t *array);
int
wm_shared_array_size(const wm_shared_array_t *array);
int
wm_shared_array_device(const wm_shared_array_t *array);
int
wm_shared_array_slots(const wm_shared_array_t *array);
bool
wm_shared_array_on_host(const wm_shared_array_t *array);
void
wm_shared_array_view(const wm_shared_array_t *array, int rank,
                     wm_array_t *view);

// The table of the ranks' addresses, and what device functions are given; both
// are where the device reaches them.
const wm_shared_t *
wm_shared_array_handle(const wm_shared_array_t *array);
void *const *
wm_shared_array_pointers(const wm_shared_array_t *array);

// Calls on a stream of the array's device; on the CPU they are done when they
// return. They can be captured. Values are 1 to WM_SHARED_VALUE - 1. Raise
// MPI's error once a rank has died, and WM_ERR_STATE once the communicator was
// freed.
WM_MUST_CHECK int
wm_shared_array_signal(wm_shared_array_t *array, int64_t rank, int64_t slot,
                       int64_t value, CUstream stream, wm_error_t *err);

// Waits until the slot has the value, and takes it from there if `takes`.
WM_MUST_CHECK int
wm_shared_array_wait(wm_shared_array_t *array, int64_t slot, int64_t value,
                     bool takes, CUstream stream, wm_error_t *err);

// Waits until all ranks have called it.
WM_MUST_CHECK int
wm_shared_array_barrier(wm_shared_array_t *array, CUstream stream,
                        wm_error_t *err);

#endif
