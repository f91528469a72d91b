// SPDX-License-Identifier: BSD-3-Clause
// The Python object of wm.Array, whose type is in python/array. Views read it
// directly. GIL held.
#ifndef WM_PYTHON_VIEW_ARRAY_OBJECT_H
#define WM_PYTHON_VIEW_ARRAY_OBJECT_H

#include "array/array.h"
#include "python/core/module.h"

typedef struct {
    PyObject_HEAD
    PyObject *weakrefs;
    // For a view of another object's memory: the array that holds the
    // reference to the storage, so that the garbage collector sees one
    // reference. Else NULL.
    PyObject *base;
    wm_array_t array; // storage is never NULL
} wm_array_object_t;

#endif
