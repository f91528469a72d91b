// SPDX-License-Identifier: BSD-3-Clause
#include "python/comm/reduced.h"

#include "python/message/datatype.h"
#include "python/message/raw.h"
#include "python/message/specification.h"
#include "python/view/view.h"

// The array of a specification that names no datatype; NULL where one is
// named, or there is none.
static PyObject *
untyped(PyObject *object)
{
    if (!PyList_Check(object) && !PyTuple_Check(object))
        return object;
    Py_ssize_t length = PySequence_Fast_GET_SIZE(object);
    PyObject **items = PySequence_Fast_ITEMS(object);
    if (length == 0)
        return NULL;
    for (Py_ssize_t i = 1; i < length; ++i)
        if (PyUnicode_Check(items[i]) || wm_py_mpi_is_datatype(items[i]))
            return NULL;
    return items[0];
}

static int
refuse(const char *argument, const char *name)
{
    PyErr_Format(PyExc_TypeError,
                 "%s: MPI has no reduction for %s; convert to float32 first",
                 argument, name);
    return -1;
}

int
wm_py_reduced_on_device(PyObject *object, const char *argument)
{
    PyObject *array = untyped(object);
    wm_view_t view;
    if (array == NULL || array == Py_None || wm_py_mpi_is_in_place(array)
        || wm_py_mpi_is_bottom(array))
        return wm_py_message_on_device(object);
    Py_INCREF(array); // asking it may change the list
    int result = wm_py_view_parse(array, false, argument, &view);
    if (result == 0) {
        wm_dtype_t dtype = view.array.dtype;
        result = wm_memory_on_device(&view.memory);
        wm_py_view_release(&view);
        if (wm_py_datatype_of(dtype) == MPI_DATATYPE_NULL)
            result = refuse(argument, wm_dtype_info(dtype)->name);
    }
    else {
        PyErr_Clear(); // MPI, or mpi4py, may know more
        result = wm_py_raw_is_bytes(array)
                     ? refuse(argument, "elements of this type")
                     : wm_py_message_on_device(object);
    }
    Py_DECREF(array);
    return result;
}

PyDoc_STRVAR(
    on_device_doc,
    "_is_on_device_reduced(obj, name, /)\n--\n\n"
    "Like is_on_device, of a buffer of a reduction.\n\n"
    "Raises TypeError, naming `name`, where MPI cannot compute with the\n"
    "elements, and would take them for bytes.");

static PyObject *
on_device(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given)
{
    const char *name = given == 2 ? PyUnicode_AsUTF8(args[1]) : NULL;
    if (name == NULL) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "obj and name are expected");
        return NULL;
    }
    int result = wm_py_reduced_on_device(args[0], name);
    return result < 0 ? NULL : PyBool_FromLong(result);
}

PyMethodDef wm_py_reduced_functions[] = {
    WM_PY_ROW("_is_on_device_reduced", on_device, METH_FASTCALL),
    {0},
};
