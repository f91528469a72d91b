// SPDX-License-Identifier: BSD-3-Clause
// A toy: an engine of collectives that does Allreduce by a ring of messages of
// ours, in host memory. It shows that an engine is a file and a name in
// coll_engine.h, and that a step may begin other operations.
//
// TOY_RING chooses it. "fails": a call on a stream has failed when the stream
// has passed it. "unopened": it cannot be opened on the last rank;
// "dies": it fails there in its second call, in a step. "sums": it does sums
// alone. "all": it leaves all other collectives, which must be blocking ones,
// to MPI's row, but has their classes. "gpus": the row gpu_ring serves, which
// takes memory of GPUs alone.
#include <stdlib.h>
#include <string.h>

#include "comm/coll/direct/coll_gather.h"
#include "comm/coll/call/coll_wait.h"
#include "comm/coll/call/half.h"
#include "comm/coll/call/reducible.h"
#include "comm/coll/direct/coll_op.h"
#include "comm/coll/direct/preflight.h"
#include "comm/coll/run/coll.h"
#include "comm/engine/stats.h"
#include "comm/message/p2p.h"
#include "comm/message/pattern.h"
#include "cuda/stream.h"

#define TAGS 32 // calls under way, at most, of blocking and of other forms
#define TEXT 64

// Kept with a communicator. All ranks start their calls in one order, so they
// number them alike.
typedef struct {
    unsigned calls[2]; // blocking ones, and others
    int tags[];        // by rank: the first of its tags
} kept_t;

// What a rank gives to the others: its data follow.
typedef struct {
    int32_t failed;
    char text[TEXT];
} block_t;

typedef enum { READYING, FETCHING, GIVING, STORING } state_t;

typedef struct {
    state_t state;
    bool on_device;
    char *blocks; // of all ranks
    size_t nbytes, stride;
    int tag, round;
    wm_op_t *ops[2]; // a receive and a send; NULL: none
} ring_t;

_Static_assert(sizeof(ring_t) <= WM_COLL_STATE_BYTES, "there is room");

static _Atomic bool stream_failed; // nobody was told yet

static ring_t *
state_of(wm_coll_op_t *op)
{
    return (ring_t *)op->state;
}

static bool
is_asked(const char *what)
{
    const char *text = getenv("TOY_RING");
    return text != NULL && (what == NULL || strcmp(text, what) == 0);
}

static bool
is_last(const wm_comm_t *comm)
{
    return comm->rank == comm->size - 1;
}

static bool
ring_spans(const wm_comm_t *comm)
{
    return is_asked(NULL) && !is_asked("gpus") && comm->split == 0
           && comm->size > 1;
}

static bool
gpu_ring_spans(const wm_comm_t *comm)
{
    return is_asked("gpus") && comm->split == 0 && comm->size > 1;
}

static bool
ring_does(const wm_coll_facts_t *facts)
{
    return (facts->kind == WM_COLL_ALLREDUCE || is_asked("all"))
           && !(is_asked("sums") && facts->op != WM_REDUCE_SUM);
}

// Ranks tell each other the tags on which they receive.
static int
ring_open(wm_comm_t *comm, int device, void **state, wm_error_t *err)
{
    kept_t *kept = calloc(1, sizeof *kept + (size_t)comm->size * sizeof(int));
    // The last tags, far behind those of other messages.
    int mine = comm->tag_limit - 2 * TAGS * (1 + comm->rank % 8);
    (void)device;
    if (kept == NULL) // the others wait for this rank: it is a toy
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    int code = wm_coll_gather(comm, &mine, sizeof mine, kept->tags, err);
    if (code == 0 && is_asked("unopened") && is_last(comm))
        code = wm_error_set(err, WM_ERR_STATE, 0, "the ring is not open");
    if (code < 0)
        free(kept);
    else
        *state = kept;
    return code;
}

static void
ring_comm_drop(wm_comm_t *comm, void *state)
{
    (void)comm;
    free(state);
}

static bool
is_mpis(const wm_coll_op_t *op)
{
    return op->participant.call->kind != WM_COLL_ALLREDUCE;
}

static bool
ring_serves(const wm_coll_op_t *op, const void *state)
{
    (void)state;
    (void)op;
    return true;
}

