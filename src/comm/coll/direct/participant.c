// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/direct/participant.h"

#include <stddef.h>
#include <string.h>

#include "comm/coll/call/preflight_values.h"
#include "comm/coll/call/reducible.h"
#include "comm/message/element.h"

static bool
sends(const wm_participant_t *participant)
{
    return wm_coll_sends(participant->call, participant->comm->rank);
}

static bool
receives(const wm_participant_t *participant)
{
    return wm_coll_receives(participant->call, participant->comm->rank);
}

static wm_ranks_t
group_of(const wm_participant_t *participant)
{
    return wm_comm_group(participant->comm, participant->comm->rank);
}

static wm_ranks_t
others_of(const wm_participant_t *participant)
{
    return wm_comm_others(participant->comm, participant->comm->rank);
}

// Returns the number of blocks that this rank sends.
static size_t
blocks_sent(const wm_participant_t *participant)
{
    const wm_shape_t *shape = wm_coll_shape(participant->call->kind);
    return !shape->scatters ? 1
           : shape->reduces ? (size_t)group_of(participant).count
                            : (size_t)others_of(participant).count;
}

// Returns the number of blocks that this rank receives. For a reduction in
// place: that its receive buffer holds.
static size_t
blocks_of(const wm_participant_t *participant)
{
    const wm_shape_t *shape = wm_coll_shape(participant->call->kind);
    bool in_place = participant->call->send == NULL && shape->reduces;
    return shape->gathers || (in_place && shape->scatters)
               ? (size_t)others_of(participant).count
               : 1;
}

// Returns the bytes of a block, from this rank's arguments.
static size_t
block_of(const wm_participant_t *participant)
{
    const wm_coll_t *call = participant->call;
    if (wm_coll_shape(call->kind)->uneven) // its own block
        return call->send != NULL
                   ? call->receive->nbytes
                   : call->receives[participant->comm->rank].nbytes;
    if (call->send != NULL && sends(participant))
        return call->send->nbytes / blocks_sent(participant);
    return call->receive->nbytes / blocks_of(participant);
}

// Returns true if the send data are where this rank receives.
static bool
is_in_place(const wm_participant_t *participant)
{
    return participant->call->send == NULL && sends(participant)
           && receives(participant);
}

// Returns the block of `from` for `to`, as published.
static wm_span_t
has(const void *context, int from, int to)
{
    const wm_participant_t *participant = context;
    const wm_published_t *published = wm_preflight_data(
        participant->direct.barrier, from);
    wm_call_kind_t kind = participant->call->kind;
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
    if (kind == WM_CALL_ALLGATHER && published->in_place)
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
    if (!receives(participant)
        || (wm_coll_shape(call->kind)->rooted
            && wm_coll_shape(call->kind)->scatters
            && from != participant->root))
        return (wm_span_t){0, 0};
    if (call->receives != NULL)
        return call->receives[which];
    size_t index = wm_coll_shape(call->kind)->gathers ? (size_t)which : 0;
    return (wm_span_t){index * participant->want, participant->want};
}

// Returns true if this rank sends or receives; between groups some ranks do
// neither.
static bool
takes_part(const wm_participant_t *participant)
{
    return sends(participant) || receives(participant);
}

static bool
publishes_spans(const wm_participant_t *participant)
{
    return (wm_coll_shape(participant->call->kind)->varies
            || wm_coll_shape(participant->call->kind)->uneven)
           && participant->direct.published.gaps != WM_PUBLISHED_GAPS_EACH;
}

size_t
wm_participant_nbytes(const wm_participant_t *participant)
{
    const wm_published_t *published = &participant->direct.published;
    size_t ranks = (size_t)others_of(participant).count;
    return WM_PUBLISHED_BYTES
           + (published->gaps == WM_PUBLISHED_GAPS_EACH
                  ? ranks * sizeof *published->each
              : publishes_spans(participant) ? ranks * sizeof *published->spans
                                             : 0);
}

