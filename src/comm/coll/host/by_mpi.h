// SPDX-License-Identifier: BSD-3-Clause
// A nonblocking collective that MPI does, on the communicator's `data`. MPI is
// given host memory, or page-locked staging copies of GPU memory. No function
// waits. Engine lock held.
#ifndef WM_COMM_COLL_HOST_BY_MPI_H
#define WM_COMM_COLL_HOST_BY_MPI_H

#include "comm/coll/host/by_neighbor.h"
#include "comm/coll/direct/participant.h"

typedef struct {
    wm_participant_t *participant;
    wm_access_t *access; // NULL: host memory
    char *send, *receive;
    bool spoilt; // the memory is from malloc, and filled with bytes of 255
    int *counts; // send counts and displacements, then the receive ones
    wm_by_neighbor_t *neighbors; // of a neighborhood collective
    MPI_Request request;
} wm_by_mpi_t;

// Begins to fill the staging copies. The data to send are ready.
WM_MUST_CHECK int
wm_by_mpi_fetch(wm_by_mpi_t *by, wm_participant_t *participant,
                wm_error_t *err);

// Prepares a call of a rank that has failed: MPI is given bytes of 255, so
// that the other ranks do not wait for this one.
WM_MUST_CHECK int
wm_by_mpi_spoil(wm_by_mpi_t *by, wm_participant_t *participant,
                wm_error_t *err);

// Returns 1 when the copies have ended, 0 if not yet, or an error.
WM_MUST_CHECK int
wm_by_mpi_is_copied(wm_by_mpi_t *by, wm_error_t *err);

// Begins MPI's call, after the staging copies are filled.
WM_MUST_CHECK int
wm_by_mpi_begin(wm_by_mpi_t *by, wm_error_t *err);

// Returns 1 when MPI has completed the call, 0 if not yet, or MPI's error.
WM_MUST_CHECK int
wm_by_mpi_test(wm_by_mpi_t *by, wm_error_t *err);

// Begins to copy the result back from the staging copy.
WM_MUST_CHECK int
wm_by_mpi_store(wm_by_mpi_t *by, wm_error_t *err);

// Frees the staging copies. After an error, waits for copies under way.
void
wm_by_mpi_end(wm_by_mpi_t *by);

#endif