static block_t *
block_of(const ring_t *ring, int rank)
{
    return (block_t *)(ring->blocks + (size_t)rank * ring->stride);
}

static char *
data_of(const ring_t *ring, int rank)
{
    return (char *)(block_of(ring, rank) + 1);
}

static const wm_buffer_t *
source_of(const wm_coll_op_t *op)
{
    const wm_coll_t *call = op->participant.call;
    return call->send != NULL ? call->send : call->receive;
}

// Returns the stream of our copies: one of the buffer's device, and, after the
// send data are ready, that behind the users of the receive memory.
static wm_access_t *
access_of(wm_coll_op_t *op, bool to_host)
{
    wm_direct_t *direct = &op->participant.direct;
    return to_host && direct->from.device != direct->into.device
               ? &direct->from
               : &direct->into;
}

// Copies between a buffer and the data of our block.
static int
copy(wm_coll_op_t *op, bool to_host, wm_error_t *err)
{
    const ring_t *ring = state_of(op);
    const wm_buffer_t *buffer = to_host ? source_of(op)
                                        : op->participant.call->receive;
    wm_access_t *access = access_of(op, to_host);
    char *data = data_of(ring, op->participant.comm->rank);
    if (ring->nbytes > 0 && !ring->on_device)
        memcpy(to_host ? data : buffer->data, to_host ? buffer->data : data,
               ring->nbytes);
    if (ring->nbytes == 0 || !ring->on_device)
        return 0;
    wm_stat_add(WM_STAT_staged_bytes, (int64_t)ring->nbytes);
    int code = wm_access_open(access, err);
    access->idle = false;
    return code < 0 ? code
                    : wm_pattern_copy(buffer, 0, ring->nbytes, data, to_host,
                                      access->device, access->stream, err);
}

static wm_coll_result_t
ring_start(wm_coll_op_t *op, wm_error_t *err)
{
    ring_t *ring = state_of(op);
    const wm_comm_t *comm = op->participant.comm;
    kept_t *kept = op->own;
    if (is_mpis(op)) {
        op->form = WM_COLL_FORM_NONBLOCKING;
        op->looks = 100;
        return wm_mpi_engine.start(op, err);
    }
    bool blocks = op->form == WM_COLL_FORM_BLOCKING;
    unsigned number = kept->calls[!blocks]++;
    *ring = (ring_t){
        .on_device = op->participant.call->on_device,
        .nbytes = op->participant.call->receive->nbytes,
        .tag = (blocks ? 0 : TAGS) + (int)(number % TAGS),
    };
    ring->stride = sizeof(block_t) + (ring->nbytes + 15) / 16 * 16;
    op->begun = true;
    op->looks = 100;
    if (ring->on_device)
        wm_stat_add(WM_STAT_staged_collectives, 1);
    size_t nbytes = ring->stride * (size_t)comm->size;
    int code = wm_pinned_alloc(nbytes, (void **)&ring->blocks, err);
    if (code < 0)
        return (wm_coll_result_t)code; // nobody is told: it is a toy
    memset(ring->blocks, 0, nbytes);
    return WM_COLL_UNDER_WAY;
}

// Gives the failure of this rank to the others, in the place of its data.
static void
tell(wm_coll_op_t *op)
{
    const wm_comm_t *comm = op->participant.comm;
    block_t *own = block_of(state_of(op), comm->rank);
    wm_error_t why;
    if (is_asked("dies") && is_last(comm)
        && ((kept_t *)op->own)->calls[0] == 2) {
        wm_error_set(&why, WM_ERR_STATE, 0, "the ring has died in a step");
        wm_coll_op_fail(op, &why);
    }
    own->failed = op->wrong.code;
    if (own->failed < 0)
        wm_error_cut(op->wrong.text, TEXT, own->text);
}

