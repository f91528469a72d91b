// SPDX-License-Identifier: BSD-3-Clause
// Facts about MPI datatypes that messages of bytes need. GIL held; released
// while MPI is asked about a derived datatype.
#ifndef WM_PYTHON_MESSAGE_DATATYPE_H
#define WM_PYTHON_MESSAGE_DATATYPE_H

#include <mpi.h>

#include "array/strided.h"
#include "python/core/module.h"

// Returns the MPI type of an element type; MPI_DATATYPE_NULL if MPI has none.
MPI_Datatype
wm_py_datatype_of(wm_dtype_t dtype);

// The layout of an element in memory: bytes that are sent, bounds of its
// memory, and the distance to the next element.
typedef struct {
    MPI_Count size;
    MPI_Aint low, high, extent;
} wm_extent_t;

// Measures a datatype. Returns 0, or -1 with an exception naming `argument`:
// MPI.Exception for a datatype that is not committed.
int
wm_py_datatype_measure(MPI_Datatype type, const char *argument,
                       wm_extent_t *extent);

// Makes a type of the same elements, which the caller frees: the program may
// free its own. The copy is committed if the type is. MPI_Type_dup would run
// the program's attribute functions. Returns 0, or -1 with an exception naming
// `argument`.
int
wm_py_datatype_copy(MPI_Datatype type, const char *argument,
                    MPI_Datatype *copy);

// Returns true for MPI's own datatypes.
bool
wm_py_datatype_is_predefined(MPI_Datatype type);

// Describes the bytes of an element in the order in which they are sent,
// counted from strided->data. Returns false if strides cannot describe them:
// for types whose blocks are not equally far apart, and for elements with gaps
// inside.
bool
wm_py_datatype_decode(MPI_Datatype type, wm_strided_t *strided);

// Bytes that several strided parts describe, one after the other.
typedef struct {
    wm_strided_t *parts; // `first`, or allocated
    wm_strided_t first;
    int count, room;
    int most; // most parts allowed
} wm_typemap_t;

// Finds the bytes of `number` elements, counted from `data`, as at most `most`
// parts. Returns false if there are more, or MPI does not tell.
// wm_py_typemap_free() frees the parts, also after false.
bool
wm_py_datatype_parts(MPI_Datatype type, MPI_Count number, MPI_Aint extent,
                     char *data, int most, wm_typemap_t *parts);

// Initialises an empty list of at most so many parts.
void
wm_py_typemap_init(wm_typemap_t *parts, int most);

void
wm_py_typemap_free(wm_typemap_t *parts);

// Finds the lowest byte, and the one behind the highest; both stay if there
// are no parts.
void
wm_py_typemap_bounds(const wm_typemap_t *parts, char **low, char **high);

// Adds the bytes of `number` elements, counted from `data`, in any order.
// Returns 0; 1 if MPI does not tell how the type was made, so that the gaps
// inside of an element are added as well; or -1 if memory is short.
int
wm_py_datatype_cover(MPI_Datatype type, MPI_Count number, MPI_Aint extent,
                     char *data, wm_typemap_t *parts);

// Returns the type of the elements of a datatype; MPI_DATATYPE_NULL if they
// are of several types.
MPI_Datatype
wm_py_datatype_element(MPI_Datatype type);

// Returns true if `accept` returns true for the address of every block that
// the type, or a type inside, has an address for, counted from `base`; for
// other types, for the first byte. `accept` is called without the GIL.
bool
wm_py_datatype_blocks(MPI_Datatype type, MPI_Aint base,
                      bool (*accept)(MPI_Aint at));

// Returns true if elements of the type are in memory as they are sent: without
// gaps, and in order.
bool
wm_py_datatype_is_dense(MPI_Datatype type);

#endif
