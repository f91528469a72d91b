// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/stream/stream_coll.h"

#include <stdio.h>

#include "comm/coll/stream/capture.h"
#include "comm/coll/stream/stream_failure.h"
#include "comm/coll/stream/packed.h"
#include "comm/coll/direct/participant.h"
#include "comm/coll/stream/symm.h"
#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/engine/stats.h"
#include "comm/diagnostics/hang.h"
#include "cuda/event.h"
#include "cuda/stream.h"

// Half of a rank's symmetric memory has two areas: data that the rank sends;
// and data that it has reduced, or taken, for others to read. The blocks for
// all ranks share the first area.
#define ALIGN 256
#define FRAGMENT_PHASES 2 // phases of a plan for one fragment, at most

typedef struct {
    wm_coll_desc_t desc;
    wm_symm_t *symm;
    uint64_t capture; // 0: not captured
    size_t area;
    size_t room;      // bytes of a block in a fragment
    size_t fragments; // number of fragments
    size_t fragment;  // current fragment
} run_t;

static int
count_fragments(run_t *run, wm_error_t *err)
{
    size_t most = wm_coll_desc_longest(&run->desc);
    run->area = wm_symm_half(run->symm) / 2;
    size_t size = run->desc.shape->scatters ? (size_t)run->desc.comm->size : 1;
    run->room = run->area / size / ALIGN * ALIGN;
    run->fragments = most == 0 ? 1 : (most + run->room - 1) / run->room;
    if (run->fragments * FRAGMENT_PHASES > WM_SYMM_STEPS)
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "%zu bytes for a rank are more than a collective "
                            "on a stream takes: make several calls",
                            most);
    return 0;
}

// Returns the part of a block that is in the current fragment.
static wm_span_t
cut(const run_t *run, wm_span_t block)
{
    size_t at = run->fragment * run->room;
    if (at >= block.nbytes)
        return (wm_span_t){block.at, 0};
    size_t left = block.nbytes - at;
    return (wm_span_t){block.at + at, left < run->room ? left : run->room};
}

static int
copy(const run_t *run, char *into, const char *from, size_t nbytes,
     wm_error_t *err)
{
    return nbytes == 0 || into == from
               ? 0
               : wm_memory_copy(run->desc.device, into, from, nbytes,
                                run->desc.stream, err);
}

static int
put(const run_t *run, wm_error_t *err)
{
    int code = 0,
        blocks = run->desc.shape->scatters ? run->desc.comm->size : 1;
    char *own = wm_symm_at(run->symm, run->desc.comm->rank, run->fragment);
    for (int i = 0; i < blocks && code == 0 && run->desc.source != NULL; ++i) {
        wm_span_t part = cut(run, run->desc.out[i]);
        code = copy(run, own + (size_t)i * run->room,
                    run->desc.source + part.at, part.nbytes, err);
    }
    return code;
}

// Counts the bytes that this rank sends through the host.
static void
stream_coll_count_staged(const wm_coll_desc_t *desc)
{
    int blocks = desc->shape->scatters ? desc->comm->size : 1;
    for (int i = 0; i < blocks && desc->source != NULL; ++i)
        wm_stat_add(WM_STAT_staged_bytes, (int64_t)desc->out[i].nbytes);
}

// Returns where symmetric memory of `from` has the block for `to`; the length
// is not set.
static wm_span_t
stream_coll_has(const void *context, int from, int to)
{
    const run_t *run = context;
    (void)from;
    return (wm_span_t){run->desc.shape->scatters ? (size_t)to * run->room : 0,
                       0};
}

static wm_span_t
stream_coll_wants(const void *context, int from, int to)
{
    const run_t *run = context;
    (void)to;
    if (run->desc.target == NULL
        || (run->desc.shape->rooted && run->desc.shape->scatters
            && from != run->desc.call->root))
        return (wm_span_t){0, 0};
    return cut(run, run->desc.into[run->desc.shape->gathers ? from : 0]);
}

static void
make_plan(const run_t *run, wm_plan_t *plan)
{
    int rank = run->desc.comm->rank;
    const wm_ranks_t all = {0, run->desc.comm->size};
    bool out = run->desc.call->kind == WM_CALL_BCAST
               && rank == run->desc.call->root;
    wm_facts_t facts = {
        .rank = rank,
        .sources = all,
        .group = all,
        .takers = all,
        .root = run->desc.call->root,
        .nbytes = cut(run, out ? run->desc.out[0] : run->desc.into[0]).nbytes,
        .element = run->desc.shape->reduces ? run->desc.call->size : 1,
        .readable = true,
        .thresholds = *wm_symm_thresholds(run->symm),
    };
    (void)wm_coll_make_plan(run->desc.call, &facts, (size_t)rank * run->room,
                            stream_coll_has, stream_coll_wants, run,
                            plan); // never fails here
}

