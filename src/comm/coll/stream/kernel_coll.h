// SPDX-License-Identifier: BSD-3-Clause
// Collectives that are one kernel on each GPU. The kernel writes into the
// memory of others and waits for their data. Short calls use LL or LL128
// (array/ll.h), others Simple (array/simple.h), which are NCCL's protocols.
#ifndef WM_COMM_COLL_STREAM_KERNEL_COLL_H
#define WM_COMM_COLL_STREAM_KERNEL_COLL_H

#include "array/ll.h"
#include "array/simple.h"
#include "comm/coll/stream/coll_desc.h"
#include "comm/coll/direct/thresholds.h"
#include "comm/node/symm_memory.h"

// State of this rank's kernels, in GPU memory.
typedef struct {
    wm_ll_own_t ll;
    wm_simple_own_t simple;
} wm_kernel_coll_own_t;

// The LL and LL128 buffers of all ranks, which share a head and sequence
// numbers, and the FIFOs of Simple.
typedef struct {
    uint32_t rank, size;
    bool counted;      // the GPU counts exchanges, as in graphs
    uint32_t number;   // number of the last exchange by LL or LL128
    wm_block_t *block; // GPU memory of `own`
    wm_kernel_coll_own_t *own;
    wm_ll_rank_t few[WM_LL_FEW];
    wm_ll_t ll, ll128;          // ll128.nbytes 0: no LL128
    wm_thresholds_t thresholds; // the same on all ranks
    uint64_t before;            // bytes from the Simple head to the LL head
    wm_simple_t simple;
} wm_kernel_coll_t;

// The kernel that a rank runs for a call. The rank's word tells all values but
// the first, so that ranks in another kernel do not wait for this one.
typedef enum {
    WM_BY_LL = 0,
    WM_BY_LL128 = 1,
    WM_BY_SIMPLE = 2,
} wm_kernel_coll_way_t;

// Values of the stream words in a call. Our word becomes `begun` plus the way,
// and then `done`. Another rank has ended the call, or will never begin it,
// when its word, counted from where it began, is past `call` plus the way.
// `own` NULL, in graphs: there are no such words, all ranks share the abort
// flag, `call` is WM_LL_IN_GRAPH, and `done` the number of the capture.
typedef struct {
    uint32_t *own;
    uint32_t begun, done;
    uint32_t call;
} wm_kernel_coll_words_t;

// Bytes of a rank's memory for these kernels: the head and the FIFOs of
// Simple, LL128 buffers if there may be an NVLink, then the LL head with the
// LL buffers.
#define WM_KERNEL_COLL_BYTES ((size_t)54 << 20)
#define WM_KERNEL_COLL_BYTES_ON_HOST WM_PINNED_SYMM_BYTES

// Clears the memory before others write into it. Waits for the end.
WM_MUST_CHECK int
wm_kernel_coll_clear(const wm_symm_memory_t *symm, char *memory,
                     wm_error_t *err);

// Loads the kernels. This may wait for the device.
WM_MUST_CHECK int
wm_kernel_coll_prepare(int device, wm_error_t *err);

// Opens the exchange. The caller fills the word of each rank in `ranks`; this
// function fills the address of its LL memory.
WM_MUST_CHECK int
wm_kernel_coll_open(wm_kernel_coll_t *kernels, const wm_symm_memory_t *symm,
                    const wm_thresholds_t *thresholds, wm_ll_rank_t *ranks,
                    int rank, wm_error_t *err);

// Closes the exchange; no-op if it was not opened.
void
wm_kernel_coll_close(wm_kernel_coll_t *kernels);

// Enqueues the call on its stream. Not a barrier.
WM_MUST_CHECK int
wm_kernel_coll_enqueue(wm_kernel_coll_t *kernels, const wm_coll_desc_t *desc,
                       const wm_kernel_coll_words_t *words, wm_error_t *err);

// Enqueues it by Simple, for payloads of any length (simple_coll.c).
WM_MUST_CHECK int
wm_simple_coll_enqueue(const wm_kernel_coll_t *kernels,
                       const wm_coll_desc_t *desc,
                       const wm_kernel_coll_words_t *words, wm_error_t *err);

#endif
