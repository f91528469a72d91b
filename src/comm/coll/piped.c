// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/piped.h"

#include <string.h>

#include "comm/coll/plan.h"

typedef struct {
    const wm_by_kernels_t *exchange;
    const wm_laid_t *laid;
    const wm_by_kernels_words_t *words;
} run_t;

static wm_pipes_params_t
begin(const run_t *run, const char *src, char *dst, bool last)
{
    const wm_by_kernels_t *exchange = run->exchange;
    const wm_by_kernels_words_t *words = run->words;
    wm_pipes_params_t params = {
        .own = &exchange->own->pipes,
        .src = src,
        .dst = dst,
        .many = exchange->own->boxes.ranks,
        .before = exchange->before,
        .word = words->own,
        .begun = words->begun + WM_BY_PIPES,
        .done = last ? words->done : words->begun + WM_BY_PIPES,
        .left = words->done - 1,
        .past = words->call + WM_BY_PIPES + 1,
        .rank = exchange->rank,
        .size = exchange->size,
    };
    memcpy(params.few, exchange->few, sizeof params.few);
    return params;
}

static int
launch(const run_t *run, wm_pipes_params_t *params, bool reduces,
       wm_error_t *err)
{
    const wm_laid_t *laid = run->laid;
    return wm_pipes_launch(laid->device, &run->exchange->pipes, reduces,
                           laid->type, laid->op, params, laid->stream, err);
}

static void
fill(wm_pipes_span_t *spans, const wm_boxes_side_t *ranks,
     const wm_span_t *blocks, bool many)
{
    for (uint32_t i = 0; i < ranks->count; ++i) {
        uint32_t rank = ranks->first + i;
        const wm_span_t *block = &blocks[many ? rank : 0];
        spans[rank] = (wm_pipes_span_t){block->at, block->nbytes};
    }
}

// Each rank's block to those who want it.
static int
whole(const run_t *run, wm_error_t *err)
{
    const wm_laid_t *laid = run->laid;
    wm_boxes_side_t gives = {.count = 0}, takes = gives;
    wm_by_kernels_ranks(laid, &gives, &takes);
    bool reduces = wm_by_kernels_reduces(laid, &gives, &takes);
    wm_pipes_params_t params = begin(run, laid->source, laid->target, true);
    fill(params.gives, &gives, laid->out, laid->shape->scatters);
    fill(params.takes, &takes, laid->into, laid->shape->gathers);
    return launch(run, &params, reduces, err);
}

static wm_pipes_span_t
part_of(const wm_span_t *all, size_t element, int parts, int index)
{
    size_t at = wm_plan_part(all->nbytes, element, parts, index);
    size_t end = wm_plan_part(all->nbytes, element, parts, index + 1);
    return (wm_pipes_span_t){all->at + at, end - at};
}

// Each rank from `first` on has its part of what all receive, and takes the
// others'.
static int
gather(const run_t *run, size_t element, int parts, int first, wm_error_t *err)
{
    const wm_laid_t *laid = run->laid;
    const wm_span_t *into = &laid->into[0];
    int rank = laid->comm->rank, size = laid->comm->size;
    wm_pipes_params_t params = begin(run, laid->target, laid->target, true);
    int own = (rank - first + size) % size;
    for (int i = 0; i < parts && own < parts; ++i) {
        int other = (first + i) % size;
        params.gives[other] = part_of(into, element, parts, own);
        params.takes[other] = part_of(into, element, parts, i);
    }
    return launch(run, &params, false, err);
}

// Each rank reduces its part of all, and then has it.
static int
reduce_parts(const run_t *run, wm_error_t *err)
{
    const wm_laid_t *laid = run->laid;
    int rank = laid->comm->rank, size = laid->comm->size;
    wm_pipes_params_t params = begin(run, laid->source, laid->target, false);
    for (int other = 0; other < size; ++other) {
        params.gives[other] = part_of(&laid->out[0], laid->call->size, size,
                                      other);
        params.takes[other] = part_of(&laid->into[0], laid->call->size, size,
                                      rank);
    }
    int code = launch(run, &params, true, err);
    return code < 0 ? code : gather(run, laid->call->size, size, 0, err);
}

// The root gives each of the others its part, which then has it.
static int
scatter_parts(const run_t *run, wm_error_t *err)
{
    const wm_laid_t *laid = run->laid;
    int rank = laid->comm->rank, size = laid->comm->size;
    int root = laid->call->root, first = (root + 1) % size;
    wm_pipes_params_t params = begin(run, laid->source, laid->target, false);
    for (int i = 0; i < size - 1; ++i) {
        int other = (first + i) % size;
        if (rank == root)
            params.gives[other] = part_of(&laid->out[0], 1, size - 1, i);
        else if (rank == other)
            params.takes[root] = part_of(&laid->into[0], 1, size - 1, i);
    }
    int code = launch(run, &params, false, err);
    return code < 0 ? code : gather(run, 1, size - 1, first, err);
}

int
wm_piped_enqueue(const wm_by_kernels_t *exchange, const wm_laid_t *laid,
                 const wm_by_kernels_words_t *words, wm_error_t *err)
{
    run_t run = {exchange, laid, words};
    bool several = laid->comm->size > 2;
    bool moved = laid->op == WM_REDUCE_REPLACE || laid->op == WM_REDUCE_NO_OP;
    if (several && laid->call->kind == WM_CALL_ALLREDUCE && !moved)
        return reduce_parts(&run, err);
    if (several && laid->call->kind == WM_CALL_BCAST
        && wm_laid_longest(laid) > exchange->points.parts)
        return scatter_parts(&run, err);
    return whole(&run, err);
}
