// SPDX-License-Identifier: BSD-3-Clause
// What mpi4py takes as a message, seen as memory: an array object, or
// [array, datatype], [array, count], [array, count, datatype],
// [array, (count, displ), datatype], [array, count, displ, datatype]. GIL
// held.
#ifndef WM_PYTHON_BUFFER_H
#define WM_PYTHON_BUFFER_H

#include "comm/message.h"
#include "python/mpi.h"

typedef struct {
    wm_buffer_t buffer; // contiguous bytes
    MPI_Datatype type;  // a predefined one, MPI_DATATYPE_NULL if there is none
    size_t size;        // bytes an element
    // Host memory whose datatype has gaps: `buffer` is a packed copy of
    // `count` elements at `user`, to be unpacked after a receive.
    char *user;
    MPI_Count count;
    PyObject *datatype; // one reference, NULL for none
} wm_message_t;

// 0, or -1 with TypeError, ValueError or BufferError naming `argument`.
int
wm_message_parse(PyObject *object, bool writable, const char *argument,
                 wm_message_t *message);

// Moves the memory out, for an operation.
wm_buffer_t
wm_message_take(wm_message_t *message);

// After a receive of `nbytes`: what was packed goes to the user's memory. 0,
// or -1 with an exception.
int
wm_message_unpack(wm_message_t *message, size_t nbytes);

void
wm_message_release(wm_message_t *message);

// Whether the object, or the array in its list, is memory of a GPU, or claims
// to be.
bool
wm_message_on_device(PyObject *object);

#endif
