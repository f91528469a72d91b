// SPDX-License-Identifier: BSD-3-Clause
// Send, Recv and so on whose stream is being captured into a CUDA graph. Each
// is a message of its own, which the graph sends again in each replay.
#include "python/comm/transfer.h"

#include "cuda/settings.h"
#include "python/request/captured_request.h"

#define MOST 2 // messages of a call

// Makes the request of a call; the other rank learns of a failure.
static PyObject *
captured_make(PyObject *comm, const wm_transfer_t *transfer)
{
    PyObject *request = wm_py_persistent_make(comm, transfer);
    if (request == NULL)
        WM_PY_UNLOCKED(wm_captured_refuse(
            transfer->channel.comm, &transfer->envelope, transfer->receives,
            "its arguments were wrong, as its exception tells"));
    return request;
}

PyObject *
wm_py_captured_begin(PyObject *comm, const wm_transfer_t *transfer)
{
    PyObject *request = captured_make(comm, transfer);
    wm_prequest_t *started[] = {(wm_prequest_t *)request};
    wm_prequest_t *others[1];
    int left = 0;
    if (request != NULL && wm_py_captured_start(started, 1, others, &left) < 0)
        Py_CLEAR(request);
    return request;
}

// With WARPMPI_CHECK warns of a call that another graph has already. Returns
// 0, or -1 with an exception if warnings are errors.
static int
warn_if_again(const wm_prequest_t *request)
{
    bool again;
    if (!wm_setting_is_on(WM_SETTING_CHECK))
        return 0;
    WM_PY_UNLOCKED(again = wm_captured_is_again(
                       request->channel.comm, &request->envelope,
                       request->receives, request->message.buffer.data));
    return again ? PyErr_WarnEx(
               PyExc_RuntimeWarning,
               "a message is captured again into another CUDA graph: "
               "it is a new message, which the other rank must capture "
               "again, too; Send_init and Recv_init make one that "
               "stays the same",
               1)
                 : 0;
}

PyObject *
wm_py_captured_run(PyObject *comm, const wm_transfer_t *const *transfers,
                   int count, bool apart)
{
    wm_prequest_t *requests[MOST] = {NULL};
    int made = 0, code = 0;
    for (; made < count && code == 0; ++made) {
        requests[made] = (wm_prequest_t *)captured_make(comm, transfers[made]);
        code = requests[made] != NULL ? warn_if_again(requests[made]) : -1;
    }
    if (code == 0)
        code = wm_py_captured_pass(requests, count, apart);
    for (int i = 0; i < made; ++i)
        Py_XDECREF(requests[i]);
    return code < 0 ? NULL : Py_NewRef(Py_None);
}
