// SPDX-License-Identifier: BSD-3-Clause
// Any array object seen as memory: wm.Array, DLPack (C exchange API where the
// type has one), __cuda_array_interface__, DLPack by Python, the buffer
// protocol; what the memory is is read from the pointer, never from the
// protocol. This is the hot path of every message: no Python object is made
// for a wm.Array, one attribute is read for CuPy. GIL held.
#ifndef WM_PYTHON_VIEW_VIEW_H
#define WM_PYTHON_VIEW_VIEW_H

#include "array/array.h"
#include "python/core/module.h"

typedef struct {
    wm_array_t array;       // storage: one reference for wm.Array, else NULL
    wm_pointer_t memory;    // of array.data
    wm_producer_t producer; // who must be waited for
    void *owner;            // keeps foreign memory alive
    void (*release)(void *owner);
} wm_view_t;

// 0, or -1 with an exception naming `argument`: TypeError for an object
// without a buffer interface or an unsupported dtype, BufferError for
// read-only memory where `writable` is asked for (with the cure), ValueError
// for a malformed interface, CudaError for a pointer CUDA does not know. The
// view is filled on success only, and then released by wm_py_view_release. Of
// shape and strides only the first ndim entries are written.
int
wm_py_view_parse(PyObject *object, bool writable, const char *argument,
                 wm_view_t *view);

void
wm_py_view_release(wm_view_t *view);

// Whether the memory is a copy that a DLPack producer made for this view: the
// object does not show what is written there.
bool
wm_py_view_is_copy(const wm_view_t *view);

// Raises BufferError with the cure for a view of that kind. Always -1.
int
wm_py_view_refuse_copy(PyObject *object, const char *argument);

// Replaces a view that is a copy by a view of the object's own memory: asks
// the object not to copy. 0, or -1 with BufferError and `view` as before.
int
wm_py_view_share(PyObject *object, const char *argument, wm_view_t *view);

// The Python object that `owner`, with its release function, is a reference
// to; borrowed, NULL where it is something else.
PyObject *
wm_py_view_object(void (*release)(void *owner), void *owner);

// How many of the view's elements one of the user's is: of Warp's vectors,
// matrices, quaternions and transforms so many numbers, else 1.
int64_t
wm_py_view_inner(PyObject *object, const wm_array_t *array);

// Whether MPI would take another array for it than the user means, so that it
// must not be given the object without a look at it: arrays of Warp, whose
// elements are several of MPI's, and those with a mask.
bool
wm_py_view_is_peculiar(PyObject *object);

// Whether it is an array of NumPy's own, without gaps in memory that NumPy
// allocated, of elements that MPI knows: nobody need look at it before MPI
// does. computes: with them, which not every MPI can with float16.
bool
wm_py_view_is_plain(PyObject *object, bool computes);

// Who must be waited for now, of an array in GPU memory that was parsed
// before: names the producer anew. 0, or -1 with an exception naming
// `argument`, also where the array's memory is not what it was.
int
wm_py_view_refresh(PyObject *object, const char *argument, const char *data,
                   wm_producer_t *producer);

// Moves the view into an array with a storage of its own (wm.asarray).
int
wm_py_view_to_array(wm_view_t *view, wm_array_t *array);

#endif
