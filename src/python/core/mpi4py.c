// SPDX-License-Identifier: BSD-3-Clause
#include "python/core/mpi4py.h"

#include <mpi4py/mpi4py.h>

static int
check_library(void)
{
    char ours[MPI_MAX_LIBRARY_VERSION_STRING + 1] = "";
    int length = 0;
    MPI_Get_library_version(ours, &length);
    ours[length] = '\0';
    PyObject *none = wm_py_cold("warpmpi._library", "check", "(s)", ours);
    Py_XDECREF(none);
    return none != NULL ? 0 : -1;
}

static int
keep_methods(void)
{
    PyTypeObject *types[] = {&PyMPIRequest_Type, &PyMPIPrequest_Type,
                             &PyMPIMessage_Type};
    PyObject *methods = wm_py_state->mpi_methods = PyDict_New();
    for (size_t i = 0; i < sizeof types / sizeof *types; ++i) {
        PyObject *kept = PyDict_Copy(types[i]->tp_dict);
        int code = methods == NULL || kept == NULL
                       ? -1
                       : PyDict_SetItem(methods, (PyObject *)types[i], kept);
        Py_XDECREF(kept);
        if (code < 0)
            return -1;
    }
    return 0;
}

int
wm_py_mpi_traverse(PyTypeObject *base, PyObject *object, visitproc visit,
                   void *arg)
{
    if (!PyType_HasFeature(base, Py_TPFLAGS_HEAPTYPE))
        Py_VISIT(Py_TYPE(object)); // else the base visits it
    return base->tp_traverse != NULL ? base->tp_traverse(object, visit, arg)
                                     : 0;
}

int
wm_py_mpi_clear(PyTypeObject *base, PyObject *object)
{
    return base->tp_clear != NULL ? base->tp_clear(object) : 0;
}

// Returns mpi4py's own attribute, borrowed; NULL with an exception.
static PyObject *
kept_of(PyTypeObject *type, const char *name)
{
    PyObject *kept = PyDict_GetItemWithError(wm_py_state->mpi_methods,
                                             (PyObject *)type);
    PyObject *found = kept != NULL ? PyDict_GetItemString(kept, name) : NULL;
    if (found == NULL && !PyErr_Occurred())
        PyErr_Format(PyExc_AttributeError, "%.200s has no method '%s'",
                     type->tp_name, name);
    return found;
}

PyObject *
wm_py_mpi_attribute(PyTypeObject *type, const char *name, PyObject *object)
{
    PyObject *found = kept_of(type, name);
    descrgetfunc bind = found != NULL ? Py_TYPE(found)->tp_descr_get : NULL;
    return bind != NULL ? bind(found, object, (PyObject *)type)
                        : Py_XNewRef(found);
}

int
wm_py_mpi_import(void)
{
    wm_state_t *state = wm_py_state;
    PyObject *mpi = PyImport_ImportModule("mpi4py.MPI");
    if (mpi == NULL)
        return -1;
    state->mpi_exception = PyObject_GetAttrString(mpi, "Exception");
    state->mpi_in_place = PyObject_GetAttrString(mpi, "IN_PLACE");
    state->mpi_bottom = PyObject_GetAttrString(mpi, "BOTTOM");
    state->mpi_memory = PyObject_GetAttrString(mpi, "memory");
    Py_DECREF(mpi);
    if (state->mpi_exception == NULL || state->mpi_in_place == NULL
        || state->mpi_bottom == NULL || state->mpi_memory == NULL
        || check_library() < 0 || import_mpi4py() < 0)
        return -1;
    return keep_methods();
}

static int
wrong_type(PyObject *object, const char *argument, const char *wanted)
{
    return wm_py_fail(PyExc_TypeError, "%s: expected %s, not %.100s", argument,
                      wanted, Py_TYPE(object)->tp_name);
}

int
wm_py_mpi_comm(PyObject *object, const char *argument, MPI_Comm *comm)
{
    return wm_py_mpi_is_comm(object, comm)
               ? 0
               : wrong_type(object, argument, "a communicator of mpi4py");
}

bool
wm_py_mpi_is_comm(PyObject *object, MPI_Comm *comm)
{
    if (!PyObject_TypeCheck(object, &PyMPIComm_Type))
        return false;
    *comm = ((PyMPICommObject *)object)->ob_mpi;
    return true;
}

int
wm_py_mpi_set_comm(PyObject *object, const char *argument, MPI_Comm comm)
{
    if (!PyObject_TypeCheck(object, &PyMPIComm_Type))
        return wrong_type(object, argument, "a communicator of mpi4py");
    ((PyMPICommObject *)object)->ob_mpi = comm;
    return 0;
}

