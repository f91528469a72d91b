// SPDX-License-Identifier: BSD-3-Clause
// Starts and waits of persistent requests of comm.on(stream) in a capture into
// a CUDA graph: they are nodes of the graph. A captured Send, or another plain
// call, is a persistent request, too, which is dropped at once
// (captured_call.c). GIL held.
#ifndef WM_PYTHON_REQUEST_CAPTURED_REQUEST_H
#define WM_PYTHON_REQUEST_CAPTURED_REQUEST_H

#include "python/request/prequest.h"

// Starts those of the requests, WM_PY_AT_ONCE at most, whose streams are being
// captured, and writes the others in their order. Returns 0, or -1 with an
// exception.
WM_MUST_CHECK int
wm_py_captured_start(wm_prequest_t *const *requests, int count,
                     wm_prequest_t **others, int *other_count);

// Starts requests, WM_PY_AT_ONCE at most, of one stream, which is being
// captured, and waits for them there: in one kernel or, if their memory
// overlaps (`apart`), in two. Returns 0, or -1 with an exception.
WM_MUST_CHECK int
wm_py_captured_pass(wm_prequest_t *const *requests, int count, bool apart);

// Enqueues the waits for those requests of a tuple that were started in a
// capture. `waits` false: a call that does not only wait refuses them. Returns
// 0, or -1 with an exception.
WM_MUST_CHECK int
wm_py_captured_wait(PyObject *list, bool waits);

// Does the same for one request.
WM_MUST_CHECK int
wm_py_captured_wait_one(wm_request_t *request, bool waits);

// Returns true if the request was started in a capture that goes on, and was
// not waited for there.
bool
wm_py_captured_is_under_way(const wm_prequest_t *self);

#endif
