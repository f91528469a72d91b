// SPDX-License-Identifier: BSD-3-Clause
// What a collective of mpi4py's was asked for, as its arguments tell. GIL
// held.
#ifndef WM_PYTHON_COMM_ASKED_H
#define WM_PYTHON_COMM_ASKED_H

#include "comm/coll/run/coll.h"
#include "python/comm/side.h"
#include "python/core/module.h"

typedef struct {
    wm_side_t sent, received;
    wm_coll_t call;
    bool begins;         // Igather, not Gather
    PyObject *arrays[2]; // sent, received; NULL: none
} wm_py_asked_t;

// The call of that name, which is that of its blocking form; WM_CALL_UNKNOWN
// where it is not ours.
wm_call_kind_t
wm_py_asked_kind(const char *name);

// The positions of its arguments, without `info`.
int
wm_py_asked_count(wm_call_kind_t kind);

// Whether each of its blocks is of a datatype of its own.
bool
wm_py_asked_is_separate(wm_call_kind_t kind);

// Whether MPI is to have a call whose buffers are plain: between groups who
// shares one with the root gives none, whatever the others do.
bool
wm_py_asked_is_plain(wm_call_kind_t kind, const wm_comm_t *comm, bool plain);

// For such a call, or one that begins it, of which nothing is known yet.
void
wm_py_asked_forget(wm_call_kind_t kind, bool begins, wm_py_asked_t *asked);

// Fills it; of intercommunicators `comm` is the `whole`. -1, maybe with an
// exception, where MPI is to read the arguments; with MPI.Exception where MPI
// would refuse the root or the op. Released in any case.
int
wm_py_asked_read(const wm_comm_t *comm, PyObject *const *args,
                 Py_ssize_t given, PyObject *keywords, wm_py_asked_t *asked);

void
wm_py_asked_release(wm_py_asked_t *asked);

// Asks the arrays once more whose stream comes before. 0, or -1 with an
// exception.
int
wm_py_asked_refresh(wm_py_asked_t *asked);

#endif