// Makes a move: in the last phase into the user's memory, before that into the
// area that others read.
static int
stream_coll_move(const run_t *run, const wm_move_t *move, bool last,
                 wm_error_t *err)
{
    const void *sources[WM_REDUCE_SOURCES];
    char *own = wm_symm_at(run->symm, run->desc.comm->rank, run->fragment)
                + run->area;
    // In an exchange, `into` includes the offset of the block.
    bool absolute = !run->desc.shape->reduces
                    && run->desc.call->kind != WM_CALL_BCAST;
    char *into = (last ? run->desc.target
                             + (absolute ? 0 : cut(run, run->desc.into[0]).at)
                       : own)
                 + move->into;
    for (int k = 0; k < move->count; ++k)
        sources[k] = wm_symm_at(run->symm, move->first + k, run->fragment)
                     + (move->result ? run->area : 0) + move->from;
    if (move->count == 1)
        return copy(run, into, sources[0], move->nbytes, err);
    return wm_reduce_launch(run->desc.device, run->desc.type, run->desc.op,
                            into, sources, move->count,
                            move->nbytes / wm_reduce_size(run->desc.type),
                            run->desc.stream, err);
}

// Copies results of earlier phases, which were left for others, into the
// user's memory.
static int
take_own(const run_t *run, const wm_plan_t *plan, wm_error_t *err)
{
    int code = 0;
    for (int i = 0; i < plan->count && code == 0; ++i) {
        const wm_move_t *made = &plan->moves[i];
        wm_move_t own = {
            .first = run->desc.comm->rank,
            .count = 1,
            .result = true,
            .from = made->into,
            .into = made->into,
            .nbytes = made->nbytes,
        };
        if (made->phase < plan->phases - 1)
            code = stream_coll_move(run, &own, true, err);
    }
    return code;
}

static int
stream_coll_follow(const run_t *run, wm_error_t *err)
{
    wm_plan_t plan;
    make_plan(run, &plan);
    uint32_t steps = (uint32_t)run->fragment * FRAGMENT_PHASES;
    int code = put(run, err);
    for (int phase = 0; phase < plan.phases && code == 0; ++phase) {
        bool last = phase == plan.phases - 1;
        code = wm_symm_step(run->symm, steps + (uint32_t)phase, err);
        if (code == 0 && last && phase > 0)
            code = take_own(run, &plan, err);
        for (int i = 0; i < plan.count && code == 0; ++i)
            if (plan.moves[i].phase == phase)
                code = stream_coll_move(run, &plan.moves[i], last, err);
    }
    return code;
}

static bool
stream_coll_is_nothing(const wm_buffer_t *buffer)
{
    return buffer == NULL || buffer->nbytes == 0;
}

static int
before(const run_t *run, const wm_buffer_t *buffer, bool to_write,
       wm_error_t *err)
{
    if (stream_coll_is_nothing(buffer))
        return 0;
    const wm_producer_t *producer = &buffer->producer;
    if (run->capture != 0)
        return wm_producer_before_graph(producer, to_write, run->desc.device,
                                        run->desc.stream, err);
    if (producer->kind == WM_PRODUCER_ORDER)
        return wm_order_before(producer->order, to_write, run->desc.device,
                               run->desc.stream, wm_symm_stream_id(run->symm),
                               err);
    return wm_producer_before(producer, to_write, run->desc.device,
                              run->desc.stream, err);
}

static wm_order_t *
stream_coll_order_of(const wm_buffer_t *buffer)
{
    return stream_coll_is_nothing(buffer) ? NULL : buffer->order;
}

// Notes the call in the orders of our arrays; not for graphs, which run at any
// time.
static int
after(const run_t *run, wm_error_t *err)
{
    const wm_coll_t *call = run->desc.call;
    return run->capture != 0
               ? 0
               : wm_order_after(stream_coll_order_of(call->send),
                                stream_coll_order_of(call->receive),
                                run->desc.device, run->desc.stream,
                                wm_symm_stream_id(run->symm), err);
}

static int
in_fragments(run_t *run, wm_error_t *err)
{
    int code = wm_symm_take_turn(run->symm, err);
    for (; run->fragment < run->fragments && code == 0; ++run->fragment)
        code = stream_coll_follow(run, err);
    return code < 0 ? code : wm_symm_leave_turn(run->symm, err);
}