int
wm_py_mpi_datatype(PyObject *object, const char *argument, MPI_Datatype *type)
{
    if (!PyObject_TypeCheck(object, &PyMPIDatatype_Type))
        return wrong_type(object, argument, "an MPI.Datatype");
    *type = ((PyMPIDatatypeObject *)object)->ob_mpi;
    return 0;
}

int
wm_py_mpi_op(PyObject *object, const char *argument, MPI_Op *op)
{
    if (!PyObject_TypeCheck(object, &PyMPIOp_Type))
        return wrong_type(object, argument, "an MPI.Op");
    *op = ((PyMPIOpObject *)object)->ob_mpi;
    return 0;
}

int
wm_py_mpi_group(PyObject *object, const char *argument, MPI_Group *group)
{
    if (!PyObject_TypeCheck(object, &PyMPIGroup_Type))
        return wrong_type(object, argument, "an MPI.Group");
    *group = ((PyMPIGroupObject *)object)->ob_mpi;
    return 0;
}

int
wm_py_mpi_status(PyObject *object, const char *argument, MPI_Status **status)
{
    *status = NULL;
    if (object == NULL || object == Py_None)
        return 0;
    if (!PyObject_TypeCheck(object, &PyMPIStatus_Type))
        return wrong_type(object, argument, "an MPI.Status or None");
    *status = &((PyMPIStatusObject *)object)->ob_mpi;
    return 0;
}

bool
wm_py_mpi_is_datatype(PyObject *object)
{
    return PyObject_TypeCheck(object, &PyMPIDatatype_Type);
}

bool
wm_py_mpi_names_datatype(PyObject *object)
{
    return PyUnicode_Check(object) || wm_py_mpi_is_datatype(object);
}

bool
wm_py_mpi_is_in_place(PyObject *object)
{
    return object == wm_py_state->mpi_in_place;
}

bool
wm_py_mpi_is_bottom(PyObject *object)
{
    return object == wm_py_state->mpi_bottom;
}

bool
wm_py_mpi_is_address(PyObject *object)
{
    Py_buffer raw;
    if ((PyObject *)Py_TYPE(object) != wm_py_state->mpi_memory
        || PyObject_GetBuffer(object, &raw, PyBUF_SIMPLE) < 0) {
        PyErr_Clear();
        return false;
    }
    PyObject *shown = PyObject_GetAttrString(object, "obj");
    bool found = raw.buf != NULL && shown == Py_None;
    PyErr_Clear();
    Py_XDECREF(shown);
    PyBuffer_Release(&raw);
    return found;
}

PyTypeObject *
wm_py_mpi_request_type(void)
{
    return &PyMPIRequest_Type;
}

PyTypeObject *
wm_py_mpi_prequest_type(void)
{
    return &PyMPIPrequest_Type;
}

PyTypeObject *
wm_py_mpi_grequest_type(void)
{
    return &PyMPIGrequest_Type;
}

PyTypeObject *
wm_py_mpi_message_type(void)
{
    return &PyMPIMessage_Type;
}

PyTypeObject *
wm_py_mpi_win_type(void)
{
    return &PyMPIWin_Type;
}

PyObject *
wm_py_mpi_call(PyTypeObject *type, const char *name, PyObject *first,
               PyObject *second)
{
    PyObject *method = wm_py_mpi_attribute(type, name, NULL);
    if (method == NULL)
        return NULL;
    PyObject *result = PyObject_CallFunctionObjArgs(method, first, second,
                                                    NULL);
    Py_DECREF(method);
    return result;
}

static PyObject *
make(newfunc maker, PyTypeObject *type)
{
    PyObject *empty = PyTuple_New(0);
    PyObject *object = empty != NULL ? maker(type, empty, NULL) : NULL;
    Py_XDECREF(empty);
    return object;
}

PyObject *
wm_py_mpi_new(PyTypeObject *type)
{
    return make(type->tp_new, type);
}

PyObject *
wm_py_mpi_datatype_from_code(PyObject *code)
{
    return PyObject_CallMethod((PyObject *)&PyMPIDatatype_Type, "fromcode",
                               "O", code);
}

PyObject *
wm_py_mpi_datatype_new(MPI_Datatype type)
{
    return PyMPIDatatype_New(type);
}

PyObject *
wm_py_mpi_op_new(MPI_Op op)
{
    return PyMPIOp_New(op);
}

PyTypeObject *
wm_py_mpi_comm_type(bool inter)
{
    return inter ? &PyMPIIntercomm_Type : &PyMPIIntracomm_Type;
}

PyObject *
wm_py_mpi_comm_of(PyTypeObject *type, MPI_Comm comm)
{
    PyObject *object = make(PyMPIComm_Type.tp_new, type);
    if (object != NULL)
        ((PyMPICommObject *)object)->ob_mpi = comm;
    return object;
}

PyObject *
wm_py_mpi_comm_new(MPI_Comm comm)
{
    return PyMPIComm_New(comm);
}
