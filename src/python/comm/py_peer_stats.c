// SPDX-License-Identifier: BSD-3-Clause
// The counters of the peers of a communicator (comm/node/peer_stats.h).
#include "python/message/channel.h"

// Returns the counters of one peer as a dict.
static PyObject *
peer_stats_row(const wm_peer_stats_t *stats)
{
    PyObject *row = PyDict_New();
    for (int i = 0; i < WM_PEER_STATS && row != NULL; ++i) {
        PyObject *value = PyLong_FromLongLong(wm_peer_stat_get(stats, i));
        if (value == NULL
            || PyDict_SetItemString(row, wm_peer_stat_name(i), value) < 0)
            Py_CLEAR(row);
        Py_XDECREF(value);
    }
    return row;
}

PyDoc_STRVAR(peer_stats_doc,
             "_peer_stats(comm, /)\n--\n\n"
             "Return the counters of each rank's process: dicts of ints.\n"
             "Raises RuntimeError if the communicator is not ours.");

static PyObject *
peer_stats(PyObject *Py_UNUSED(module), PyObject *comm)
{
    wm_channel_t channel;
    if (wm_py_channel_get(comm, &channel) < 0)
        return NULL;
    int size = channel.comm->size;
    PyObject *result = PyList_New(size);
    for (int rank = 0; rank < size && result != NULL; ++rank) {
        PyObject *row = peer_stats_row(&channel.comm->peers[rank]->stats);
        if (row != NULL)
            PyList_SET_ITEM(result, rank, row);
        else
            Py_CLEAR(result);
    }
    return result;
}

PyMethodDef wm_py_peer_stats_functions[] = {
    {"_peer_stats", peer_stats, METH_O, peer_stats_doc},
    {0},
};
