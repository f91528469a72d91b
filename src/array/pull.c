// SPDX-License-Identifier: BSD-3-Clause
#include "array/pull.h"

#include <stdatomic.h>
#include <stddef.h>

#include "array/kernels.h"

#define BLOCK 512
#define BLOCKS_PER_SM 2
#define BLOCKS_LONG 32 // for a long copy: two of them saturate a link
#define BLOCK_BYTES ((size_t)16 << 10) // of a copy, for each of its blocks
// Bytes of all copies that one block copies as fast: the end of several blocks
// is reported some microseconds later.
#define ALONE_BYTES ((size_t)32 << 10)
// Longer copies are faster by a copy engine, unless their units are wide.
#define MOST_UNITS ((size_t)1 << 20)

_Static_assert(sizeof(wm_pull_params_t) <= 4096, "what a kernel is given");
_Static_assert(offsetof(wm_pull_few_params_t, pulls)
                   == offsetof(wm_pull_params_t, pulls),
               "the one is the other's beginning");

int
wm_pull_prepare(int device, wm_error_t *err)
{
    return wm_kernels_prepare(device, WM_KERNELS_PULL, err);
}

static uint32_t
widest_unit(const wm_pull_t *pull)
{
    uintptr_t both = (uintptr_t)pull->dst | (uintptr_t)pull->src;
    return both % 16 == 0 ? 16 : both % 4 == 0 ? 4 : 1;
}

bool
wm_pull_serves(const wm_pull_t *pull)
{
    uint32_t unit = widest_unit(pull);
    return unit == 16 || pull->nbytes <= MOST_UNITS * unit;
}

// Finds the number of blocks for each copy: as many as the longest copy uses
// and all have room for.
static int
find_width(int device, wm_pull_params_t *params, wm_error_t *err)
{
    const wm_device_t *facts;
    uint64_t longest = 0, all = 0;
    params->width = 1;
    for (uint32_t i = 0; i < params->count; ++i) {
        if (params->pulls[i].taken != NULL)
            return 0;
        all += params->pulls[i].nbytes;
        if (params->pulls[i].nbytes > longest)
            longest = params->pulls[i].nbytes;
    }
    if (all <= ALONE_BYTES && params->count <= WM_FEW_PULLS) {
        params->width = 0;
        return 0;
    }
    uint64_t wanted = (longest + BLOCK_BYTES - 1) / BLOCK_BYTES;
    if (wanted <= 1)
        return 0;
    int code = wm_device_get(device, &facts, err);
    if (code < 0)
        return code;
    uint64_t most = (uint64_t)facts->multiprocessors * BLOCKS_PER_SM
                    / params->count;
    params->width = (uint32_t)(wanted < most ? wanted : most > 0 ? most : 1);
    return 0;
}

static int
pull_launch(int device, wm_pull_params_t *params, CUstream stream,
            wm_error_t *err)
{
    for (uint32_t i = 0; i < params->count; ++i)
        params->pulls[i].unit = widest_unit(&params->pulls[i]);
    bool few = params->count <= WM_FEW_PULLS;
    uint32_t blocks = params->width > 0 ? params->count * params->width : 1;
    return wm_kernels_launch(device, WM_KERNELS_PULL,
                             few ? WM_KERNEL_FEW : WM_KERNEL_MANY, blocks,
                             BLOCK, params, stream, err);
}

int
wm_pull_launch(int device, wm_pull_params_t *params, CUstream stream,
               wm_error_t *err)
{
    int code = wm_pull_prepare(device, err);
    if (code == 0)
        code = find_width(device, params, err);
    return code < 0 ? code : pull_launch(device, params, stream, err);
}

int
wm_pull_launch_long(int device, const wm_pull_t *pull, CUstream stream,
                    wm_error_t *err)
{
    wm_pull_params_t params;
    params.count = 1;
    params.width = BLOCKS_LONG;
    params.signal = (wm_signal_t){0};
    params.pulls[0] = *pull;
    int code = wm_pull_prepare(device, err);
    return code < 0 ? code : pull_launch(device, &params, stream, err);
}
