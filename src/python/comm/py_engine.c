// SPDX-License-Identifier: BSD-3-Clause
#include "python/comm/calls.h"

#include <string.h>

#include "comm/coll/run/coll_tell.h"
#include "python/message/channel.h"
#include "python/message/specification.h"

const char wm_py_comm_engine_doc[] = PyDoc_STR(
    "_engine($self, name, buffer, /)\n--\n\n"
    "Return (name, reason) of the engine that does a collective of such\n"
    "buffers.");

// Returns the kind of the collective of this name.
static wm_coll_kind_t
engine_kind_of(const char *name)
{
    for (int kind = 0; kind < WM_COLL_KINDS; ++kind) {
        const char *its = wm_coll_row((wm_coll_kind_t)kind)->name;
        if (its != NULL && strcmp(its, name) == 0)
            return (wm_coll_kind_t)kind;
    }
    return WM_COLL_UNKNOWN;
}

// Fills what is known of the buffer; None: much GPU memory.
static int
engine_ask(PyObject *buffer, wm_coll_asked_t *asked)
{
    wm_message_t message;
    asked->on_device = true;
    asked->nbytes = SIZE_MAX;
    if (buffer == Py_None)
        return 0;
    if (wm_py_message_parse(buffer, false, "buffer", &message) < 0)
        return -1;
    asked->on_device = wm_memory_on_device(&message.buffer.memory);
    asked->nbytes = message.buffer.nbytes;
    wm_py_message_release(&message);
    return 0;
}

PyObject *
wm_py_comm_engine(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    wm_channel_t channel;
    wm_coll_asked_t asked;
    wm_coll_told_t told;
    const char *name;
    if (given != 2)
        return PyErr_Format(PyExc_TypeError, "_engine() takes 2 arguments");
    if (wm_py_channel_get(self, &channel) < 0
        || (name = PyUnicode_AsUTF8(args[0])) == NULL
        || engine_ask(args[1], &asked) < 0)
        return NULL;
    asked.kind = engine_kind_of(name);
    if (asked.kind == WM_COLL_UNKNOWN)
        return PyErr_Format(PyExc_ValueError,
                            "rank=%R is no collective: use a rank, or a name "
                            "such as \"Allreduce\"",
                            args[0]);
    WM_PY_UNLOCKED(told = wm_coll_tell(channel.comm->whole, &asked));
    return Py_BuildValue("ss", told.name, told.reason);
}
