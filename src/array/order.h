// SPDX-License-Identifier: BSD-3-Clause
// The ordering rule: an allocation remembers the last write and the reads
// since that the library issued on it, as events, and whoever comes next
// makes its stream wait for them. Thread-safe, one lock an order; no GIL.
// No stream given to these is being captured into a graph: an event of a
// captured stream means nothing outside of its graph. An order of NULL has
// nothing pending and remembers nothing.
#ifndef WM_ARRAY_ORDER_H
#define WM_ARRAY_ORDER_H

#include "cuda/event.h"
#include "cuda/stream.h"

typedef struct wm_order wm_order_t;

// A new order with nothing pending. NULL when host memory is exhausted.
wm_order_t *
wm_order_new(void);

// Frees it; pending events are moved out by wm_order_take first or waited for.
void
wm_order_free(wm_order_t *order);

// `stream` of `device` will read: it waits for the last write.
WM_MUST_CHECK int
wm_order_before_read(wm_order_t *order, int device, CUstream stream,
                     wm_error_t *err);

// `stream` will write: it waits for the last write and all reads since.
WM_MUST_CHECK int
wm_order_before_write(wm_order_t *order, int device, CUstream stream,
                      wm_error_t *err);

// The read or write was submitted to `stream`: remembered by an event. If it
// cannot be remembered, the stream is synchronised instead.
WM_MUST_CHECK int
wm_order_after_read(wm_order_t *order, int device, CUstream stream,
                    wm_error_t *err);

WM_MUST_CHECK int
wm_order_after_write(wm_order_t *order, int device, CUstream stream,
                     wm_error_t *err);

// Likewise of a stream of that id (wm_stream_id; 0: not known), which need not
// wait for what is pending on itself. What it read and what it wrote, either
// NULL, have one event where that will do.
WM_MUST_CHECK int
wm_order_before(wm_order_t *order, bool to_write, int device, CUstream stream,
                uint64_t id, wm_error_t *err);

WM_MUST_CHECK int
wm_order_after(wm_order_t *read, wm_order_t *written, int device,
               CUstream stream, uint64_t id, wm_error_t *err);

// Waits on the host for the last write (and, to write, for all reads).
WM_MUST_CHECK int
wm_order_wait(wm_order_t *order, bool to_write, wm_error_t *err);

// Whether nothing is pending that a reader (or a writer) would wait for.
// One atomic load when nothing ever was.
WM_MUST_CHECK int
wm_order_idle(wm_order_t *order, bool to_write, bool *idle, wm_error_t *err);

// Moves at most `room` pending events out, to be given to wm_block_free; waits
// on the host for the rest. Returns how many.
int
wm_order_take(wm_order_t *order, int room, CUevent *events, int *devices);

// Who may still be writing or reading memory, as far as can be told.
typedef enum {
    WM_PRODUCER_NONE = 0, // nobody: host memory, or known to be done
    WM_PRODUCER_ORDER,    // our own array: its order knows
    WM_PRODUCER_STREAM,   // work on one named stream
    WM_PRODUCER_DEVICE,   // unnamed work anywhere on the device
} wm_producer_kind_t;

typedef struct {
    wm_producer_kind_t kind;
    int device;      // STREAM, DEVICE
    CUstream stream; // STREAM
    // ORDER, borrowed; beside DEVICE our own pending work (our arrays that
    // were given away), or NULL.
    wm_order_t *order;
} wm_producer_t;

// Whether both are work on one stream: who comes behind the one comes behind
// the other.
bool
wm_producer_is_same(const wm_producer_t *one, const wm_producer_t *other);

// Whether nothing of the producer's is pending that a reader (or a writer)
// must wait for. DEVICE is never idle.
WM_MUST_CHECK int
wm_producer_idle(const wm_producer_t *producer, bool to_write, bool *idle,
                 wm_error_t *err);

// Refuses one whose stream is being captured; see wm_stream_refuse_capture.
WM_MUST_CHECK int
wm_producer_refuse_capture(const wm_producer_t *producer, wm_error_t *err);

// Makes `stream` of `device` wait for the producer; DEVICE synchronises it on
// the host (release the GIL around this).
WM_MUST_CHECK int
wm_producer_before(const wm_producer_t *producer, bool to_write, int device,
                   CUstream stream, wm_error_t *err);

// Likewise where `stream` is being captured, which can be joined with streams
// of its capture alone: what is pending elsewhere is waited for on the host,
// so that it comes before the graph; unnamed work on a device, and on a
// default stream that the capture is ordered with, the caller orders.
WM_MUST_CHECK int
wm_producer_before_graph(const wm_producer_t *producer, bool to_write,
                         int device, CUstream stream, wm_error_t *err);

// After it: streams of the capture alone are made to wait.
WM_MUST_CHECK int
wm_producer_after_graph(const wm_producer_t *producer, int device,
                        CUstream stream, wm_error_t *err);

// The same wait on the host.
WM_MUST_CHECK int
wm_producer_wait(const wm_producer_t *producer, bool to_write,
                 wm_error_t *err);

// Our read or write was submitted to `stream` of `device`: ORDER remembers it,
// STREAM is made to wait for it, and DEVICE, unless its order remembers, is
// told by waiting for `stream` on the host.
WM_MUST_CHECK int
wm_producer_after(const wm_producer_t *producer, bool wrote, int device,
                  CUstream stream, wm_error_t *err);

#endif
