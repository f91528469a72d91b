// SPDX-License-Identifier: BSD-3-Clause
#include "python/comm/calls.h"

#include <stdio.h>

#include "comm/engine/engine.h"
#include "comm/link/link.h"
#include "python/message/specification.h"
#include "python/message/channel.h"
#include "python/device/py_device.h"

const char wm_py_comm_transport_doc[] = PyDoc_STR(
    "_transport($self, rank, buffer, /)\n--\n\n"
    "Return (name, reason) of the path from a rank into a buffer.");

PyObject *
wm_py_comm_transport(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    wm_channel_t channel;
    wm_error_t err;
    int rank;
    char reason[320] = "";
    wm_pointer_t into = {.kind = WM_MEMORY_HOST, .device = -1};
    if (given != 2)
        return PyErr_Format(PyExc_TypeError, "_transport() takes 2 arguments");
    if (wm_py_channel_get(self, &channel) < 0
        || wm_py_argument_int(args[0], "rank", &rank) < 0)
        return NULL;
    if (rank < 0
        || wm_comm_check(channel.comm, "rank", rank, 0, false, &err) < 0)
        return PyErr_Format(
            PyExc_ValueError,
            "rank=%d is not a rank of this communicator: use 0 to %d", rank,
            channel.comm->size - 1);
    if (args[1] == Py_None) {
        int device;
        if (wm_py_device_from_object(Py_None, &device) < 0)
            return NULL;
        if (device >= 0)
            into = (wm_pointer_t){.kind = WM_MEMORY_DEVICE, .device = device};
    }
    else {
        wm_message_t message;
        if (wm_py_message_parse(args[1], false, "buffer", &message) < 0)
            return NULL;
        into = message.buffer.memory;
        wm_py_message_release(&message);
    }
    bool on_host = !wm_memory_on_device(&into);
    const char *why;
    const wm_link_t *link, *carrier;
    Py_BEGIN_ALLOW_THREADS;
    wm_engine_lock();
    link = wm_link_tell(channel.comm->peers[rank], &into, &why);
    carrier = wm_link_carrier(channel.comm->peers[rank], &into);
    snprintf(reason, sizeof reason, "%s", why);
    wm_engine_unlock();
    Py_END_ALLOW_THREADS;
    bool carries = link->send != NULL;
    if (on_host) // the sender's memory is unknown here
        snprintf(reason, sizeof reason,
                 "the receive buffer is host memory; %s delivers host data "
                 "directly, GPU data takes transport \"%s\": %s%s",
                 carrier->title, link->name, carries ? link->title : link->how,
                 carries ? " delivers it" : "");
    else if (!carries && link->import == NULL)
        snprintf(reason, sizeof reason, "%s; GPU data is %s", why, link->how);
    return Py_BuildValue("ss", on_host ? carrier->name : link->name, reason);
}
