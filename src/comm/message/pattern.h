// SPDX-License-Identifier: BSD-3-Clause
// Where the bytes of a message lie that are not contiguous: in strides, which
// kernels can pack, or as a datatype says that only MPI can walk. Any thread;
// GIL not needed.
#ifndef WM_COMM_MESSAGE_PATTERN_H
#define WM_COMM_MESSAGE_PATTERN_H

#include <mpi.h>

#include "array/strided.h"
#include "comm/engine/buffer.h"

struct wm_pattern {
    MPI_Datatype type; // MPI_DATATYPE_NULL: `parts` tell all
    // With a type, which whoever made the pattern owns:
    char *data;      // where the first element is counted from
    size_t size;     // bytes of an element that travel
    MPI_Aint extent; // from one element to the next
    MPI_Aint low;    // from data to the lowest byte of any element
    size_t span;     // bytes from there to the highest
    // Without: one after the other; of a message it is one, but of elements of
    // more bytes than MPI packs.
    int count;
    bool of_ranks; // one for each rank of a collective
    wm_strided_t parts[];
};

// What stands for pattern->data where `copy` holds the span: far outside of it
// for absolute addresses, hence no sum of pointers.
static inline char *
wm_pattern_base(const wm_pattern_t *pattern, const char *copy)
{
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    return (char *)((uintptr_t)copy - (uintptr_t)pattern->low);
}

// Whether kernels can pack it, as they can what is asked for below.
bool
wm_pattern_is_strided(const wm_pattern_t *pattern);

// The lowest byte, and the one behind the highest.
void
wm_pattern_bounds(const wm_pattern_t *pattern, char **low, char **high);

// Those of a buffer; of one whose gaps MPI alone knows, without these.
void
wm_buffer_bounds(const wm_buffer_t *buffer, char **low, char **high);

// Returns true if two buffers have a byte in common. Some that have none give
// true as well: to find out would take long.
bool
wm_buffer_share(const wm_buffer_t *one, const wm_buffer_t *other);

// The `nbytes` from byte `at` on where these are in strides; else false.
bool
wm_pattern_cut(const wm_pattern_t *pattern, size_t at, size_t nbytes,
               wm_strided_t *part);

// Enqueues a copy of the `nbytes` from byte `at` on to, where it `packs`, or
// from contiguous memory, `packed`, that kernels on `device` reach.
WM_MUST_CHECK int
wm_pattern_copy_part(const wm_pattern_t *pattern, size_t at, char *packed,
                     size_t nbytes, bool packs, int device, CUstream stream,
                     wm_error_t *err);

// Copy the first `nbytes` of the message out of, or into, host memory that
// nobody else uses; `base`, unless NULL, is what stands for pattern->data in a
// copy of the memory. `comm` only handles errors. WM_ERR_MPI.
WM_MUST_CHECK int
wm_pattern_pack(const wm_pattern_t *pattern, char *packed, size_t nbytes,
                char *base, MPI_Comm comm, wm_error_t *err);

WM_MUST_CHECK int
wm_pattern_unpack(const wm_pattern_t *pattern, const char *packed,
                  size_t nbytes, char *base, MPI_Comm comm, wm_error_t *err);

// Pack out of, or unpack into, memory of `device`, behind what is on the
// stream and through a page-locked copy of the memory, gaps and all. Wait.
WM_MUST_CHECK int
wm_pattern_stage(const wm_pattern_t *pattern, int device, CUstream stream,
                 char *packed, size_t nbytes, MPI_Comm comm, wm_error_t *err);

WM_MUST_CHECK int
wm_pattern_unstage(const wm_pattern_t *pattern, int device, CUstream stream,
                   const char *packed, size_t nbytes, MPI_Comm comm,
                   wm_error_t *err);

// Enqueues a copy of `nbytes`, from byte `at` of a message on, between GPU
// memory without gaps, or with such as kernels step over, and page-locked
// memory in which they are one after the other.
WM_MUST_CHECK int
wm_pattern_copy(const wm_buffer_t *buffer, size_t at, size_t nbytes,
                char *packed, bool packs, int device, CUstream stream,
                wm_error_t *err);

#endif