void
wm_participant_publish(wm_participant_t *participant)
{
    const wm_coll_t *call = participant->call;
    wm_published_t *published = &participant->direct.published;
    published->kind = (uint8_t)participant->type;
    published->op = (uint8_t)participant->op;
    published->root = call->root;
    if (!takes_part(participant))
        return;
    size_t spoken = (size_t)others_of(participant).count
                    * sizeof *published->spans;
    published->block = participant->block = block_of(participant);
    published->in_place = is_in_place(participant);
    participant->want = participant->block;
    if (publishes_spans(participant))
        memset(published->spans, 0, spoken);
    if (wm_coll_shape(call->kind)->uneven) {
        const wm_buffer_t *all = call->send != NULL ? call->send
                                                    : call->receive;
        published->spans[0] = (wm_span_t){0, all->nbytes};
    }
    else if (call->receive != NULL)
        participant->want = call->receive->nbytes / blocks_of(participant);
    if (!wm_coll_shape(call->kind)->varies || !sends(participant)
        || published->gaps == WM_PUBLISHED_GAPS_EACH)
        return;
    const wm_span_t *spans = call->sends;
    if (is_in_place(participant) && wm_coll_shape(call->kind)->scatters)
        spans = call->receives;
    if (spans != NULL)
        memcpy(published->spans, spans, spoken);
    else if (is_in_place(participant)) // Allgatherv: its own block
        published->spans[0] = call->receives[participant->comm->rank];
    else
        published->spans[0] = (wm_span_t){0, call->send->nbytes};
}

// Returns the bytes of the blocks of some ranks, as published, or SIZE_MAX on
// overflow.
static size_t
blocks_until(const wm_participant_t *participant, int first, int end)
{
    size_t nbytes = 0;
    for (int rank = first; rank < end; ++rank) {
        const wm_published_t *published = wm_preflight_data(
            participant->direct.barrier, rank);
        if (__builtin_add_overflow(nbytes, published->block, &nbytes))
            return SIZE_MAX;
    }
    return nbytes;
}

// Checks a Reduce_scatter: the blocks of all ranks add up to the vector of
// each rank.
static int
compare_blocks(const wm_participant_t *participant, wm_error_t *err)
{
    const wm_comm_t *comm = participant->comm;
    const wm_published_t *first = wm_preflight_data(
        participant->direct.barrier, 0);
    for (int rank = 0; rank < comm->size; ++rank) {
        const wm_published_t *published = wm_preflight_data(
            participant->direct.barrier, rank);
        wm_ranks_t group = wm_comm_group(comm, rank);
        size_t total = blocks_until(participant, group.first,
                                    group.first + group.count);
        if (published->spans[0].nbytes != total
            || first->spans[0].nbytes != total)
            return wm_error_set(err, WM_ERR_MPI, MPI_ERR_TRUNCATE,
                                "%s gives %zu bytes, and the ranks receive "
                                "%zu in all: give the same recvcounts, which "
                                "add up to what is reduced",
                                wm_comm_name(comm, rank).text,
                                published->spans[0].nbytes, total);
    }
    return 0;
}

// Compares the roots. The greatest published root is taken: between groups,
// ranks that share the root's group publish -1.
static int
compare_roots(wm_participant_t *participant, wm_error_t *err)
{
    const wm_comm_t *comm = participant->comm;
    const wm_published_t *first = wm_preflight_data(
        participant->direct.barrier, 0);
    participant->root = first->root;
    for (int rank = 1; rank < comm->size; ++rank) {
        const wm_published_t *published = wm_preflight_data(
            participant->direct.barrier, rank);
        if (comm->split == 0 && published->root != first->root)
            return wm_error_set(err, WM_ERR_MPI, MPI_ERR_ROOT,
                                "rank 0 gives the root %d, rank %d the root "
                                "%d: all must give the same",
                                first->root, rank, published->root);
        participant->root = published->root > participant->root
                                ? published->root
                                : participant->root;
    }
    int own = wm_comm_group(comm, participant->root).first;
    bool known = (participant->root >= 0
                  || !wm_coll_shape(participant->call->kind)->rooted)
                 && participant->root < comm->size;
    for (int rank = 0; rank < comm->size && known && comm->split > 0; ++rank) {
        const wm_published_t *published = wm_preflight_data(
            participant->direct.barrier, rank);
        bool gives = rank == participant->root
                     || wm_comm_group(comm, rank).first != own;
        known = published->root == (gives ? participant->root : -1);
    }
    return known ? 0
                 : wm_error_set(err, WM_ERR_MPI, MPI_ERR_ROOT,
                                "the ranks give different roots: give "
                                "MPI.ROOT on the root, MPI.PROC_NULL on the "
                                "others of its group, and its rank there in "
                                "the other group");
}

