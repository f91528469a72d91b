// SPDX-License-Identifier: BSD-3-Clause
// The host bodies of kernel.h's primitives. Threads run one after the other.
#ifndef WM_KERNELS_KERNEL_HOST_H
#define WM_KERNELS_KERNEL_HOST_H

#include <time.h>

struct wm_host_kernel {
    const char *name;
    size_t params_size;
    void (*run)(const void *params); // one thread's work
    wm_host_kernel *next;
};
// The list of kernels, filled by static constructors of their files. The
// simulated driver finds a kernel here by name and calls run() once for each
// thread.
extern wm_host_kernel *wm_host_kernels;
extern thread_local size_t wm_host_thread, wm_host_threads;
extern thread_local size_t wm_host_block_threads;
extern thread_local bool wm_host_any; // see wm_group_ended

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
#define WM_KERNEL_OF_HALF(name, params_t) WM_KERNEL(name, params_t)
#define WM_DEVICE static inline
#define WM_CALLED static inline
#define WM_UNROLL
#define WM_ROLLED

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

WM_DEVICE unsigned int
wm_blocks()
{
    return (unsigned int)(wm_host_threads / wm_host_block_threads);
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

WM_DEVICE void
wm_fence_system()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

WM_DEVICE bool
wm_grid_ended(uint32_t *)
{
    return wm_host_thread + 1 == wm_host_threads;
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
