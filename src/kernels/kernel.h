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
// Defines a kernel for groups of `blocks` blocks, each of at most 256 threads;
// a group fits on two multiprocessors. A group is a cluster: WM_HAS_GROUPS is
// set if the device has clusters.
#define WM_KERNEL_OF_GROUPS(name, params_t, blocks)                           \
    extern "C" __global__ void __cluster_dims__(blocks, 1, 1)                 \
        __launch_bounds__(256, (blocks + 1) / 2) name(const params_t p)
#if __CUDA_ARCH__ >= 900
#define WM_HAS_GROUPS 1
#endif
#define WM_DEVICE __device__ __forceinline__
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

// For kernels that give each block, or each group of blocks, a task of its
// own. A group is a cluster, whose blocks all run at once; its size is
// `blocks` everywhere.
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

template <unsigned int blocks>
WM_DEVICE unsigned int
wm_group()
{
    return blockIdx.x / blocks;
}

template <unsigned int blocks>
WM_DEVICE size_t
wm_group_thread()
{
    return blockIdx.x % blocks * (size_t)blockDim.x + threadIdx.x;
}

template <unsigned int blocks>
WM_DEVICE size_t
wm_group_threads()
{
    return blocks * (size_t)blockDim.x;
}

// Called first by every thread of the group; each thread calls
// wm_group_ended() last. Returns true only on the host, where threads run in
// turn: if an earlier thread called wm_group_ended() with `mine` true.
template <unsigned int blocks>
WM_DEVICE bool
wm_group_begin()
{
#if __CUDA_ARCH__ >= 900
    if (blocks > 1)
        __cluster_barrier_arrive(); // completes once all blocks have begun
#endif
    return false;
}

// Called by every thread of the group. After all have called, returns true on
// one thread: all their writes are then visible to the whole system, and *any
// is true if `mine` was true on one of them.
template <unsigned int blocks>
WM_DEVICE bool
wm_group_ended(bool mine, bool *any)
{
    *any = __syncthreads_or(mine) != 0;
#if __CUDA_ARCH__ >= 900
    if (blocks > 1) {
        __shared__ uint32_t told[blocks]; // of the first block
        const unsigned int rank = blockIdx.x % blocks;
        __cluster_barrier_wait();
        if (threadIdx.x == 0)
            *(uint32_t *)__cluster_map_shared_rank(&told[rank], 0) = *any;
        __syncwarp();
        __cluster_barrier_arrive();
        __cluster_barrier_wait();
        for (unsigned int i = 0; i < blocks && rank == 0; i++)
            *any = *any || told[i] != 0;
    }
#endif
    if (wm_group_thread<blocks>() != 0)
        return false;
    __threadfence_system();
    return true;
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
