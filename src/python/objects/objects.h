// SPDX-License-Identifier: BSD-3-Clause
// What receives the bytes of an object. GIL held.
#ifndef WM_PYTHON_OBJECTS_OBJECTS_H
#define WM_PYTHON_OBJECTS_OBJECTS_H

#include "comm/message/p2p.h"
#include "python/core/module.h"

// The operation of a payload, borrowed, whose communicator is there for as
// long as the payload. NULL with a TypeError where the object is none.
wm_op_t *
wm_py_payload_op(PyObject *payload);

#endif
