// SPDX-License-Identifier: BSD-3-Clause
// What mpi4py takes as a message, seen as memory: an array object, or
// [array, datatype], [array, count], [array, count, datatype],
// [array, (count, displ), datatype], [array, count, displ, datatype]. GIL
// held.
#ifndef WM_PYTHON_MESSAGE_SPECIFICATION_H
#define WM_PYTHON_MESSAGE_SPECIFICATION_H

#include "comm/message/header.h"
#include "python/core/mpi4py.h"

typedef struct {
    wm_buffer_t buffer;
    MPI_Datatype type; // the one given, else that of the elements, which may
                       // be MPI_DATATYPE_NULL: MPI has none for it
    size_t size;       // bytes an element
    size_t extent;     // from one to the next
    // Of wm_py_message_parse_gaps: memory whose datatype has gaps, which
    // buffer does not tell of. NULL for none.
    char *user;
    bool whole;      // each of them, with its whole extent, is in the buffer
    MPI_Count count; // elements
    PyObject *datatype; // one reference, NULL for none
} wm_message_t;

// 0, or -1 with an exception naming `argument`: TypeError, ValueError,
// BufferError, or CudaError for a pointer that CUDA fails to look at. Elements
// that only MPI knows (long double, structures with a datatype) are taken in
// host memory.
int
wm_py_message_parse(PyObject *object, bool writable, const char *argument,
                    wm_message_t *message);

// The same for calls that take gaps in some memory alone, and else need
// contiguous bytes: ValueError for other arrays; datatypes with gaps set
// `user`: MPI is to be given it, or what stands for it in host memory, and the
// datatype.
typedef enum {
    WM_GAPS_ALL,
    WM_GAPS_OF_GPUS,       // of arrays and datatypes in GPU memory
    WM_GAPS_OF_ANY_ARRAYS, // of arrays alone, in any memory
    WM_GAPS_OF_ARRAYS,     // of arrays alone, in GPU memory
    WM_GAPS_NONE,
} wm_with_gaps_t;

int
wm_py_message_parse_gaps(PyObject *object, bool writable, const char *argument,
                         wm_with_gaps_t gaps, wm_message_t *message);

// Likewise WM_GAPS_NONE.
int
wm_py_message_parse_typed(PyObject *object, bool writable,
                          const char *argument, wm_message_t *message);

// Where `user` is set: makes each element as long as its extent, in the buffer
// as well.
void
wm_py_message_widen(wm_message_t *message);

// The message becomes the `nbytes` of its memory that the pattern tells, which
// is taken over in place of the former one.
void
wm_py_message_scatter(wm_message_t *message, wm_pattern_t *pattern,
                      size_t nbytes);

// Moves the memory out, for an operation.
wm_buffer_t
wm_py_message_take(wm_message_t *message);

// Once more the same memory, for a persistent request whose message is kept:
// who must be waited for is asked anew. `array` is the object the message was
// parsed from, without its list. 0, or -1 with an exception.
int
wm_py_message_again(PyObject *array, const char *argument,
                    const wm_message_t *message, wm_buffer_t *buffer);

// A message of no memory: what an operation has that keeps an object alone.
int
wm_py_message_of_none(PyObject *keep, wm_message_t *message);

// Another object that is kept as long as the memory.
void
wm_py_message_keep(wm_message_t *message, PyObject *object);

// For the collector: what the message alone keeps.
int
wm_py_message_traverse(const wm_message_t *message, visitproc visit,
                       void *arg);

void
wm_py_message_release(wm_message_t *message);

// What a buffer is, or the array in its list; borrowed.
PyObject *
wm_py_message_array(PyObject *buffer);

// Whether the object, or the array in its list, is memory of a GPU, or claims
// to be.
bool
wm_py_message_on_device(PyObject *object);

#endif
