// SPDX-License-Identifier: BSD-3-Clause
// NumPy's dtypes and ours. NumPy is imported at first use. GIL held.
#ifndef WM_PYTHON_VIEW_PY_DTYPE_H
#define WM_PYTHON_VIEW_PY_DTYPE_H

#include "array/dtype.h"
#include "python/core/module.h"

// The numpy.dtype of an element type (ml_dtypes' where NumPy has none;
// TypeError without that package). A new reference, or NULL with an exception.
PyObject *
wm_py_dtype(wm_dtype_t dtype);

// Whether it is the name of one that NumPy has not, and ml_dtypes has.
bool
wm_py_dtype_of_ml_name(PyObject *name, wm_dtype_t *dtype);

// From a numpy.dtype or whatever numpy.dtype() takes, the names of our types
// ("bfloat16"), and the scalar types of Warp, Torch, CuPy and JAX. 0, or -1
// with TypeError.
int
wm_py_dtype_from_object(PyObject *object, wm_dtype_t *dtype);

#endif