static int
exchange(run_t *run, wm_error_t *err)
{
    wm_block_t *copy;
    int code = wm_packed_open(&run->desc, &copy, err);
    if (code == 0)
        code = wm_symm_has_kernels(run->symm)
                       && run->desc.call->kind != WM_CALL_BARRIER
                   ? wm_symm_exchange(run->symm, &run->desc, err)
                   : in_fragments(run, err);
    if (code == 0)
        code = wm_packed_unpack(&run->desc, err);
    int kept = copy == NULL
                   ? 0
                   : wm_symm_keep(run->symm, copy, code == 0 ? err : NULL);
    return code < 0 ? code : kept;
}

static int
stream_coll_enqueue(run_t *run, wm_error_t *err)
{
    const wm_coll_t *call = run->desc.call;
    bool same = !stream_coll_is_nothing(call->send)
                && !stream_coll_is_nothing(call->receive)
                && wm_producer_is_same(&call->send->producer,
                                       &call->receive->producer);
    int code = before(run, call->send, false, err);
    if (code == 0 && !same)
        code = before(run, call->receive, true, err);
    if (code == 0)
        code = exchange(run, err);
    return code < 0 ? code : after(run, err);
}

// Ends a call that fails on this rank, on a stream of ours, after the calls
// before it. If all ranks fail alike (`desc`), the call counts as any other;
// else it has failed.
static void
stream_coll_refuse(wm_symm_t *symm, const wm_coll_desc_t *desc, int code)
{
    CUstream stream;
    int device = wm_symm_device(symm);
    bool ours = wm_stream_acquire(device, &stream, NULL) == 0;
    if (!ours)
        stream = CU_STREAM_LEGACY; // the legacy stream always exists
    if (wm_symm_begin(symm, desc, stream, NULL) == 0) {
        if (desc != NULL)
            code = wm_symm_leave_turn(symm, NULL);
        (void)!wm_symm_end(symm, code, NULL);
    }
    if (ours)
        wm_stream_release(device, stream);
}

// Puts a call into a graph. All ranks compare it before that, and confirm it
// after that, or all raise.
static int
capture(run_t *run, int code, wm_error_t *err)
{
    wm_captured_t captured = {
        .first = !wm_symm_continue(run->symm, run->capture),
    };
    if (code == 0) {
        captured.kind = (int)run->desc.call->kind;
        captured.asked = wm_coll_desc_hash(&run->desc);
        captured.fragments = run->fragments;
    }
    code = wm_capture_begin(run->desc.comm, &captured, code, err);
    if (code < 0)
        return code;
    run->fragments = captured.fragments;
    code = wm_symm_begin_captured(run->symm, run->capture, run->desc.stream,
                                  err);
    if (code == 0)
        code = wm_symm_end(run->symm, stream_coll_enqueue(run, err), err);
    code = wm_capture_end(run->desc.comm, code, err);
    if (code < 0)
        wm_symm_forget(run->symm);
    return code;
}

static const char *
name_of(const wm_coll_t *call)
{
    return call != NULL ? wm_call_name(call->kind) : "a refused call";
}

// Names the call, for reports about waiting for other ranks on the host.
static void
name_wait(const wm_coll_t *call, const char *where)
{
    static _Thread_local char name[96];
    snprintf(name, sizeof name, "%s on a stream, %s,", name_of(call), where);
    wm_call = (wm_call_t){
        .name = name,
        .collective = true,
        .type = MPI_DATATYPE_NULL,
    };
}

static int
give(run_t *run, int code, wm_error_t *err)
{
    if (code < 0) {
        stream_coll_refuse(run->symm, run->desc.refused ? &run->desc : NULL,
                           code);
        return code;
    }
    if (wm_symm_is_lost(run->symm)) {
        name_wait(run->desc.call, "the first after one that failed");
        code = wm_symm_recover(run->symm, err);
        if (code < 0)
            return code;
    }
    code = wm_symm_begin(run->symm, &run->desc, run->desc.stream, err);
    return code < 0
               ? code
               : wm_symm_end(run->symm, stream_coll_enqueue(run, err), err);
}

