// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/stream/coll_order.h"

#include "comm/coll/call/graph_memory.h"
#include "comm/engine/engine.h"
#include "cuda/event.h"
#include "cuda/stream.h"

static bool
coll_order_is_nothing(const wm_buffer_t *buffer)
{
    return buffer == NULL || buffer->nbytes == 0;
}

static wm_order_t *
coll_order_of(const wm_buffer_t *buffer)
{
    return coll_order_is_nothing(buffer) ? NULL : buffer->order;
}

static int
coll_order_before(const wm_buffer_t *buffer, bool to_write,
                  const wm_coll_stream_t *on, uint64_t id, wm_error_t *err)
{
    if (coll_order_is_nothing(buffer))
        return 0;
    const wm_producer_t *producer = &buffer->producer;
    bool ours = producer->kind == WM_PRODUCER_ORDER
                || producer->kind == WM_PRODUCER_DEVICE;
    return on->capture == 0 && ours
               ? wm_order_before(producer->order, to_write, on->device,
                                 on->stream, id, err)
               : wm_producer_before_on(producer, to_write, on->device,
                                       on->stream, on->capture != 0, err);
}

int
wm_coll_order_before(const wm_coll_t *call, const wm_coll_stream_t *on,
                     uint64_t id, wm_error_t *err)
{
    bool same = !coll_order_is_nothing(call->send)
                && !coll_order_is_nothing(call->receive)
                && wm_producer_is_same(&call->send->producer,
                                       &call->receive->producer);
    int code = coll_order_before(call->send, false, on, id, err);
    return code < 0 || same
               ? code
               : coll_order_before(call->receive, true, on, id, err);
}

int
wm_coll_order_after(const wm_coll_t *call, const wm_coll_stream_t *on,
                    uint64_t id, CUevent passed, wm_error_t *err)
{
    return on->capture != 0
               ? 0
               : wm_order_after(coll_order_of(call->send),
                                coll_order_of(call->receive), on->device,
                                on->stream, id, passed, err);
}

int
wm_coll_order_wait(const wm_coll_stream_t *on, int code)
{
    bool waits = on->capture == 0 && wm_engine_may_wait();
    return waits && wm_stream_synchronize(on->device, on->stream, NULL) == 0
               ? 1
               : code;
}

int
wm_coll_order_record(const wm_coll_stream_t *on, CUevent event,
                     wm_error_t *err)
{
    int code = wm_event_record(on->device, event, on->stream, err);
    return code < 0 ? wm_coll_order_wait(on, code) : 0;
}

int
wm_coll_order_mark(const wm_coll_stream_t *on, CUevent *passed,
                   wm_error_t *err)
{
    CUevent event = NULL;
    *passed = NULL;
    if (on->capture != 0)
        return 0;
    int code = wm_event_acquire(on->device, &event, err);
    code = code < 0 ? wm_coll_order_wait(on, code)
                    : wm_coll_order_record(on, event, err);
    if (code == 0)
        *passed = event;
    else if (event != NULL)
        wm_event_release(on->device, event);
    return code < 0 ? code : 0;
}

int
wm_coll_order_keep(const wm_coll_stream_t *on, CUevent passed,
                   wm_block_t *block, wm_error_t *err)
{
    int code = 0;
    if (block == NULL)
        return 0;
    if (on->capture != 0)
        return wm_graph_memory_keep(on->device, on->stream, block, err);
    if (passed == NULL || !wm_event_share(on->device, passed))
        code = wm_coll_order_mark(on, &passed, err);
    if (code < 0)
        (void)!wm_stream_synchronize(on->device, on->stream, NULL);
    wm_block_free(block, code == 0 && passed != NULL, &passed, &on->device);
    return code;
}
