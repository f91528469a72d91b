// SPDX-License-Identifier: BSD-3-Clause
// A nonblocking collective that MPI does, on the communicator's `data`: on
// host memory, or on page-locked staging copies of GPU memory. No function
// waits; engine lock held.
#ifndef WM_COMM_COLL_BY_MPI_H
#define WM_COMM_COLL_BY_MPI_H

#include "comm/coll/by_neighbor.h"
#include "comm/coll/participant.h"

typedef struct {
    wm_participant_t *participant;
    wm_access_t *access; // NULL: of host memory
    char *send, *receive;
    bool spoilt; // bytes of 255, from malloc
    int *counts; // of what is sent, displacements, of what is received, …
    wm_by_neighbor_t *neighbors; // those of neighbours
    MPI_Request request;
} wm_by_mpi_t;

// Fills the staging copies, once what is sent is ready.
WM_MUST_CHECK int
wm_by_mpi_fetch(wm_by_mpi_t *by, wm_participant_t *participant,
                wm_error_t *err);

// Where this rank has failed: with bytes of 255, so that the others go on.
WM_MUST_CHECK int
wm_by_mpi_spoil(wm_by_mpi_t *by, wm_participant_t *participant,
                wm_error_t *err);

// Whether copies have ended: 1, 0 when not yet.
WM_MUST_CHECK int
wm_by_mpi_is_copied(wm_by_mpi_t *by, wm_error_t *err);

WM_MUST_CHECK int
wm_by_mpi_begin(wm_by_mpi_t *by, wm_error_t *err);

// Whether MPI has ended it: 1, 0 when not yet, or MPI's error.
WM_MUST_CHECK int
wm_by_mpi_test(wm_by_mpi_t *by, wm_error_t *err);

// Copies back from the staging copy.
WM_MUST_CHECK int
wm_by_mpi_store(wm_by_mpi_t *by, wm_error_t *err);

void
wm_by_mpi_end(wm_by_mpi_t *by);

#endif
