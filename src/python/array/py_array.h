// SPDX-License-Identifier: BSD-3-Clause
// wm.Array: the Python object over a wm_array_t, and the parts of its type,
// one file each. GIL held; released around anything that waits for a GPU.
#ifndef WM_PYTHON_ARRAY_PY_ARRAY_H
#define WM_PYTHON_ARRAY_PY_ARRAY_H

#include "python/view/array_object.h"
#include "python/device/py_device.h"
#include "python/device/py_stream.h"
#include "python/view/view.h"

// A new wm.Array that takes over the array's storage reference, on failure
// too; NULL with an exception then.
PyObject *
wm_py_array_object(wm_array_t *array);

// Likewise of a view of another wm.Array's storage.
PyObject *
wm_py_array_view_object(PyObject *of, wm_array_t *array);

// A view that was parsed from `object` keeps that, and not the storage, where
// it is a wm.Array over another object's memory.
void
wm_py_array_keep_object(PyObject *object, wm_view_t *view);

// The array inside of a wm.Array (borrowed); no check.
wm_array_t *
wm_py_array_of(PyObject *object);

// A shape, or strides, as Python shows them.
PyObject *
wm_py_array_tuple(const int64_t *values, int count);

// A view of the object's storage with its own reference, everything but shape
// and strides filled, for wm_py_array_object().
void
wm_py_array_begin_view(PyObject *object, wm_array_t *view);

// array_copy.c: what needs the GPU's time, without the GIL. 0, or -1 with an
// exception.
int
wm_py_array_new_nogil(int device, bool pinned, wm_dtype_t dtype, int ndim,
                      const int64_t *shape, wm_array_t *array);
int
wm_py_array_wait_nogil(const wm_array_t *array);

// A contiguous copy of the view's array, on `device`.
PyObject *
wm_py_array_copy_of(const wm_view_t *view, int device, bool pinned,
                    bool blocking);

// array_data.c. Sees any array object; anything else (scalars, nested lists,
// host data of another type than `dtype`, unless that is NULL) becomes a NumPy
// array first.
int
wm_py_array_view_data(PyObject *data, const wm_dtype_t *dtype,
                      const char *argument, wm_view_t *view);

// The same, always by way of NumPy.
int
wm_py_array_view_host_data(PyObject *data, const wm_dtype_t *dtype,
                           const char *argument, wm_view_t *view);

// array[...] = value, as wm.Array.assign() does it with its defaults.
int
wm_py_array_assign_object(const wm_array_t *dst, PyObject *value);

// The methods; of array_copy.c and array_dlpack.c, and what those in
// Python are made of, of array_shape.c.
#define X(name)                                                               \
    extern const char wm_py_array_##name##_doc[];                             \
    PyObject *wm_py_array_##name(PyObject *self, PyObject *args,              \
                                 PyObject *kwargs);
X(to)
X(copy)
X(assign)
X(fill)
X(zero)
X(dlpack)
#undef X
#define X(name)                                                               \
    extern const char wm_py_array_##name##_doc[];                             \
    PyObject *wm_py_array_##name(PyObject *self, PyObject *args);
X(dlpack_device)
#undef X

// array_index.c
PyObject *
wm_py_array_subscript(PyObject *self, PyObject *key);
int
wm_py_array_ass_subscript(PyObject *self, PyObject *key, PyObject *value);
PyObject *
wm_py_array_item_at(PyObject *self, Py_ssize_t index);

// array_shape.c
PyObject *
wm_py_array_transposed(PyObject *self, void *unused);

// An int or a sequence of ints. 0, or -1 with an exception.
int
wm_py_array_parse_shape(PyObject *object, const char *argument, int *ndim,
                        int64_t *shape);

// array_export.c. Each marks the storage as given away.
PyObject *
wm_py_array_cuda_interface(PyObject *self, void *unused);
PyObject *
wm_py_array_host_interface(PyObject *self, void *unused);
int
wm_py_array_get_buffer(PyObject *self, Py_buffer *buffer, int flags);
void
wm_py_array_release_buffer(PyObject *self, Py_buffer *buffer);

// A stream that stands for all our pending work on the array of a device
// (1: there is none, the legacy default stream will do). 0, or -1.
int
wm_py_array_export_stream(const wm_array_t *array, CUstream *stream);

#endif
