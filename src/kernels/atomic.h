// SPDX-License-Identifier: BSD-3-Clause
// Atomic updates of memory that other devices, and the host, update at the
// same time: target = target op source, element by element, as MPI's
// Accumulate, Fetch_and_op and Compare_and_swap. The parameters of the kernels
// wm_atomic_<name>. Shared by C and CUDA.
#ifndef WM_KERNELS_ATOMIC_H
#define WM_KERNELS_ATOMIC_H

#include "kernels/signal.h"

#define WM_ATOMIC_BYTES 8 // largest element
#define WM_ATOMIC_NDIM 32

// The size of an element divides dst and the strides; the other addresses may
// be any.
typedef struct {
    char *dst;
    const char *src;
    const char *compare; // elements that differ from these stay; NULL: all
    char *fetched;       // gets the elements before the update; NULL: nothing
    uint64_t count;
    uint32_t op;
    int32_t ndim; // of the target, the slowest first; 0: no gaps
    uint64_t shape[WM_ATOMIC_NDIM];
    int64_t strides[WM_ATOMIC_NDIM]; // bytes
    wm_signal_t signal;
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

// Add to a number at once for the whole system, where nobody asks for the
// value before. Hardware takes subnormal float32 numbers for zero.
WM_DEVICE void
wm_add_system(uint32_t *number, uint32_t value)
{
    atomicAdd_system(number, value);
}

WM_DEVICE void
wm_add_system(uint64_t *number, uint64_t value)
{
    atomicAdd_system((unsigned long long *)number, value);
}

WM_DEVICE void
wm_add_system(float *number, float value)
{
    atomicAdd_system(number, value);
}

WM_DEVICE void
wm_add_system(double *number, double value)
{
    atomicAdd_system(number, value);
}

// Adds to four numbers, each at once; 16 divides the address.
WM_DEVICE void
wm_add_four_system(float *numbers, float4 values)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.sys.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(__cvta_generic_to_global(numbers)), "f"(values.x),
                   "f"(values.y), "f"(values.z), "f"(values.w)
                 : "memory");
#else
    atomicAdd_system(numbers, values.x);
    atomicAdd_system(numbers + 1, values.y);
    atomicAdd_system(numbers + 2, values.z);
    atomicAdd_system(numbers + 3, values.w);
#endif
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
