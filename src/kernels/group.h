// SPDX-License-Identifier: BSD-3-Clause
// Kernels that give each group of blocks a task of its own. A group is a
// cluster, whose blocks all run at once; its size is `blocks` everywhere.
#ifndef WM_KERNELS_GROUP_H
#define WM_KERNELS_GROUP_H

#include "kernels/kernel.h"

#ifdef __CUDACC__
// Defines a kernel for groups of `blocks` blocks, each of at most 256 threads;
// a group fits on two multiprocessors. A group is a cluster: WM_HAS_GROUPS is
// set if the device has clusters.
#define WM_KERNEL_OF_GROUPS(name, params_t, blocks)                           \
    extern "C" __global__ void __cluster_dims__(blocks, 1, 1)                 \
        __launch_bounds__(256, (blocks + 1) / 2) name(const params_t p)
#if __CUDA_ARCH__ >= 900
#define WM_HAS_GROUPS 1
#endif

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

#else
#define WM_KERNEL_OF_GROUPS(name, params_t, blocks) WM_KERNEL(name, params_t)
#define WM_HAS_GROUPS 1

template <unsigned int blocks>
WM_DEVICE unsigned int
wm_group()
{
    return wm_block() / blocks;
}

template <unsigned int blocks>
WM_DEVICE size_t
wm_group_threads()
{
    return blocks * wm_host_block_threads;
}

template <unsigned int blocks>
WM_DEVICE size_t
wm_group_thread()
{
    return wm_host_thread % wm_group_threads<blocks>();
}

template <unsigned int blocks>
WM_DEVICE bool
wm_group_begin()
{
    return wm_group_thread<blocks>() > 0 && wm_host_any;
}

// Returns true on the last thread, as threads run one after the other.
template <unsigned int blocks>
WM_DEVICE bool
wm_group_ended(bool mine, bool *any)
{
    wm_host_any = wm_group_begin<blocks>() || mine;
    *any = wm_host_any;
    return wm_group_thread<blocks>() + 1 == wm_group_threads<blocks>();
}

#endif
#endif
