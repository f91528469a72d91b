// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/direct/participant.h"

#include "comm/coll/direct/preflight.h"

// Returns the block of `from` for `to`, as published.
static wm_span_t
has(const void *context, int from, int to)
{
    const wm_participant_t *participant = context;
    const wm_published_t *published = wm_preflight_data(
        participant->direct.barrier, from);
    wm_coll_kind_t kind = participant->call->kind;
    int which = to - wm_comm_group(participant->comm, to).first;
    const wm_strided_desc_t *gaps = published->gaps == WM_PUBLISHED_GAPS_EACH
                                        ? wm_published_gaps(published, which)
                                        : NULL;
    if (gaps != NULL)
        return (wm_span_t){0, wm_strided_desc_nbytes(gaps)};
    if (wm_coll_shape(kind)->rooted && from != participant->root
        && wm_coll_shape(kind)->scatters)
        return (wm_span_t){0, 0};
    if (wm_coll_shape(kind)->varies)
        return published->spans[wm_coll_shape(kind)->scatters ? which : 0];
    size_t index = wm_coll_shape(kind)->scatters ? (size_t)which : 0;
    if (kind == WM_COLL_ALLGATHER && published->in_place)
        index = (size_t)from;
    return (wm_span_t){index * published->block, published->block};
}

// Returns where this rank wants the block of `from`.
static wm_span_t
wants(const void *context, int from, int to)
{
    const wm_participant_t *participant = context;
    const wm_coll_t *call = participant->call;
    int which = from - wm_comm_group(participant->comm, from).first;
    (void)to;
    if (!wm_participant_receives(participant)
        || (wm_coll_shape(call->kind)->rooted
            && wm_coll_shape(call->kind)->scatters
            && from != participant->root))
        return (wm_span_t){0, 0};
    if (call->receives != NULL)
        return call->receives[which];
    size_t index = wm_coll_shape(call->kind)->gathers ? (size_t)which : 0;
    return (wm_span_t){index * participant->want, participant->want};
}

// Compares the bytes that others send to this rank with those that it expects.
// Only this rank sees a difference.
static int
check_spans(const wm_participant_t *participant, wm_error_t *err)
{
    wm_ranks_t others = wm_participant_others(participant);
    err->code = 0;
    for (int i = 0; i < others.count; ++i) {
        int rank = others.first + i;
        wm_span_t from = has(participant, rank, participant->comm->rank);
        wm_span_t into = wants(participant, rank, participant->comm->rank);
        if (participant->call->receive != NULL
            && wm_participant_receives(participant)
            && from.nbytes != into.nbytes)
            return wm_error_set(
                err, WM_ERR_MPI, MPI_ERR_TRUNCATE,
                "rank %d sends %zu bytes to rank %d%s, which expects %zu: "
                "give the same counts",
                i, from.nbytes,
                participant->comm->rank
                    - wm_participant_group(participant).first,
                participant->comm->split > 0 ? " of the other group" : "",
                into.nbytes);
    }
    return 0;
}

bool
wm_coll_make_plan(const wm_coll_t *call, const wm_facts_t *facts, size_t from,
                  wm_spans_t has, wm_spans_t wants, const void *context,
                  wm_plan_t *plan)
{
    const wm_shape_t *shape = wm_coll_shape(call->kind);
    bool gets = wm_coll_receives(call, facts->rank);
    // In place a rank keeps its block, except where received data overlie data
    // that others read.
    bool keeps = gets && wm_coll_sends(call, facts->rank)
                 && (call->send == NULL || call->receive == NULL)
                 && !(shape->scatters && shape->gathers);
    if (call->kind == WM_COLL_ALLREDUCE)
        return wm_plan_allreduce(facts, plan);
    if (call->kind == WM_COLL_BCAST)
        wm_plan_bcast(facts, plan);
    else if (!shape->reduces)
        wm_plan_exchange(facts, has, wants, context, keeps, plan);
    else if (shape->rooted)
        wm_plan_reduce_to_root(facts, plan);
    else if (shape->prefix)
        wm_plan_reduce(facts, (wm_ranks_t){0, facts->rank + shape->inclusive},
                       0, facts->nbytes, plan);
    else
        wm_plan_reduce(facts, facts->sources, from, facts->nbytes, plan);
    return true;
}

bool
wm_participant_plan(const wm_participant_t *participant, wm_plan_t *plan,
                    wm_error_t *wrong)
{
    const wm_coll_t *call = participant->call;
    const wm_shape_t *shape = wm_coll_shape(call->kind);
    int rank = participant->comm->rank;
    bool one = call->kind == WM_COLL_BCAST; // all use the root's length
    wm_facts_t facts = {
        .root = participant->root,
        .nbytes = one ? wm_participant_bytes_of(participant, participant->root)
                      : participant->block,
        .element = shape->reduces ? call->size : 1,
    };
    wm_direct_facts(&participant->direct, &facts);
    wrong->code = 0;
    if (!shape->reduces && call->kind != WM_COLL_BCAST)
        (void)!check_spans(participant, wrong);
    size_t from =
        shape->uneven
            ? wm_participant_blocks_until(
                participant, wm_participant_group(participant).first, rank)
            : (size_t)(rank - wm_participant_group(participant).first)
                  * participant->block;
    return wm_coll_make_plan(call, &facts, from, has, wants, participant,
                             plan);
}
