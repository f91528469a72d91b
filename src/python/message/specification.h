// SPDX-License-Identifier: BSD-3-Clause
// mpi4py's message specifications, read as memory: an array object, or [array,
// datatype], [array, count], [array, count, datatype], [array, (count, displ),
// datatype], [array, count, displ, datatype]. GIL held.
#ifndef WM_PYTHON_MESSAGE_SPECIFICATION_H
#define WM_PYTHON_MESSAGE_SPECIFICATION_H

#include "comm/message/header.h"
#include "python/core/mpi4py.h"

typedef struct {
    wm_buffer_t buffer;
    MPI_Datatype type; // as given, else that of the elements; may be
                       // MPI_DATATYPE_NULL: MPI has no such type
    size_t size;       // bytes of an element
    size_t extent;     // distance to the next element
    // Set by wm_py_message_parse_gaps: memory whose datatype has gaps, which
    // `buffer` does not describe. NULL: none.
    char *user;
    bool whole;         // elements with full extents are in the buffer
    MPI_Count count;    // number of elements
    PyObject *datatype; // one reference, NULL for none
} wm_message_t;

// Parses a message. Returns 0, or -1 with an exception naming `argument`:
// TypeError, ValueError, BufferError, or CudaError if CUDA cannot describe the
// pointer. Accepts elements that only MPI knows (long double, structures with
// a datatype) in host memory.
int
wm_py_message_parse(PyObject *object, bool writable, const char *argument,
                    wm_message_t *message);

// Does the same for a message with a rank, as mpi4py: refuses None, and does
// not look at the buffer of a message with MPI_PROC_NULL, which is empty.
int
wm_py_message_parse_for(int rank, PyObject *object, bool writable,
                        const char *argument, wm_message_t *message);

// Does the same for calls that accept gaps only in some memory, and else need
// contiguous bytes: ValueError for other arrays. A datatype with gaps sets
// `user`: MPI is given this memory, or its staging copy in host memory, and
// the datatype.
typedef enum {
    WM_GAPS_ALL,
    WM_GAPS_OF_GPUS,       // in arrays and datatypes in GPU memory
    WM_GAPS_OF_ANY_ARRAYS, // in arrays only, in any memory
    WM_GAPS_OF_ARRAYS,     // in arrays only, in GPU memory
    WM_GAPS_NONE,
} wm_with_gaps_t;

int
wm_py_message_parse_gaps(PyObject *object, bool writable, const char *argument,
                         wm_with_gaps_t gaps, wm_message_t *message);

// Called if `user` is set: makes each element as long as its extent, in the
// buffer as well.
void
wm_py_message_widen(wm_message_t *message);

// Makes the message the `nbytes` of its memory that the pattern describes, and
// takes over the pattern in place of the former one.
void
wm_py_message_scatter(wm_message_t *message, wm_pattern_t *pattern,
                      size_t nbytes);

// Moves the memory out, for an operation.
wm_buffer_t
wm_py_message_detach(wm_message_t *message);

// Fills a buffer with the same memory again, for a persistent request whose
// message is kept, and asks for its producer anew. `array` is the object that
// the message was parsed from, without its list. Returns 0, or -1 with an
// exception.
int
wm_py_message_again(PyObject *array, const char *argument,
                    const wm_message_t *message, wm_buffer_t *buffer);

// Makes a message without memory, for an operation that only keeps an object.
int
wm_py_message_of_none(PyObject *keep, wm_message_t *message);

// Keeps another object as long as the memory.
void
wm_py_message_keep(wm_message_t *message, PyObject *object);

// For the garbage collector: visits the objects that only the message keeps.
int
wm_py_message_traverse(const wm_message_t *message, visitproc visit,
                       void *arg);

void
wm_py_message_release(wm_message_t *message);

// Returns a buffer, or the array in its list; borrowed.
PyObject *
wm_py_message_array(PyObject *buffer);

// Finds the memory of the object, or of the array in its list, and the
// producer. An array that cannot be read is what it claims to be, if there are
// GPUs; an object without memory is host memory. Returns 0, or -1 with the
// exception of the program's own code.
int
wm_py_message_look(PyObject *object, wm_pointer_t *memory,
                   wm_producer_t *producer);

// Returns 1 if the object, or the array in its list, is GPU memory, or claims
// to be; else 0. Returns -1 with the exception of the program's own code.
int
wm_py_message_claims_device(PyObject *object);

// Does the same for a caller that cannot raise, and may have an exception
// pending: an array whose code raises counts as GPU memory.
bool
wm_py_message_on_device(PyObject *object);

#endif
