// SPDX-License-Identifier: BSD-3-Clause
// The arguments of a collective of mpi4py, as C reads them. GIL held.
#ifndef WM_PYTHON_COMM_COLL_ARGS_H
#define WM_PYTHON_COMM_COLL_ARGS_H

#include "comm/coll/run/coll.h"
#include "python/comm/side.h"
#include "python/core/module.h"

typedef struct {
    wm_side_t sent, received;
    wm_coll_t call;
    bool begins;         // nonblocking: Igather, not Gather
    PyObject *arrays[2]; // sent, received; NULL: none
} wm_py_coll_args_t;

// Returns the kind of the call of that name, which is the name of its blocking
// form; WM_COLL_UNKNOWN if we do not serve the call.
wm_coll_kind_t
wm_py_coll_args_kind(const char *name);

// Returns true if each block has a datatype of its own.
bool
wm_py_coll_args_is_separate(wm_coll_kind_t kind);

// Returns true if MPI does a call because its buffers on this rank are
// `plain`. False for rooted calls between groups, where a rank of the root's
// group has no buffer, whatever the other ranks have.
bool
wm_py_coll_args_is_plain(wm_coll_kind_t kind, const wm_comm_t *comm,
                         bool plain);

// Initialises the arguments of a call of this kind; `begins`: its nonblocking
// form.
void
wm_py_coll_args_init(wm_coll_kind_t kind, bool begins,
                     wm_py_coll_args_t *asked);

// Reads the arguments; for intercommunicators `comm` is the `whole`. Returns
// 0; or -1, maybe with an exception, if MPI is to read the arguments; with
// MPI.Exception if MPI would refuse the root or the op. The caller releases
// `asked` in any case.
int
wm_py_coll_args_read(wm_comm_t *comm, PyObject *const *args, Py_ssize_t given,
                     PyObject *keywords, wm_py_coll_args_t *asked);

void
wm_py_coll_args_release(wm_py_coll_args_t *asked);

// Asks the arrays again for the streams that come before the call. Returns 0,
// or -1 with an exception.
int
wm_py_coll_args_refresh(wm_py_coll_args_t *asked);

#endif
