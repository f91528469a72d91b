// SPDX-License-Identifier: BSD-3-Clause
// Which bytes of a memory elements mean that have gaps, within them or from
// one to the next. GIL held; who asks MPI lets go of it meanwhile.
#ifndef WM_PYTHON_MESSAGE_ELEMENTS_H
#define WM_PYTHON_MESSAGE_ELEMENTS_H

#include "comm/message/header.h"
#include "python/message/datatype.h"

// Returns true if elements, from the `first` on, lie within `length` bytes and
// the `before` in front of these.
bool
wm_py_elements_fit(const wm_extent_t *of, Py_ssize_t first, Py_ssize_t count,
                   size_t before, size_t length);

// Takes `count` elements of an array that is not contiguous, from the `first`
// on: all of them, or some of one dimension. 0, or -1 with a ValueError naming
// `argument`.
int
wm_py_elements_slice(wm_strided_t *strided, const wm_extent_t *of,
                     Py_ssize_t first, Py_ssize_t count, const char *argument);

// Elements of a datatype with absolute addresses: where they are, how many
// bytes, what memory that is, and that nobody names a stream for it. 0, or -1
// with a ValueError naming `argument`.
int
wm_py_elements_absolute(const wm_extent_t *of, MPI_Datatype type,
                        Py_ssize_t displacement, Py_ssize_t count,
                        const char *argument, wm_buffer_t *buffer);

// New patterns, freed by wm_py_elements_free(). Of so many parts, which the
// caller fills; NULL with an exception.
wm_pattern_t *
wm_py_elements_parts(int count);

// NULL without an exception where the bytes are contiguous after all, or with
// one naming `argument`: ValueError for elements on top of each other, where
// they are written.
wm_pattern_t *
wm_py_elements_strided(const wm_strided_t *strided, bool writable,
                       const char *argument);

// Likewise of several parts, one behind the other.
wm_pattern_t *
wm_py_elements_in_parts(const wm_parts_t *parts, bool writable,
                        const char *argument);

// Of what only MPI can walk, from `data` on; with a duplicate of the type, as
// the user may free his.
wm_pattern_t *
wm_py_elements_typed(MPI_Datatype type, const wm_extent_t *of, MPI_Count count,
                     char *data, const char *argument);

void
wm_py_elements_free(wm_pattern_t *pattern);

#endif
