// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/stream/stream_coll.h"

#include <stdio.h>

#include "comm/coll/stream/capture.h"
#include "comm/coll/stream/packed.h"
#include "comm/coll/stream/fragmented_coll.h"
#include "comm/coll/stream/symm.h"
#include "comm/engine/stats.h"
#include "comm/diagnostics/hang.h"
#include "cuda/stream.h"

typedef struct {
    wm_coll_desc_t desc;
    wm_symm_t *symm;
    uint64_t capture; // 0: not captured
    size_t fragments; // their number, if streams wait, not kernels
} run_t;

// Counts the bytes that this rank sends through the host.
static void
stream_coll_count_staged(const wm_coll_desc_t *desc)
{
    int blocks = desc->shape->scatters ? desc->comm->size : 1;
    for (int i = 0; i < blocks && desc->source != NULL; ++i)
        wm_stat_add(WM_STAT_staged_bytes, (int64_t)desc->out[i].nbytes);
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
exchange(run_t *run, wm_error_t *err)
{
    wm_block_t *copy;
    int code = wm_packed_open(&run->desc, &copy, err);
    if (code == 0)
        code = wm_symm_has_kernels(run->symm)
                       && run->desc.call->kind != WM_COLL_BARRIER
                   ? wm_symm_enqueue_kernel(run->symm, &run->desc, err)
                   : wm_fragmented_coll_enqueue(run->symm, &run->desc,
                                                run->fragments, err);
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
    wm_waiting_call = (wm_waiting_call_t){
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
        code = wm_error_set(
            err, WM_ERR_VALUE, 0,
            "stream: the stream is on cuda:%d, and the collectives of this "
            "communicator are on streams of cuda:%d; use a stream of that "
            "GPU, or another communicator (Dup)",
            device, wm_symm_device(run.symm));
    if (code == 0)
        code = wm_fragmented_coll_count(run.symm, &run.desc, &run.fragments,
                                        err);
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
