// SPDX-License-Identifier: BSD-3-Clause
// wm.Prequest: a message that is begun many times. GIL held.
#ifndef WM_PYTHON_REQUEST_PREQUEST_H
#define WM_PYTHON_REQUEST_PREQUEST_H

#include "comm/message/p2p.h"
#include "python/message/channel.h"
#include "python/request/py_request.h"

#define WM_PY_AT_ONCE 64 // requests begun without the GIL in one go

typedef struct wm_prequest wm_prequest_t;

// Begins several, WM_PY_AT_ONCE at most: 0, or -1 with an exception, when
// those before the one that failed have begun.
typedef int
wm_py_start_t(wm_prequest_t **requests, int count);

struct wm_prequest {
    wm_request_t request; // of the message under way
    PyObject *comm;       // NULL once freed
    wm_channel_t channel; // whose communicator is retained until then
    PyObject *array;      // without its list
    wm_message_t message; // parsed once
    wm_envelope_t envelope;
    bool receives;
    bool starting;        // it is being begun
    bool started;         // by MPI itself, which is why
    unsigned long number; // they count up
    PyObject *kept;       // of those that Python begins: what it needs
    wm_py_start_t *start; // of those that have the same; NULL: their Start
};

// A new inactive request, of wm.Prequest or a `type` derived from it, of a
// communicator, or comm.on(stream), for the message parsed from `buf` (moved,
// also on failure). NULL with an exception.
PyObject *
wm_py_prequest_new(PyTypeObject *type, PyObject *comm,
                   const wm_channel_t *channel, PyObject *buf, bool receives,
                   const wm_envelope_t *envelope, wm_message_t *message);

// Returns true if it can be started: it is neither freed nor of nobody.
bool
wm_py_prequest_is_live(const wm_prequest_t *self);

// Returns true if it is active, as far as this can be known.
bool
wm_py_prequest_is_under_way(const wm_prequest_t *self);

// Begins it if the program has started it by MPI itself; -1 with an exception.
WM_MUST_CHECK int
wm_py_prequest_begin_started(wm_prequest_t *self);

// Before a request is looked at: if it was started so, all that were begin.
WM_MUST_CHECK int
wm_py_prequest_notice(wm_request_t *request);

// Begins a Start: an exception where the request is freed or active. On
// success `starting` is set, for the caller to end it.
WM_MUST_CHECK int
wm_py_prequest_prepare(wm_prequest_t *self);

// The message once more, whose producer is asked anew.
WM_MUST_CHECK int
wm_py_prequest_again(wm_prequest_t *self, wm_buffer_t *buffer);

// For types derived from wm.Prequest.
void
wm_py_prequest_dealloc(PyObject *object);

PyObject *
wm_py_prequest_free(PyObject *object, PyObject *unused);

#endif
