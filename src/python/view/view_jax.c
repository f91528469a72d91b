// SPDX-License-Identifier: BSD-3-Clause
// JAX's arrays are read by DLPack, and are immutable, which DLPack does not
// say. The buffers that jax.experimental.buffer_callback passes to a function
// say whether they are writable.
#include "python/view/view_parts.h"

// Reads `writeable` of such a buffer; another object has none.
static wm_viewed_t
find_writeable(PyObject *object, bool *writeable)
{
    PyObject *value = wm_py_attribute(object, wm_py_state->names.writeable);
    if (value == NULL)
        return PyErr_Occurred() ? WM_VIEW_FAILED : WM_VIEW_NONE;
    int truth = PyObject_IsTrue(value);
    Py_DECREF(value);
    *writeable = truth > 0;
    return truth < 0 ? WM_VIEW_FAILED : WM_VIEW_FOUND;
}

// Parses a buffer without a handshake: it does not tell the stream of its
// callback's context, which wrote it.
static wm_viewed_t
parse_callbacks(PyObject *object, bool writeable, bool shared,
                const char *argument, wm_view_t *view)
{
    wm_viewed_t viewed = wm_py_view_parse_dlpack(object, shared, argument,
                                                 view);
    if (viewed != WM_VIEW_FOUND)
        return viewed;
    view->array.readonly = !writeable || wm_py_view_is_copy(view);
    if (wm_py_view_set_producer(view, false, NULL, argument) < 0) {
        wm_py_view_release(view);
        return WM_VIEW_FAILED;
    }
    return WM_VIEW_FOUND;
}

static wm_viewed_t
parse_jax(PyObject *object, const void *Py_UNUSED(found), bool writable,
          const char *argument, wm_view_t *view)
{
    bool writeable;
    wm_viewed_t viewed = find_writeable(object, &writeable);
    if (viewed == WM_VIEW_FAILED)
        return WM_VIEW_FAILED;
    if (viewed == WM_VIEW_FOUND)
        return parse_callbacks(object, writeable, writable, argument, view);
    if (writable)
        return wm_py_view_fail(
            PyExc_BufferError, argument,
            "JAX arrays cannot be changed: receive into wm.empty(shape, "
            "dtype) and convert it with jax.dlpack.from_dlpack()");
    viewed = wm_py_view_parse_dlpack(object, writable, argument, view);
    if (viewed == WM_VIEW_NONE)
        viewed = wm_py_view_parse_asking(object, writable, argument, view);
    if (viewed == WM_VIEW_FOUND)
        view->array.readonly = true;
    return viewed;
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
