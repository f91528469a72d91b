// SPDX-License-Identifier: BSD-3-Clause
// The primitives kernels are written with, each with a device body (nvcc) and
// a host body (g++, for the simulated driver). A kernel takes one plain
// struct by value, and is a grid-stride loop right for any grid and block:
//
//     WM_KERNEL(wm_fill, wm_fill_params_t) {
//         for (size_t i = wm_thread(); i < p.count; i += wm_threads()) ...
//     }
#ifndef WM_KERNELS_KERNEL_H
#define WM_KERNELS_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__

#define WM_KERNEL(name, params_t)                                             \
    extern "C" __global__ void __launch_bounds__(512) name(const params_t p)
#define WM_DEVICE __device__ __forceinline__

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

// True on one thread of the block, after all of its threads came here; what
// they wrote is then visible to the whole system.
WM_DEVICE bool
wm_block_ended()
{
    __threadfence_system();
    __syncthreads();
    return threadIdx.x == 0;
}

WM_DEVICE void
wm_store_system(uint32_t *word, uint32_t value)
{
    *(volatile uint32_t *)word = value;
    __threadfence_system();
}

#else

struct wm_host_kernel {
    const char *name;
    size_t params_size;
    void (*run)(const void *params); // one thread's part
    wm_host_kernel *next;
};
// Filled by static constructors of the kernels' files; the simulated driver
// finds a kernel here by name and runs run() once per thread.
extern wm_host_kernel *wm_host_kernels;
extern thread_local size_t wm_host_thread, wm_host_threads;

struct wm_host_kernel_entry {
    wm_host_kernel kernel;
    wm_host_kernel_entry(const char *name, size_t size,
                         void (*run)(const void *))
    {
        kernel = {name, size, run, wm_host_kernels};
        wm_host_kernels = &kernel;
    }
};

#define WM_KERNEL(name, params_t)                                             \
    static void name(const params_t p);                                       \
    static void name##_run(const void *params)                                \
    {                                                                         \
        name(*(const params_t *)params);                                      \
    }                                                                         \
    static wm_host_kernel_entry name##_entry(#name, sizeof(params_t),         \
                                             name##_run);                     \
    static void name(const params_t p)
#define WM_DEVICE static inline

WM_DEVICE size_t
wm_thread()
{
    return wm_host_thread;
}

WM_DEVICE size_t
wm_threads()
{
    return wm_host_threads;
}

// Threads run one after the other here: the last one.
WM_DEVICE bool
wm_block_ended()
{
    return wm_host_thread + 1 == wm_host_threads;
}

WM_DEVICE void
wm_store_system(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

#endif
#endif
