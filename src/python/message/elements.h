// SPDX-License-Identifier: BSD-3-Clause
// The bytes that elements with gaps, inside or between them, have in memory.
// GIL held; released while MPI is asked.
#ifndef WM_PYTHON_MESSAGE_ELEMENTS_H
#define WM_PYTHON_MESSAGE_ELEMENTS_H

#include "comm/message/header.h"
#include "python/message/datatype.h"

// Returns true if elements, from the `first` on, are within `length` bytes and
// the `before` bytes in front of them.
bool
wm_py_elements_fit(const wm_extent_t *of, Py_ssize_t first, Py_ssize_t count,
                   size_t before, size_t length);

// Takes `count` elements of an array that is not contiguous, from the `first`
// on: all of them, or some of one dimension. Returns 0, or -1 with a
// ValueError naming `argument`.
int
wm_py_elements_slice(wm_strided_t *strided, const wm_extent_t *of,
                     Py_ssize_t first, Py_ssize_t count, const char *argument);

// Finds the elements of a datatype with absolute addresses: fills address,
// bytes and memory of `buffer`, with no named stream. Returns 0, or -1 with a
// ValueError naming `argument`.
int
wm_py_elements_absolute(const wm_extent_t *of, MPI_Datatype type,
                        Py_ssize_t displacement, Py_ssize_t count,
                        const char *argument, wm_buffer_t *buffer);

// Finds the memory of `count` elements over MPI.BOTTOM, counted from an
// address; nothing is host memory. Returns 0; 1 if the addresses are in GPU
// memory and in other allocations, which wm_py_elements_refuse_mix() refuses
// by a ValueError; -1 with an exception.
int
wm_py_elements_allocation(const wm_extent_t *of, MPI_Datatype type,
                          Py_ssize_t address, Py_ssize_t count,
                          const char *argument, wm_pointer_t *memory);
int
wm_py_elements_refuse_mix(const char *argument);

// Makes a pattern of `count` parts, which the caller fills. Returns NULL with
// an exception. wm_py_elements_free() frees this and all patterns below.
wm_pattern_t *
wm_py_elements_parts(int count);

// Makes a pattern of strided bytes. Returns NULL without an exception if the
// bytes are contiguous, or with one naming `argument`: ValueError for elements
// that overlap and are written.
wm_pattern_t *
wm_py_elements_strided(const wm_strided_t *strided, bool writable,
                       const char *argument);

// Does the same for several parts, one after the other.
wm_pattern_t *
wm_py_elements_in_parts(const wm_typemap_t *parts, bool writable,
                        const char *argument);

// Makes a pattern that only MPI can walk, from `data` on, with a copy of the
// type, as the user may free the type.
wm_pattern_t *
wm_py_elements_typed(MPI_Datatype type, const wm_extent_t *of, MPI_Count count,
                     char *data, const char *argument);

void
wm_py_elements_free(wm_pattern_t *pattern);

#endif