static int
call_on(wm_comm_t *comm, const wm_coll_t *call, int device, CUstream stream,
        wm_error_t *err)
{
    run_t run = {
        .desc = {.call = call,
                 .comm = comm,
                 .device = device,
                 .stream = stream},
    };
    wm_error_t other;
    if (comm->whole != comm)
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "an intercommunicator has no collectives on "
                            "streams; use it without on(stream)");
    if (comm->barrier == NULL)
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "a collective on a stream needs all ranks on one "
                            "host, %d at most, which can reach each other's "
                            "memory there, and less than %d communicators in "
                            "use; use the communicator itself, without "
                            "on(stream)",
                            WM_BARRIER_RANKS, WM_BARRIER_SLOTS);
    int code = call == NULL ? err->code : 0;
    int asked = wm_stream_capture(device, stream, &run.capture,
                                  code == 0 ? err : &other);
    if (code == 0)
        code = asked;
    wm_symm_t **symm = run.capture != 0 ? &comm->graph_symm : &comm->symm;
    if (code == 0)
        code = wm_coll_desc_fill(&run.desc, err);
    if (run.capture != 0)
        name_wait(call, "captured into a graph");
    if (run.capture != 0 && comm->symm != NULL) {
        int alike = wm_symm_arrive_captured(comm->symm, name_of(call),
                                            code == 0 ? err : &other);
        if (alike < 0)
            return code < 0 ? code : alike;
    }
    if (*symm == NULL) {
        int made = wm_symm_make(comm, device, run.capture != 0, code, err);
        if (made < 0)
            return made;
    }
    run.symm = *symm;
    if (code == 0 && device != wm_symm_device(run.symm))
        code = wm_error_set(err, WM_ERR_VALUE, 0,
                            "stream: it is one of cuda:%d, and the "
                            "collectives of this communicator are on streams "
                            "of cuda:%d; use another communicator (Dup)",
                            device, wm_symm_device(run.symm));
    if (code == 0)
        code = count_fragments(&run, err);
    code = run.capture != 0 ? capture(&run, code, err) : give(&run, code, err);
    bool on_host = wm_symm_is_on_host(run.symm);
    if (code == 0)
        wm_stat_add(
            on_host ? WM_STAT_staged_collectives : WM_STAT_ipc_collectives, 1);
    if (code == 0 && on_host)
        stream_coll_count_staged(&run.desc);
    return code;
}

int
wm_stream_coll_call(wm_comm_t *comm, const wm_coll_t *call, int device,
                    CUstream stream, wm_error_t *err)
{
    wm_device_stay();
    int code = call_on(comm, call, device, stream, err);
    wm_device_go();
    return code;
}

// The operation of a call on a stream, until the stream has passed the call.
typedef struct {
    wm_op_t op;
    wm_buffer_t kept;
    wm_comm_t *comm; // retained
    int device;
    CUevent event;
    wm_symm_place_t place;
    unsigned looks;
} given_t;

static bool
stream_coll_step(wm_op_t *op)
{
    given_t *given = (given_t *)op;
    wm_error_t err;
    bool done = false;
    if (wm_failure_is_due(&given->looks))
        (void)wm_stream_failure_look(given->comm);
    int code = wm_event_done(given->device, given->event, &done, &err);
    if (code == 0 && done) // the stream has passed it: has it failed?
        code = wm_symm_look(given->comm->symm, given->place, &err);
    if (code < 0)
        wm_op_fail(op, &err);
    return code < 0 || (code == 0 && done);
}

static wm_buffer_t *
stream_coll_buffer_of(wm_op_t *op)
{
    return &((given_t *)op)->kept;
}

static void
free_given(wm_op_t *op)
{
    const given_t *given = (const given_t *)op;
    if (given->event != NULL)
        wm_event_release(given->device, given->event);
    wm_comm_release(given->comm);
}

static const wm_op_kind_t kind = {
    .step = stream_coll_step,
    .buffer = stream_coll_buffer_of,
    .free = free_given,
};

int
wm_stream_coll_begin(wm_comm_t *comm, const wm_coll_t *call, int device,
                     CUstream stream, wm_buffer_t *kept, wm_op_t **op,
                     wm_error_t *err)
{
    uint64_t captured = 0;
    int code = wm_stream_capture(device, stream, &captured, err);
    if (code == 0 && captured != 0)
        code = wm_error_set(err, WM_ERR_STATE, 0,
                            "a nonblocking collective cannot be captured into "
                            "a graph, as its request would end at once: make "
                            "the blocking call, which does not wait for the "
                            "stream either");
    if (code == 0)
        code = wm_engine_start(err);
    given_t *given = code == 0 ? wm_op_new(&kind, sizeof *given, NULL) : NULL;
    if (code == 0 && given == NULL)
        code = wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    if (code == 0) {
        wm_comm_retain(comm);
        given->comm = comm;
        given->device = device;
        code = wm_event_acquire(device, &given->event, err);
    }
    int begun = wm_stream_coll_call(comm, code < 0 ? NULL : call, device,
                                    stream, err);
    code = code < 0 ? code : begun;
    if (code == 0) {
        code = wm_event_record(device, given->event, stream, err);
        given->place = wm_symm_place(comm->symm);
        if (code < 0)
            wm_symm_fail(comm->symm);
    }
    if (code < 0) {
        if (given != NULL)
            wm_op_release(&given->op);
        return code;
    }
    given->kept = *kept;
    wm_engine_add(&given->op);
    wm_engine_notify();
    *op = &given->op;
    return 0;
}
