// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/mpi/by_mpi.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "comm/coll/call/half.h"
#include "comm/engine/stats.h"

static size_t
by_mpi_nbytes_of(const wm_buffer_t *buffer)
{
    return buffer != NULL ? buffer->nbytes : 0;
}

static void
by_mpi_drop(wm_staged_t *staged)
{
    if (staged != NULL && staged->staging != NULL)
        wm_pinned_free(staged->staging);
    free(staged);
}

// Makes a staging copy of a buffer, for its blocks if it has `spans`. The
// caller drops *staged, also after an error.
static int
by_mpi_stage_side(const wm_buffer_t *buffer, const wm_span_t *spans,
                  int blocks, wm_staged_t **staged, wm_error_t *err)
{
    size_t count = spans != NULL ? (size_t)blocks : 1;
    void *memory;
    if (by_mpi_nbytes_of(buffer) == 0)
        return 0;
    *staged = calloc(1, sizeof **staged + count * sizeof(wm_strided_t));
    if (*staged == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    int code = wm_pinned_alloc(buffer->nbytes, &memory, err);
    if (code < 0)
        return code;
    (*staged)->staging = memory;
    (*staged)->count = count;
    for (size_t i = 0; i < count; ++i) {
        wm_span_t span = spans != NULL ? spans[i]
                                       : (wm_span_t){0, buffer->nbytes};
        wm_strided_init(&(*staged)->runs[i], (char *)memory + span.at,
                        (int64_t)span.nbytes);
    }
    return 0;
}

// Makes the staging copies, which MPI is given.
static int
by_mpi_stage(wm_by_mpi_t *by, wm_error_t *err)
{
    const wm_coll_t *call = by->call;
    const wm_coll_row_t *row = wm_coll_row(call->kind);
    int blocks = wm_comm_others(by->comm, by->comm->rank).count;
    if (call->send != NULL || call->receive != NULL)
        wm_stat_add(WM_STAT_staged_collectives, 1);
    int code = by_mpi_stage_side(call->send,
                                 row->sends == WM_VARYING ? call->sends : NULL,
                                 blocks, &by->sent, err);
    if (code == 0)
        code = by_mpi_stage_side(
            call->receive, row->receives == WM_VARYING ? call->receives : NULL,
            blocks, &by->received, err);
    if (code == 0 && by->sent != NULL)
        by->send = by->sent->staging;
    if (code == 0 && by->received != NULL)
        by->receive = by->received->staging;
    return code;
}

static int
by_mpi_open(wm_access_t *access, wm_error_t *err)
{
    int code = wm_access_open(access, err);
    access->idle = false;
    return code;
}

static int
by_mpi_enqueue(const wm_access_t *access, const wm_buffer_t *buffer,
               const wm_staged_t *staged, bool to_host, wm_error_t *err)
{
    return wm_staged_enqueue(buffer, staged, to_host, access->device,
                             access->stream, err);
}

int
wm_by_mpi_fetch(wm_by_mpi_t *by, wm_participant_t *participant,
                wm_error_t *err)
{
    const wm_coll_t *call = participant->call;
    wm_direct_t *direct = &participant->direct;
    by->comm = participant->comm;
    by->call = call;
    by->request = MPI_REQUEST_NULL;
    if (!call->on_device) {
        by->send = call->send != NULL ? call->send->data : NULL;
        by->receive = call->receive != NULL ? call->receive->data : NULL;
        return 0;
    }
    by->into = &direct->into;
    by->from = direct->from.device == by->into->device ? by->into
                                                       : &direct->from;
    by->from->idle = by->into->idle = true; // the data to send are ready
    int code = by_mpi_stage(by, err);
    if (code == 0 && by->sent != NULL)
        code = by_mpi_open(by->from, err);
    if (code == 0 && by->received != NULL)
        code = by_mpi_open(by->into, err);
    if (code == 0 && by->sent != NULL)
        code = by_mpi_enqueue(by->from, call->send, by->sent, true, err);
    if (code == 0 && by->received != NULL
        && wm_coll_keeps(call, by->comm->rank))
        code = by_mpi_enqueue(by->into, call->receive, by->received, true,
                              err);
    return code;
}

static int
take_spoilt(const wm_buffer_t *buffer, char **bytes)
{
    size_t nbytes = by_mpi_nbytes_of(buffer);
    *bytes = NULL;
    if (nbytes > 0 && (*bytes = malloc(nbytes)) == NULL)
        return -1;
    if (nbytes > 0)
        memset(*bytes, 255, nbytes);
    return 0;
}

// Gives MPI bytes of 255 in place of the staging copies.
static int
by_mpi_take_spoilt(wm_by_mpi_t *by, wm_error_t *err)
{
    by->spoilt = true;
    by->send = by->receive = NULL;
    return take_spoilt(by->call->send, &by->send) < 0
                   || take_spoilt(by->call->receive, &by->receive) < 0
               ? wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory")
               : 0;
}

int
wm_by_mpi_spoil(wm_by_mpi_t *by, wm_participant_t *participant,
                wm_error_t *err)
{
    *by = (wm_by_mpi_t){
        .comm = participant->comm,
        .call = participant->call,
        .request = MPI_REQUEST_NULL,
    };
    return by_mpi_take_spoilt(by, err);
}

int
wm_by_mpi_is_copied(wm_by_mpi_t *by, wm_error_t *err)
{
    wm_access_t *sides[] = {by->from, by->into};
    int copied = 1;
    for (int i = 0; i < 2 && copied > 0; ++i)
        if (sides[i] != NULL && !sides[i]->idle)
            copied = wm_access_look(sides[i], 1, err);
    return copied;
}

static MPI_Datatype
by_mpi_type_of(const wm_by_mpi_t *by)
{
    MPI_Datatype type = by->call->type;
    return type != MPI_DATATYPE_NULL ? type : MPI_BYTE;
}

static int
by_mpi_count(const wm_by_mpi_t *by, size_t nbytes, bool *fits)
{
    MPI_Datatype type = by->call->type;
    size_t size = type != MPI_DATATYPE_NULL ? by->call->size : 1;
    *fits &= nbytes / size <= INT_MAX;
    return (int)(nbytes / size);
}

// The blocks of one side, as MPI takes them: by rank, or by neighbor.
typedef struct {
    wm_neighbors_t peers;
    int *counts, *at;
    MPI_Aint *bytes_at;
    MPI_Datatype *types;
} side_t;

typedef struct {
    MPI_Aint bytes_at;
    MPI_Datatype type;
    int count, at;
} block_t;

struct wm_by_mpi_sides {
    side_t sends, receives;
    block_t room[]; // of both sides
};

// Lays out the arrays of a side with room for so many blocks.
static void
side_init(side_t *side, block_t *room, size_t blocks)
{
    side->bytes_at = (MPI_Aint *)room;
    side->types = (MPI_Datatype *)(side->bytes_at + blocks);
    side->counts = (int *)(side->types + blocks);
    side->at = side->counts + blocks;
}

static void
by_mpi_lay(const wm_by_mpi_t *by, side_t *side, int block, wm_span_t span,
           bool *fits)
{
    side->counts[block] = by_mpi_count(by, span.nbytes, fits);
    side->at[block] = by_mpi_count(by, span.at, fits);
    side->bytes_at[block] = (MPI_Aint)span.at;
    side->types[block] = by_mpi_type_of(by);
}

// Lays the blocks, if they vary: of all ranks, which may be more than a
// barrier's, or of neighbors. -1 (MPI_PROC_NULL) gets an empty one.
static void
lay_blocks(const wm_by_mpi_t *by, side_t *side, const wm_span_t *spans,
           bool *fits)
{
    bool neighbors = wm_coll_shape(by->call->kind)->neighbors;
    for (int i = 0; i < side->peers.count && spans != NULL; ++i) {
        int rank = neighbors ? side->peers.ranks[i] : i;
        by_mpi_lay(by, side, i, rank >= 0 ? spans[rank] : (wm_span_t){0, 0},
                   fits);
    }
}

// Returns the root as MPI takes it: between groups MPI_ROOT, MPI_PROC_NULL or
// a rank of the other group.
static int
root_of(const wm_by_mpi_t *by)
{
    const wm_comm_t *comm = by->comm;
    int root = by->call->root;
    return comm->split == 0 || !wm_coll_shape(by->call->kind)->rooted ? root
           : root < 0           ? MPI_PROC_NULL
           : root == comm->rank ? MPI_ROOT
                                : root - wm_comm_group(comm, root).first;
}

// Returns the elements of `nbytes` or, if they are `divided` among the ranks
// of a side, of one of its blocks.
static int
count_of(const wm_by_mpi_t *by, size_t nbytes, bool divided,
         const side_t *side, bool *fits)
{
    size_t blocks = divided ? (size_t)side->peers.count : 1;
    return blocks > 0 ? by_mpi_count(by, nbytes / blocks, fits) : 0;
}

// MPI's arguments: a block, one for each rank, or blocks of any lengths.
#define SENT send, out, type
#define TAKEN receive, in, type
#define SENT_V send, sends->counts, sends->at, type
#define TAKEN_V receive, takes->counts, takes->at, type

// Makes MPI's blocking call, or begins the nonblocking one.
#define CASE(NAME, blocking, begins, ...)                                     \
    case WM_COLL_##NAME:                                                      \
        result = by->blocks ? MPI_##blocking(__VA_ARGS__)                     \
                            : MPI_##begins(__VA_ARGS__, &by->request);        \
        break

static int
by_mpi_begin(wm_by_mpi_t *by, bool *fits)
{
    const wm_coll_t *call = by->call;
    const wm_coll_row_t *row = wm_coll_row(call->kind);
    const wm_shape_t *shape = &row->shape;
    const wm_comm_t *comm = by->comm;
    const side_t *sends = &by->sides->sends, *takes = &by->sides->receives;
    // With it, the span of a rank holds all blocks that this rank has for it.
    bool paired = shape->neighbors && comm->neighbor_rule.paired;
    MPI_Comm on = by->blocks                    ? comm->owner->user
                  : comm->split > 0             ? comm->owner->data
                  : comm->colls.ordered != NULL ? *comm->colls.ordered
                                                : comm->data;
    MPI_Datatype type = by_mpi_type_of(by);
    MPI_Op op = wm_half_op(type, call->op);
    int root = root_of(by);
    bool in_place = call->send == NULL && wm_coll_sends(call, comm->rank);
    size_t sent = paired ? 0 : by_mpi_nbytes_of(call->send),
           got = paired ? 0 : by_mpi_nbytes_of(call->receive);
    // MPI may take two equal addresses, both NULL, for MPI_IN_PLACE.
    static char none;
    void *send = in_place ? MPI_IN_PLACE : by->send != NULL ? by->send : &none;
    void *receive = by->receive;
    // In place, the root's own block of a scatter is not moved.
    if (call->receive == NULL && shape->outward && comm->rank == root)
        receive = MPI_IN_PLACE;
    if (by->copied) {
        send = by->copy != NULL ? by->copy : &none;
        sends = takes;
    }
    bool whole = !shape->scatters && !shape->gathers;
    int all = whole ? by_mpi_count(by, call->send != NULL ? sent : got, fits)
                    : 0;
    int out = count_of(by, sent, row->sends != WM_WHOLE || shape->uneven,
                       sends, fits);
    int in = count_of(by, got, row->receives != WM_WHOLE, takes, fits);
    if (call->kind == WM_COLL_REDUCE_SCATTER_BLOCK && in_place)
        in = count_of(by, got, true, sends, fits);
    if (!*fits)
        return MPI_SUCCESS;
    int result = MPI_ERR_OTHER;
    switch (paired ? WM_COLL_NEIGHBOR_ALLTOALLW : call->kind) {
        CASE(BCAST, Bcast, Ibcast, call->send != NULL ? by->send : by->receive,
             all, type, root, on);
        CASE(GATHER, Gather, Igather, SENT, TAKEN, root, on);
        CASE(GATHERV, Gatherv, Igatherv, SENT, TAKEN_V, root, on);
        CASE(SCATTER, Scatter, Iscatter, SENT, TAKEN, root, on);
        CASE(SCATTERV, Scatterv, Iscatterv, SENT_V, TAKEN, root, on);
        CASE(ALLGATHER, Allgather, Iallgather, SENT, TAKEN, on);
        CASE(ALLGATHERV, Allgatherv, Iallgatherv, SENT, TAKEN_V, on);
        CASE(ALLTOALL, Alltoall, Ialltoall, SENT, TAKEN, on);
        CASE(ALLTOALLV, Alltoallv, Ialltoallv, SENT_V, TAKEN_V, on);
        CASE(ALLTOALLW, Alltoallw, Ialltoallw, send, sends->counts, sends->at,
             sends->types, receive, takes->counts, takes->at, takes->types,
             on);
        CASE(REDUCE, Reduce, Ireduce, send, receive, all, type, op, root, on);
        CASE(ALLREDUCE, Allreduce, Iallreduce, send, receive, all, type, op,
             on);
        CASE(REDUCE_SCATTER_BLOCK, Reduce_scatter_block, Ireduce_scatter_block,
             send, receive, in, type, op, on);
        CASE(REDUCE_SCATTER, Reduce_scatter, Ireduce_scatter, send, receive,
             takes->counts, type, op, on);
        CASE(SCAN, Scan, Iscan, send, receive, all, type, op, on);
        CASE(EXSCAN, Exscan, Iexscan, send, receive, all, type, op, on);
        CASE(NEIGHBOR_ALLGATHER, Neighbor_allgather, Ineighbor_allgather, SENT,
             TAKEN, on);
        CASE(NEIGHBOR_ALLGATHERV, Neighbor_allgatherv, Ineighbor_allgatherv,
             SENT, TAKEN_V, on);
        CASE(NEIGHBOR_ALLTOALL, Neighbor_alltoall, Ineighbor_alltoall, SENT,
             TAKEN, on);
        CASE(NEIGHBOR_ALLTOALLV, Neighbor_alltoallv, Ineighbor_alltoallv,
             SENT_V, TAKEN_V, on);
        CASE(NEIGHBOR_ALLTOALLW, Neighbor_alltoallw, Ineighbor_alltoallw, send,
             sends->counts, sends->bytes_at, sends->types, receive,
             takes->counts, takes->bytes_at, takes->types, on);
    default:
        break;
    }
    return result;
}

// Lays the blocks in the order in which MPI takes them.
static int
by_mpi_lay_blocks(wm_by_mpi_t *by, bool *fits, wm_error_t *err)
{
    const wm_comm_t *comm = by->comm;
    const wm_shape_t *shape = wm_coll_shape(by->call->kind);
    side_t *sends = &by->sides->sends, *receives = &by->sides->receives;
    if (!shape->neighbors) {
        sends->peers.count = receives->peers.count =
            wm_comm_others(comm, comm->rank).count;
        if (shape->reduces)
            receives->peers.count = wm_comm_group(comm, comm->rank).count;
    }
    else if (!wm_neighbor_find(comm->data, comm->size, &receives->peers,
                               &sends->peers))
        return wm_error_set(
            err, WM_ERR_MPI, MPI_ERR_TOPOLOGY,
            "the neighbours of the communicator are not known any more");
    lay_blocks(by, sends, by->call->sends, fits);
    lay_blocks(by, receives, by->call->receives, fits);
    return 0;
}

// Copies what a nonblocking Alltoallv sends in place. In Open MPI a rank whose
// blocks are all empty does not begin such a call, and the ranks' later calls
// do not match.
static int
by_mpi_copy_in_place(wm_by_mpi_t *by, wm_error_t *err)
{
    const wm_coll_t *call = by->call;
    size_t nbytes = by_mpi_nbytes_of(call->receive);
    by->copied = !by->blocks && call->send == NULL
                 && (call->kind == WM_COLL_ALLTOALLV
                     || call->kind == WM_COLL_ALLTOALLW);
    if (!by->copied || nbytes == 0)
        return 0;
    by->copy = malloc(nbytes);
    if (by->copy == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    memcpy(by->copy, by->receive, nbytes);
    return 0;
}

int
wm_by_mpi_begin(wm_by_mpi_t *by, wm_error_t *err)
{
    const wm_coll_t *call = by->call;
    int size = by->comm->size; // or neighbors, which may be more
    size_t blocks = (size_t)(size > WM_BARRIER_RANKS ? size
                                                     : WM_BARRIER_RANKS);
    bool fits = true;
    by->sides = calloc(1, sizeof *by->sides + 2 * blocks * sizeof(block_t));
    if (by->sides == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    side_init(&by->sides->sends, by->sides->room, blocks);
    side_init(&by->sides->receives, by->sides->room + blocks, blocks);
    int code = by_mpi_lay_blocks(by, &fits, err);
    if (code == 0)
        code = by_mpi_copy_in_place(by, err);
    if (code < 0)
        return code;
    by->result = by_mpi_begin(by, &fits);
    if (fits)
        return wm_mpi_check(by->result, wm_call_name(call->kind), err);
    return wm_error_set(
        err, WM_ERR_VALUE, 0,
        "%s: MPI takes at most %d elements for a rank; make several calls",
        wm_call_name(call->kind), INT_MAX);
}

int
wm_by_mpi_test(wm_by_mpi_t *by, wm_error_t *err)
{
    int flag = 0;
    int code = wm_mpi_check(MPI_Test(&by->request, &flag, MPI_STATUS_IGNORE),
                            wm_call_name(by->call->kind), err);
    return code < 0 ? code : flag;
}

// Divides the sums that MPI has computed. In place, a scattered result is
// shorter than the buffer.
static void
by_mpi_average(const wm_by_mpi_t *by)
{
    const wm_comm_t *comm = by->comm;
    const wm_coll_t *call = by->call;
    int ranks = wm_comm_others(comm, comm->rank).count;
    wm_reduce_type_t type;
    wm_reduce_op_t op;
    if (!call->averages || by->receive == NULL
        || !wm_coll_receives(call, comm->rank)
        || !wm_coll_reducible(call, &type, &op))
        return;
    size_t nbytes = by_mpi_nbytes_of(call->receive);
    if (call->send == NULL && call->kind == WM_COLL_REDUCE_SCATTER_BLOCK)
        nbytes /= (size_t)ranks;
    else if (call->send == NULL && call->kind == WM_COLL_REDUCE_SCATTER)
        nbytes = call->receives[comm->rank].nbytes;
    wm_reduce_divide(type, by->receive, ranks, nbytes / call->size);
}

int
wm_by_mpi_store(wm_by_mpi_t *by, wm_error_t *err)
{
    by_mpi_average(by);
    if (by->into == NULL || by->received == NULL)
        return 0;
    by->into->idle = false;
    return by_mpi_enqueue(by->into, by->call->receive, by->received, false,
                          err);
}

void
wm_by_mpi_finish(wm_by_mpi_t *by)
{
    wm_access_t *sides[] = {by->from, by->into};
    bool idle = true;
    // A call that is left in the middle, on a communicator that was revoked.
    if (by->request != MPI_REQUEST_NULL)
        MPI_Wait(&by->request, MPI_STATUS_IGNORE);
    free(by->sides);
    free(by->copy);
    if (by->spoilt) {
        free(by->send);
        free(by->receive);
    }
    for (int i = 0; i < 2; ++i) {
        if (sides[i] != NULL && !sides[i]->idle)
            sides[i]->idle = wm_access_synchronize(sides[i], NULL) == 0;
        idle &= sides[i] == NULL || sides[i]->idle;
    }
    if (!idle) // after an error a copy may still use the staging copies
        return;
    by_mpi_drop(by->sent);
    by_mpi_drop(by->received);
}

bool
wm_by_mpi_serves(const wm_comm_t *comm, const wm_coll_t *call)
{
    const wm_coll_row_t *row = wm_coll_row(call->kind);
    size_t most = call->size * INT_MAX;
    return call->on_device && call->elementary
           && call->type != MPI_DATATYPE_NULL && !row->shape.neighbors
           && row->sends != WM_SEPARATE && comm->owner->user != MPI_COMM_NULL
           && (!row->shape.uneven || call->receives != NULL)
           && by_mpi_nbytes_of(call->send) <= most
           && by_mpi_nbytes_of(call->receive) <= most;
}

// Copies between a buffer and its staging copy, if it has one, and waits.
static int
by_mpi_copy(const wm_buffer_t *buffer, const wm_staged_t *staged, bool to_host,
            wm_error_t *err)
{
    if (staged == NULL)
        return 0;
    wm_buffer_t memory = *buffer; // borrowed
    return wm_staged_copy(&memory, staged, to_host, err);
}

int
wm_by_mpi_call(const wm_comm_t *comm, const wm_coll_t *call, bool *called,
               int *result, wm_error_t *err)
{
    wm_error_t other;
    wm_by_mpi_t by = {
        .comm = comm,
        .call = call,
        .request = MPI_REQUEST_NULL,
        .blocks = true,
    };
    *result = MPI_SUCCESS;
    int code = by_mpi_stage(&by, err);
    if (code == 0)
        code = by_mpi_copy(call->send, by.sent, true, err);
    if (code == 0 && wm_coll_keeps(call, comm->rank))
        code = by_mpi_copy(call->receive, by.received, true, err);
    *called = code == 0 || by_mpi_take_spoilt(&by, &other) == 0;
    if (code == 0) {
        code = wm_by_mpi_begin(&by, err);
        *result = by.result;
    }
    else if (*called)
        (void)!wm_by_mpi_begin(&by, &other); // no rank waits for this one
    if (code == 0)
        by_mpi_average(&by);
    if (code == 0)
        code = by_mpi_copy(call->receive, by.received, false, err);
    wm_by_mpi_finish(&by);
    return code;
}
