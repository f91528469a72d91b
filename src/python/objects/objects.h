// SPDX-License-Identifier: BSD-3-Clause
// Receivers of the bytes of an object. GIL held.
#ifndef WM_PYTHON_OBJECTS_OBJECTS_H
#define WM_PYTHON_OBJECTS_OBJECTS_H

#include "comm/message/p2p.h"
#include "python/core/module.h"

// Returns the operation of a payload, borrowed; its communicator is valid as
// long as the payload. NULL with a TypeError for other objects.
wm_op_t *
wm_py_payload_op(PyObject *payload);

#endif