// Begins a round: gives a block to the next rank and takes one from the rank
// before.
static int
begin_round(wm_coll_op_t *op, wm_error_t *err)
{
    ring_t *ring = state_of(op);
    wm_comm_t *comm = op->participant.comm;
    const kept_t *kept = op->own;
    int size = comm->size;
    for (int i = 0; i < 2; ++i) {
        bool sends = i == 1;
        int whose = (comm->rank - ring->round - !sends + 2 * size) % size;
        wm_buffer_t buffer = {
            .data = ring->blocks + (size_t)whose * ring->stride,
            .nbytes = ring->stride,
            .memory = {.device = -1},
        };
        int next = (comm->rank + 1) % size;
        wm_envelope_t envelope = {
            .rank = sends ? next : (comm->rank + size - 1) % size,
            .tag = kept->tags[sends ? next : comm->rank] + ring->tag,
            .stream_device = -1,
        };
        int code = (sends ? wm_send_begin : wm_receive_begin)(
            comm->object_comm, &buffer, &envelope, &ring->ops[i], err);
        if (code < 0)
            return code;
    }
    return 0;
}

// Returns 1 when the messages of a round have ended, 0 if not yet.
static int
end_round(ring_t *ring, wm_error_t *err)
{
    int code = 0;
    for (int i = 0; i < 2; ++i)
        if (ring->ops[i] != NULL && !atomic_load(&ring->ops[i]->done))
            return 0;
    for (int i = 0; i < 2; ++i) {
        if (ring->ops[i] == NULL)
            continue;
        if (ring->ops[i]->error.code < 0 && code == 0) {
            *err = ring->ops[i]->error;
            code = err->code;
        }
        wm_op_release(ring->ops[i]);
        ring->ops[i] = NULL;
    }
    return code < 0 ? code : 1;
}

// Reduces the data of all ranks, in the order of their ranks, into ours.
static int
reduce(wm_coll_op_t *op, wm_error_t *err)
{
    ring_t *ring = state_of(op);
    const wm_participant_t *participant = &op->participant;
    const wm_coll_t *call = participant->call;
    const wm_comm_t *comm = participant->comm;
    for (int rank = 0; rank < comm->size; ++rank) {
        const block_t *block = block_of(ring, rank);
        if (block->failed < 0 && rank != comm->rank)
            return wm_error_set(err, WM_ERR_STATE, 0,
                                "%s failed in this collective: %s",
                                wm_comm_name(comm, rank).text, block->text);
    }
    char *sum = data_of(ring, comm->size - 1);
    int count = (int)(ring->nbytes / call->size), code = 0;
    for (int rank = comm->size - 2; rank >= 0 && code == 0; --rank)
        code = wm_mpi_check(MPI_Reduce_local(data_of(ring, rank), sum, count,
                                             call->type,
                                             wm_half_op(call->type, call->op)),
                            "MPI_Reduce_local", err);
    if (call->averages)
        wm_reduce_divide(participant->type, sum, comm->size, (size_t)count);
    memmove(data_of(ring, comm->rank), sum, ring->nbytes);
    return code;
}

// Returns 1 when what the ring waits for has come, 0 if not yet.
static int
look(wm_coll_op_t *op, wm_error_t *err)
{
    ring_t *ring = state_of(op);
    wm_access_t *access = access_of(op, ring->state == FETCHING);
    if (ring->state == GIVING)
        return end_round(ring, err);
    if (ring->state == READYING)
        return op->wrong.code < 0
                   ? 1
                   : wm_direct_is_ready(&op->participant.direct, err);
    return !access->opened || access->idle
               ? 1
               : wm_access_look(access, WM_LOOK_TRIES, err);
}

static int
go_on(wm_coll_op_t *op, wm_error_t *err)
{
    ring_t *ring = state_of(op);
    if (ring->state == READYING) {
        ring->state = FETCHING;
        return op->wrong.code < 0 ? 0 : copy(op, true, err);
    }
    if (ring->state == FETCHING)
        tell(op);
    else
        ++ring->round;
    ring->state = GIVING;
    if (ring->round < op->participant.comm->size - 1)
        return begin_round(op, err);
    ring->state = STORING;
    int code = op->wrong.code < 0 ? op->wrong.code : reduce(op, err);
    if (op->wrong.code < 0)
        *err = op->wrong;
    return code < 0 ? code : copy(op, false, err);
}

