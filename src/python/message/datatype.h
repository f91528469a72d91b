// SPDX-License-Identifier: BSD-3-Clause
// MPI's datatypes, as far as messages of bytes must know them. GIL held; who
// asks for a derived one lets go of it meanwhile.
#ifndef WM_PYTHON_MESSAGE_DATATYPE_H
#define WM_PYTHON_MESSAGE_DATATYPE_H

#include <mpi.h>

#include "array/strided.h"
#include "python/core/module.h"

// The MPI type of an element type; MPI_DATATYPE_NULL where MPI has none.
MPI_Datatype
wm_py_datatype_of(wm_dtype_t dtype);

// What a message must know of a type: bytes that travel, where its memory
// begins and ends, and from one element to the next.
typedef struct {
    MPI_Count size;
    MPI_Aint low, high, extent;
} wm_extent_t;

// 0, or -1 with an exception naming `argument`: MPI.Exception for a datatype
// that is not committed.
int
wm_py_datatype_measure(MPI_Datatype type, const char *argument,
                       wm_extent_t *extent);

// Where an element's bytes lie, in the order in which they travel, counted
// from strided->data. False where that is not in strides: of types whose
// blocks are not equally far apart, and of elements with gaps inside.
bool
wm_py_datatype_decode(MPI_Datatype type, wm_strided_t *strided);

// Bytes in strides, some behind others.
typedef struct {
    wm_strided_t *parts; // `first`, or allocated
    wm_strided_t first;
    int count, room;
    int most; // no more parts than these
} wm_parts_t;

// Finds the bytes of `number` elements, counted from `data`, as at most `most`
// parts. Returns false if there are more, or MPI does not tell.
// wm_py_parts_free() frees the parts, also after false.
bool
wm_py_datatype_parts(MPI_Datatype type, MPI_Count number, MPI_Aint extent,
                     char *data, int most, wm_parts_t *parts);

void
wm_py_parts_free(wm_parts_t *parts);

// What a datatype is made of; MPI_DATATYPE_NULL where that is of several
// types.
MPI_Datatype
wm_py_datatype_element(MPI_Datatype type);

// Whether `accept` takes the place of every block that the type names one for,
// counted from `base`; of others that of the first byte. It is called without
// the GIL.
bool
wm_py_datatype_blocks(MPI_Datatype type, MPI_Aint base,
                      bool (*accept)(MPI_Aint at));

// Whether elements of the type lie in memory as they travel: without gaps,
// and in order.
bool
wm_py_datatype_is_dense(MPI_Datatype type);

#endif
