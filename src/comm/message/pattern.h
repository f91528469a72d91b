// SPDX-License-Identifier: BSD-3-Clause
// The layout of a message that is not contiguous: strides, which kernels can
// pack, or a datatype that only MPI can walk. Any thread; GIL not needed.
#ifndef WM_COMM_MESSAGE_PATTERN_H
#define WM_COMM_MESSAGE_PATTERN_H

#include <mpi.h>

#include "array/strided.h"
#include "comm/engine/buffer.h"

struct wm_pattern {
    MPI_Datatype type; // MPI_DATATYPE_NULL: see `parts`
    // With a type, which belongs to the maker of the pattern:
    char *data;      // origin of the first element
    size_t size;     // bytes of an element in the message
    MPI_Aint extent; // from one element to the next
    MPI_Aint low;    // from data to the lowest byte of any element
    size_t span;     // bytes from there to the highest byte
    // Without a type: parts, one after the other. A message has one part,
    // unless an element has more bytes than MPI packs.
    int count;
    bool of_ranks; // one part for each rank of a collective
    wm_strided_t parts[];
};

// Returns the address that stands for pattern->data if `copy` holds the span.
// The address may be far outside of the copy for absolute addresses, so
// pointers are not added.
static inline char *
wm_pattern_base(const wm_pattern_t *pattern, const char *copy)
{
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    return (char *)((uintptr_t)copy - (uintptr_t)pattern->low);
}

// Returns true if kernels can pack it; bounds, cut and copy_part need this.
bool
wm_pattern_is_strided(const wm_pattern_t *pattern);

// Writes the address of the lowest byte, and the one behind the highest; for a
// datatype that only MPI can walk, those of its bytes without gaps.
void
wm_buffer_bounds(const wm_buffer_t *buffer, char **low, char **high);

// Returns true if two buffers have a byte in common. May return true for some
// that have none, as finding out would take long.
bool
wm_buffer_share(const wm_buffer_t *one, const wm_buffer_t *other);

// Finds the layout of the `nbytes` from byte `at` on. Returns false if they
// are not in the strides of one part.
bool
wm_pattern_cut(const wm_pattern_t *pattern, size_t at, size_t nbytes,
               wm_strided_t *part);

// Enqueues a copy of the `nbytes` from byte `at` on: with `packs`, to the
// contiguous memory `packed`, else from there. Kernels on `device` reach it.
WM_MUST_CHECK int
wm_pattern_copy_part(const wm_pattern_t *pattern, size_t at, char *packed,
                     size_t nbytes, bool packs, int device, CUstream stream,
                     wm_error_t *err);

// Copy the first `nbytes` of the message out of, or into, host memory that
// nobody else uses. `base`, unless NULL, stands for pattern->data in a copy of
// the memory. `comm` only handles errors. Return MPI's errors.
WM_MUST_CHECK int
wm_pattern_pack(const wm_pattern_t *pattern, char *packed, size_t nbytes,
                char *base, MPI_Comm comm, wm_error_t *err);

WM_MUST_CHECK int
wm_pattern_unpack(const wm_pattern_t *pattern, const char *packed,
                  size_t nbytes, char *base, MPI_Comm comm, wm_error_t *err);

// Packs out of memory of `device`, after the work on the stream, through a
// page-locked copy of the memory, gaps included. Waits for the end.
WM_MUST_CHECK int
wm_pattern_stage(const wm_pattern_t *pattern, int device, CUstream stream,
                 char *packed, size_t nbytes, MPI_Comm comm, wm_error_t *err);

// Enqueues a copy of `nbytes`, from byte `at` of a message on, between GPU
// memory, contiguous or with gaps that kernels step over, and contiguous
// page-locked memory.
WM_MUST_CHECK int
wm_pattern_copy(const wm_buffer_t *buffer, size_t at, size_t nbytes,
                char *packed, bool packs, int device, CUstream stream,
                wm_error_t *err);

#endif
