// SPDX-License-Identifier: BSD-3-Clause
// Communicators: the user's own handle, two private ones of the same ranks
// behind it (headers and collectives; payloads that MPI carries), and who its
// ranks are. Attached to the user's handle as an MPI attribute, so wrapping
// twice gives the same one, and freeing the handle frees it.
#ifndef WM_COMM_COMM_H
#define WM_COMM_COMM_H

#include <mpi.h>

#include "comm/node.h"

typedef struct wm_stashed wm_stashed_t;

typedef struct wm_comm {
    MPI_Comm user;  // borrowed
    MPI_Comm match; // headers and collectives; errors return
    MPI_Comm data;  // payloads in chunks; errors return
    int rank, size;
    int tag_limit;
    wm_peer_t **peers;   // by rank
    uint32_t *sequences; // by rank: payloads sent there on `data` so far
    wm_stashed_t *stash; // matched, then put back
} wm_comm_t;

// Collective over `user` unless it was attached before: makes, or finds, what
// is behind it. What is wrong with one rank (another version, no segment)
// fails on all. Engine lock not held; the GIL is released by the caller.
WM_MUST_CHECK int
wm_comm_attach(MPI_Comm user, wm_comm_t **comm, wm_error_t *err);

// What is behind a handle, NULL when nothing. Cheap.
wm_comm_t *
wm_comm_find(MPI_Comm user);

// Checks rank (an actual rank, PROC_NULL, or ANY_SOURCE to receive), which the
// text calls `argument`, and tag; WM_ERR_MPI with MPI_ERR_RANK or MPI_ERR_TAG.
WM_MUST_CHECK int
wm_comm_check(const wm_comm_t *comm, const char *argument, int rank, int tag,
              bool receives, wm_error_t *err);

// An MPI call's result as an error naming the call.
WM_MUST_CHECK int
wm_mpi_check(int result, const char *call, wm_error_t *err);

#endif
