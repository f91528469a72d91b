// SPDX-License-Identifier: BSD-3-Clause
// A buffer: the memory that a caller gives.
#ifndef WM_COMM_ENGINE_BUFFER_H
#define WM_COMM_ENGINE_BUFFER_H

#include "array/order.h"
#include "cuda/memory.h"

typedef struct wm_pattern wm_pattern_t; // comm/message/pattern.h

// Memory to send or to receive into, and the producer for which we must wait.
// Moved into an operation, which calls release(owner) once when it no longer
// needs the memory, without the engine lock, on any thread.
typedef struct wm_buffer {
    char *data;
    size_t nbytes;
    wm_pointer_t memory;
    wm_producer_t producer;
    wm_order_t *order; // of our own array, else NULL
    void *owner;
    void (*release)(void *owner);
    // NULL: the bytes are contiguous. The owner frees it.
    const wm_pattern_t *pattern;
    // No memory yet: when a message has matched, host memory of its size, at
    // most `nbytes`, is allocated; it is released with the operation.
    bool grows;
    bool pickled; // a pickled object, of a lower-case call
    bool numbers; // receives elements of several bytes: no pickle
    // With WARPMPI_CHECK, a number of comm/message/element.h; 0 matches any:
    // bytes, and datatypes of several types.
    uint8_t element;
} wm_buffer_t;

// Returns true for device and managed memory, which MPI must never access.
bool
wm_buffer_on_device(const wm_buffer_t *buffer);

// Calls release(owner), once.
void
wm_buffer_release(wm_buffer_t *buffer);

#endif
