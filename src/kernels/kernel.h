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

// What is read of a mailbox's line.
struct wm_line_t {
    uint32_t low, high;
    uint32_t flags[2];
};

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

// For kernels that give each block a task of its own.
WM_DEVICE unsigned int
wm_block()
{
    return blockIdx.x;
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

// Whether it is true on any thread of the block; all of them come here.
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

#include <time.h>

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
extern thread_local size_t wm_host_block_threads;
extern thread_local bool wm_host_any; // see wm_block_any

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

WM_DEVICE unsigned int
wm_block()
{
    return (unsigned int)(wm_host_thread / wm_host_block_threads);
}

WM_DEVICE size_t
wm_block_thread()
{
    return wm_host_thread % wm_host_block_threads;
}

WM_DEVICE size_t
wm_block_threads()
{
    return wm_host_block_threads;
}

WM_DEVICE uint64_t
wm_now_ns()
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

WM_DEVICE void
wm_store_line(char *line, uint64_t value, uint32_t flag)
{
    uint64_t *halves = (uint64_t *)line;
    __atomic_store_n(&halves[0], (uint64_t)flag << 32 | (uint32_t)value,
                     __ATOMIC_RELEASE);
    __atomic_store_n(&halves[1], (uint64_t)flag << 32 | value >> 32,
                     __ATOMIC_RELEASE);
}

WM_DEVICE wm_line_t
wm_load_line(const char *line)
{
    const uint64_t *halves = (const uint64_t *)line;
    uint64_t low = __atomic_load_n(&halves[0], __ATOMIC_ACQUIRE);
    uint64_t high = __atomic_load_n(&halves[1], __ATOMIC_ACQUIRE);
    return {(uint32_t)low,
            (uint32_t)high,
            {(uint32_t)(low >> 32), (uint32_t)(high >> 32)}};
}

// Threads run one after the other here: on any that came before, or this one.
WM_DEVICE bool
wm_block_any(bool mine)
{
    wm_host_any = (wm_host_any && wm_block_thread() > 0) || mine;
    return wm_host_any;
}

// Threads run one after the other here: the last one.
WM_DEVICE bool
wm_block_ended()
{
    return wm_block_thread() + 1 == wm_host_block_threads;
}

WM_DEVICE void
wm_store_system(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

WM_DEVICE uint32_t
wm_load_system(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

#endif
#endif
