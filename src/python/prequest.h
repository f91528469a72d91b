// SPDX-License-Identifier: BSD-3-Clause
// wm.Prequest: a message that is begun many times. GIL held.
#ifndef WM_PYTHON_PREQUEST_H
#define WM_PYTHON_PREQUEST_H

#include "comm/p2p.h"
#include "python/buffer.h"

// A new inactive request of a communicator, or comm.on(stream), for the
// message parsed from `buf` (moved, also on failure). NULL with an exception.
PyObject *
wm_prequest_new(PyObject *comm, PyObject *buf, bool receives,
                const wm_envelope_t *envelope, wm_message_t *message);

#endif
