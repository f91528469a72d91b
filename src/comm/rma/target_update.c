// SPDX-License-Identifier: BSD-3-Clause
#include "comm/rma/target_update.h"

#include <string.h>

#include "array/atomic.h"
#include "array/kernels.h"
#include "comm/rma/target_state.h"

bool
wm_target_on_device(const wm_pointer_t *memory)
{
    return wm_memory_on_device(memory) && memory->device >= 0;
}

int
wm_target_prepare(const wm_pointer_t *memory, wm_error_t *err)
{
    if (!wm_target_on_device(memory))
        return 0;
    int code = wm_kernels_load(memory->device, err);
    if (code == 0)
        code = wm_kernels_prepare(memory->device, WM_KERNELS_REDUCE, err);
    return code < 0 ? code : wm_atomic_prepare(memory->device, err);
}

// Updates a run of host memory.
static void
target_update_host(const wm_target_update_t *update, char *dst, size_t at,
                   size_t nbytes)
{
    const void *sources[] = {dst, update->src + at};
    bool same = update->compare == NULL
                || memcmp(dst, update->compare + at, nbytes) == 0;
    if (update->fetched != NULL)
        memcpy(update->fetched + at, dst, nbytes);
    if (same && update->op == WM_REDUCE_REPLACE)
        memcpy(dst, update->src + at, nbytes);
    else if (same && update->op != WM_REDUCE_NO_OP)
        wm_reduce_host(update->type, update->op, dst, sources, 2,
                       nbytes / wm_reduce_size(update->type));
}

// Updates a run of elements that no device updates at once: nobody else does
// while this rank's stream does.
static int
target_update_alone(const wm_target_update_t *update, char *dst, size_t at,
                    size_t nbytes, CUstream stream, wm_error_t *err)
{
    const void *sources[] = {dst, update->src + at};
    int device = update->memory->device, code = 0;
    if (update->compare != NULL)
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "no GPU compares and swaps such an element: it "
                            "has 1 to 8 bytes, at a multiple of its size");
    if (update->fetched != NULL)
        code = wm_memory_copy(device, update->fetched + at, dst, nbytes,
                              stream, err);
    if (code < 0 || update->op == WM_REDUCE_NO_OP)
        return code;
    return wm_reduce_launch(device, update->type, update->op, dst, sources, 2,
                            nbytes / wm_reduce_size(update->type), stream,
                            err);
}

// A run of atomic elements at another address than a multiple of their size is
// updated alone, and so are the update's other runs.
bool
wm_target_update_is_alone(const wm_target_update_t *update)
{
    const wm_pattern_t *pattern = update->pattern;
    uint64_t size = wm_reduce_size(update->type), low = 0;
    if (!wm_target_on_device(update->memory)
        || !wm_atomic_takes(update->type, update->op))
        return true;
    if (pattern == NULL)
        return (uintptr_t)update->dst % size != 0;
    for (int i = 0; i < pattern->count; ++i) {
        const wm_strided_t *part = &pattern->parts[i];
        low |= (uintptr_t)part->data % size | (uint64_t)part->run % size;
        for (int d = 0; d < part->ndim; ++d)
            low |= (uint64_t)part->strides[d] % size;
    }
    return low != 0;
}

static int
target_update_run(const wm_target_update_t *update, char *dst, size_t at,
                  size_t nbytes, CUstream stream, wm_error_t *err)
{
    size_t size = wm_reduce_size(update->type);
    if (!wm_target_on_device(update->memory)) {
        target_update_host(update, dst, at, nbytes);
        return 0;
    }
    if (wm_target_update_is_alone(update))
        return target_update_alone(update, dst, at, nbytes, stream, err);
    wm_atomic_t atomic = {
        .type = update->type,
        .op = update->op,
        .dst = dst,
        .src = update->src + at,
        .compare = update->compare != NULL ? update->compare + at : NULL,
        .fetched = update->fetched != NULL ? update->fetched + at : NULL,
        .count = nbytes / size,
    };
    return wm_atomic_enqueue(update->memory->device, &atomic, stream, err);
}

// Updates a part with gaps, run by run.
static int
target_update_part(const wm_target_update_t *update, const wm_strided_t *part,
                   size_t at, CUstream stream, wm_error_t *err)
{
    int64_t index[WM_STRIDED_NDIM] = {0};
    char *dst = part->data;
    int code = 0, d = 0;
    while (code == 0 && d >= 0) {
        code = target_update_run(update, dst, at, (size_t)part->run, stream,
                                 err);
        at += (size_t)part->run;
        for (d = part->ndim - 1; d >= 0; --d) {
            dst += part->strides[d];
            if (++index[d] < part->shape[d])
                break;
            dst -= part->strides[d] * part->shape[d];
            index[d] = 0;
        }
    }
    return code;
}

int
wm_target_update(const wm_target_update_t *update, CUstream stream,
                 wm_error_t *err)
{
    const wm_pattern_t *pattern = update->pattern;
    int code = 0;
    size_t at = 0;
    if (pattern == NULL)
        return target_update_run(update, update->dst, 0, update->nbytes,
                                 stream, err);
    for (int i = 0; i < pattern->count && code == 0; ++i) {
        code = target_update_part(update, &pattern->parts[i], at, stream, err);
        at += wm_strided_nbytes(&pattern->parts[i]);
    }
    return code;
}
