// SPDX-License-Identifier: BSD-3-Clause
// The memory that a caller gives.
#ifndef WM_COMM_ENGINE_BUFFER_H
#define WM_COMM_ENGINE_BUFFER_H

#include "array/order.h"
#include "cuda/memory.h"

typedef struct wm_pattern wm_pattern_t; // comm/message/pattern.h

// Memory to send or to receive into, and who must be waited for. Moved into an
// operation, which calls release(owner) once when it no longer needs the
// memory, without the engine's lock, on any thread.
typedef struct wm_buffer {
    char *data;
    size_t nbytes;
    wm_pointer_t memory;
    wm_producer_t producer;
    wm_order_t *order; // of our own array, else NULL
    void *owner;
    void (*release)(void *owner);
    // NULL where the bytes are contiguous; the owner's.
    const wm_pattern_t *pattern;
    // No memory yet: host memory of the size of the message, at most `nbytes`,
    // is allocated when one has matched, and released with the operation.
    bool grows;
    bool pickled; // the bytes of an object, of a lower-case call
    bool numbers; // to receive elements of several bytes each: no pickle
    // With WARPMPI_CHECK, a number of comm/message/element.h; 0 for what
    // matches any: bytes, and datatypes of several types.
    uint8_t element;
} wm_buffer_t;

// True for device and managed memory: what MPI must never see.
bool
wm_buffer_on_device(const wm_buffer_t *buffer);

void
wm_buffer_release(wm_buffer_t *buffer);

#endif
