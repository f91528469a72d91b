// SPDX-License-Identifier: BSD-3-Clause
// The request of a mpi4py collective, as read from its arguments. GIL held.
#ifndef WM_PYTHON_COMM_ASKED_H
#define WM_PYTHON_COMM_ASKED_H

#include "comm/coll/run/coll.h"
#include "python/comm/side.h"
#include "python/core/module.h"

typedef struct {
    wm_side_t sent, received;
    wm_coll_t call;
    bool begins;         // nonblocking: Igather, not Gather
    PyObject *arrays[2]; // sent, received; NULL: none
} wm_py_asked_t;

// Returns the kind of the call of that name, which is the name of its blocking
// form; WM_CALL_UNKNOWN if we do not serve the call.
wm_call_kind_t
wm_py_asked_kind(const char *name);

// Returns the number of positional arguments, without `info`.
int
wm_py_asked_count(wm_call_kind_t kind);

// Returns true if each block has a datatype of its own.
bool
wm_py_asked_is_separate(wm_call_kind_t kind);

// Returns true if MPI does a call because its buffers on this rank are
// `plain`. False for rooted calls between groups, where a rank of the root's
// group has no buffer, whatever the other ranks have.
bool
wm_py_asked_is_plain(wm_call_kind_t kind, const wm_comm_t *comm, bool plain);

// Initialises the request of a call of this kind; `begins`: its nonblocking
// form.
void
wm_py_asked_forget(wm_call_kind_t kind, bool begins, wm_py_asked_t *asked);

// Fills the request; for intercommunicators `comm` is the `whole`. Returns 0;
// or -1, maybe with an exception, if MPI is to read the arguments; with
// MPI.Exception if MPI would refuse the root or the op. The caller releases
// the request in any case.
int
wm_py_asked_read(const wm_comm_t *comm, PyObject *const *args,
                 Py_ssize_t given, PyObject *keywords, wm_py_asked_t *asked);

void
wm_py_asked_release(wm_py_asked_t *asked);

// Asks the arrays again for the streams that come before the call. Returns 0,
// or -1 with an exception.
int
wm_py_asked_refresh(wm_py_asked_t *asked);

#endif
