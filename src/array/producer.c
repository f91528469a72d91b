// SPDX-License-Identifier: BSD-3-Clause
// Producers: the work that may still use memory, and how to order work behind
// it.
#include "array/order.h"

int
wm_producer_idle(const wm_producer_t *producer, bool to_write, bool *idle,
                 wm_error_t *err)
{
    switch (producer->kind) {
    case WM_PRODUCER_ORDER:
        return wm_order_idle(producer->order, to_write, idle, err);
    case WM_PRODUCER_STREAM:
        return wm_stream_idle(producer->device, producer->stream, idle, err);
    case WM_PRODUCER_DEVICE:
        *idle = false;
        return 0;
    case WM_PRODUCER_NONE:
    default:
        *idle = true;
        return 0;
    }
}

bool
wm_producer_is_same(const wm_producer_t *one, const wm_producer_t *other)
{
    return one->kind == WM_PRODUCER_STREAM && other->kind == WM_PRODUCER_STREAM
           && one->device == other->device && one->stream == other->stream;
}

bool
wm_producer_is_on(const wm_producer_t *producer, bool to_write, int device,
                  CUstream stream)
{
    switch (producer->kind) {
    case WM_PRODUCER_ORDER:
        return wm_order_is_of(producer->order, to_write, device, stream);
    case WM_PRODUCER_STREAM:
        return producer->device == device && producer->stream == stream;
    case WM_PRODUCER_DEVICE:
        return false;
    case WM_PRODUCER_NONE:
    default:
        return true;
    }
}

int
wm_producer_before(const wm_producer_t *producer, bool to_write, int device,
                   CUstream stream, wm_error_t *err)
{
    int status;
    switch (producer->kind) {
    case WM_PRODUCER_ORDER:
        return wm_order_before(producer->order, to_write, device, stream, 0,
                               err);
    case WM_PRODUCER_STREAM:
        return wm_stream_follow(device, stream, producer->device,
                                producer->stream, err);
    case WM_PRODUCER_DEVICE:
        // Our own work on the memory may be on another device: the order
        // tells.
        status = wm_order_before(producer->order, to_write, device, stream, 0,
                                 err);
        return status < 0 ? status
                          : wm_device_synchronize(producer->device, err);
    case WM_PRODUCER_NONE:
    default:
        return 0;
    }
}

// Finds the captures of our stream and of the producer's (0: none). *outside:
// the producer's is a default stream that a capture is ordered with: it is in
// no capture.
static int
find_captures(const wm_producer_t *producer, int device, CUstream stream,
              uint64_t *ours, uint64_t *theirs, bool *outside, wm_error_t *err)
{
    *outside = false;
    wm_error_t own;
    int code = wm_stream_capture(device, stream, ours, err);
    if (code < 0)
        return code;
    code = wm_stream_capture(producer->device, producer->stream, theirs, &own);
    if (code == 0)
        return 0;
    *theirs = 0;
    *outside = wm_stream_is_default(producer->stream);
    if (*outside)
        return 0;
    *err = own;
    return code;
}

// Orders a captured stream behind the producer. A capture can be joined only
// with streams of the same capture; for other pending work the host waits, so
// that this work comes before the graph. The caller orders unnamed work on a
// device, and work on a default stream that the capture is ordered with.
static int
producer_before_graph(const wm_producer_t *producer, bool to_write, int device,
                      CUstream stream, wm_error_t *err)
{
    uint64_t ours = 0, theirs = 0;
    if (producer->kind != WM_PRODUCER_STREAM)
        return wm_order_wait(producer->order, to_write, err);
    bool outside;
    int code = find_captures(producer, device, stream, &ours, &theirs,
                             &outside, err);
    if (code < 0 || outside)
        return code;
    if (theirs == 0)
        return wm_stream_synchronize(producer->device, producer->stream, err);
    if (theirs != ours)
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "the stream of the array is being captured into "
                            "another graph: end that capture first");
    return wm_stream_follow(device, stream, producer->device, producer->stream,
                            err);
}

// Makes the producer's stream wait for a captured stream, if both are in one
// capture.
static int
producer_after_graph(const wm_producer_t *producer, int device,
                     CUstream stream, wm_error_t *err)
{
    uint64_t ours = 0, theirs = 0;
    if (producer->kind != WM_PRODUCER_STREAM)
        return 0;
    bool outside;
    int code = find_captures(producer, device, stream, &ours, &theirs,
                             &outside, err);
    if (code < 0 || outside || theirs != ours)
        return code;
    return wm_stream_follow(producer->device, producer->stream, device, stream,
                            err);
}

int
wm_producer_wait(const wm_producer_t *producer, bool to_write, wm_error_t *err)
{
    int status;
    switch (producer->kind) {
    case WM_PRODUCER_ORDER:
        return wm_order_wait(producer->order, to_write, err);
    case WM_PRODUCER_STREAM:
        return wm_stream_synchronize(producer->device, producer->stream, err);
    case WM_PRODUCER_DEVICE:
        status = wm_order_wait(producer->order, to_write, err);
        return status < 0 ? status
                          : wm_device_synchronize(producer->device, err);
    case WM_PRODUCER_NONE:
    default:
        return 0;
    }
}

int
wm_producer_after(const wm_producer_t *producer, bool wrote, int device,
                  CUstream stream, wm_error_t *err)
{
    switch (producer->kind) {
    case WM_PRODUCER_STREAM:
        return wm_stream_follow(producer->device, producer->stream, device,
                                stream, err);
    case WM_PRODUCER_ORDER:
    case WM_PRODUCER_DEVICE:
        // A DEVICE producer without an order remembers nothing: wait for the
        // work.
        if (producer->order == NULL)
            return wm_stream_synchronize(device, stream, err);
        return wrote
                   ? wm_order_after_write(producer->order, device, stream, err)
                   : wm_order_after_read(producer->order, device, stream, err);
    case WM_PRODUCER_NONE:
    default:
        return 0;
    }
}

int
wm_producer_refuse_capture(const wm_producer_t *producer, wm_error_t *err)
{
    return producer->kind == WM_PRODUCER_STREAM
               ? wm_stream_refuse_capture(producer->device, producer->stream,
                                          "the stream of the array", err)
               : 0;
}

int
wm_producer_before_on(const wm_producer_t *producer, bool to_write, int device,
                      CUstream stream, bool captured, wm_error_t *err)
{
    if (captured)
        return producer_before_graph(producer, to_write, device, stream, err);
    int code = producer->device == device && producer->stream == stream
                   ? 0
                   : wm_producer_refuse_capture(producer, err);
    return code < 0
               ? code
               : wm_producer_before(producer, to_write, device, stream, err);
}

int
wm_producer_after_on(const wm_producer_t *producer, bool wrote, int device,
                     CUstream stream, bool captured, wm_error_t *err)
{
    return captured ? producer_after_graph(producer, device, stream, err)
                    : wm_producer_after(producer, wrote, device, stream, err);
}
