// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/nccl/nccl_stream.h"

#include "comm/coll/call/coll_wait.h"
#include "comm/coll/nccl/nccl_run.h"
#include "comm/coll/stream/graph_memory.h"
#include "comm/coll/stream/packed_coll.h"
#include "cuda/event.h"
#include "cuda/stream.h"

wm_nccl_comm_t *
wm_nccl_of(const wm_comm_t *comm)
{
    return comm->colls.state[WM_COLL_NUMBER_nccl];
}

static int
nccl_stream_before(const wm_buffer_t *buffer, bool to_write,
                   const wm_coll_stream_t *on, wm_error_t *err)
{
    return buffer == NULL || buffer->nbytes == 0
               ? 0
               : wm_producer_before_on(&buffer->producer, to_write, on->device,
                                       on->stream, on->capture != 0, err);
}

static wm_order_t *
nccl_stream_order_of(const wm_buffer_t *buffer)
{
    return buffer == NULL || buffer->nbytes == 0 ? NULL : buffer->order;
}

// Notes the call in the orders of our arrays; not for graphs, which run at any
// time.
static int
nccl_stream_after(const wm_coll_t *call, const wm_coll_stream_t *on,
                  wm_error_t *err)
{
    return on->capture != 0
               ? 0
               : wm_order_after(nccl_stream_order_of(call->send),
                                nccl_stream_order_of(call->receive),
                                on->device, on->stream,
                                wm_stream_id(on->device, on->stream), err);
}

// Keeps a block until the stream has passed the call, or the graph is gone.
static int
nccl_stream_keep_block(const wm_coll_stream_t *on, wm_block_t *block,
                       wm_error_t *err)
{
    CUevent event;
    if (block == NULL)
        return 0;
    if (on->capture != 0)
        return wm_graph_memory_keep(on->device, on->stream, block, err);
    int code = wm_event_acquire(on->device, &event, err);
    if (code == 0) {
        code = wm_event_record(on->device, event, on->stream, err);
        if (code == 0) {
            wm_block_free(block, 1, &event, &on->device);
            return 0;
        }
        wm_event_release(on->device, event);
    }
    (void)!wm_stream_synchronize(on->device, on->stream, NULL);
    wm_block_free(block, 0, NULL, NULL);
    return code;
}

// Gives the call to the stream, with its orders. Others may have begun it, so
// memory is taken before.
static int
nccl_stream_give(wm_nccl_run_t *run, const wm_coll_stream_t *on,
                 wm_error_t *err)
{
    const wm_coll_t *call = run->desc.call;
    wm_block_t *copy = NULL;
    int code = wm_nccl_run_take(run, err);
    if (code == 0)
        code = nccl_stream_before(call->send, false, on, err);
    if (code == 0)
        code = nccl_stream_before(call->receive, true, on, err);
    if (code == 0)
        code = wm_packed_coll_open(&run->desc, &copy, err);
    atomic_store(&run->own->giving, true);
    wm_nccl_comm_watch();
    if (code == 0)
        code = wm_nccl_run_enqueue(run, err);
    atomic_store(&run->own->giving, false);
    if (code == 0)
        code = wm_packed_coll_unpack(&run->desc, err);
    wm_block_t *blocks[] = {run->room, copy};
    for (int i = 0; i < 2; ++i) {
        int kept = nccl_stream_keep_block(on, blocks[i],
                                          code == 0 ? err : NULL);
        code = code < 0 ? code : kept;
    }
    return code < 0 ? code : nccl_stream_after(call, on, err);
}

// Marks the end of the call, for the progress thread.
static int
nccl_stream_mark(wm_nccl_comm_t *own, const wm_coll_stream_t *on,
                 wm_error_t *err)
{
    ++own->given;
    if (on->capture != 0)
        return wm_nccl_comm_keep(own, on->stream, err);
    int code = wm_event_record(on->device, own->last, on->stream, err);
    return code;
}

static int
nccl_stream_fill(wm_nccl_run_t *run, wm_nccl_comm_t *own,
                 const wm_coll_t *call, const wm_coll_stream_t *on,
                 wm_error_t *err)
{
    if (on->device != own->device)
        return wm_error_set(
            err, WM_ERR_VALUE, 0,
            "stream: the stream is on cuda:%d, and the collectives of this "
            "communicator are on streams of cuda:%d; use a stream of that "
            "GPU, or another communicator (Dup)",
            on->device, own->device);
    return wm_nccl_run_fill(run, own, call, on->stream, err);
}

static int
nccl_stream_look_settled(void *context, wm_error_t *err)
{
    (void)err;
    return wm_nccl_comm_is_settled(context);
}

static int
nccl_stream_look_lost(void *context, wm_error_t *err)
{
    return wm_nccl_comm_look(context, err);
}

static int
nccl_stream_enqueue(wm_comm_t *comm, const wm_coll_t *call,
                    const wm_coll_stream_t *on, wm_error_t *err)
{
    wm_nccl_run_t run;
    wm_nccl_comm_t *own = wm_nccl_of(comm);
    wm_error_t died;
    int settled = wm_coll_wait(comm, nccl_stream_look_settled, own, 1, &died);
    int code = call == NULL ? err->code : 0;
    if (settled < 0 && code == 0) {
        *err = died;
        code = settled;
    }
    if (code == 0) {
        code = wm_nccl_comm_failure(own, err);
        own->told |= code < 0;
    }
    if (code == 0)
        code = nccl_stream_fill(&run, own, call, on, err);
    if (code < 0) { // the graph of a capture that has failed is not launched
        if (on->capture == 0)
            wm_nccl_comm_refuse(own, err);
        return code;
    }
    code = nccl_stream_give(&run, on, err);
    if (code == 0)
        code = nccl_stream_mark(own, on, err);
    else if (wm_nccl_comm_lost(own, err))
        code = wm_coll_wait(comm, nccl_stream_look_lost, own, 1, err);
    if (code < 0 && on->capture == 0) {
        own->told = true;
        wm_nccl_comm_break(own, err);
    }
    return code;
}

static int
nccl_stream_check(wm_comm_t *comm, const wm_coll_t *call,
                  const wm_coll_stream_t *on, wm_error_t *err)
{
    wm_coll_desc_t desc = {
        .call = call,
        .comm = comm,
        .device = on->device,
        .stream = on->stream,
    };
    return wm_coll_desc_fill(&desc, err);
}

static uint64_t
nccl_stream_place(const wm_comm_t *comm)
{
    return wm_nccl_of(comm)->given;
}

static int
nccl_stream_look(wm_comm_t *comm, uint64_t place, wm_error_t *err)
{
    wm_nccl_comm_t *own = wm_nccl_of(comm);
    int code = wm_nccl_comm_failure(own, err);
    (void)place;
    own->told |= code < 0;
    return code;
}

static void
nccl_stream_fail(wm_comm_t *comm)
{
    (void)comm; // the call itself goes on
}

static int
nccl_stream_find_failure(wm_comm_t *comm, wm_error_t *err)
{
    return wm_nccl_comm_find_failure(wm_nccl_of(comm), err);
}

const wm_coll_on_stream_t wm_nccl_on_stream = {
    .captures = true,
    .check = nccl_stream_check,
    .enqueue = nccl_stream_enqueue,
    .place = nccl_stream_place,
    .look = nccl_stream_look,
    .fail = nccl_stream_fail,
    .find_failure = nccl_stream_find_failure,
};
