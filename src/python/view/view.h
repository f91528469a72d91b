// SPDX-License-Identifier: BSD-3-Clause
// Views of any array object as memory: wm.Array, DLPack (C exchange API if the
// type has one), __cuda_array_interface__, DLPack by Python, the buffer
// protocol. The kind of memory is read from the pointer, never from the
// protocol. This is the hot path of every message: no Python object is made
// for a wm.Array, one attribute is read for CuPy. GIL held.
#ifndef WM_PYTHON_VIEW_VIEW_H
#define WM_PYTHON_VIEW_VIEW_H

#include "array/array.h"
#include "python/core/module.h"

typedef struct {
    wm_array_t array;       // storage: one reference for wm.Array, else NULL
    wm_pointer_t memory;    // of array.data
    wm_producer_t producer; // the producer to wait for
    void *owner;            // keeps foreign memory alive
    void (*release)(void *owner);
} wm_view_t;

// Clears an exception which says that an object is not what its reader needs.
// Returns 0; or -1 if the exception is one of the program's own code
// (RuntimeError, KeyboardInterrupt, its own classes), which stays.
int
wm_py_drop_refusal(void);

// Views an object. Returns 0, or -1 with an exception naming `argument`:
// TypeError for an object without an array protocol or an unsupported dtype,
// BufferError for read-only memory if `writable` (with the cure), ValueError
// for a malformed interface, CudaError for a pointer CUDA does not know. The
// view is filled on success only; the caller then calls wm_py_view_release.
// Only the first ndim entries of shape and strides are written.
int
wm_py_view_parse(PyObject *object, bool writable, const char *argument,
                 wm_view_t *view);

void
wm_py_view_release(wm_view_t *view);

// Returns true if the memory is a copy that a DLPack producer made for this
// view: writes do not reach the object.
bool
wm_py_view_is_copy(const wm_view_t *view);

// Raises BufferError with the cure for such a view. Returns -1.
int
wm_py_view_refuse_copy(PyObject *object, const char *argument);

// Replaces a view that is a copy by a view of the object's own memory: asks
// the object not to copy. Returns 0, or -1 with BufferError and `view`
// unchanged.
int
wm_py_view_share(PyObject *object, const char *argument, wm_view_t *view);

// Returns the Python object that `owner`, with its release function, refers
// to; borrowed, NULL if it is no Python object.
PyObject *
wm_py_view_object(void (*release)(void *owner), void *owner);

// Returns how many of the view's elements one element of the user is: the
// numbers in one of Warp's vectors, matrices, quaternions and transforms, else
// 1.
int64_t
wm_py_view_inner(PyObject *object, const wm_array_t *array);

// Returns true if MPI would read another array than the user means, so that
// the object must be checked before MPI gets it: arrays of Warp whose elements
// are several of MPI's, and arrays with a mask.
bool
wm_py_view_is_peculiar(PyObject *object);

// Returns true if only the code of the object's own class tells its memory:
// each reader may be told something else.
bool
wm_py_view_runs_code(PyObject *object);

// Returns true for an array of NumPy, without gaps, in memory that NumPy
// allocated, of elements that MPI knows: MPI can take the array unchecked.
// computes: MPI computes with the elements, which not every MPI can with
// float16.
bool
wm_py_view_is_plain(PyObject *object, bool computes);

// Finds the producer anew, for an array in GPU memory that was parsed before.
// Returns 0, or -1 with an exception naming `argument`, also if the array's
// memory has changed.
int
wm_py_view_refresh(PyObject *object, const char *argument, const char *data,
                   wm_producer_t *producer);

// Sets the producer by the object's __cuda_array_interface__, if there is one,
// for a view whose address and memory are known. Returns 0, or -1 with an
// exception.
int
wm_py_view_ask_producer(PyObject *object, const char *argument,
                        wm_view_t *view);

// Moves the view into an array with a storage of its own (wm.asarray).
int
wm_py_view_to_array(wm_view_t *view, wm_array_t *array);

#endif
