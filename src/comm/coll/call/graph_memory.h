// SPDX-License-Identifier: BSD-3-Clause
// Memory that collectives need as long as graphs may run that have them:
// copies of data with gaps, and marks. With WARPMPI_CHECK a mark is a hash of
// a captured call. Each replay gives it to all ranks before the call, so that
// they see that they replay different calls. Between hosts each graph has a
// mark, its number, and notes when it begins. Any thread, no lock of a
// caller's needed.
#ifndef WM_COMM_COLL_CALL_GRAPH_MEMORY_H
#define WM_COMM_COLL_CALL_GRAPH_MEMORY_H

#include <stdbool.h>

#include "cuda/memory.h"

// Keeps a block until the graph is gone into which the stream is captured. The
// progress thread frees it then. If this fails, the block stays for good,
// unless the capture has failed.
WM_MUST_CHECK int
wm_graph_memory_keep(int device, CUstream stream, wm_block_t *block,
                     wm_error_t *err);

// The words of a captured call, page-locked and 0 at first: the mark of this
// rank; those of all ranks in the last replay; and the bits that these ever
// had, as another mark may be there only until the next replay.
typedef struct {
    uint64_t *own, *last, *ever;
} wm_graph_marks_t;

// Makes the words of a captured call of `owner` for `size` ranks; `mark` is
// not 0.
WM_MUST_CHECK int
wm_graph_marks_new(const void *owner, int device, CUstream stream,
                   uint64_t mark, int size, wm_graph_marks_t *marks,
                   wm_error_t *err);

// Makes the mark of a graph of `owner`, and enqueues, before the graph's first
// call, that each replay notes that it has begun.
WM_MUST_CHECK int
wm_graph_marks_begin(const void *owner, int device, CUstream stream,
                     uint64_t number, wm_error_t *err);

// Returns true if a graph of the owner may still run whose number is `least`
// or higher, and (`begun`) which has begun a replay.
bool
wm_graph_marks_any(const void *owner, uint64_t least, bool begun);

// Finds a rank of which a replay had another mark than ours, *own. *its is
// that mark; 0: not known any more.
bool
wm_graph_marks_differ(const void *owner, int *rank, uint64_t *own,
                      uint64_t *its);

// The owner ends: its marks are looked at no more.
void
wm_graph_marks_leave(const void *owner);

#endif
