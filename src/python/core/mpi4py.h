// SPDX-License-Identifier: BSD-3-Clause
// mpi4py's objects and their handles, and the check that mpi4py runs the MPI
// this extension was built for. GIL held.
#ifndef WM_PYTHON_CORE_MPI4PY_H
#define WM_PYTHON_CORE_MPI4PY_H

#include <mpi.h>
#include <stdbool.h>

#include "python/core/module.h"

// Imports mpi4py.MPI and its C interface; -1 with an ImportError telling both
// MPI libraries where they differ.
int
wm_py_mpi_import(void);

// The handle inside an object of mpi4py's; -1 with a TypeError naming
// `argument` for anything else. Borrowed from the object.
int
wm_py_mpi_comm(PyObject *object, const char *argument, MPI_Comm *comm);
int
wm_py_mpi_datatype(PyObject *object, const char *argument, MPI_Datatype *type);
int
wm_py_mpi_op(PyObject *object, const char *argument, MPI_Op *op);

// Returns true, and the handle, for a communicator of mpi4py's; no exception.
bool
wm_py_mpi_is_comm(PyObject *object, MPI_Comm *comm);

// Has MPI call a communicator's error handler where the exception that is set
// is one of MPI's, and was raised by us and not told to a handler yet; or, of
// MPI's call on a private communicator, by mpi4py. MPI_ERRORS_ARE_FATAL ends
// the job; else the exception stays.
void
wm_py_mpi_call_handler(MPI_Comm comm, bool of_mpi);

// Gives a communicator another handle; -1 with a TypeError as above.
int
wm_py_mpi_set_comm(PyObject *object, const char *argument, MPI_Comm comm);

// The status to write through; None gives NULL. -1 with a TypeError.
int
wm_py_mpi_status(PyObject *object, const char *argument, MPI_Status **status);

bool
wm_py_mpi_is_datatype(PyObject *object);

bool
wm_py_mpi_is_in_place(PyObject *object);

bool
wm_py_mpi_is_bottom(PyObject *object);

// Returns true for an address, MPI.memory.fromaddress(address, nbytes): mpi4py
// takes as many bytes from there as a count and a datatype tell, whatever the
// length. No exception.
bool
wm_py_mpi_is_address(PyObject *object);

// mpi4py's types, borrowed.
PyTypeObject *
wm_py_mpi_request_type(void);
PyTypeObject *
wm_py_mpi_prequest_type(void);
PyTypeObject *
wm_py_mpi_grequest_type(void);
PyTypeObject *
wm_py_mpi_message_type(void);

// The collector's part of a type of ours that derives from one of mpi4py's,
// which is static or not as mpi4py was built.
int
wm_py_mpi_traverse(PyTypeObject *base, PyObject *object, visitproc visit,
                   void *arg);
int
wm_py_mpi_clear(PyTypeObject *base, PyObject *object);

// mpi4py's own method of a type of its own, bound where it is a class method:
// what it was before install() replaced it. NULL with an exception.
PyObject *
wm_py_mpi_method(PyTypeObject *type, const char *name);

// mpi4py's own attribute of an object of that type, or derived from it.
PyObject *
wm_py_mpi_attribute(PyTypeObject *type, const char *name, PyObject *object);

// Calls a method; a new reference, or NULL with an exception.
PyObject *
wm_py_mpi_call(PyTypeObject *type, const char *name, PyObject *first,
               PyObject *second);

// A new object of a type of ours that derives from one of mpi4py's.
PyObject *
wm_py_mpi_new(PyTypeObject *type);

// MPI.Intercomm or MPI.Intracomm, borrowed.
PyTypeObject *
wm_py_mpi_comm_type(bool inter);

// A new object, of a null handle, of a type that derives from MPI.Comm, whose
// own __new__ is not asked. NULL with an exception.
PyObject *
wm_py_mpi_comm_of(PyTypeObject *type);

// New objects of handles that stay ours; NULL with an exception.
PyObject *
wm_py_mpi_datatype_new(MPI_Datatype type);
PyObject *
wm_py_mpi_op_new(MPI_Op op);
PyObject *
wm_py_mpi_comm_new(MPI_Comm comm);

// A new MPI.Datatype from a type code ("i", "f8"); NULL with an exception.
PyObject *
wm_py_mpi_datatype_from_code(PyObject *code);

#endif
