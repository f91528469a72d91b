// SPDX-License-Identifier: BSD-3-Clause
#include "python/message/raw.h"

#include "python/core/mpi4py.h"
#include "python/view/dlpack.h"
#include "python/view/view.h"

// Returns the MPI type of a type code; NULL without an exception if there is
// none.
static PyObject *
type_of(const char *code)
{
    PyObject *text = PyUnicode_FromString(code);
    PyObject *type = text != NULL ? wm_py_mpi_datatype_from_code(text) : NULL;
    Py_XDECREF(text);
    PyErr_Clear();
    return type;
}

static int
read_buffer(PyObject *array, PyObject *datatype, bool writable, Py_buffer *raw,
            PyObject **found)
{
    int flags = (writable ? PyBUF_WRITABLE : 0) | PyBUF_ANY_CONTIGUOUS
                | PyBUF_FORMAT;
    // NumPy has no format for dates; a given type replaces it.
    if (datatype != NULL)
        flags &= ~PyBUF_FORMAT;
    if (PyObject_GetBuffer(array, raw, flags) < 0) {
        if (datatype == NULL)
            (void)wm_py_drop_refusal();
        return -1;
    }
    if (datatype != NULL)
        return 0;
    const char *format = raw->format != NULL ? raw->format : "B";
    *found = type_of(*format == '@' || *format == '<' ? format + 1 : format);
    if (*found != NULL)
        return 0;
    PyBuffer_Release(raw);
    return -1;
}

// Reads by mpi4py's own code for DLPack and the CUDA array interface, which
// tells no element type.
static int
read_foreign(PyObject *array, PyObject *datatype, bool writable,
             Py_buffer *raw, PyObject **found)
{
    PyObject *buffer, *type;
    int status = -1;
    PyObject *told = wm_py_cold("warpmpi._raw", "read", "(OOO)", array,
                                datatype != NULL ? Py_True : Py_False,
                                writable ? Py_True : Py_False);
    if (told != NULL && PyArg_ParseTuple(told, "OO", &buffer, &type))
        status = PyObject_GetBuffer(buffer, raw, PyBUF_SIMPLE);
    if (status == 0 && type != Py_None)
        *found = Py_NewRef(type);
    (void)wm_py_drop_refusal(); // it names no argument
    Py_XDECREF(told);
    return status;
}

int
wm_py_raw_read(PyObject *array, PyObject *datatype, bool writable,
               Py_buffer *raw, PyObject **found)
{
    *found = NULL;
    return PyObject_CheckBuffer(array)
               ? read_buffer(array, datatype, writable, raw, found)
               : read_foreign(array, datatype, writable, raw, found);
}

bool
wm_py_raw_is_copy(const Py_buffer *raw)
{
    PyObject *capsule = raw->obj != NULL
                            ? PyObject_GetAttrString(raw->obj, "obj")
                            : NULL;
    const wm_dl_versioned_t *tensor = NULL;
    if (capsule != NULL && PyCapsule_IsValid(capsule, "dltensor_versioned"))
        tensor = PyCapsule_GetPointer(capsule, "dltensor_versioned");
    bool copied = tensor != NULL && (tensor->flags & WM_DL_COPIED) != 0;
    PyErr_Clear();
    Py_XDECREF(capsule);
    return copied;
}

int
wm_py_raw_is_bytes(PyObject *array)
{
    PyObject *answer = wm_py_cold("warpmpi._raw", "is_bytes", "(O)", array);
    Py_XDECREF(answer);
    return answer != NULL ? answer == Py_True : wm_py_drop_refusal();
}

void
wm_py_raw_judge(PyObject *array, bool writable)
{
    // mpi4py reads peculiar arrays as something else, if at all.
    if (PyErr_ExceptionMatches(PyExc_TypeError)
            ? wm_py_view_is_peculiar(array)
            : !PyErr_ExceptionMatches(PyExc_ValueError)
                  && !PyErr_ExceptionMatches(PyExc_BufferError))
        return;
    PyObject *error = PyErr_GetRaisedException();
    PyObject *kind = wm_py_cold("warpmpi._raw", "class_of_refusal", "(OOO)",
                                error, array, writable ? Py_True : Py_False);
    PyObject *text = kind != NULL && kind != Py_None ? PyObject_Str(error)
                                                     : NULL;
    bool judged = wm_py_drop_refusal() < 0;
    if (text != NULL) {
        PyErr_SetObject(kind, text);
        judged = true;
    }
    if (judged)
        Py_DECREF(error);
    else
        PyErr_SetRaisedException(error);
    Py_XDECREF(text);
    Py_XDECREF(kind);
}

PyDoc_STRVAR(dlpack_elements_doc,
             "_dlpack_elements(capsule, /)\n--\n\n"
             "Return (code, bits, lanes) of the elements of an unused DLPack\n"
             "capsule.");

static PyObject *
dlpack_elements(PyObject *Py_UNUSED(module), PyObject *capsule)
{
    const wm_dl_tensor_t *tensor;
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        wm_dl_versioned_t *managed = PyCapsule_GetPointer(
            capsule, "dltensor_versioned");
        tensor = &managed->tensor;
    }
    else {
        wm_dl_managed_t *managed = PyCapsule_GetPointer(capsule, "dltensor");
        if (managed == NULL)
            return NULL;
        tensor = &managed->tensor;
    }
    return Py_BuildValue("iii", tensor->dtype.code, tensor->dtype.bits,
                         tensor->dtype.lanes);
}

PyMethodDef wm_py_raw_functions[] = {
    {"_dlpack_elements", dlpack_elements, METH_O, dlpack_elements_doc},
    {0},
};
