// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/stream/simple_coll.h"

#include <string.h>

#include "comm/coll/direct/plan.h"

typedef struct {
    const wm_kernel_coll_t *kernels;
    const wm_coll_desc_t *desc;
    const wm_kernel_coll_words_t *words;
} run_t;

static wm_simple_params_t
simple_coll_begin(const run_t *run, const char *src, char *dst)
{
    const wm_kernel_coll_t *kernels = run->kernels;
    const wm_kernel_coll_words_t *words = run->words;
    wm_simple_params_t params = {
        .own = &kernels->own->simple,
        .src = src,
        .dst = dst,
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
    memcpy(params.few, kernels->few, sizeof params.few);
    return params;
}

static int
simple_coll_launch(const run_t *run, wm_simple_params_t *params,
                   wm_simple_work_t work, wm_error_t *err)
{
    const wm_coll_desc_t *desc = run->desc;
    return wm_simple_launch(desc->device, &run->kernels->simple, work,
                            desc->type, desc->op, params, desc->stream, err);
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

// Sends each rank's block to the ranks that want it.
static int
whole(const run_t *run, wm_error_t *err)
{
    const wm_coll_desc_t *desc = run->desc;
    wm_ll_side_t gives = {.count = 0}, takes = gives;
    wm_coll_desc_sides(desc, &gives, &takes);
    bool reduces = wm_coll_desc_reduces(desc, &takes);
    wm_simple_params_t params = simple_coll_begin(run, desc->source,
                                                  desc->target);
    fill(params.gives, &gives, desc->out, desc->shape->scatters);
    fill(params.takes, &takes, desc->into, desc->shape->gathers);
    return simple_coll_launch(
        run, &params, reduces ? WM_SIMPLE_REDUCE : WM_SIMPLE_MOVE, err);
}

static wm_simple_span_t
simple_coll_part_of(const wm_span_t *all, size_t element, int parts, int index)
{
    size_t at = wm_plan_part(all->nbytes, element, parts, index);
    size_t end = wm_plan_part(all->nbytes, element, parts, index + 1);
    return (wm_simple_span_t){all->at + at, end - at};
}

// Each rank reduces its part of the vector, then takes the other parts.
static int
simple_coll_reduce_parts(const run_t *run, wm_error_t *err)
{
    const wm_coll_desc_t *desc = run->desc;
    const wm_span_t *out = &desc->out[0], *into = &desc->into[0];
    size_t element = desc->call->size;
    int rank = desc->comm->rank, size = desc->comm->size;
    wm_simple_params_t params = simple_coll_begin(run, desc->source + out->at,
                                                  desc->target + into->at);
    wm_span_t all = {.nbytes = out->nbytes};
    for (int other = 0; other < size; ++other) {
        params.gives[other] = simple_coll_part_of(&all, element, size, other);
        params.takes[other] = simple_coll_part_of(&all, element, size, rank);
    }
    return simple_coll_launch(run, &params, WM_SIMPLE_ALL, err);
}

// Each rank but the root reduces a part, and sends the result to the root.
static int
reduce_to_root(const run_t *run, wm_error_t *err)
{
    const wm_coll_desc_t *desc = run->desc;
    const wm_span_t *out = &desc->out[0], *into = &desc->into[0];
    size_t element = desc->call->size;
    int rank = desc->comm->rank, size = desc->comm->size;
    int root = desc->call->root, own = (rank - root - 1 + size) % size;
    wm_simple_params_t params = simple_coll_begin(run, desc->source,
                                                  desc->target);
    for (int i = 0; i < size - 1; ++i) {
        int other = (root + 1 + i) % size;
        params.gives[other] = simple_coll_part_of(out, element, size - 1, i);
        if (rank == root)
            params.takes[other] = simple_coll_part_of(into, element, size - 1,
                                                      i);
    }
    for (int other = 0; other < size && rank != root; ++other)
        params.takes[other] = simple_coll_part_of(out, element, size - 1, own);
    if (rank != root)
        params.onto = (uint32_t)root;
    return simple_coll_launch(
        run, &params, rank == root ? WM_SIMPLE_MOVE : WM_SIMPLE_REDUCE, err);
}

// The root sends a part to each other rank, which passes it on to all ranks
// but the root.
static int
scatter_parts(const run_t *run, wm_error_t *err)
{
    const wm_coll_desc_t *desc = run->desc;
    const wm_span_t *out = &desc->out[0], *into = &desc->into[0];
    int rank = desc->comm->rank, size = desc->comm->size;
    int root = desc->call->root, own = (rank - root - 1 + size) % size;
    wm_simple_params_t params = simple_coll_begin(run, desc->source,
                                                  desc->target);
    for (int i = 0; i < size - 1; ++i) {
        int other = (root + 1 + i) % size;
        if (rank == root)
            params.gives[other] = simple_coll_part_of(out, 1, size - 1, i);
        else if (rank == other)
            params.takes[root] = simple_coll_part_of(into, 1, size - 1, i);
        else {
            params.gives[other] = simple_coll_part_of(into, 1, size - 1, own);
            params.takes[other] = simple_coll_part_of(into, 1, size - 1, i);
        }
    }
    if (rank != root)
        params.from = (uint32_t)root;
    return simple_coll_launch(run, &params, WM_SIMPLE_MOVE, err);
}

int
wm_simple_coll_enqueue(const wm_kernel_coll_t *kernels,
                       const wm_coll_desc_t *desc,
                       const wm_kernel_coll_words_t *words, wm_error_t *err)
{
    run_t run = {kernels, desc, words};
    bool several = desc->comm->size > 2;
    if (several && desc->call->kind == WM_COLL_ALLREDUCE)
        return simple_coll_reduce_parts(&run, err);
    bool long_one = wm_coll_desc_longest(desc) > kernels->thresholds.parts;
    if (several && long_one && desc->call->kind == WM_COLL_REDUCE)
        return reduce_to_root(&run, err);
    if (several && long_one && desc->call->kind == WM_COLL_BCAST)
        return scatter_parts(&run, err);
    return whole(&run, err);
}
