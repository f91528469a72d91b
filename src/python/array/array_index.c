// SPDX-License-Identifier: BSD-3-Clause
// Basic indexing by ints, slices, ... and None. The results are views.
#include "python/array/py_array.h"

// A view under construction. `next` is the next dimension of the source.
typedef struct {
    const wm_array_t *source;
    wm_array_t *view;
    int next;
} walk_t;

static int
too_many(const walk_t *walk)
{
    return wm_py_fail(PyExc_IndexError,
                      "too many indices for an array of %d dimensions",
                      walk->source->ndim);
}

static int
add_dimension(walk_t *walk, int64_t shape, int64_t stride)
{
    wm_array_t *view = walk->view;
    if (view->ndim == WM_MAX_NDIM)
        return wm_py_fail(PyExc_IndexError,
                          "at most %d dimensions are supported", WM_MAX_NDIM);
    view->shape[view->ndim] = shape;
    view->strides[view->ndim++] = stride;
    return 0;
}

static int
no_index(PyObject *key)
{
    return wm_py_fail(PyExc_IndexError,
                      "an index is an int, a slice, ... or None, not %.200s: "
                      "index with CuPy, Warp or NumPy on the same memory",
                      Py_TYPE(key)->tp_name);
}

static int
take_int(walk_t *walk, PyObject *key)
{
    if (walk->next == walk->source->ndim)
        return too_many(walk);
    Py_ssize_t index = PyNumber_AsSsize_t(key, PyExc_IndexError);
    if (index == -1 && PyErr_Occurred())
        return PyErr_ExceptionMatches(PyExc_TypeError) ? no_index(key) : -1;
    int64_t extent = walk->source->shape[walk->next];
    int64_t at = index < 0 ? index + extent : index;
    if (at < 0 || at >= extent)
        return wm_py_fail(
            PyExc_IndexError,
            "index %zd is out of bounds for dimension %d of extent %lld",
            index, walk->next, (long long)extent);
    walk->view->data += at * walk->source->strides[walk->next++];
    return 0;
}

static int
take_slice(walk_t *walk, PyObject *key)
{
    Py_ssize_t start, stop, step;
    if (walk->next == walk->source->ndim)
        return too_many(walk);
    if (PySlice_Unpack(key, &start, &stop, &step) < 0)
        return -1;
    Py_ssize_t extent = (Py_ssize_t)walk->source->shape[walk->next];
    Py_ssize_t count = PySlice_AdjustIndices(extent, &start, &stop, step);
    int64_t stride = walk->source->strides[walk->next++];
    if (count > 0)
        walk->view->data += start * stride;
    // A step that is never taken must not overflow.
    int64_t stepped = count > 1 ? stride * step : stride;
    return add_dimension(walk, count, stepped);
}

// Takes as many full dimensions as the keys after the ellipsis leave over.
static int
take_ellipsis(walk_t *walk, int keys_after)
{
    while (walk->next < walk->source->ndim - keys_after) {
        int at = walk->next++;
        if (add_dimension(walk, walk->source->shape[at],
                          walk->source->strides[at])
            < 0)
            return -1;
    }
    return 0;
}

static int
take_key(walk_t *walk, PyObject *key, int keys_after)
{
    if (key == Py_Ellipsis)
        return take_ellipsis(walk, keys_after);
    if (key == Py_None)
        return add_dimension(walk, 1, 0);
    if (PySlice_Check(key))
        return take_slice(walk, key);
    if (PyIndex_Check(key) && !PyBool_Check(key)
        && Py_TYPE(key) != wm_py_state->array_type)
        return take_int(walk, key);
    return no_index(key);
}

// Counts the keys from `first` on that take a dimension each.
static int
count_keys(PyObject *const *keys, Py_ssize_t first, Py_ssize_t count)
{
    int consuming = 0;
    for (Py_ssize_t i = first; i < count; i++)
        consuming += keys[i] != Py_None && keys[i] != Py_Ellipsis;
    return consuming;
}

static int
take_keys(walk_t *walk, PyObject *const *keys, Py_ssize_t count)
{
    bool ellipsis = false;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (keys[i] == Py_Ellipsis && ellipsis)
            return wm_py_fail(PyExc_IndexError,
                              "an index can have only one ellipsis (...)");
        ellipsis |= keys[i] == Py_Ellipsis;
        if (take_key(walk, keys[i], count_keys(keys, i + 1, count)) < 0)
            return -1;
    }
    return take_ellipsis(walk, 0);
}

// Makes the view that a key selects, with its own reference.
static int
index_view(PyObject *self, PyObject *key, wm_array_t *view)
{
    PyObject *const *keys = &key;
    Py_ssize_t count = 1;
    if (PyTuple_Check(key)) {
        keys = &PyTuple_GET_ITEM(key, 0);
        count = PyTuple_GET_SIZE(key);
    }
    wm_py_array_begin_view(self, view);
    view->ndim = 0;
    walk_t walk = {.source = wm_py_array_of(self), .view = view};
    if (take_keys(&walk, keys, count) < 0) {
        wm_array_clear(view);
        return -1;
    }
    return 0;
}

PyObject *
wm_py_array_subscript(PyObject *self, PyObject *key)
{
    wm_array_t view;
    if (index_view(self, key, &view) < 0)
        return NULL;
    return wm_py_array_view_object(self, &view);
}

int
wm_py_array_ass_subscript(PyObject *self, PyObject *key, PyObject *value)
{
    wm_array_t view;
    if (value == NULL)
        return wm_py_fail(PyExc_TypeError, "elements cannot be deleted");
    if (index_view(self, key, &view) < 0)
        return -1;
    int status = wm_py_array_assign_object(&view, value);
    wm_array_clear(&view);
    return status;
}

PyObject *
wm_py_array_item_at(PyObject *self, Py_ssize_t index)
{
    PyObject *key = PyLong_FromSsize_t(index);
    PyObject *item = key != NULL ? wm_py_array_subscript(self, key) : NULL;
    Py_XDECREF(key);
    return item;
}
