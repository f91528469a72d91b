// SPDX-License-Identifier: BSD-3-Clause
// The collectives that MPI does where GPUs do not: in one phase, each rank
// takes what the others have for it. What is short and on the host is said at
// the gates, and taken from there.
#include <stddef.h>
#include <string.h>

#include "comm/coll/coll.h"
#include "comm/coll/half.h"
#include "comm/message/element.h"

static const wm_shape_t shapes[WM_CALL_KINDS] = {
    [WM_CALL_BCAST] = {.rooted = true},
    [WM_CALL_ALLREDUCE] = {.reduces = true},
    [WM_CALL_GATHER] = {.gathers = true, .rooted = true},
    [WM_CALL_GATHERV] = {.gathers = true, .rooted = true, .varies = true},
    [WM_CALL_SCATTER] = {.scatters = true, .rooted = true},
    [WM_CALL_SCATTERV] = {.scatters = true, .rooted = true, .varies = true},
    [WM_CALL_ALLGATHER] = {.gathers = true},
    [WM_CALL_ALLGATHERV] = {.gathers = true, .varies = true},
    [WM_CALL_ALLTOALL] = {.scatters = true, .gathers = true},
    [WM_CALL_ALLTOALLV] = {.scatters = true, .gathers = true, .varies = true},
    [WM_CALL_REDUCE] = {.rooted = true, .reduces = true},
    [WM_CALL_REDUCE_SCATTER_BLOCK] = {.scatters = true, .reduces = true},
    [WM_CALL_SCAN] = {.reduces = true},
    [WM_CALL_EXSCAN] = {.reduces = true},
    [WM_CALL_REDUCE_SCATTER] = {.scatters = true, .reduces = true},
};

const wm_shape_t *
wm_coll_shape(wm_call_kind_t kind)
{
    return &shapes[kind];
}

typedef struct {
    wm_comm_t *comm;
    const wm_coll_t *call;
    wm_native_t native;
    wm_reduce_type_t type;
    wm_reduce_op_t op;
    size_t block; // of what this rank sends, or receives
    size_t want;  // of what it receives
} run_t;

static bool
is_root(const run_t *run)
{
    return !shapes[run->call->kind].rooted
           || run->comm->rank == run->call->root;
}

static bool
sends(const run_t *run)
{
    return !shapes[run->call->kind].rooted || !shapes[run->call->kind].scatters
           || is_root(run);
}

static bool
receives(const run_t *run)
{
    return !shapes[run->call->kind].rooted || shapes[run->call->kind].scatters
           || is_root(run);
}

// How many blocks it receives, or holds where it receives them.
static size_t
blocks_of(const run_t *run)
{
    const wm_shape_t *shape = &shapes[run->call->kind];
    bool in_place = run->call->send == NULL && shape->reduces;
    return shape->gathers || (in_place && shape->scatters)
               ? (size_t)run->comm->size
               : 1;
}

// Bytes of a block, of what is known of this rank.
static size_t
block_of(const run_t *run)
{
    const wm_coll_t *call = run->call;
    size_t size = (size_t)run->comm->size;
    if (call->kind == WM_CALL_REDUCE_SCATTER) // of this rank
        return call->send != NULL ? call->receive->nbytes
                                  : call->receives[run->comm->rank].nbytes;
    if (call->send != NULL && sends(run))
        return call->send->nbytes / (shapes[call->kind].scatters ? size : 1);
    return call->receive->nbytes / blocks_of(run);
}

// In place: what it sends is where it receives.
static bool
is_in_place(const run_t *run)
{
    return run->call->send == NULL && sends(run) && receives(run);
}

// What `from` has for `to`, as it said.
static wm_span_t
has(const void *context, int from, int to)
{
    const run_t *run = context;
    const wm_said_t *said = wm_agree_said(run->comm, from);
    wm_call_kind_t kind = run->call->kind;
    if (shapes[kind].rooted && from != run->call->root
        && shapes[kind].scatters)
        return (wm_span_t){0, 0};
    if (shapes[kind].varies)
        return said->spans[shapes[kind].scatters ? to : 0];
    size_t index = shapes[kind].scatters ? (size_t)to : 0;
    if (kind == WM_CALL_ALLGATHER && said->in_place)
        index = (size_t)from;
    return (wm_span_t){index * said->block, said->block};
}

// Where this rank wants what `from` has for it.
static wm_span_t
wants(const void *context, int from, int to)
{
    const run_t *run = context;
    const wm_coll_t *call = run->call;
    (void)to;
    if (!receives(run)
        || (shapes[call->kind].rooted && shapes[call->kind].scatters
            && from != call->root))
        return (wm_span_t){0, 0};
    if (call->receives != NULL)
        return call->receives[from];
    size_t index = shapes[call->kind].gathers ? (size_t)from : 0;
    return (wm_span_t){index * run->want, run->want};
}

