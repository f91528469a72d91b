// SPDX-License-Identifier: BSD-3-Clause
// The primitives kernels are written with, each with a device body (nvcc),
// here, and a host body (g++, for the simulated driver), in kernel_host.h. A
// kernel takes one plain struct by value. It is right for any block, and
// either a loop, right for any grid, or gives each block a task, at most 16 on
// the simulated driver. All kernels are one translation unit.
//
//     WM_KERNEL(wm_fill, wm_fill_params_t) {
//         for (size_t i = wm_thread(); i < p.count; i += wm_threads()) ...
//     }
#ifndef WM_KERNELS_KERNEL_H
#define WM_KERNELS_KERNEL_H

#include <stddef.h>
#include <stdint.h>

// What is read of a mailbox's line.
struct wm_line_t {
    uint32_t low, high;
    uint32_t flags[2];
};

#ifdef __CUDACC__

#define WM_KERNEL(name, params_t)                                             \
    extern "C" __global__ void __launch_bounds__(512, 1) name(const params_t p)
#define WM_DEVICE __device__ __forceinline__
#define WM_UNROLL _Pragma("unroll")

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

WM_DEVICE size_t
wm_block_thread()
{
    return threadIdx.x;
}

WM_DEVICE size_t
wm_block_threads()
{
    return blockDim.x;
}

// A clock, in nanoseconds from some time on.
WM_DEVICE uint64_t
wm_now_ns()
{
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

// A line of a mailbox (kernels/mail.h), written or read at once.
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

// Whether it is true on any thread of the block; all of them come here. On the
// host, where threads run in turn, on this one or any before it.
WM_DEVICE bool
wm_block_any(bool mine)
{
    return __syncthreads_or(mine) != 0;
}

// True on one thread of the block, after all of its threads came here; what
// they wrote is then visible to the whole system.
WM_DEVICE bool
wm_block_ended()
{
    __syncthreads();
    if (threadIdx.x != 0)
        return false;
    __threadfence_system();
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
