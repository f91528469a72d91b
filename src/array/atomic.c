// SPDX-License-Identifier: BSD-3-Clause
#include "array/atomic.h"

#include <assert.h>

#include "array/kernels.h"

#define BLOCK 256
#define BLOCKS_PER_SM 4

static_assert(WM_STRIDED_NDIM < WM_ATOMIC_NDIM, "a run is a dimension, too");

bool
wm_atomic_takes(wm_reduce_type_t type, wm_reduce_op_t op)
{
    return wm_reduce_takes(type, op) && op != WM_REDUCE_AVG
           && wm_reduce_size(type) <= WM_ATOMIC_BYTES;
}

bool
wm_atomic_is_aligned(wm_reduce_type_t type, const void *dst,
                     const wm_strided_t *gaps)
{
    uint64_t size = wm_reduce_size(type);
    uint64_t low = (uintptr_t)(gaps != NULL ? gaps->data : dst);
    for (int i = 0; gaps != NULL && i < gaps->ndim; ++i)
        low |= (uint64_t)gaps->strides[i];
    if (gaps != NULL)
        low |= (uint64_t)gaps->run;
    return low % size == 0;
}

int
wm_atomic_prepare(int device, wm_error_t *err)
{
    return wm_kernels_prepare(device, WM_KERNELS_ATOMIC, err);
}

static int
atomic_check(const wm_atomic_t *atomic, wm_error_t *err)
{
    if (!wm_atomic_takes(atomic->type, atomic->op))
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "no GPU updates elements of type %d by operation "
                            "%d at once: elements have %d bytes at most",
                            (int)atomic->type, (int)atomic->op,
                            WM_ATOMIC_BYTES);
    return wm_atomic_is_aligned(atomic->type, atomic->dst, atomic->gaps)
               ? 0
               : wm_error_set(err, WM_ERR_VALUE, 0,
                              "the target's address, or a stride, is no "
                              "multiple of the %zu bytes of an element: no "
                              "GPU updates such elements at once",
                              wm_reduce_size(atomic->type));
}

// Tells the kernel the target's dimensions; the elements of a run are the
// last.
static void
atomic_describe(const wm_strided_t *gaps, size_t size,
                wm_atomic_params_t *params)
{
    params->dst = gaps->data;
    if (gaps->ndim == 0)
        return;
    params->ndim = gaps->ndim;
    for (int i = 0; i < gaps->ndim; ++i) {
        params->shape[i] = (uint64_t)gaps->shape[i];
        params->strides[i] = gaps->strides[i];
    }
    if ((size_t)gaps->run == size)
        return;
    params->shape[params->ndim] = (uint64_t)gaps->run / size;
    params->strides[params->ndim++] = (int64_t)size;
}

int
wm_atomic_enqueue(int device, const wm_atomic_t *atomic, CUstream stream,
                  wm_error_t *err)
{
    const wm_device_t *facts;
    wm_average_t unused;
    wm_atomic_params_t params = {
        .dst = atomic->dst,
        .src = atomic->src,
        .compare = atomic->compare,
        .fetched = atomic->fetched,
        .count = atomic->count,
        .signal = atomic->signal,
    };
    if (atomic->gaps != NULL)
        atomic_describe(atomic->gaps, wm_reduce_size(atomic->type), &params);
    int code = atomic_check(atomic, err);
    if (code < 0 || atomic->count == 0)
        return code;
    code = wm_atomic_prepare(device, err);
    if (code == 0)
        code = wm_device_get(device, &facts, err);
    if (code < 0)
        return code;
    int row = wm_reduce_row(atomic->type, atomic->op, 1, &params.op, &unused);
    uint64_t blocks = (atomic->count + BLOCK - 1) / BLOCK;
    uint64_t most = (uint64_t)facts->multiprocessors * BLOCKS_PER_SM;
    if (blocks > most && most > 0)
        blocks = most;
    return wm_kernels_launch(device, WM_KERNELS_ATOMIC, row, (uint32_t)blocks,
                             BLOCK, &params, stream, err);
}
