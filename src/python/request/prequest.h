// SPDX-License-Identifier: BSD-3-Clause
// wm.Prequest: a message that is started many times. GIL held.
#ifndef WM_PYTHON_REQUEST_PREQUEST_H
#define WM_PYTHON_REQUEST_PREQUEST_H

#include "comm/message/p2p.h"
#include "comm/protocol/captured.h"
#include "python/message/channel.h"
#include "python/request/py_request.h"

#define WM_PY_AT_ONCE 64 // requests begun in one release of the GIL

typedef struct wm_prequest wm_prequest_t;

// Begins several requests, at most WM_PY_AT_ONCE. Returns 0, or -1 with an
// exception, after those before the failed one have begun.
typedef int
wm_py_start_t(wm_prequest_t **requests, int count);

struct wm_prequest {
    wm_request_t request; // of the message under way
    PyObject *comm;       // NULL once freed
    wm_channel_t channel; // its communicator is retained until then
    PyObject *array;      // without its list
    wm_message_t message; // parsed once
    wm_envelope_t envelope;
    bool receives;
    wm_captured_t *captured; // of graphs; NULL: never captured. Borrowed
    uint64_t capture;        // in which it was started, if in_graph
    bool starting;           // a start is under way
    bool started;            // by MPI itself, which caused this start
    unsigned long number;    // in order of creation
    PyObject *kept;          // for Python's own starts: what they need
    wm_py_start_t *start;    // NULL: call their own Start
};

// Makes an inactive request, of wm.Prequest or a `type` derived from it, of a
// communicator, or comm.on(stream), for the message parsed from `buf` (moved,
// also on failure). Returns NULL with an exception.
PyObject *
wm_py_prequest_new(PyTypeObject *type, PyObject *comm,
                   const wm_channel_t *channel, PyObject *buf, bool receives,
                   const wm_envelope_t *envelope, wm_message_t *message);

// Returns true if the request can be started: it belongs to a communicator,
// and is not freed.
bool
wm_py_prequest_is_live(const wm_prequest_t *self);

// Returns true if the request is active, as far as this can be known.
bool
wm_py_prequest_is_under_way(const wm_prequest_t *self);

// Begins the request if the program has started it by MPI itself. Returns 0,
// or -1 with an exception.
WM_MUST_CHECK int
wm_py_prequest_begin_started(wm_prequest_t *self);

// Called before a request is examined: if the program has started it by MPI
// itself, all requests started so begin.
WM_MUST_CHECK int
wm_py_prequest_notice(wm_request_t *request);

// Prepares a Start. Fails with an exception if the request is freed or active.
// On success `starting` is set, and the caller ends the start.
WM_MUST_CHECK int
wm_py_prequest_prepare(wm_prequest_t *self);

// Fills the message's buffer again, and asks for its producer anew.
WM_MUST_CHECK int
wm_py_prequest_again(wm_prequest_t *self, wm_buffer_t *buffer);

// For types derived from wm.Prequest.
void
wm_py_prequest_dealloc(PyObject *object);

PyObject *
wm_py_prequest_free(PyObject *object, PyObject *unused);

#endif
