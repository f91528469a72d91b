// SPDX-License-Identifier: BSD-3-Clause
// mpi4py's objects and their handles, and the check that MPI's functions here
// are those that mpi4py calls. GIL held.
#ifndef WM_PYTHON_CORE_MPI4PY_H
#define WM_PYTHON_CORE_MPI4PY_H

#include <mpi.h>
#include <stdbool.h>

#include "python/core/module.h"

// Imports mpi4py.MPI and its C interface. Returns 0, or -1 with an ImportError
// that names both MPI libraries if they differ.
int
wm_py_mpi_import(void);

// Read the handle inside a mpi4py object. Return 0, or -1 with a TypeError
// naming `argument` for other objects. The object owns the handle.
int
wm_py_mpi_comm(PyObject *object, const char *argument, MPI_Comm *comm);
int
wm_py_mpi_datatype(PyObject *object, const char *argument, MPI_Datatype *type);
int
wm_py_mpi_op(PyObject *object, const char *argument, MPI_Op *op);
int
wm_py_mpi_group(PyObject *object, const char *argument, MPI_Group *group);

// Returns true, and the handle, for a communicator of mpi4py; no exception.
bool
wm_py_mpi_is_comm(PyObject *object, MPI_Comm *comm);

// Makes MPI call a communicator's error handler for the exception that is set,
// if this is an MPI.Exception that we raised and no handler was told of; or,
// with `of_mpi`, one that mpi4py raised for MPI's call on a private
// communicator. MPI_ERRORS_ARE_FATAL ends the job; else the exception stays.
void
wm_py_mpi_call_handler(MPI_Comm comm, bool of_mpi);

// Returns true, and the code for it, if an error handler is to be called for
// an MPI.Exception. Prints the exception if this ends the job; frees *handler.
bool
wm_py_mpi_handler_hears(MPI_Errhandler *handler, PyObject *exception,
                        int *code);

// Gives a communicator object another handle. Returns 0, or -1 with a
// TypeError as above.
int
wm_py_mpi_set_comm(PyObject *object, const char *argument, MPI_Comm comm);

// Finds the status to write to; NULL for None. Returns 0, or -1 with a
// TypeError.
int
wm_py_mpi_status(PyObject *object, const char *argument, MPI_Status **status);

bool
wm_py_mpi_is_datatype(PyObject *object);

// Does the same, also for a type code.
bool
wm_py_mpi_names_datatype(PyObject *object);

bool
wm_py_mpi_is_in_place(PyObject *object);

bool
wm_py_mpi_is_bottom(PyObject *object);

// Returns true for an address, MPI.memory.fromaddress(address, nbytes): mpi4py
// takes as many bytes from the address as count and datatype say, and ignores
// the length. No exception.
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
PyTypeObject *
wm_py_mpi_win_type(void);

// The GC slots of our types that derive from a mpi4py type, which is static or
// not, as mpi4py was built.
int
wm_py_mpi_traverse(PyTypeObject *base, PyObject *object, visitproc visit,
                   void *arg);
int
wm_py_mpi_clear(PyTypeObject *base, PyObject *object);

// Returns mpi4py's own attribute of an object of one of its types, or of a
// derived one, or of the type itself if `object` is NULL: as it was before
// install() replaced it. NULL with an exception.
PyObject *
wm_py_mpi_attribute(PyTypeObject *type, const char *name, PyObject *object);

// Calls a method. Returns a new reference, or NULL with an exception.
PyObject *
wm_py_mpi_call(PyTypeObject *type, const char *name, PyObject *first,
               PyObject *second);

// Makes an object of one of our types that derives from a mpi4py type.
PyObject *
wm_py_mpi_new(PyTypeObject *type);

// Returns MPI.Intercomm or MPI.Intracomm, borrowed.
PyTypeObject *
wm_py_mpi_comm_type(bool inter);

// Makes an object over a handle, of a type that derives from MPI.Comm, without
// the type's own __new__. Returns NULL with an exception.
PyObject *
wm_py_mpi_comm_of(PyTypeObject *type, MPI_Comm comm);

// Make objects of handles that stay ours. Return NULL with an exception.
PyObject *
wm_py_mpi_datatype_new(MPI_Datatype type);
PyObject *
wm_py_mpi_op_new(MPI_Op op);
PyObject *
wm_py_mpi_comm_new(MPI_Comm comm);

// Makes an MPI.Datatype from a type code ("i", "f8"). Returns NULL with an
// exception.
PyObject *
wm_py_mpi_datatype_from_code(PyObject *code);

#endif
