// SPDX-License-Identifier: BSD-3-Clause
// MPI's datatypes as all ranks can compare them: handles are of a process.
#ifndef WM_COMM_MESSAGE_ELEMENT_H
#define WM_COMM_MESSAGE_ELEMENT_H

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

// A number, above 0, that is the same on all ranks, and of all names of a type
// of C's: long and int64_t. Of types that are not MPI's own, as far as size
// and extent tell them apart.
int64_t
wm_element_number(MPI_Datatype type);

// Whether MPI's own types have that number.
bool
wm_element_is_known(int64_t number);

// The element type of that number in NumPy's terms; borrowed, static.
const char *
wm_element_name(int64_t number);

// Likewise of one of MPI's own types; NULL of others, which may have been
// freed, and of bytes.
const char *
wm_element_of(MPI_Datatype type);

// How many of them so many bytes are.
unsigned long long
wm_element_count(int64_t number, uint64_t nbytes);

#endif
