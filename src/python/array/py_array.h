// SPDX-License-Identifier: BSD-3-Clause
// wm.Array: the Python object over a wm_array_t, and the parts of its type,
// one file each. GIL held; released around each wait for a GPU.
#ifndef WM_PYTHON_ARRAY_PY_ARRAY_H
#define WM_PYTHON_ARRAY_PY_ARRAY_H

#include "python/view/array_object.h"
#include "python/device/py_device.h"
#include "python/device/py_stream.h"
#include "python/view/view.h"

// Makes a wm.Array, which takes over the array's storage reference, also on
// failure. Returns NULL with an exception on failure.
PyObject *
wm_py_array_object(wm_array_t *array);

// Does the same for a view of the storage of `of`, another wm.Array.
PyObject *
wm_py_array_view_object(PyObject *of, wm_array_t *array);

// Makes a view that was parsed from `object` keep `object` instead of the
// storage, if `object` is a wm.Array over another object's memory.
void
wm_py_array_keep_object(PyObject *object, wm_view_t *view);

// Returns the array inside of a wm.Array (borrowed); no check.
wm_array_t *
wm_py_array_of(PyObject *object);

// Returns a tuple of ints: a shape, or strides, as Python shows them.
PyObject *
wm_py_array_tuple(const int64_t *values, int count);

// Fills a view of the object's storage with its own reference, except shape
// and strides, for wm_py_array_object().
void
wm_py_array_begin_view(PyObject *object, wm_array_t *view);

// array_copy.c: allocates, or waits for the GPU, without the GIL. Return 0, or
// -1 with an exception.
int
wm_py_array_new_nogil(int device, bool pinned, wm_dtype_t dtype, int ndim,
                      const int64_t *shape, wm_array_t *array);
int
wm_py_array_wait_nogil(const wm_array_t *array);

// Returns a contiguous copy of the view's array, on `device`.
PyObject *
wm_py_array_copy_of(const wm_view_t *view, int device, bool pinned,
                    bool blocking);

// array_data.c. Views any array object. Other data (scalars, nested lists,
// host data of another type than `dtype`, unless that is NULL) becomes a NumPy
// array first. Returns 0, or -1 with an exception.
int
wm_py_array_view_data(PyObject *data, const wm_dtype_t *dtype,
                      const char *argument, wm_view_t *view);

// Does the same, always through NumPy.
int
wm_py_array_view_host_data(PyObject *data, const wm_dtype_t *dtype,
                           const char *argument, wm_view_t *view);

// Does array[...] = value, like wm.Array.assign() with its defaults.
int
wm_py_array_assign_object(const wm_array_t *dst, PyObject *value);

// The methods: those of array_copy.c and array_dlpack.c, and those of
// array_shape.c that the Python methods are made of.
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
extern const char wm_py_array_dlpack_device_doc[];
PyObject *
wm_py_array_dlpack_device(PyObject *self, PyObject *unused);

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

// Parses an int or a sequence of ints. Returns 0, or -1 with an exception.
int
wm_py_array_parse_shape(PyObject *object, const char *argument, int *ndim,
                        int64_t *shape);

// array_export.c. Each of these marks the storage as given away.
PyObject *
wm_py_array_cuda_interface(PyObject *self, void *unused);
PyObject *
wm_py_array_host_interface(PyObject *self, void *unused);
int
wm_py_array_get_buffer(PyObject *self, Py_buffer *buffer, int flags);
void
wm_py_array_release_buffer(PyObject *self, Py_buffer *buffer);

// Finds a stream that is ordered behind all our pending work on the array of a
// device; NULL if no work is pending and any stream will do. Returns 0, or -1
// with an exception.
int
wm_py_array_export_stream(const wm_array_t *array, CUstream *stream);

#endif
