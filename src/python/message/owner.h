// SPDX-License-Identifier: BSD-3-Clause
// What keeps the memory of a message alive, as the owner of a wm_buffer_t.
// Operations may end on the progress thread, which must not take the GIL: what
// they kept waits then for a thread that holds it. GIL held, unless said.
#ifndef WM_PYTHON_MESSAGE_OWNER_H
#define WM_PYTHON_MESSAGE_OWNER_H

#include "comm/message/header.h"
#include "python/view/view.h"

typedef struct wm_owner {
    struct wm_owner *next;
    _Atomic int uses; // 1, or more of a persistent request's
    wm_view_t view;
    bool viewed;
    Py_buffer raw;         // of an object whose elements have no dtype of ours
    wm_pattern_t *pattern; // NULL where the bytes are contiguous
    PyObject *keep;        // let go of with it, or NULL
} wm_owner_t;

// Of nothing yet, with one use. NULL with an exception.
wm_owner_t *
wm_py_owner_new(void);

void
wm_py_owner_retain(wm_owner_t *owner);

// Gives back a use, with the GIL or without: a buffer's release function.
void
wm_py_owner_release(void *owner);

// Lets go of what waits for a thread that holds the GIL.
void
wm_py_owner_release_waiting(void);

// Whether a buffer of ours is used by no operation.
bool
wm_py_owner_is_alone(const wm_buffer_t *buffer);

// For the collector: visits what such a buffer keeps; nothing else.
int
wm_py_owner_traverse(const wm_buffer_t *buffer, visitproc visit, void *arg);

#endif