static wm_coll_result_t
ring_step(wm_coll_op_t *op, bool *waits, wm_error_t *err)
{
    ring_t *ring = state_of(op);
    if (is_mpis(op))
        return wm_mpi_engine.step(op, waits, err);
    int code = look(op, err);
    *waits = code == 0;
    if (code > 0 && ring->state == STORING)
        return WM_COLL_DONE;
    if (code > 0)
        code = go_on(op, err);
    if (code < 0 && ring->state < GIVING) { // the others are told
        wm_coll_op_fail(op, err);
        code = 0;
    }
    return code < 0 ? (wm_coll_result_t)code : WM_COLL_UNDER_WAY;
}

static void
ring_drop(wm_coll_op_t *op)
{
    ring_t *ring = state_of(op);
    wm_direct_t *direct = &op->participant.direct;
    if (is_mpis(op)) {
        wm_mpi_engine.drop(op);
        return;
    }
    bool pending = ring->blocks == NULL;
    for (int i = 0; i < 2; ++i)
        if (ring->ops[i] != NULL) {
            pending |= !atomic_load(&ring->ops[i]->done);
            wm_op_release(ring->ops[i]);
        }
    for (int i = 0; i < 2; ++i) {
        wm_access_t *access = i == 0 ? &direct->from : &direct->into;
        if (access->opened && !access->idle)
            access->idle = wm_access_synchronize(access, NULL) == 0;
    }
    if (!pending) // else a message may still use it
        wm_pinned_free(ring->blocks);
}

// Waits for the stream: a toy. All ranks hear of a refused call.
static int
ring_enqueue(wm_comm_t *comm, void *state, const wm_coll_t *call,
             const wm_coll_stream_t *on, wm_error_t *err)
{
    (void)state;
    wm_preflight_t preflight = {
        .call = WM_COLL_ALLREDUCE,
        .code = call == NULL ? err->code : 0,
    };
    if (call != NULL)
        preflight.code = wm_stream_synchronize(on->device, on->stream, err);
    int code = wm_preflight_run(comm, &preflight, err);
    if (code < 0)
        return code;
    atomic_store(&stream_failed, is_asked("fails"));
    wm_coll_result_t result = wm_coll_call(comm, call, err);
    return result <= WM_COLL_DONE
               ? (int)result
               : wm_error_set(err, WM_ERR_STATE, 0, "the ring was not asked");
}

static bool
ring_any(void)
{
    return atomic_load(&stream_failed);
}

static int
ring_find_failures(wm_error_t *err)
{
    return atomic_exchange(&stream_failed, false) ? wm_error_set(
               err, WM_ERR_STATE, 0, "the ring has failed on its stream")
                                                  : 0;
}

static uint64_t
ring_place(const wm_comm_t *comm, const void *state)
{
    (void)state;
    (void)comm;
    return 0;
}

static int
ring_look(wm_comm_t *comm, void *state, uint64_t place, wm_error_t *err)
{
    (void)state;
    (void)comm, (void)place, (void)err;
    return 0; // it has ended in the call
}

static void
ring_fail(wm_comm_t *comm)
{
    (void)comm;
}

static const wm_coll_on_stream_t ring_on_stream = {
    .enqueue = ring_enqueue,
    .place = ring_place,
    .look = ring_look,
    .fail = ring_fail,
    .any = ring_any,
    .find_failures = ring_find_failures,
};

const wm_coll_engine_t wm_ring_engine = {
    .name = "ring",
    .in_order = true,
    .takes = WM_COLL_TAKES_ALL,
    .does = ring_does,
    .spans = ring_spans,
    .open = ring_open,
    .comm_drop = ring_comm_drop,
    .serves = ring_serves,
    .start = ring_start,
    .step = ring_step,
    .drop = ring_drop,
    .on_stream = &ring_on_stream,
};

const wm_coll_engine_t wm_gpu_ring_engine = {
    .name = "gpu_ring",
    .in_order = true,
    .takes = WM_COLL_TAKES_DEVICE | WM_COLL_TAKES_GAPS,
    .does = ring_does,
    .spans = gpu_ring_spans,
    .open = ring_open,
    .comm_drop = ring_comm_drop,
    .serves = ring_serves,
    .start = ring_start,
    .step = ring_step,
    .drop = ring_drop,
};