// Returns the rank whose arguments `rank` must match. In an exchange between
// groups each group has its own.
static int
model_of(const wm_participant_t *participant, int rank)
{
    const wm_shape_t *shape = wm_coll_shape(participant->call->kind);
    return participant->comm->split > 0 && shape->rooted ? participant->root
           : shape->reduces                              ? 0
                            : wm_comm_group(participant->comm, rank).first;
}

// Returns true if ranks compare the bytes of one block, not of all blocks.
// Between groups, reductions compare all blocks.
static bool
is_of_each(const wm_participant_t *participant)
{
    const wm_shape_t *shape = wm_coll_shape(participant->call->kind);
    return (shape->scatters || shape->gathers)
           && (participant->comm->split == 0 || !shape->reduces);
}

static size_t
bytes_of(const wm_participant_t *participant, int rank)
{
    const wm_shape_t *shape = wm_coll_shape(participant->call->kind);
    const wm_published_t *published = wm_preflight_data(
        participant->direct.barrier, rank);
    bool all = shape->scatters && !is_of_each(participant);
    return published->block
           * (all ? (size_t)wm_comm_group(participant->comm, rank).count : 1);
}

// Raises the difference between two ranks. A function of its own, as making
// the names takes longer than all comparisons.
static int
raise_difference(const wm_participant_t *participant, int rank, int model,
                 wm_error_t *err)
{
    const wm_published_t *first = wm_preflight_data(
        participant->direct.barrier, model);
    const wm_published_t *published = wm_preflight_data(
        participant->direct.barrier, rank);
    wm_rank_name_t name = wm_comm_name(participant->comm, rank);
    wm_rank_name_t other = wm_comm_name(participant->comm, model);
    if (published->op != first->op)
        return wm_error_set(err, WM_ERR_MPI, MPI_ERR_OP,
                            "%s gives another op than %s: all must give the "
                            "same",
                            name.text, other.text);
    if (published->kind != first->kind)
        return wm_error_set(err, WM_ERR_TYPE, 0,
                            "%s gives another element type than %s: all must "
                            "give the same",
                            name.text, other.text);
    return wm_error_set(err, WM_ERR_MPI, MPI_ERR_TRUNCATE,
                        "%s gives %zu bytes%s, %s gives %zu: all must give "
                        "the same",
                        other.text, bytes_of(participant, model),
                        is_of_each(participant) ? " for each rank" : "",
                        name.text, bytes_of(participant, rank));
}

int
wm_participant_compare(wm_participant_t *participant, wm_error_t *err)
{
    const wm_coll_t *call = participant->call;
    const wm_comm_t *comm = participant->comm;
    bool alike = !wm_coll_shape(call->kind)->varies
                 && !wm_coll_shape(call->kind)->uneven;
    int code = compare_roots(participant, err);
    if (code < 0)
        return code;
    for (int rank = 0; rank < comm->size; ++rank) {
        int model = model_of(participant, rank);
        const wm_published_t *first = wm_preflight_data(
            participant->direct.barrier, model);
        const wm_published_t *published = wm_preflight_data(
            participant->direct.barrier, rank);
        if (wm_coll_shape(call->kind)->rooted && published->root < 0)
            continue; // it takes no part
        if (published->op != first->op || published->kind != first->kind
            || (alike
                && bytes_of(participant, rank)
                       != bytes_of(participant, model)))
            return raise_difference(participant, rank, model, err);
    }
    return wm_coll_shape(call->kind)->uneven ? compare_blocks(participant, err)
                                             : 0;
}

