// SPDX-License-Identifier: BSD-3-Clause
// JAX's arrays are read by DLPack, and are immutable, which DLPack does not
// say. The buffers that jax.experimental.buffer_callback passes to a function
// say whether they are writable.
#include "python/view/view_parts.h"

// Returns 1 or 0 for such a buffer, -1 for another object; -2 with an
// exception.
static int
writeable_of(PyObject *object)
{
    PyObject *value = wm_py_attribute(object, wm_py_state->names.writeable);
    if (value == NULL)
        return PyErr_Occurred() ? -2 : -1;
    int writeable = PyObject_IsTrue(value);
    Py_DECREF(value);
    return writeable < 0 ? -2 : writeable;
}

// Parses a buffer without a handshake: it does not tell the stream of its
// callback's context, which wrote it.
static int
parse_callbacks(PyObject *object, bool writeable, bool shared,
                const char *argument, wm_view_t *view)
{
    int status = wm_py_view_parse_dlpack(object, shared, argument, view);
    if (status <= 0)
        return status;
    view->array.readonly = !writeable || wm_py_view_is_copy(view);
    if (wm_py_view_set_producer(view, false, NULL, argument) < 0) {
        wm_py_view_release(view);
        return -1;
    }
    return 1;
}

static int
parse_jax(PyObject *object, const void *Py_UNUSED(found), bool writable,
          const char *argument, wm_view_t *view)
{
    int writeable = writeable_of(object);
    if (writeable == -2)
        return -1;
    if (writeable >= 0)
        return parse_callbacks(object, writeable > 0, writable, argument,
                               view);
    if (writable) {
        return wm_py_view_fail(
            PyExc_BufferError, argument,
            "JAX arrays cannot be changed: receive into wm.empty(shape, "
            "dtype) and convert it with jax.dlpack.from_dlpack()");
    }
    int status = wm_py_view_parse_dlpack(object, writable, argument, view);
    if (status == 0)
        status = wm_py_view_parse_asking(object, writable, argument, view);
    if (status > 0)
        view->array.readonly = true;
    return status;
}

static bool
claims_jax(PyTypeObject *type, const void **Py_UNUSED(found))
{
    return wm_py_view_is_of_package(type, "jax")
           || wm_py_view_is_of_package(type, "jaxlib");
}

const wm_view_library_t wm_py_view_jax = {
    .claims = claims_jax,
    .parse = parse_jax,
};
