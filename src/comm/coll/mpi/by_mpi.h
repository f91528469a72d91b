// SPDX-License-Identifier: BSD-3-Clause
// A collective that MPI does. MPI is given host memory, or page-locked staging
// copies of GPU memory. Nonblocking calls are on the communicator's `data`; no
// function waits, and the engine lock is held. A blocking one is on the user's
// communicator, without the lock.
#ifndef WM_COMM_COLL_MPI_BY_MPI_H
#define WM_COMM_COLL_MPI_BY_MPI_H

#include "comm/coll/mpi/staged.h"
#include "comm/coll/direct/participant.h"

typedef struct {
    const wm_comm_t *comm;
    const wm_coll_t *call;
    // Streams of the devices of both sides, one if they are one device. NULL:
    // host memory.
    wm_access_t *from, *into;
    wm_staged_t *sent, *received; // staging copies; NULL: none
    char *send, *receive;         // what MPI is given
    bool spoilt; // the memory is from malloc, and filled with bytes of 255
    struct wm_by_mpi_sides *sides; // MPI reads them until the call has ended
    MPI_Request request;
    bool blocks; // the call is MPI's blocking one
    bool copied; // it is not in place: `copy` is sent, NULL if it is empty
    char *copy;
    int result; // of MPI's function
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

// Returns true if the core can make MPI's blocking call: not that of
// neighbors, which some MPIs do wrongly, nor of blocks with datatypes, nor of
// uneven blocks of which this rank knows its own alone.
bool
wm_by_mpi_serves(const wm_comm_t *comm, const wm_coll_t *call);

// Makes MPI's blocking call, and waits for the copies. Nonblocking calls of
// small arrays take up to twice as long. *result is the return value of MPI's
// function if the call fails because of it. A rank that has failed before
// gives MPI bytes of 255, so that the other ranks do not wait for it; if it
// has no memory for these, *called is false, and the call has not happened.
WM_MUST_CHECK int
wm_by_mpi_call(const wm_comm_t *comm, const wm_coll_t *call, bool *called,
               int *result, wm_error_t *err);

// Frees the staging copies. After an error, waits for copies under way.
void
wm_by_mpi_finish(wm_by_mpi_t *by);

#endif
