// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/direct/participant.h"

#include <stddef.h>
#include <string.h>

#include "comm/coll/call/reducible.h"
#include "comm/message/element.h"

// Returns the number of blocks that this rank sends.
static size_t
blocks_sent(const wm_participant_t *participant)
{
    const wm_shape_t *shape = wm_coll_shape(participant->call->kind);
    return !shape->scatters ? 1
           : shape->reduces ? (size_t)wm_participant_group(participant).count
                            : (size_t)wm_participant_others(participant).count;
}

// Returns the number of blocks that this rank receives. For a reduction in
// place: that its receive buffer holds.
static size_t
blocks_of(const wm_participant_t *participant)
{
    const wm_shape_t *shape = wm_coll_shape(participant->call->kind);
    bool in_place = participant->call->send == NULL && shape->reduces;
    return shape->gathers || (in_place && shape->scatters)
               ? (size_t)wm_participant_others(participant).count
               : 1;
}

size_t
wm_participant_block(const wm_participant_t *participant)
{
    const wm_coll_t *call = participant->call;
    if (wm_coll_shape(call->kind)->uneven) // its own block
        return call->send != NULL
                   ? call->receive->nbytes
                   : call->receives[participant->comm->rank].nbytes;
    if (call->send != NULL && wm_participant_sends(participant))
        return call->send->nbytes / blocks_sent(participant);
    return call->receive->nbytes / blocks_of(participant);
}

// Returns true if the send data are where this rank receives.
static bool
is_in_place(const wm_participant_t *participant)
{
    return participant->call->send == NULL && wm_participant_sends(participant)
           && wm_participant_receives(participant);
}

// Returns true if this rank sends or receives; between groups some ranks do
// neither.
static bool
takes_part(const wm_participant_t *participant)
{
    return wm_participant_sends(participant)
           || wm_participant_receives(participant);
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
    size_t ranks = (size_t)wm_participant_others(participant).count;
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
    published->type = (uint8_t)participant->type;
    published->op = (uint8_t)participant->op;
    published->root = call->root;
    if (!takes_part(participant))
        return;
    size_t spoken = (size_t)wm_participant_others(participant).count
                    * sizeof *published->spans;
    published->block = participant->block = wm_participant_block(participant);
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
    if (!wm_coll_shape(call->kind)->varies
        || !wm_participant_sends(participant)
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

static wm_given_t
given_of(const wm_participant_t *participant)
{
    const wm_coll_t *call = participant->call;
    wm_coll_kind_t kind = call->kind;
    bool in_place = is_in_place(participant);
    wm_given_t given = {
        .send = wm_participant_sends(participant) ? call->send : NULL,
        .receive = wm_participant_receives(participant) ? call->receive : NULL,
        .in_place = in_place,
        .copied = in_place && wm_coll_shape(kind)->overlaid,
        .moved = !wm_coll_shape(kind)->reduces && kind != WM_COLL_BCAST,
    };
    if (wm_coll_overlap(given.send, given.receive))
        given.copied = true;
    if (in_place && (kind == WM_COLL_GATHER || kind == WM_COLL_GATHERV))
        given.in_place = false; // its own block is not moved
    return given;
}

int
wm_participant_order(wm_participant_t *participant, wm_error_t *err)
{
    wm_given_t given = given_of(participant);
    return wm_direct_order(&participant->direct, &given, err);
}

int
wm_participant_reopen(wm_participant_t *participant, wm_error_t *err)
{
    wm_given_t given = given_of(participant);
    return wm_direct_reopen(&participant->direct, &given, err);
}

void
wm_participant_init(wm_participant_t *participant, wm_comm_t *comm,
                    wm_barrier_t *barrier, const wm_coll_t *call)
{
    participant->comm = comm;
    participant->call = call;
    participant->type = 0;
    participant->op = 0;
    participant->root = 0;
    participant->block = participant->want = 0;
    wm_direct_init(&participant->direct, comm, barrier);
    participant->reducible = !wm_coll_shape(call->kind)->reduces
                             || !takes_part(participant)
                             || wm_coll_reducible(call, &participant->type,
                                                  &participant->op);
}

int
wm_participant_open(wm_participant_t *participant, wm_error_t *err)
{
    wm_given_t given = given_of(participant);
    int code = wm_direct_open(&participant->direct, &given, err);
    if (participant->direct.capable)
        wm_participant_publish(participant);
    return code;
}
