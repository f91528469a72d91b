// SPDX-License-Identifier: BSD-3-Clause
// The owner of a wm_buffer_t: the objects that keep the memory of a message
// alive. Operations may end on the progress thread, which must not take the
// GIL: their owners then wait for a thread that holds the GIL. GIL held,
// unless stated.
#ifndef WM_PYTHON_MESSAGE_OWNER_H
#define WM_PYTHON_MESSAGE_OWNER_H

#include "comm/message/header.h"
#include "python/view/view.h"

typedef struct wm_owner {
    struct wm_owner *next;
    _Atomic int uses; // 1, or more for a persistent request
    wm_view_t view;
    bool viewed;
    Py_buffer raw;         // of an object whose elements have no dtype
    wm_pattern_t *pattern; // NULL if the bytes are contiguous
    PyObject *keep;        // released with the owner, or NULL
} wm_owner_t;

// Makes an empty owner with one use. Returns NULL with an exception.
wm_owner_t *
wm_py_owner_new(void);

void
wm_py_owner_retain(wm_owner_t *owner);

// Drops a use, with or without the GIL. The release function of a buffer.
void
wm_py_owner_release(void *owner);

// Releases the owners that wait for a thread that holds the GIL.
void
wm_py_owner_release_waiting(void);

// Returns true if no operation uses a buffer of ours.
bool
wm_py_owner_is_alone(const wm_buffer_t *buffer);

// For the garbage collector: visits the objects that such a buffer keeps, and
// nothing of other buffers.
int
wm_py_owner_traverse(const wm_buffer_t *buffer, visitproc visit, void *arg);

#endif
