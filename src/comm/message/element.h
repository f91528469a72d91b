// SPDX-License-Identifier: BSD-3-Clause
// Numbers and names of MPI's datatypes that all ranks can compare; handles
// differ between processes.
#ifndef WM_COMM_MESSAGE_ELEMENT_H
#define WM_COMM_MESSAGE_ELEMENT_H

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

// Returns a number above 0 that is the same on all ranks, and for all names of
// a C type, such as long and int64_t. For types that are not MPI's own, it
// depends on size and extent only.
int64_t
wm_element_number(MPI_Datatype type);

// Returns true if the number is one of MPI's own types.
bool
wm_element_is_known(int64_t number);

// Returns one of MPI's own types that has the number; MPI_DATATYPE_NULL if
// there is none.
MPI_Datatype
wm_element_type(int64_t number);

// Returns the name of the element type of a number in NumPy's terms; borrowed,
// static.
const char *
wm_element_name(int64_t number);

// Returns the name of one of MPI's own types likewise. NULL for bytes, and for
// others, which may have been freed.
const char *
wm_element_of(MPI_Datatype type);

// Returns how many elements `nbytes` bytes are.
unsigned long long
wm_element_count(int64_t number, uint64_t nbytes);

#endif
