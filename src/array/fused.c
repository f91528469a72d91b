// SPDX-License-Identifier: BSD-3-Clause
#include "array/fused.h"

#include <string.h>

#include "array/kernels.h"

#define BLOCK 512
#define BLOCKS_PER_SM 2

_Static_assert(sizeof(wm_fused_params_t) <= 4096, "what a kernel is given");

bool
wm_fused_add(wm_fused_t *fused, const wm_reduction_t *reduction)
{
    wm_reduce_params_t one;
    wm_fused_params_t *params = &fused->params;
    int kernel = wm_reduce_describe(reduction, &one);
    size_t each = kernel < 0 ? 0 : one.n + one.targets;
    if (kernel < 0 || params->count == WM_FUSED_PARTS
        || (params->count + 1) * each > WM_FUSED_POINTERS
        || (params->count > 0
            && (kernel != fused->kernel || one.op != params->op
                || one.average.divisor != params->average.divisor
                || one.n != params->n || one.targets != params->targets)))
        return false;
    fused->kernel = kernel;
    params->op = one.op;
    params->average = one.average;
    params->n = one.n;
    params->targets = one.targets;
    size_t at = params->count * each;
    memcpy(params->pointers + at, one.src, one.n * sizeof one.src[0]);
    memcpy(params->pointers + at + one.n, one.dst,
           one.targets * sizeof one.dst[0]);
    fused->blocks[params->count] = wm_reduce_blocks(&one);
    params->parts[params->count++] = (wm_fused_member_t){
        .vectors = one.vectors,
        .head = one.head,
        .singles = one.singles,
        .at = (uint16_t)at,
        .aligned = one.aligned,
    };
    return true;
}

// Divides at most `most` blocks among the reductions, at least one each.
// Returns the number of blocks.
static uint32_t
share_blocks(wm_fused_t *fused, uint64_t most)
{
    uint64_t wanted = 0, next = 0;
    for (uint32_t i = 0; i < fused->params.count; ++i)
        wanted += fused->blocks[i];
    for (uint32_t i = 0; i < fused->params.count; ++i) {
        uint64_t share = wanted <= most ? fused->blocks[i]
                                        : fused->blocks[i] * most / wanted;
        fused->params.parts[i].first = (uint16_t)next;
        next += share > 0 ? share : 1;
    }
    return (uint32_t)next;
}

int
wm_fused_launch(int device, wm_fused_t *fused, const wm_signal_t *signal,
                CUstream stream, wm_error_t *err)
{
    const wm_device_t *facts;
    int code = wm_device_get(device, &facts, err);
    if (code == 0) {
        fused->params.blocks = share_blocks(
            fused, (uint64_t)facts->multiprocessors * BLOCKS_PER_SM);
        fused->params.signal = *signal;
        code = wm_kernels_launch(device, WM_KERNELS_FUSED, fused->kernel,
                                 fused->params.blocks, BLOCK, &fused->params,
                                 stream, err);
    }
    fused->params.count = 0;
    return code;
}