static void
say(run_t *run)
{
    const wm_coll_t *call = run->call;
    wm_said_t *said = &run->native.said;
    said->kind = (uint8_t)run->type;
    said->op = (uint8_t)run->op;
    said->root = call->root;
    said->block = run->block = block_of(run);
    said->in_place = is_in_place(run);
    run->want = run->block;
    if (call->kind == WM_CALL_REDUCE_SCATTER) {
        const wm_buffer_t *all = call->send != NULL ? call->send
                                                    : call->receive;
        said->spans[0] = (wm_span_t){0, all->nbytes};
    }
    else if (call->receive != NULL)
        run->want = call->receive->nbytes / blocks_of(run);
    if (!shapes[call->kind].varies || !sends(run))
        return;
    const wm_span_t *spans = call->sends;
    if (is_in_place(run) && shapes[call->kind].scatters)
        spans = call->receives;
    if (spans != NULL)
        memcpy(said->spans, spans, (size_t)run->comm->size * sizeof *spans);
    else if (is_in_place(run)) // Allgatherv: where it receives its own
        said->spans[0] = call->receives[run->comm->rank];
    else
        said->spans[0] = (wm_span_t){0, call->send->nbytes};
}

// Where in what all reduce the block of a rank begins, as they said.
static size_t
block_at(const run_t *run, int rank)
{
    size_t at = 0;
    for (int before = 0; before < rank; ++before) {
        const wm_said_t *said = wm_agree_said(run->comm, before);
        at += said->block;
    }
    return at;
}

// Of Reduce_scatter: all blocks are what each rank gives.
static int
compare_blocks(const run_t *run, wm_error_t *err)
{
    size_t total = block_at(run, run->comm->size);
    for (int rank = 0; rank < run->comm->size; ++rank) {
        const wm_said_t *said = wm_agree_said(run->comm, rank);
        if (said->spans[0].nbytes != total)
            return wm_error_set(err, WM_ERR_MPI, MPI_ERR_TRUNCATE,
                                "rank %d gives %zu bytes, and the ranks "
                                "receive %zu in all: give the same "
                                "recvcounts, which add up to what is reduced",
                                rank, said->spans[0].nbytes, total);
    }
    return 0;
}

// What all must say alike, which all see.
static int
compare(const run_t *run, wm_error_t *err)
{
    const wm_coll_t *call = run->call;
    const wm_said_t *first = wm_agree_said(run->comm, 0);
    for (int rank = 1; rank < run->comm->size; ++rank) {
        const wm_said_t *said = wm_agree_said(run->comm, rank);
        if (said->root != first->root)
            return wm_error_set(err, WM_ERR_MPI, MPI_ERR_ROOT,
                                "rank 0 gives the root %d, rank %d the root "
                                "%d: all must give the same",
                                first->root, rank, said->root);
        if (said->op != first->op)
            return wm_error_set(err, WM_ERR_MPI, MPI_ERR_OP,
                                "rank %d gives another op than rank 0: all "
                                "must give the same",
                                rank);
        if (said->kind != first->kind)
            return wm_error_set(err, WM_ERR_TYPE, 0,
                                "rank %d gives another element type than rank "
                                "0: all must give the same",
                                rank);
        if (!shapes[call->kind].varies && call->kind != WM_CALL_REDUCE_SCATTER
            && said->block != first->block)
            return wm_error_set(err, WM_ERR_MPI, MPI_ERR_TRUNCATE,
                                "rank 0 gives %llu bytes%s, rank %d gives "
                                "%llu: all must give the same",
                                (unsigned long long)first->block,
                                shapes[call->kind].scatters
                                        || shapes[call->kind].gathers
                                    ? " for each rank"
                                    : "",
                                rank, (unsigned long long)said->block);
    }
    return call->kind == WM_CALL_REDUCE_SCATTER ? compare_blocks(run, err) : 0;
}

// What this rank alone sees.
static int
check_spans(const run_t *run, wm_error_t *err)
{
    err->code = 0;
    for (int rank = 0; rank < run->comm->size; ++rank) {
        wm_span_t from = has(run, rank, run->comm->rank);
        wm_span_t into = wants(run, rank, run->comm->rank);
        if (run->call->receive != NULL && receives(run)
            && from.nbytes != into.nbytes)
            return wm_error_set(err, WM_ERR_MPI, MPI_ERR_TRUNCATE,
                                "rank %d sends %zu bytes to rank %d, which "
                                "expects %zu: give the same counts",
                                rank, from.nbytes, run->comm->rank,
                                into.nbytes);
    }
    return 0;
}

static void
make_plan(const run_t *run, wm_plan_t *plan)
{
    const wm_coll_t *call = run->call;
    int rank = run->comm->rank, size = run->comm->size;
    const wm_facts_t facts = {.rank = rank, .size = size};
    // In place, but where what is received lies over what others read.
    bool keeps = sends(run) && receives(run)
                 && (call->send == NULL || call->receive == NULL)
                 && !(shapes[call->kind].scatters
                      && shapes[call->kind].gathers);
    if (!shapes[call->kind].reduces)
        wm_plan_exchange(&facts, has, wants, run, keeps, plan);
    else if (call->kind == WM_CALL_REDUCE)
        wm_plan_reduce(is_root(run) ? size : 0, 0, run->block, plan);
    else if (call->kind == WM_CALL_REDUCE_SCATTER)
        wm_plan_reduce(size, block_at(run, rank), run->block, plan);
    else if (call->kind == WM_CALL_REDUCE_SCATTER_BLOCK)
        wm_plan_reduce(size, (size_t)rank * run->block, run->block, plan);
    else
        wm_plan_reduce(call->kind == WM_CALL_SCAN ? rank + 1 : rank, 0,
                       run->block, plan);
}

