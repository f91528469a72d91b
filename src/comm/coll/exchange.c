// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/exchange.h"

#include <string.h>

#define LONGEST 65536 // bytes of a block: beyond, copies are faster

int
wm_exchange_open(wm_exchange_t *exchange, int device,
                 const wm_boxes_rank_t *ranks, int rank, int size,
                 wm_error_t *err)
{
    int few = size < WM_BOXES_FEW ? size : WM_BOXES_FEW;
    exchange->rank = (uint32_t)rank;
    exchange->size = (uint32_t)size;
    exchange->own = ranks[rank].boxes;
    memcpy(exchange->few, ranks, (size_t)few * sizeof *ranks);
    return wm_boxes_introduce(device, exchange->own, ranks, size, err);
}

// Barriers have nothing to wait for in boxes; of what varies, not all ranks
// know whether it is short.
bool
wm_exchange_serves(const wm_laid_t *laid)
{
    wm_call_kind_t kind = laid->call->kind;
    size_t longest = wm_laid_longest(laid);
    return kind != WM_CALL_BARRIER && kind != WM_CALL_REDUCE_SCATTER
           && !laid->shape->varies && longest <= LONGEST
           && longest <= wm_boxes_room(laid->comm->size);
}

// All ranks, or one, or those up to one, or from it on.
static void
choose_ranks(const wm_laid_t *laid, wm_boxes_params_t *params)
{
    const wm_coll_t *call = laid->call;
    uint32_t size = params->size, rank = params->rank;
    bool scans = call->kind == WM_CALL_SCAN || call->kind == WM_CALL_EXSCAN;
    bool self = call->kind == WM_CALL_SCAN;
    params->gives.count = params->takes.count = size;
    if (scans) {
        params->gives.first = rank + !self;
        params->gives.count = size - rank - !self;
        params->takes.count = rank + self;
    }
    else if (laid->shape->rooted) {
        wm_boxes_side_t *one = laid->shape->outward ? &params->takes
                                                    : &params->gives;
        one->first = (uint32_t)call->root;
        one->count = 1;
    }
    if (laid->source == NULL)
        params->gives.count = 0;
    if (laid->target == NULL)
        params->takes.count = 0;
}

// Where only one rank's block matters, that is moved.
static bool
reduces(const wm_laid_t *laid, wm_boxes_side_t *takes)
{
    bool one = laid->op == WM_REDUCE_REPLACE || laid->op == WM_REDUCE_NO_OP
               || takes->count <= 1;
    if (!laid->shape->reduces || takes->count == 0 || !one)
        return laid->shape->reduces && takes->count > 0;
    if (laid->op == WM_REDUCE_REPLACE)
        takes->first += takes->count - 1;
    takes->count = 1;
    return false;
}

static wm_boxes_side_t
side(const wm_span_t *blocks, bool many)
{
    return (wm_boxes_side_t){
        .at = blocks[0].at,
        .step = many ? (uint32_t)blocks[0].nbytes : 0,
        .nbytes = (uint32_t)blocks[0].nbytes,
    };
}

int
wm_exchange_enqueue(wm_exchange_t *exchange, const wm_laid_t *laid,
                    const wm_exchange_words_t *words, wm_error_t *err)
{
    const wm_shape_t *shape = laid->shape;
    wm_boxes_params_t params = {
        .head = (wm_boxes_head_t *)exchange->own,
        .src = laid->source,
        .dst = laid->target,
        .gives = side(laid->out, shape->scatters),
        .takes = side(laid->into, shape->gathers),
        .word = words->own,
        .done = words->done,
        .past = words->past,
        .rank = exchange->rank,
        .size = exchange->size,
        .number = exchange->counted ? 0 : ++exchange->number,
    };
    memcpy(params.few, exchange->few, sizeof params.few);
    choose_ranks(laid, &params);
    params.reduces = reduces(laid, &params.takes);
    bool overlaid = shape->reduces && !params.reduces;
    return wm_boxes_launch(laid->device, laid->type, laid->op, &params,
                           overlaid, laid->stream, err);
}
