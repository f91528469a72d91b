// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/stream/kernel_coll.h"

#include <stddef.h>
#include <string.h>

// Bytes for LL128 and LL at the end of a rank's memory; Simple uses the rest
// before them.
#define LL128_BYTES ((size_t)55 << 19)
#define LL_BYTES ((size_t)2 << 20)
#define BLOCK_ALIGN 16 // alignment of parts that use LL128
// Multiprocessors that a kernel leaves free for one of a graph, or of another
// communicator. If GPUs start the two kernels in different orders, a kernel
// would else wait for one that cannot start.
#define SPARE 4

static size_t
simple_bytes(const wm_symm_memory_t *symm)
{
    return symm->nbytes - LL_BYTES - (symm->on_host ? 0 : LL128_BYTES);
}

int
wm_kernel_coll_clear(const wm_symm_memory_t *symm, char *memory,
                     wm_error_t *err)
{
    size_t simple = simple_bytes(symm);
    if (symm->on_host) {
        memset(memory, 0, symm->nbytes);
        return 0;
    }
    int code = wm_memory_copy_now(symm->device, memory, NULL, WM_SIMPLE_HEAD,
                                  err);
    return code < 0 ? code
                    : wm_memory_copy_now(symm->device, memory + simple, NULL,
                                         symm->nbytes - simple, err);
}

int
wm_kernel_coll_prepare(int device, wm_error_t *err)
{
    int code = wm_ll_prepare(device, err);
    return code < 0 ? code : wm_simple_prepare(device, err);
}

static int
open_own(wm_kernel_coll_t *kernels, int device, const wm_ll_rank_t *ranks,
         int size, wm_error_t *err)
{
    size_t nbytes = sizeof *kernels->own;
    int code = wm_block_alloc(device, nbytes, &kernels->block, err);
    if (code < 0)
        return code;
    char *own = wm_block_pointer(kernels->block);
    kernels->own = (wm_kernel_coll_own_t *)(void *)own;
    code = wm_memory_copy_now(device, own, NULL, nbytes, err);
    return code < 0
               ? code
               : wm_memory_copy_now(device, (char *)kernels->own->ll.ranks,
                                    ranks, (size_t)size * sizeof *ranks, err);
}

// Returns the blocks of 512 threads that run at once on all GPUs, for the
// kernels of all ranks.
static int
blocks_at_once(const wm_symm_memory_t *symm)
{
    int all = symm->multiprocessors;
    return all > 2 * SPARE ? all - SPARE : all;
}

int
wm_kernel_coll_open(wm_kernel_coll_t *kernels, const wm_symm_memory_t *symm,
                    const wm_thresholds_t *thresholds, wm_ll_rank_t *ranks,
                    int rank, wm_error_t *err)
{
    int size = symm->size, few = size < WM_LL_FEW ? size : WM_LL_FEW;
    int blocks = blocks_at_once(symm);
    size_t before = symm->nbytes - LL_BYTES;
    for (int i = 0; i < size; ++i)
        ranks[i].ll = symm->ranks[i].memory + before;
    kernels->thresholds = *thresholds;
    kernels->rank = (uint32_t)rank;
    kernels->size = (uint32_t)size;
    kernels->ll = (wm_ll_t){
        .first = WM_LL_HEAD,
        .nbytes = LL_BYTES - WM_LL_HEAD,
        .blocks = (uint32_t)blocks,
    };
    kernels->ll128 = (wm_ll_t){
        .first = -(int64_t)LL128_BYTES,
        .nbytes = symm->linked ? LL128_BYTES : 0,
        .ll128 = true,
        .blocks = (uint32_t)blocks,
    };
    kernels->before = before;
    kernels->simple = wm_simple_fit(simple_bytes(symm), size, blocks,
                                    symm->on_host);
    memcpy(kernels->few, ranks, (size_t)few * sizeof *ranks);
    return open_own(kernels, symm->device, ranks, size, err);
}

void
wm_kernel_coll_close(wm_kernel_coll_t *kernels)
{
    if (kernels->block != NULL)
        wm_block_free(kernels->block, 0, NULL, NULL);
}

// Returns the bytes of a part if ranks can reduce the parts of a call, or pass
// them on, by LL128; else 0. With two ranks and a root there is only one part.
static size_t
part_bytes(const wm_kernel_coll_t *kernels, const wm_coll_desc_t *desc)
{
    wm_coll_kind_t kind = desc->call->kind;
    size_t others = (size_t)desc->comm->size - 1;
    // The root of a Bcast has no part.
    size_t parts = others + (kind != WM_COLL_BCAST);
    if ((kind != WM_COLL_ALLREDUCE && kind != WM_COLL_REDUCE
         && kind != WM_COLL_BCAST)
        || others < (desc->shape->rooted ? 2 : 1))
        return 0;
    size_t each = (wm_coll_desc_longest(desc) + parts - 1) / parts;
    size_t part = (each + BLOCK_ALIGN - 1) / BLOCK_ALIGN * BLOCK_ALIGN;
    return others * part <= kernels->thresholds.wide_parts
                   && part <= wm_ll_room(&kernels->ll128, (int)others + 1)
               ? part
               : 0;
}