// Makes ready what is sent, and finds out whether this rank is capable.
static int
begin(run_t *run, wm_error_t *err)
{
    const wm_coll_t *call = run->call;
    wm_call_kind_t kind = call->kind;
    if (!call->on_device
        || (shapes[kind].reduces
            && !wm_half_reduces(call->type, call->size, call->op, &run->type,
                                &run->op)))
        return 0;
    bool in_place = is_in_place(run);
    // Else nobody reads what is written.
    bool overlaid = kind == WM_CALL_ALLTOALL || kind == WM_CALL_ALLTOALLV
                    || kind == WM_CALL_REDUCE_SCATTER_BLOCK
                    || kind == WM_CALL_REDUCE_SCATTER || kind == WM_CALL_SCAN
                    || kind == WM_CALL_EXSCAN;
    wm_given_t given = {
        .send = sends(run) ? call->send : NULL,
        .receive = receives(run) ? call->receive : NULL,
        .in_place = in_place,
        .copied = in_place && overlaid,
    };
    if (wm_coll_overlap(given.send, given.receive))
        given.copied = true;
    if (in_place && (kind == WM_CALL_GATHER || kind == WM_CALL_GATHERV))
        given.in_place = false; // its own block stays
    int code = wm_native_begin(&run->native, run->comm, &given, err);
    if (run->native.capable)
        say(run);
    return code;
}

// Where what is sent lies in what is said.
static size_t
ride_at(const run_t *run)
{
    return run->call->kind == WM_CALL_REDUCE_SCATTER ? sizeof(wm_span_t) : 0;
}

// Says all that is sent, where that can be.
static bool
ride(run_t *run)
{
    const wm_coll_t *call = run->call;
    wm_said_t *said = &run->native.said;
    const wm_buffer_t *sent = sends(run) ? call->send : NULL;
    if (!call->on_host || shapes[call->kind].varies || is_in_place(run)
        || (receives(run) && call->receive == NULL)
        || (sent != NULL && sent->nbytes + ride_at(run) > sizeof said->bytes)
        || (shapes[call->kind].reduces
            && !wm_half_reduces(call->type, call->size, call->op, &run->type,
                                &run->op)))
        return false;
    say(run);
    if (run->want != run->block) // else it is that of all
        return false;
    if (sent != NULL)
        memcpy(said->bytes + ride_at(run), sent->data, sent->nbytes);
    return true;
}

// All have said what they send.
static int
take(const run_t *run, wm_error_t *err)
{
    const wm_coll_t *call = run->call;
    wm_plan_t plan;
    int code = compare(run, err);
    if (code < 0)
        return code;
    make_plan(run, &plan);
    for (int i = 0; i < plan.count; ++i) {
        const wm_move_t *move = &plan.moves[i];
        const void *sources[WM_REDUCE_SOURCES];
        for (int k = 0; k < move->count; ++k) {
            const wm_said_t *said = wm_agree_said(run->comm, move->first + k);
            sources[k] = said->bytes + ride_at(run) + move->from;
        }
        char *into = call->receive->data + move->into;
        if (move->count > 1)
            wm_reduce_host(run->type, run->op, into, sources, move->count,
                           move->nbytes / call->size);
        else
            memcpy(into, sources[0], move->nbytes);
    }
    return 0;
}

int
wm_coll_call(wm_comm_t *comm, const wm_coll_t *call, wm_error_t *err)
{
    run_t run = {.comm = comm, .call = call};
    wm_agreement_t agreed = {.call = call->kind, .native = &run.native};
    wm_error_t wrong = {.code = 0};
    wm_plan_t plan;
    agreed.code = begin(&run, err);
    agreed.rides_all = ride(&run);
    agreed.nbytes = sizeof run.native.said;
    if (agreed.rides_all)
        agreed.nbytes =
            offsetof(wm_said_t, bytes) + ride_at(&run)
            + (sends(&run) && call->send != NULL ? call->send->nbytes : 0);
    int code = wm_agreement_make(comm, &agreed, err);
    if (code == 0 && agreed.rides_all)
        return take(&run, err);
    if (code == 0 && !agreed.stays)
        code = 1;
    if (code == 0 && (code = compare(&run, err)) == 0) {
        if (!shapes[call->kind].reduces)
            (void)!check_spans(&run, &wrong);
        make_plan(&run, &plan);
        code = wm_native_run(&run.native, &plan, run.type, run.op, &wrong,
                             err);
    }
    wm_native_end(&run.native);
    return code;
}
