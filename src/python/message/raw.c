// SPDX-License-Identifier: BSD-3-Clause
#include <stdio.h>
#include <string.h>

#include "python/message/raw.h"

#include "python/core/mpi4py.h"
#include "python/view/dlpack.h"
#include "python/view/view_parts.h"

// The MPI type of a type code; NULL without an exception where there is none.
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
    // NumPy has no format for dates, which a given type makes up for.
    if (datatype != NULL)
        flags &= ~PyBUF_FORMAT;
    if (PyObject_GetBuffer(array, raw, flags) < 0) {
        if (datatype == NULL)
            PyErr_Clear();
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

// The type code of a tensor's elements, in the words of array interfaces.
static void
describe(const wm_dl_tensor_t *tensor, char *code, size_t size)
{
    // DLPack's codes: int, uint, float, handle, bfloat, complex, bool.
    static const char kinds[] = {'i', 'u', 'f', 0, 0, 'c', 'b'};
    unsigned number = tensor->dtype.code, bits = tensor->dtype.bits;
    char kind = number < sizeof kinds ? kinds[number] : '\0';
    // 256 bits do not fit the field: two long doubles tell of a complex one.
    if (kind == 'f' && tensor->dtype.lanes == 2) {
        kind = 'c';
        bits *= 2;
    }
    else if (tensor->dtype.lanes != 1) {
        kind = '\0';
    }
    if (kind != '\0')
        snprintf(code, size, "%c%u", kind, bits / 8);
}

static void
dlpack_code(PyObject *array, char *code, size_t size)
{
    PyObject *method = PyObject_GetAttrString(array, "__dlpack__");
    PyObject *capsule = method != NULL ? PyObject_CallNoArgs(method) : NULL;
    if (capsule == NULL && method != NULL) {
        // What says that it is of a GPU may want to be told of no stream.
        PyErr_Clear();
        PyObject *args = PyTuple_New(0);
        PyObject *stream = Py_BuildValue("{s:i}", "stream", -1);
        if (args != NULL && stream != NULL)
            capsule = PyObject_Call(method, args, stream);
        Py_XDECREF(args);
        Py_XDECREF(stream);
    }
    if (capsule != NULL && PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        wm_dl_versioned_t *managed = PyCapsule_GetPointer(
            capsule, "dltensor_versioned");
        describe(&managed->tensor, code, size);
    }
    else if (capsule != NULL && PyCapsule_IsValid(capsule, "dltensor")) {
        wm_dl_managed_t *managed = PyCapsule_GetPointer(capsule, "dltensor");
        describe(&managed->tensor, code, size);
    }
    PyErr_Clear();
    Py_XDECREF(method);
    Py_XDECREF(capsule); // unused, it ends its tensor itself
}

// False where it is in another byte order, which mpi4py does not take either.
static bool
interface_code(PyObject *array, char *code, size_t size)
{
    char text[17];
    wm_py_view_typestr(array, "__cuda_array_interface__", text, sizeof text);
    bool native = *text == '<' || *text == '|';
    if (native)
        snprintf(code, size, "%s", text + 1);
    return native;
}

// Elements that arrays here have, too: where an interface of such was refused,
// it is: mpi4py looks less closely.
static bool
is_refused(const char *code)
{
    static const char *const ours[] = {"b1", "i1", "i2", "i4", "i8",
                                       "u1", "u2", "u4", "u8", "f2",
                                       "f4", "f8", "c8", "c16"};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; ++i)
        if (strcmp(code, ours[i]) == 0)
            return true;
    return false;
}

// By mpi4py's own reading of DLPack and the CUDA array interface, which tells
// address and size, and not what the elements are.
static int
read_foreign(PyObject *array, PyObject *datatype, bool writable,
             Py_buffer *raw, PyObject **found)
{
    char code[16] = "";
    int status = -1;
    PyObject *address = NULL, *nbytes = NULL;
    PyObject *buffer = wm_py_mpi_buffer(array, !writable);
    if (buffer == NULL)
        return -1;
    address = PyObject_GetAttrString(buffer, "address");
    nbytes = PyObject_GetAttrString(buffer, "nbytes");
    if (address == NULL || nbytes == NULL)
        goto done;
    void *data = PyLong_AsVoidPtr(address);
    Py_ssize_t length = PyLong_AsSsize_t(nbytes);
    if (PyErr_Occurred())
        goto done;
    if (PyObject_HasAttrString(array, "__dlpack__")) {
        if (datatype == NULL)
            dlpack_code(array, code, sizeof code);
    }
    else if ((!interface_code(array, code, sizeof code) && datatype == NULL)
             || is_refused(code))
        goto done;
    if (datatype == NULL)
        *found = *code != '\0' ? type_of(code) : NULL;
    status = PyBuffer_FillInfo(raw, buffer, data, length, 0, PyBUF_SIMPLE);
done:
    Py_XDECREF(address);
    Py_XDECREF(nbytes);
    Py_DECREF(buffer);
    return status;
}

