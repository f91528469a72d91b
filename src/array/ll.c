// SPDX-License-Identifier: BSD-3-Clause
#include "array/ll.h"

#include "array/kernels.h"
#include "cuda/stream.h"

#define WARP 32
#define BLOCK 512
#define BLOCKS 16 // a line for each thread, before threads take more
#define LL128_BLOCKS 128
#define LL128_LANES 8

_Static_assert(sizeof(wm_ll_params_t) <= 4096, "what a kernel is given");
_Static_assert(sizeof(wm_ll_head_t) <= WM_LL_HEAD, "before the LL buffers");

static size_t
buffer_bytes(size_t nbytes, int size)
{
    size_t others = size > 1 ? (size_t)size - 1 : 1;
    return nbytes / (2 * others) / WM_LL128_BYTES * WM_LL128_BYTES;
}

size_t
wm_ll_room(const wm_ll_t *ll, int size)
{
    size_t each = buffer_bytes(ll->nbytes, size);
    return ll->ll128 ? each / WM_LL128_BYTES * WM_LL128_PAYLOAD
                     : each / WM_LINE_BYTES * WM_LINE_PAYLOAD;
}

int
wm_ll_prepare(int device, wm_error_t *err)
{
    int code = wm_kernels_prepare(device, WM_KERNELS_LL, err);
    if (code == 0)
        code = wm_kernels_prepare(device, WM_KERNELS_LL128, err);
    if (code == 0)
        code = wm_kernels_prepare(device, WM_KERNELS_LL128_PARTS, err);
    return code;
}

static uint64_t
lines_of(const wm_ll_side_t *side, bool ll128)
{
    uint64_t each = ll128 ? WM_LL128_PAYLOAD : WM_LINE_PAYLOAD;
    return (side->nbytes + each - 1) / each;
}

// Returns the unit of a kernel's loads and stores: the greatest power of two
// that divides the addresses and sizes of the given and taken blocks; a rank
// that takes its own block has both. The rest of an LL128 line goes byte by
// byte.
static uint32_t
unit_of(const wm_ll_params_t *params, bool ll128)
{
    uint64_t all = ll128 ? 16 : 8;
    if (params->src != NULL)
        all |= ((uintptr_t)params->src + params->gives.at) | params->gives.step
               | (ll128 ? 0 : params->gives.nbytes);
    if (params->dst != NULL)
        all |= ((uintptr_t)params->dst + params->takes.at) | params->takes.step
               | (ll128 ? 0 : params->takes.nbytes);
    return (uint32_t)(all & -all);
}

static uint64_t
at_most(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

int
wm_ll_launch(int device, const wm_ll_t *ll, wm_reduce_type_t type,
             wm_reduce_op_t op, wm_ll_params_t *params, bool overlaid,
             CUstream stream, wm_error_t *err)
{
    bool ll128 = ll->ll128;
    int row = WM_KERNEL_move;
    int code = wm_ll_prepare(device, err);
    if (code < 0)
        return code;
    uint64_t out = lines_of(&params->gives, ll128);
    uint64_t in = lines_of(&params->takes, ll128);
    uint64_t jobs = (out > in ? out : in) * (ll128 ? LL128_LANES : 1);
    params->unit = unit_of(params, ll128);
    params->first = ll->first;
    params->buffer_bytes = (uint32_t)buffer_bytes(ll->nbytes,
                                                  (int)params->size);
    if (params->reduces)
        row = wm_reduce_row(type, op, (int)params->takes.count, &params->op,
                            &params->average);
    else if (params->in_parts) // with one rank nothing is added
        row = wm_reduce_row(WM_REDUCE_UINT32, WM_REDUCE_SUM, 1, &params->op,
                            &params->average);
    else if (!ll128)
        jobs *= params->size;
    uint64_t blocks = at_most((jobs + BLOCK - 1) / BLOCK,
                              ll128 ? LL128_BLOCKS : BLOCKS);
    uint64_t threads = at_most((jobs + WARP - 1) / WARP * WARP, BLOCK);
    blocks = overlaid || blocks < 1 ? 1 : at_most(blocks, ll->blocks);
    threads = threads < WARP ? WARP : threads;
    return wm_kernels_launch(device,
                             params->in_parts ? WM_KERNELS_LL128_PARTS
                             : ll128          ? WM_KERNELS_LL128
                                              : WM_KERNELS_LL,
                             row, (uint32_t)blocks, (uint32_t)threads, params,
                             stream, err);
}