// Returns true if passing parts on sends enough bytes less over a link than
// sending all to each rank.
static bool
saves(const wm_kernel_coll_t *kernels, const wm_coll_desc_t *desc)
{
    size_t size = (size_t)desc->comm->size,
           nbytes = wm_coll_desc_longest(desc);
    size_t once = (size - 1) * nbytes;
    bool passes = desc->call->kind == WM_COLL_BCAST;
    size_t twice = passes ? nbytes : 2 * once / size;
    size_t hops = desc->shape->rooted ? 3 : 2; // measured on four GPUs
    return (once - twice) / hops > kernels->thresholds.barrier_cost;
}

// Returns the buffers that a call uses: of LL, or of LL128; NULL: it goes by
// Simple. `part` is 0 if the payload is not divided. Counts that vary never
// use LL, as ranks would not agree on the size.
static const wm_ll_t *
choose(const wm_kernel_coll_t *kernels, const wm_coll_desc_t *desc,
       size_t *part)
{
    const wm_thresholds_t *thresholds = &kernels->thresholds;
    const wm_ll_t *ll = &kernels->ll, *ll128 = &kernels->ll128;
    int size = desc->comm->size;
    size_t longest = wm_coll_desc_longest(desc);
    *part = 0;
    if (desc->shape->uneven || desc->shape->varies)
        return NULL;
    size_t can = part_bytes(kernels, desc);
    bool early = can > 0 && saves(kernels, desc);
    if (!early && longest <= thresholds->lines
        && longest <= wm_ll_room(ll, size))
        return ll;
    if (!early && longest * (size_t)(size - 1) <= thresholds->wide
        && longest <= wm_ll_room(ll128, size))
        return ll128;
    *part = can;
    return can > 0 ? ll128 : NULL;
}

static wm_ll_side_t
side(const wm_span_t *blocks, bool many)
{
    return (wm_ll_side_t){
        .at = blocks[0].at,
        .step = many ? (uint32_t)blocks[0].nbytes : 0,
        .nbytes = (uint32_t)blocks[0].nbytes,
    };
}

static void
kernel_coll_divide(const wm_coll_desc_t *desc, size_t part,
                   wm_ll_params_t *params)
{
    const wm_shape_t *shape = desc->shape;
    uint32_t root = shape->rooted ? (uint32_t)desc->call->root : WM_LL_NOBODY;
    params->in_parts = true;
    params->without = shape->reduces ? WM_LL_NOBODY : root;
    params->onto = shape->reduces ? root : WM_LL_NOBODY;
    params->whole = wm_coll_desc_longest(desc);
    params->reduces = shape->reduces;
    params->gives.nbytes = params->takes.nbytes = (uint32_t)part;
    params->gives.step = params->takes.step = (uint32_t)part;
    params->takes.first = shape->reduces ? 0 : root;
    params->takes.count = shape->reduces ? params->size : 1;
}

int
wm_kernel_coll_enqueue(wm_kernel_coll_t *kernels, const wm_coll_desc_t *desc,
                       const wm_kernel_coll_words_t *words, wm_error_t *err)
{
    const wm_shape_t *shape = desc->shape;
    size_t part;
    const wm_ll_t *ll = choose(kernels, desc, &part);
    if (ll == NULL)
        return wm_simple_coll_enqueue(kernels, desc, words, err);
    uint32_t number = WM_LL_NEXT(kernels->number);
    if (!kernels->counted)
        kernels->number = part > 0 ? WM_LL_NEXT(number) : number;
    uint32_t way = ll->ll128 ? WM_BY_LL128 : WM_BY_LL;
    wm_ll_params_t params = {
        .own = &kernels->own->ll,
        .src = desc->source,
        .dst = desc->target,
        .gives = side(desc->out, shape->scatters),
        .takes = side(desc->into, shape->gathers),
        .word = words->own,
        .begun = words->begun + way,
        .done = words->done,
        .past = words->call + way + 1,
        .rank = kernels->rank,
        .size = kernels->size,
        .number = kernels->counted ? 0 : number,
    };
    memcpy(params.few, kernels->few, sizeof params.few);
    wm_coll_desc_sides(desc, &params.gives, &params.takes);
    params.reduces = wm_coll_desc_reduces(desc, &params.takes);
    // One block that is taken, not reduced, may overlie blocks that are given.
    bool overlaid = shape->reduces && !params.reduces && params.takes.count > 0
                    && params.gives.count > 0;
    if (part > 0)
        kernel_coll_divide(desc, part, &params);
    return wm_ll_launch(desc->device, ll, desc->type, desc->op, &params,
                        overlaid, desc->stream, err);
}
