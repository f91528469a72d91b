// SPDX-License-Identifier: BSD-3-Clause
// Send_init and Recv_init: messages that are started many times.
#include "python/comm/calls.h"
#include "python/comm/transfer.h"
#include "python/request/prequest.h"

PyObject *
wm_py_persistent_make(PyObject *comm, const wm_transfer_t *transfer)
{
    const wm_channel_t *channel = &transfer->channel;
    const wm_envelope_t *envelope = &transfer->envelope;
    bool receives = transfer->receives;
    PyObject *buf = transfer->buf;
    wm_error_t err;
    wm_message_t message;
    if (wm_comm_check(channel->comm, receives ? "source" : "dest",
                      envelope->rank, envelope->tag, receives, &err)
        < 0)
        return wm_py_raise(&err);
    // Code that reads the list may change it.
    buf = PyList_Check(buf) ? PyList_AsTuple(buf) : Py_NewRef(buf);
    PyObject *made = NULL;
    if (buf != NULL
        && wm_py_message_parse_for(envelope->rank, buf, receives, "buf",
                                   &message)
               == 0) {
        wm_py_channel_keep(channel, &message);
        made = wm_py_prequest_new(wm_py_state->prequest_type, comm, channel,
                                  buf, receives, envelope, &message);
    }
    Py_XDECREF(buf);
    return made;
}

#define SEND_INIT(name, mode, what)                                           \
    WM_PY_SEND(name, false, mode, wm_py_persistent_make(self, &transfer), what)

SEND_INIT(Send_init, WM_STANDARD,
          "Make a wm.Prequest that sends an array at each Start.")
SEND_INIT(Ssend_init, WM_SYNCHRONOUS,
          "Make a wm.Prequest whose sends are synchronous.")
SEND_INIT(Rsend_init, WM_STANDARD,
          "Make a wm.Prequest whose sends are ready ones.")
SEND_INIT(Bsend_init, WM_BUFFERED,
          "Make a wm.Prequest whose sends are buffered.")

const char wm_py_comm_Recv_init_doc[] = PyDoc_STR(
    "Recv_init($self, /, buf, source=mpi4py.MPI.ANY_SOURCE, "
    "tag=mpi4py.MPI.ANY_TAG)\n--\n\n"
    "Make a wm.Prequest that receives into an array at each "
    "Start.\n\n" WM_PY_DOC_RECEIVED WM_PY_DOC_RAISES);

WM_PY_TRANSFER(Recv_init, false, WM_RECEIVE,
               wm_py_persistent_make(self, &transfer))
