// SPDX-License-Identifier: BSD-3-Clause
// Memory that a rank attaches to a dynamic window. GPU memory that others can
// map is in a table of the rank's segment, where they find it by its address;
// the engine of the rank serves other memory (target.h). Attaching and
// detaching is local. GIL released, engine lock not held, except where noted.
#ifndef WM_COMM_RMA_WINDOW_ATTACH_H
#define WM_COMM_RMA_WINDOW_ATTACH_H

#include "comm/rma/window.h"

// Attaches memory of this rank.
WM_MUST_CHECK int
wm_window_attach(wm_window_t *window, char *data, size_t nbytes,
                 const wm_pointer_t *memory, wm_error_t *err);

// Detaches the memory that begins at an address. Fails with
// MPI_ERR_RMA_ATTACH if there is none. Nobody accesses it any more, but graphs
// (wm_window_has_graphs).
WM_MUST_CHECK int
wm_window_detach(wm_window_t *window, const char *data, wm_error_t *err);

// Finds the attached memory of a rank that holds an address, and maps it.
// Returns 1, and where it is in this process, its bytes and the offset of the
// address there; 0 if there is none. Window's lock held.
WM_MUST_CHECK int
wm_window_find_attached(wm_window_t *window, int rank, uint64_t address,
                        char **memory, uint64_t *nbytes, uint64_t *at,
                        wm_error_t *err);

// Detaches all memory of this rank, and forgets that of the others. Engine
// lock held.
void
wm_window_detach_all(wm_window_t *window);

#endif
