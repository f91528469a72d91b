// SPDX-License-Identifier: BSD-3-Clause
// The protocols of foreign arrays, and the libraries whose arrays are read in
// special ways, one parser each; view.c chooses. GIL held.
#ifndef WM_PYTHON_VIEW_VIEW_PARTS_H
#define WM_PYTHON_VIEW_VIEW_PARTS_H

#include "python/view/dlpack.h"
#include "python/view/view.h"

// The result of a parser.
typedef enum {
    WM_VIEW_FAILED = -1, // with an exception that names `argument`
    WM_VIEW_NONE,        // the object does not have the protocol; no exception
    WM_VIEW_FOUND,       // the view is filled
} wm_viewed_t;

// A library whose arrays are recognised by their type, because they name their
// stream elsewhere, mean something else than they declare, or are read faster
// this way.
typedef struct wm_view_library {
    // Returns true if arrays of the type are the library's; called once for a
    // type. May write a value for `parse`. No exception.
    bool (*claims)(PyTypeObject *type, const void **found);
    // After WM_VIEW_NONE the object's protocols are tried.
    wm_viewed_t (*parse)(PyObject *object, const void *found, bool writable,
                         const char *argument, wm_view_t *view);
    // Finds the stream of an array that was parsed before. After WM_VIEW_NONE,
    // or if it is NULL, the array is parsed again.
    wm_viewed_t (*stream)(PyObject *object, CUstream *stream);
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

// Parses any object, by the first protocol that it has. Never WM_VIEW_NONE.
wm_viewed_t
wm_py_view_parse_asking(PyObject *object, bool writable, const char *argument,
                        wm_view_t *view);

// Parses __cuda_array_interface__. Sets *stream_named to true if the producer
// named a stream; otherwise the view's producer is the whole device.
wm_viewed_t
wm_py_view_parse_cai(PyObject *object, const char *argument, wm_view_t *view,
                     bool *stream_named);

// Parses __array_interface__: host memory.
wm_viewed_t
wm_py_view_parse_array_interface(PyObject *object, bool writable,
                                 const char *argument, wm_view_t *view);

// Parses __dlpack__, with the stream handshake on a GPU. `shared`: the object
// is asked not to copy. A copy that is exported nevertheless gives a read-only
// view.
wm_viewed_t
wm_py_view_parse_dlpack(PyObject *object, bool shared, const char *argument,
                        wm_view_t *view);

// Parses the buffer protocol.
wm_viewed_t
wm_py_view_parse_buffer(PyObject *object, bool writable, const char *argument,
                        wm_view_t *view);

// Returns the object of an owner that is a Py_buffer (borrowed), else NULL.
PyObject *
wm_py_view_buffer_object(void (*release)(void *owner), void *owner);

// Returns true if the type is defined in the package (or in a module of it);
// no exception.
bool
wm_py_view_is_of_package(PyTypeObject *type, const char *package);

// Returns an attribute, or NULL: without an exception if there is none, with
// one if reading failed otherwise.
PyObject *
wm_py_attribute(PyObject *object, PyObject *name);

// Raises `type` with "argument: text", in place of a refusal
// (wm_py_drop_refusal); an exception of the program's own code stays. Returns
// -1, WM_VIEW_FAILED.
int
wm_py_view_fail(PyObject *type, const char *argument, const char *format, ...);

// Set shape and strides from sequences of Python ints; the strides (bytes) may
// be NULL or None for row-major ones. Return 0, or -1 with an exception.
int
wm_py_view_set_shape(PyObject *shape, const char *argument, wm_array_t *array);
int
wm_py_view_set_strides(PyObject *strides, const char *argument,
                       wm_array_t *array);

// Fills array->strides row-major.
void
wm_py_view_set_contiguous(wm_array_t *array);

// The producer of memory that nobody writes.
extern const wm_producer_t wm_py_view_nobody;

// Checks data, dtype, shape and strides, which are set, and finds the kind of
// memory. Sets the producer to none, or to the whole device for GPU memory.
// Returns 0, or -1 with an exception.
int
wm_py_view_set_memory(wm_view_t *view, const char *argument);

// Sets the producer that the memory is ordered after: the stream, if one was
// named, else the whole device. If the memory is the host's, or there are
// several devices, the stream tells the device; a default stream, or none,
// is of the device in whose context the memory was page-locked. Returns 0, or
// -1 with an exception.
int
wm_py_view_set_producer(wm_view_t *view, bool named, CUstream stream,
                        const char *argument);

// Makes the view keep a Python object alive.
void
wm_py_view_own_object(wm_view_t *view, PyObject *object);

// Calls release(owner); a pending exception stays.
void
wm_py_view_release_owner(void (*release)(void *owner), void *owner);

// Drops a reference to a Python object, with or without the GIL; a release
// function.
void
wm_py_release_object(void *object);

#endif
