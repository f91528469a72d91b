// SPDX-License-Identifier: BSD-3-Clause
// Atomic updates of memory that other devices, and the host, update at the
// same time: target = target op source, element by element, as MPI's
// Accumulate, Fetch_and_op and Compare_and_swap. The parameters of the kernels
// wm_atomic_<name>. Shared by C and CUDA.
#ifndef WM_KERNELS_ATOMIC_H
#define WM_KERNELS_ATOMIC_H

#include <stdint.h>

#define WM_ATOMIC_BYTES 8 // largest element

// The size of an element divides dst; the other addresses may be any.
typedef struct {
    char *dst;
    const char *src;
    const char *compare; // elements that differ from these stay; NULL: all
    char *fetched;       // gets the elements before the update; NULL: nothing
    uint64_t count;
    uint32_t op;
} wm_atomic_params_t;

#ifdef __cplusplus
#include "kernels/kernel.h"

// Swap a word if it has the expected value, at once for the whole system.
// Return the value that it had.
#ifdef __CUDACC__
WM_DEVICE uint32_t
wm_swap_system(uint32_t *word, uint32_t expected, uint32_t value)
{
    return atomicCAS_system(word, expected, value);
}

WM_DEVICE uint64_t
wm_swap_system(uint64_t *word, uint64_t expected, uint64_t value)
{
    return atomicCAS_system((unsigned long long *)word, expected, value);
}
#else
template <typename word_t>
WM_DEVICE word_t
wm_swap_system(word_t *word, word_t expected, word_t value)
{
    __atomic_compare_exchange_n(word, &expected, value, false,
                                __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return expected;
}
#endif
#endif

#endif
