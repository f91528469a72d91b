// SPDX-License-Identifier: BSD-3-Clause
// The primitives of kernels, each with a device body (nvcc) here and a host
// body (g++, for the simulated driver) in kernel_host.h. A kernel takes one
// plain struct by value. It works with any block size, and is either a loop,
// which works with any grid, or gives each block a task (at most 16 blocks on
// the simulated driver). All kernels are one translation unit.
//
//     WM_KERNEL(wm_fill, wm_fill_params_t) {
//         for (size_t i = wm_thread(); i < p.count; i += wm_threads()) ...
//     }
#ifndef WM_KERNELS_KERNEL_H
#define WM_KERNELS_KERNEL_H

#include <stddef.h>
#include <stdint.h>

// An LL line, as a kernel reads it.
struct wm_line_t {
    uint32_t low, high;
    uint32_t flags[2];
};

#ifdef __CUDACC__
#define WM_KERNEL(name, params_t)                                             \
    extern "C" __global__ void __launch_bounds__(512, 1) name(const params_t p)
// Defines a kernel that leaves half of each multiprocessor to another kernel.
#define WM_KERNEL_OF_HALF(name, params_t)                                     \
    extern "C" __global__ void __launch_bounds__(512, 2) name(const params_t p)
#define WM_DEVICE __device__ __forceinline__
// A function that kernels call: a copy in each would take long to compile.
#define WM_CALLED static __device__ __noinline__
#define WM_UNROLL _Pragma("unroll")
#define WM_ROLLED _Pragma("unroll 1")

WM_DEVICE size_t
wm_thread()
{
    return blockIdx.x * (size_t)blockDim.x + threadIdx.x;
}

WM_DEVICE size_t
wm_threads()
{
    return gridDim.x * (size_t)blockDim.x;
}

// For kernels that give each block a task of its own.
WM_DEVICE unsigned int
wm_block()
{
    return blockIdx.x;
}

WM_DEVICE unsigned int
wm_blocks()
{
    return gridDim.x;
}

// Returns nanoseconds since some fixed time.
WM_DEVICE uint64_t
wm_now_ns()
{
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

// Write and read an LL line (kernels/eager_ll.h) at once.
WM_DEVICE void
wm_store_line(char *line, uint64_t value, uint32_t flag)
{
    asm volatile(
        "st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(line),
        "r"((uint32_t)value), "r"(flag), "r"((uint32_t)(value >> 32))
        : "memory");
}

WM_DEVICE wm_line_t
wm_load_line(const char *line)
{
    wm_line_t read;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(read.low), "=r"(read.flags[0]), "=r"(read.high),
                   "=r"(read.flags[1])
                 : "l"(line)
                 : "memory");
    return read;
}

WM_DEVICE void
wm_fence_system()
{
    __threadfence_system();
}

// Called last by every thread. Returns true on one thread, after all have
// called. `ended` counts blocks; it is 0 before and after the kernel.
WM_DEVICE bool
wm_grid_ended(uint32_t *ended)
{
    __syncthreads();
    if (threadIdx.x != 0 || gridDim.x == 1)
        return threadIdx.x == 0;
    __threadfence();
    if (atomicAdd(ended, 1) + 1 < gridDim.x)
        return false;
    *ended = 0;
    __threadfence();
    return true;
}

WM_DEVICE void
wm_store_system(uint32_t *word, uint32_t value)
{
    *(volatile uint32_t *)word = value;
}

WM_DEVICE uint32_t
wm_load_system(const uint32_t *word)
{
    return *(const volatile uint32_t *)word;
}

#else
#include "kernels/kernel_host.h"
#endif
#endif
