// SPDX-License-Identifier: BSD-3-Clause
// The protocols that foreign arrays may speak, and the libraries whose arrays
// are read in a way of their own, one parser each; view.c chooses. A parser
// returns 1 and has filled the view, returns 0 without an exception where the
// object does not speak the protocol, or -1 with an exception that names
// `argument`. GIL held.
#ifndef WM_PYTHON_VIEW_VIEW_PARTS_H
#define WM_PYTHON_VIEW_VIEW_PARTS_H

#include "python/view/dlpack.h"
#include "python/view/view.h"

// A library whose arrays are told by their type: because they name their
// stream elsewhere, mean something else than they say, or are read faster so.
typedef struct wm_view_library {
    // Whether arrays of the type are its own: asked once. What it found out
    // it may leave for `parse`. No exception.
    bool (*claims)(PyTypeObject *type, const void **found);
    // A parser. At 0 the object is asked for what it speaks.
    int (*parse)(PyObject *object, const void *found, bool writable,
                 const char *argument, wm_view_t *view);
    // Who writes an array that was parsed before: 1, 0 where it cannot be
    // read, or -1. NULL: the array is parsed again.
    int (*stream)(PyObject *object, CUstream *stream);
    // wm_py_view_inner; NULL: 1.
    int64_t (*inner)(PyObject *object, const wm_array_t *array);
    bool peculiar; // wm_py_view_is_peculiar
} wm_view_library_t;

extern const wm_view_library_t wm_py_view_bytes;
extern const wm_view_library_t wm_py_view_masked; // NumPy's with a mask
extern const wm_view_library_t wm_py_view_numpy;
extern const wm_view_library_t wm_py_view_exchange; // DLPack's C functions
extern const wm_view_library_t wm_py_view_cupy;
extern const wm_view_library_t wm_py_view_warp;
extern const wm_view_library_t wm_py_view_jax;

// Any object, by the first protocol that it speaks. Never 0.
int
wm_py_view_parse_asking(PyObject *object, bool writable, const char *argument,
                        wm_view_t *view);

// __cuda_array_interface__. `stream_named` tells whether the producer named
// a stream; where it did not, the view's producer is the whole device.
int
wm_py_view_parse_cai(PyObject *object, const char *argument, wm_view_t *view,
                     bool *stream_named);

// __array_interface__: host memory.
int
wm_py_view_parse_array_interface(PyObject *object, bool writable,
                                 const char *argument, wm_view_t *view);

// __dlpack__, with the stream handshake on a GPU. `shared`: the object is
// asked not to copy. A copy that is exported nevertheless is a read-only view.
int
wm_py_view_parse_dlpack(PyObject *object, bool shared, const char *argument,
                        wm_view_t *view);

// The buffer protocol.
int
wm_py_view_parse_buffer(PyObject *object, bool writable, const char *argument,
                        wm_view_t *view);

// Likewise of an owner that is a Py_buffer, else NULL: whose it is (borrowed).
PyObject *
wm_py_view_buffer_object(void (*release)(void *owner), void *owner);

// Whether the type is defined in the package (or a module inside of it); no
// exception.
bool
wm_py_view_is_of_package(PyTypeObject *type, const char *package);

// An attribute, or NULL without an exception where there is none; NULL with
// one where reading it failed otherwise.
PyObject *
wm_py_attribute(PyObject *object, PyObject *name);

// Raises `type` with "argument: text". Always -1.
int
wm_py_view_fail(PyObject *type, const char *argument, const char *format, ...);

// Shape and strides from sequences of Python ints; the strides (bytes) may be
// NULL or None for row-major ones.
int
wm_py_view_set_shape(PyObject *shape, const char *argument, wm_array_t *array);
int
wm_py_view_set_strides(PyObject *strides, const char *argument,
                       wm_array_t *array);

// Fills array->strides row-major.
void
wm_py_view_set_contiguous(wm_array_t *array);

// Who is waited for where nobody writes the memory.
extern const wm_producer_t wm_py_view_nobody;

// The last step but who writes it, until then nobody, or of a GPU's memory its
// whole device: data, dtype, shape and strides are set; checks that they make
// sense and asks what the memory is.
int
wm_py_view_set_memory(wm_view_t *view, const char *argument);

// Whose work the memory is ordered after: that of the stream, where one was
// named, else the whole device's. Where the memory is of no device, or there
// are several, the stream tells whose it is.
int
wm_py_view_set_producer(wm_view_t *view, bool named, CUstream stream,
                        const char *argument);

// Keeps a Python object alive through the view.
void
wm_py_view_own_object(wm_view_t *view, PyObject *object);

// Calls release(owner); an exception that is set stays so.
void
wm_py_view_release_owner(void (*release)(void *owner), void *owner);

// A release function that drops a reference to a Python object, with the GIL
// or without.
void
wm_py_release_object(void *object);

#endif
