// SPDX-License-Identifier: BSD-3-Clause
// The arguments of a collective on one rank. Borrows the buffers; any thread.
#ifndef WM_COMM_COLL_CALL_CALL_H
#define WM_COMM_COLL_CALL_CALL_H

#include "array/reduce.h"
#include "comm/coll/call/coll_table.h"
#include "comm/comm/comm.h"
#include "comm/engine/buffer.h"

// A part of a rank's memory.
typedef struct {
    size_t at, nbytes;
} wm_span_t;

typedef struct {
    wm_coll_kind_t kind;
    bool read; // the arguments were read, and the fields below are set
    // on_device: the buffers are memory of a GPU, contiguous or with gaps that
    // kernels step over. on_host: they are contiguous host memory that nobody
    // else uses. If both are false, no engine but MPI takes them. Offsets and
    // lengths do not count gaps.
    bool on_device, on_host;
    bool any_device; // some buffer is GPU memory; set if staging is refused
    const wm_buffer_t *send, *receive; // NULL: in place, or not used here
    int root;  // -1: the root is another rank of this group
    int split; // of the communicator; between groups, root is in the other one
    // Blocks by rank, for v-forms and for a scatter in place. NULL: all blocks
    // have the same length.
    const wm_span_t *sends, *receives;
    MPI_Datatype type; // element type, also for MPI, and its size in bytes
    size_t size;
    MPI_Op op;       // reduction
    bool averages;   // the result is divided; `op` is MPI_SUM
    bool elementary; // no datatype that was given is derived: MPI gets `type`
} wm_coll_t;

// Returns true if a rank sends in the call, or receives. Between groups, a
// rank of the root's group that is not the root does neither.
bool
wm_coll_sends(const wm_coll_t *call, int rank);

bool
wm_coll_receives(const wm_coll_t *call, int rank);

// Returns true if a rank reads what it receives over, or may leave some of it.
bool
wm_coll_keeps(const wm_coll_t *call, int rank);

// Returns the GPU of the buffers; for other memory, that of this rank; -1:
// none.
int
wm_coll_device(const wm_coll_t *call);

// Returns the GPU of all buffers; -1: they are not memory of one.
int
wm_coll_one_device(const wm_coll_t *call);

// Sets the kernels' names of the call's datatype and operation. Returns false
// if there are none.
bool
wm_coll_reducible(const wm_coll_t *call, wm_reduce_type_t *type,
                  wm_reduce_op_t *op);

// Returns true if received data lie over sent data on a GPU.
bool
wm_coll_overlap(const wm_buffer_t *send, const wm_buffer_t *receive);

#endif
