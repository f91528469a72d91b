// SPDX-License-Identifier: BSD-3-Clause
// NumPy's dtypes and ours. NumPy is imported at first use. GIL held.
#ifndef WM_PYTHON_VIEW_PY_DTYPE_H
#define WM_PYTHON_VIEW_PY_DTYPE_H

#include "array/dtype.h"
#include "python/core/module.h"

// Returns the numpy.dtype of an element type (that of ml_dtypes if NumPy has
// none; TypeError without this package). A new reference, or NULL with an
// exception.
PyObject *
wm_py_dtype(wm_dtype_t dtype);

// Returns true for the name of a type of ml_dtypes that NumPy lacks.
bool
wm_py_dtype_of_ml_name(PyObject *name, wm_dtype_t *dtype);

// Finds an element type from a numpy.dtype or any argument of numpy.dtype(),
// the names of our types ("bfloat16"), and the scalar types of Warp, Torch,
// CuPy and JAX. Returns 0, or -1 with TypeError.
int
wm_py_dtype_from_object(PyObject *object, wm_dtype_t *dtype);

#endif