int
wm_py_raw_read(PyObject *array, PyObject *datatype, bool writable,
               Py_buffer *raw, PyObject **found)
{
    *found = NULL;
    if (PyObject_CheckBuffer(array))
        return read_buffer(array, datatype, writable, raw, found);
    int status = read_foreign(array, datatype, writable, raw, found);
    PyErr_Clear(); // it names no argument
    return status;
}

bool
wm_py_raw_is_bytes(PyObject *array)
{
    Py_buffer raw;
    char code[16] = "";
    if (PyObject_CheckBuffer(array)) {
        if (PyObject_GetBuffer(array, &raw,
                               PyBUF_ANY_CONTIGUOUS | PyBUF_FORMAT)
            == 0) {
            PyBuffer_Release(&raw);
            return false;
        }
        PyErr_Clear();
    }
    PyObject *buffer = wm_py_mpi_buffer(array, true);
    PyErr_Clear();
    if (buffer == NULL)
        return false; // nor does it take the array
    Py_DECREF(buffer);
    if (PyObject_HasAttrString(array, "__dlpack__"))
        dlpack_code(array, code, sizeof code);
    else
        interface_code(array, code, sizeof code);
    PyObject *type = *code != '\0' ? type_of(code) : NULL;
    Py_XDECREF(type);
    return type == NULL;
}

// The class of the exception that mpi4py raises for the elements of an array,
// as their format or typestr tells them, borrowed; NULL where it takes them.
static PyObject *
refusal_of_elements(PyObject *array)
{
    Py_buffer raw;
    char code[16];
    PyObject *kind = NULL;
    if (!PyObject_CheckBuffer(array)) {
        bool shown = PyObject_HasAttrString(array, "__cuda_array_interface__");
        return shown && !interface_code(array, code, sizeof code)
                   ? PyExc_BufferError
                   : NULL;
    }
    if (PyObject_GetBuffer(array, &raw, PyBUF_FULL_RO) == 0) {
        const char *format = raw.format != NULL ? raw.format : "B";
        PyObject *type = type_of(format + (*format == '@' || *format == '<'));
        kind = *format == '>' || *format == '!' ? PyExc_BufferError
               : type == NULL                   ? PyExc_KeyError
                                                : NULL;
        Py_XDECREF(type);
        PyBuffer_Release(&raw);
    }
    PyErr_Clear();
    return kind;
}

// The class of the exception that mpi4py raises as it reads an array, a new
// reference; NULL where it takes it. The exception is not kept.
static PyObject *
refusal(PyObject *array, bool writable)
{
    PyObject *buffer = wm_py_mpi_buffer(array, !writable);
    PyObject *kind = NULL;
    // One of Python's own, not a library's.
    if (buffer == NULL
        && !PyType_HasFeature((PyTypeObject *)PyErr_Occurred(),
                              Py_TPFLAGS_HEAPTYPE))
        kind = Py_NewRef(PyErr_Occurred());
    PyErr_Clear();
    Py_XDECREF(buffer);
    return kind;
}

void
wm_py_raw_judge(PyObject *array, bool writable)
{
    PyObject *type, *value, *traceback;
    if (!PyErr_ExceptionMatches(PyExc_TypeError)
        && !PyErr_ExceptionMatches(PyExc_ValueError)
        && !PyErr_ExceptionMatches(PyExc_BufferError))
        return;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *kind = refusal(array, writable);
    if (kind == NULL && PyErr_GivenExceptionMatches(type, PyExc_TypeError))
        kind = Py_XNewRef(refusal_of_elements(array));
    PyObject *text = kind != NULL && !PyErr_GivenExceptionMatches(type, kind)
                         ? PyObject_Str(value)
                         : NULL;
    if (text != NULL) {
        PyErr_SetObject(kind, text);
        Py_DECREF(text);
        Py_DECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
    }
    else {
        PyErr_Clear();
        PyErr_Restore(type, value, traceback);
    }
    Py_XDECREF(kind);
}
