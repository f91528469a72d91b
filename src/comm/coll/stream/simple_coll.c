// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/stream/kernel_coll.h"

#include <string.h>

#include "comm/coll/direct/plan.h"

static void
simple_coll_begin(const wm_kernel_coll_t *kernels, const wm_coll_desc_t *desc,
                  const wm_kernel_coll_words_t *words,
                  wm_simple_params_t *params)
{
    *params = (wm_simple_params_t){
        .own = &kernels->own->simple,
        .src = desc->source,
        .dst = desc->target,
        .many = kernels->own->ll.ranks,
        .before = kernels->before,
        .word = words->own,
        .begun = words->begun + WM_BY_SIMPLE,
        .done = words->done,
        .left = words->done - 1,
        .past = words->call + WM_BY_SIMPLE + 1,
        .rank = kernels->rank,
        .size = kernels->size,
        .from = WM_SIMPLE_NOBODY,
        .onto = WM_SIMPLE_NOBODY,
    };
    memcpy(params->few, kernels->few, sizeof params->few);
}

static void
fill(wm_simple_span_t *spans, const wm_ll_side_t *ranks,
     const wm_span_t *blocks, bool many)
{
    for (uint32_t i = 0; i < ranks->count; ++i) {
        uint32_t rank = ranks->first + i;
        const wm_span_t *block = &blocks[many ? rank : 0];
        spans[rank] = (wm_simple_span_t){block->at, block->nbytes};
    }
}

// The functions below fill the spans of a call, and return the kernel's work.

// Sends each rank's block to the ranks that want it.
static wm_simple_work_t
whole(const wm_coll_desc_t *desc, wm_simple_params_t *params)
{
    wm_ll_side_t gives = {.count = 0}, takes = gives;
    wm_coll_desc_sides(desc, &gives, &takes);
    fill(params->gives, &gives, desc->out, desc->shape->scatters);
    fill(params->takes, &takes, desc->into, desc->shape->gathers);
    return wm_coll_desc_reduces(desc, &takes) ? WM_SIMPLE_REDUCE
                                              : WM_SIMPLE_MOVE;
}

static wm_simple_span_t
simple_coll_part_of(const wm_span_t *all, size_t element, int parts, int index)
{
    size_t at = wm_plan_part(all->nbytes, element, parts, index);
    size_t end = wm_plan_part(all->nbytes, element, parts, index + 1);
    return (wm_simple_span_t){all->at + at, end - at};
}

// Each rank reduces its part of the vector, then takes the other parts.
static wm_simple_work_t
simple_coll_reduce_parts(const wm_coll_desc_t *desc,
                         wm_simple_params_t *params)
{
    size_t element = desc->call->size;
    int rank = desc->comm->rank, size = desc->comm->size;
    wm_span_t all = {.nbytes = desc->out[0].nbytes};
    params->src += desc->out[0].at;
    params->dst += desc->into[0].at;
    for (int other = 0; other < size; ++other) {
        params->gives[other] = simple_coll_part_of(&all, element, size, other);
        params->takes[other] = simple_coll_part_of(&all, element, size, rank);
    }
    return WM_SIMPLE_ALL;
}

// Each rank but the root reduces a part, and sends the result to the root.
static wm_simple_work_t
reduce_to_root(const wm_coll_desc_t *desc, wm_simple_params_t *params)
{
    const wm_span_t *out = &desc->out[0], *into = &desc->into[0];
    size_t element = desc->call->size;
    int rank = desc->comm->rank, size = desc->comm->size;
    int root = desc->call->root, own = (rank - root - 1 + size) % size;
    for (int i = 0; i < size - 1; ++i) {
        int other = (root + 1 + i) % size;
        params->gives[other] = simple_coll_part_of(out, element, size - 1, i);
        if (rank == root)
            params->takes[other] = simple_coll_part_of(into, element, size - 1,
                                                       i);
    }
    if (rank == root)
        return WM_SIMPLE_MOVE;
    for (int other = 0; other < size; ++other)
        params->takes[other] = simple_coll_part_of(out, element, size - 1,
                                                   own);
    params->onto = (uint32_t)root;
    return WM_SIMPLE_REDUCE;
}

// The root sends a part to each other rank, which passes it on to all ranks
// but the root.
static wm_simple_work_t
scatter_parts(const wm_coll_desc_t *desc, wm_simple_params_t *params)
{
    const wm_span_t *out = &desc->out[0], *into = &desc->into[0];
    int rank = desc->comm->rank, size = desc->comm->size;
    int root = desc->call->root, own = (rank - root - 1 + size) % size;
    for (int i = 0; i < size - 1; ++i) {
        int other = (root + 1 + i) % size;
        if (rank == root)
            params->gives[other] = simple_coll_part_of(out, 1, size - 1, i);
        else if (rank == other)
            params->takes[root] = simple_coll_part_of(into, 1, size - 1, i);
        else {
            params->gives[other] = simple_coll_part_of(into, 1, size - 1, own);
            params->takes[other] = simple_coll_part_of(into, 1, size - 1, i);
        }
    }
    if (rank != root)
        params->from = (uint32_t)root;
    return WM_SIMPLE_MOVE;
}

int
wm_simple_coll_enqueue(const wm_kernel_coll_t *kernels,
                       const wm_coll_desc_t *desc,
                       const wm_kernel_coll_words_t *words, wm_error_t *err)
{
    wm_simple_params_t params;
    wm_simple_work_t work;
    wm_coll_kind_t kind = desc->call->kind;
    bool several = desc->comm->size > 2;
    bool long_one = wm_coll_desc_longest(desc) > kernels->thresholds.parts;
    simple_coll_begin(kernels, desc, words, &params);
    if (several && kind == WM_COLL_ALLREDUCE)
        work = simple_coll_reduce_parts(desc, &params);
    else if (several && long_one && kind == WM_COLL_REDUCE)
        work = reduce_to_root(desc, &params);
    else if (several && long_one && kind == WM_COLL_BCAST)
        work = scatter_parts(desc, &params);
    else
        work = whole(desc, &params);
    return wm_simple_launch(desc->device, &kernels->simple, work, desc->type,
                            desc->op, &params, desc->stream, err);
}
