// SPDX-License-Identifier: BSD-3-Clause
// Collectives as one kernel on each GPU, which writes into the others' memory
// and waits for what they write: short ones by LL and LL128 (array/ll.h), the
// others by Simple (comm/coll/simple_coll.h), which are NCCL's protocols.
#ifndef WM_COMM_COLL_KERNEL_COLL_H
#define WM_COMM_COLL_KERNEL_COLL_H

#include "array/ll.h"
#include "array/simple.h"
#include "comm/coll/coll_desc.h"
#include "comm/coll/thresholds.h"
#include "comm/coll/symm_memory.h"

// What this rank's kernels keep.
typedef struct {
    wm_ll_own_t ll;
    wm_simple_own_t simple;
} wm_kernel_coll_own_t;

// The LL and LL128 buffers of all ranks, which share their head and their
// numbers, and the FIFOs of Simple.
typedef struct {
    uint32_t rank, size;
    bool counted;      // on the GPU, as in graphs
    uint32_t number;   // of the last exchange by LL or LL128
    wm_block_t *block; // of the GPU, which is
    wm_kernel_coll_own_t *own;
    wm_ll_rank_t few[WM_LL_FEW];
    wm_ll_t ll, ll128;          // ll128.nbytes 0: none
    wm_thresholds_t thresholds; // alike on all ranks
    uint64_t before;            // bytes from the Simple head to the LL head
    wm_simple_t simple;
} wm_kernel_coll_t;

// Which kernel a rank is in, of a call. Its word tells all but the first, so
// that those who are in another do not wait for it.
typedef enum {
    WM_BY_LL = 0,
    WM_BY_LL128 = 1,
    WM_BY_SIMPLE = 2,
} wm_kernel_coll_way_t;

// The words of a call: ours is `begun` and the way, and then `done`; another's
// has reached `call` and more than the way, counted from where it began, when
// that rank has ended it or will never come to it. `own` NULL, as in graphs:
// none, and all ranks' words are one, which tells that all is over.
typedef struct {
    uint32_t *own;
    uint32_t begun, done;
    uint32_t call;
} wm_kernel_coll_words_t;

// A rank's memory for these kernels: the head and the FIFOs of Simple, LL128
// buffers if there may be a link, and then the LL head with the LL buffers.
#define WM_KERNEL_COLL_BYTES ((size_t)54 << 20)
#define WM_KERNEL_COLL_BYTES_ON_HOST WM_PINNED_SYMM_BYTES

// Before others write it; waits for that.
WM_MUST_CHECK int
wm_kernel_coll_clear(const wm_symm_memory_t *symm, char *memory,
                     wm_error_t *err);

// Loads the kernels, which may wait for the device.
WM_MUST_CHECK int
wm_kernel_coll_prepare(int device, wm_error_t *err);

// The caller fills the word of each rank in `ranks`; the address of the rank's
// LL memory is filled in here.
WM_MUST_CHECK int
wm_kernel_coll_open(wm_kernel_coll_t *exchange, const wm_symm_memory_t *symm,
                    const wm_thresholds_t *thresholds, wm_ll_rank_t *ranks,
                    int rank, wm_error_t *err);

// Also of one that was not opened.
void
wm_kernel_coll_close(wm_kernel_coll_t *exchange);

// Which ranks this one gives something to, and takes it from: all, or one, or
// those up to one, or from it on. Fills first and count.
void
wm_kernel_coll_ranks(const wm_coll_desc_t *desc, wm_ll_side_t *gives,
                     wm_ll_side_t *takes);

// Returns whether what is taken is reduced: of one block nothing is.
bool
wm_kernel_coll_reduces(const wm_coll_desc_t *desc, const wm_ll_side_t *takes);

// Gives it to the stream. Not a barrier.
WM_MUST_CHECK int
wm_kernel_coll_enqueue(wm_kernel_coll_t *exchange, const wm_coll_desc_t *desc,
                       const wm_kernel_coll_words_t *words, wm_error_t *err);

#endif
