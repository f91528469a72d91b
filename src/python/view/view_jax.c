// SPDX-License-Identifier: BSD-3-Clause
// JAX's arrays: DLPack, and immutable, which that does not say.
#include "python/view/view_parts.h"

static int
parse_jax(PyObject *object, const void *Py_UNUSED(found), bool writable,
          const char *argument, wm_view_t *view)
{
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