// Compares the bytes that others send to this rank with those that it expects.
// Only this rank sees a difference.
static int
check_spans(const wm_participant_t *participant, wm_error_t *err)
{
    wm_ranks_t others = others_of(participant);
    err->code = 0;
    for (int i = 0; i < others.count; ++i) {
        int rank = others.first + i;
        wm_span_t from = has(participant, rank, participant->comm->rank);
        wm_span_t into = wants(participant, rank, participant->comm->rank);
        if (participant->call->receive != NULL && receives(participant)
            && from.nbytes != into.nbytes)
            return wm_error_set(
                err, WM_ERR_MPI, MPI_ERR_TRUNCATE,
                "rank %d sends %zu bytes to rank %d%s, which expects %zu: "
                "give the same counts",
                i, from.nbytes,
                participant->comm->rank - group_of(participant).first,
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
    if (call->kind == WM_CALL_ALLREDUCE)
        return wm_plan_allreduce(facts, plan);
    if (call->kind == WM_CALL_BCAST)
        wm_plan_bcast(facts, plan);
    else if (!shape->reduces)
        wm_plan_exchange(facts, has, wants, context, keeps, plan);
    else if (shape->rooted)
        wm_plan_reduce_to_root(facts, plan);
    else if (shape->prefix)
        wm_plan_reduce((wm_ranks_t){0, facts->rank + shape->inclusive}, 0,
                       facts->nbytes, plan);
    else
        wm_plan_reduce(facts->sources, from, facts->nbytes, plan);
    return true;
}

bool
wm_participant_plan(const wm_participant_t *participant, wm_plan_t *plan,
                    wm_error_t *wrong)
{
    const wm_coll_t *call = participant->call;
    const wm_shape_t *shape = wm_coll_shape(call->kind);
    int rank = participant->comm->rank;
    bool one = call->kind == WM_CALL_BCAST; // all use the root's length
    wm_facts_t facts = {
        .root = participant->root,
        .nbytes = one ? bytes_of(participant, participant->root)
                      : participant->block,
        .element = shape->reduces ? call->size : 1,
    };
    wm_direct_facts(&participant->direct, &facts);
    wrong->code = 0;
    if (!shape->reduces && call->kind != WM_CALL_BCAST)
        (void)!check_spans(participant, wrong);
    size_t from = shape->uneven ? blocks_until(
                      participant, group_of(participant).first, rank)
                                : (size_t)(rank - group_of(participant).first)
                                      * participant->block;
    return wm_coll_make_plan(call, &facts, from, has, wants, participant,
                             plan);
}

static wm_given_t
given_of(const wm_participant_t *participant)
{
    const wm_coll_t *call = participant->call;
    wm_call_kind_t kind = call->kind;
    bool in_place = is_in_place(participant);
    wm_given_t given = {
        .send = sends(participant) ? call->send : NULL,
        .receive = receives(participant) ? call->receive : NULL,
        .in_place = in_place,
        .copied = in_place && wm_coll_shape(kind)->overlaid,
        .moved = !wm_coll_shape(kind)->reduces && kind != WM_CALL_BCAST,
    };
    if (wm_coll_overlap(given.send, given.receive))
        given.copied = true;
    if (in_place && (kind == WM_CALL_GATHER || kind == WM_CALL_GATHERV))
        given.in_place = false; // its own block is not moved
    return given;
}

int
wm_participant_reopen(wm_participant_t *participant, wm_error_t *err)
{
    wm_given_t given = given_of(participant);
    return wm_direct_reopen(&participant->direct, &given, err);
}

int
wm_participant_open(wm_participant_t *participant, wm_comm_t *comm,
                    wm_barrier_t *barrier, const wm_coll_t *call,
                    wm_error_t *err)
{
    wm_call_kind_t kind = call->kind;
    participant->comm = comm;
    participant->call = call;
    participant->type = 0;
    participant->op = 0;
    participant->root = 0;
    participant->block = participant->want = 0;
    wm_direct_init(&participant->direct, comm, barrier);
    if (!call->on_device
        || (wm_coll_shape(kind)->reduces && takes_part(participant)
            && !wm_reducible(call->type, call->size, call->op,
                             &participant->type, &participant->op)))
        return 0;
    wm_given_t given = given_of(participant);
    int code = wm_direct_open(&participant->direct, comm, barrier, &given,
                              err);
    if (participant->direct.capable)
        wm_participant_publish(participant);
    return code;
}
