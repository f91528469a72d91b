// SPDX-License-Identifier: BSD-3-Clause
// The ordering rule: an allocation remembers, as events, the last write and
// the later reads that the library issued on it, and each new operation makes
// its stream wait for these events. Thread-safe, with one lock for each order;
// no GIL. No stream given to these functions is being captured into a graph:
// an event of a captured stream has no meaning outside of its graph. NULL is
// an order that has nothing pending and remembers nothing.
#ifndef WM_ARRAY_ORDER_H
#define WM_ARRAY_ORDER_H

#include "cuda/event.h"
#include "cuda/stream.h"

typedef struct wm_order wm_order_t;

// Makes an order with nothing pending. Returns NULL if host memory is
// exhausted.
wm_order_t *
wm_order_new(void);

// Frees the order. The caller has moved pending events out (wm_order_detach)
// or waited for them.
void
wm_order_free(wm_order_t *order);

// Makes `stream` of `device`, which will read, wait for the last write; if it
// will write, for all later reads, too. A stream does not wait for its own
// pending work, if that was remembered with an id (wm_stream_id). `id` is that
// of the stream; 0: asked for if need be.
WM_MUST_CHECK int
wm_order_before(wm_order_t *order, bool to_write, int device, CUstream stream,
                uint64_t id, wm_error_t *err);

// Returns true if wm_order_before() would let the stream wait for nothing.
bool
wm_order_is_of(wm_order_t *order, bool to_write, int device, CUstream stream);

// Remember, by an event, the read or write that was submitted to `stream`. If
// there is no event, they synchronise the stream instead.
WM_MUST_CHECK int
wm_order_after_read(wm_order_t *order, int device, CUstream stream,
                    wm_error_t *err);

WM_MUST_CHECK int
wm_order_after_write(wm_order_t *order, int device, CUstream stream,
                     wm_error_t *err);

// Remembers both likewise, for a stream with an id: the order that the stream
// read and the order that it wrote. Either may be NULL, and both share one
// event if possible: `passed`, which the caller has recorded on the stream
// since the read and the write, and which stays the caller's; NULL: none.
WM_MUST_CHECK int
wm_order_after(wm_order_t *read, wm_order_t *written, int device,
               CUstream stream, uint64_t id, CUevent passed, wm_error_t *err);

// Waits on the host for the last write and, if `to_write`, for all reads.
WM_MUST_CHECK int
wm_order_wait(wm_order_t *order, bool to_write, wm_error_t *err);

// Sets *idle to true if nothing is pending that a reader (or a writer) would
// wait for. Costs one atomic load if nothing is pending.
WM_MUST_CHECK int
wm_order_idle(wm_order_t *order, bool to_write, bool *idle, wm_error_t *err);

// Moves at most `room` pending events out, for wm_block_free, and returns
// their number. Waits on the host for the rest.
int
wm_order_detach(wm_order_t *order, int room, CUevent *events, int *devices);

// The producer of memory: the work that may still write or read it.
typedef enum {
    WM_PRODUCER_NONE = 0, // no work: host memory, or all work has ended
    WM_PRODUCER_ORDER,    // our own array: its order tells
    WM_PRODUCER_STREAM,   // work on one named stream
    WM_PRODUCER_DEVICE,   // unnamed work anywhere on the device
} wm_producer_kind_t;

typedef struct {
    wm_producer_kind_t kind;
    int device;      // STREAM, DEVICE
    CUstream stream; // STREAM
    // ORDER: borrowed. DEVICE: our own pending work (on our arrays that were
    // given away), or NULL.
    wm_order_t *order;
} wm_producer_t;

// Returns true if both are work on one stream, so that a stream ordered behind
// one is ordered behind the other.
bool
wm_producer_is_same(const wm_producer_t *one, const wm_producer_t *other);

// Sets *idle to true if the producer has nothing pending that a reader (or a
// writer) must wait for. DEVICE is never idle.
WM_MUST_CHECK int
wm_producer_idle(const wm_producer_t *producer, bool to_write, bool *idle,
                 wm_error_t *err);

// Returns true if all that `stream` of `device` must wait for is its own work.
bool
wm_producer_is_on(const wm_producer_t *producer, bool to_write, int device,
                  CUstream stream);

// Fails if the producer's stream is being captured; see
// wm_stream_refuse_capture.
WM_MUST_CHECK int
wm_producer_refuse_capture(const wm_producer_t *producer, wm_error_t *err);

// Makes `stream` of `device` wait for the producer. For DEVICE, the host waits
// for the device: the caller has released the GIL.
WM_MUST_CHECK int
wm_producer_before(const wm_producer_t *producer, bool to_write, int device,
                   CUstream stream, wm_error_t *err);

// Waits on the host for the producer.
WM_MUST_CHECK int
wm_producer_wait(const wm_producer_t *producer, bool to_write,
                 wm_error_t *err);

// Orders the producer behind our read or write, which was submitted to
// `stream` of `device`: ORDER remembers it, and a STREAM waits for it. DEVICE
// remembers it in its order; without an order, the host waits for `stream`.
WM_MUST_CHECK int
wm_producer_after(const wm_producer_t *producer, bool wrote, int device,
                  CUstream stream, wm_error_t *err);

// The same for calls on a stream of the program, which may be `captured`. Then
// the graph has the order: streams of the same capture are joined, and for
// earlier work that is in no capture the host waits. Outside of a capture,
// memory whose stream is being captured is refused: its work runs only with
// the graph, and to follow it would pull `stream` into the capture.
// Copies and windows order the producer behind them. Messages, collectives and
// halos on a stream leave other streams to the program, which named this one,
// and tell orders alone.
WM_MUST_CHECK int
wm_producer_before_on(const wm_producer_t *producer, bool to_write, int device,
                      CUstream stream, bool captured, wm_error_t *err);
WM_MUST_CHECK int
wm_producer_after_on(const wm_producer_t *producer, bool wrote, int device,
                     CUstream stream, bool captured, wm_error_t *err);

#endif
