// SPDX-License-Identifier: BSD-3-Clause
#include "array/eager_ll.h"

#include <stdbool.h>

#include "array/kernels.h"

// A small block finds room soon on a busy GPU. A large block copies more at
// once, and several blocks copy more still: one multiprocessor has a limited
// number of loads under way.
#define SMALL_BLOCK 256
#define LARGE_BLOCK 512
#define SMALL_BYTES 16384
#define FEW_RUNS 1024 // one load or more for each

static struct {
    _Atomic bool prepared;
    _Atomic bool groups; // blocks can form clusters
} devices[WM_MAX_DEVICES];

_Static_assert(sizeof(wm_eager_ll_params_t) <= 4096, "what a kernel is given");
_Static_assert(WM_EAGER_LL_BUFFER_BYTES *WM_LINE_PAYLOAD
                   == WM_EAGER_LL_BYTES * WM_LINE_BYTES,
               "an eager LL buffer holds the longest message");

// Finds the kernel of clusters, unless it was not compiled for the device.
static int
find_wide(int device, wm_error_t *err)
{
    wm_error_t own;
    int code = wm_kernels_prepare(device, WM_KERNELS_EAGER_LL_WIDE, &own);
    if (code == WM_ERR_CUDA && own.detail == CUDA_ERROR_NOT_FOUND)
        return 0;
    if (code < 0 && err != NULL)
        *err = own;
    atomic_store(&devices[device].groups, code == 0);
    return code;
}

int
wm_eager_ll_prepare(int device, wm_error_t *err)
{
    if (atomic_load(&devices[device].prepared))
        return 0;
    int code = wm_kernels_prepare(device, WM_KERNELS_EAGER_LL, err);
    if (code == 0)
        code = find_wide(device, err);
    atomic_store(&devices[device].prepared, code == 0);
    return code;
}

bool
wm_eager_ll_takes(const wm_strided_t *strided)
{
    bool takes = strided->ndim <= WM_EAGER_LL_NDIM
                 && strided->run <= UINT32_MAX;
    for (int i = 0; takes && i < strided->ndim; ++i)
        takes = strided->shape[i] <= UINT32_MAX;
    return takes;
}

static wm_eager_ll_memory_t
memory_of(const wm_eager_ll_t *message)
{
    const wm_strided_t *strided = message->strided;
    wm_eager_ll_memory_t memory = {
        .data = strided != NULL ? strided->data : message->user,
        .ndim = strided != NULL ? (uint32_t)strided->ndim : 0,
    };
    uint64_t all = (uintptr_t)memory.data | message->nbytes;
    if (memory.ndim > 0)
        all |= (uint64_t)strided->run;
    for (uint32_t i = 0; i < memory.ndim; ++i) {
        all |= (uint64_t)strided->strides[i];
        memory.shape[i] = (uint32_t)strided->shape[i];
        memory.strides[i] = strided->strides[i];
    }
    memory.unit = all % 8 == 0 ? 8 : all % 4 == 0 ? 4 : all % 2 == 0 ? 2 : 1;
    memory.count = (uint32_t)message->nbytes / memory.unit;
    memory.run = memory.ndim > 0 ? (uint32_t)strided->run / memory.unit
                                 : memory.count;
    return memory;
}

static wm_eager_ll_post_t
post_of(const wm_eager_ll_t *message)
{
    return (wm_eager_ll_post_t){
        .lines = message->lines,
        .src = memory_of(message),
        .ready = (uint32_t *)message->word,
        .ready_value = message->value,
        .flag = message->flag,
    };
}

static wm_eager_ll_fetch_t
eager_ll_fetch_of(const wm_eager_ll_t *message)
{
    return (wm_eager_ll_fetch_t){
        .dst = memory_of(message),
        .lines = message->lines,
        .taken = (uint32_t *)message->word,
        .status = (uint32_t *)message->status,
        .stop = (const uint32_t *)message->stop,
        .taken_value = message->value,
        .flag = message->flag,
    };
}

static bool
any_long(const wm_eager_ll_t *messages, int count)
{
    bool any = false;
    for (int i = 0; i < count; ++i) {
        const wm_strided_t *strided = messages[i].strided;
        any |= messages[i].nbytes > SMALL_BYTES
               || (strided != NULL
                   && messages[i].nbytes > FEW_RUNS * (size_t)strided->run);
    }
    return any;
}

static int
launch_pair(int device, wm_eager_ll_pair_params_t *pair, bool large,
            unsigned int count, CUstream stream, wm_error_t *err)
{
    _Atomic bool *can = &devices[device].groups;
    bool groups = large && atomic_load(can);
    if (groups
        && wm_kernels_launch(device, WM_KERNELS_EAGER_LL_WIDE, 0,
                             count * WM_EAGER_LL_WIDTH, SMALL_BLOCK, pair,
                             stream, NULL)
               == 0)
        return 0;
    int code = wm_kernels_launch(device, WM_KERNELS_EAGER_LL, WM_KERNEL_FEW,
                                 count, large ? LARGE_BLOCK : SMALL_BLOCK,
                                 pair, stream, err);
    if (code == 0 && groups)
        atomic_store(can, false); // no room for it in a part of a device
    return code;
}

int
wm_eager_ll_launch(int device, const wm_eager_ll_t *posts, int post_count,
                   const wm_eager_ll_t *fetches, int fetch_count,
                   uint32_t patience_us, CUstream stream, wm_error_t *err)
{
    wm_eager_ll_params_t many;
    wm_eager_ll_pair_params_t pair;
    int code = wm_eager_ll_prepare(device, err);
    if (code < 0)
        return code;
    bool few = post_count <= 1 && fetch_count <= 1;
    wm_eager_ll_post_t *post = few ? pair.post : many.post;
    wm_eager_ll_fetch_t *fetch = few ? pair.fetch : many.fetch;
    for (int i = 0; i < post_count; ++i)
        post[i] = post_of(&posts[i]);
    for (int i = 0; i < fetch_count; ++i)
        fetch[i] = eager_ll_fetch_of(&fetches[i]);
    many.posts = pair.posts = (uint32_t)post_count;
    many.patience_us = pair.patience_us = patience_us;
    bool large = any_long(posts, post_count) || any_long(fetches, fetch_count);
    unsigned int count = (unsigned int)(post_count + fetch_count);
    return few ? launch_pair(device, &pair, large, count, stream, err)
               : wm_kernels_launch(device, WM_KERNELS_EAGER_LL, WM_KERNEL_MANY,
                                   count, large ? LARGE_BLOCK : SMALL_BLOCK,
                                   &many, stream, err);
}
