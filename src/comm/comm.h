// SPDX-License-Identifier: BSD-3-Clause
// Communicators: the user's own handle, two private duplicates behind it
// (headers, and larger host payloads), and who its ranks are. Attached to the
// user's handle as an MPI attribute, so wrapping twice gives the same one,
// and freeing the handle frees it.
#ifndef WM_COMM_COMM_H
#define WM_COMM_COMM_H

#include <mpi.h>

#include "comm/node.h"

typedef struct wm_comm {
    MPI_Comm user;  // borrowed
    MPI_Comm match; // headers; errors return
    MPI_Comm data;  // payloads of host memory
    int rank, size;
    int tag_limit;
    wm_peer_t **peers;   // by rank
    uint32_t *sequences; // by rank: next message sent there
} wm_comm_t;

// Collective over `user`: makes, or finds, what is behind it. Fails on all
// ranks or on none; engine lock not held.
WM_MUST_CHECK int
wm_comm_attach(MPI_Comm user, wm_comm_t **comm, wm_error_t *err);

// What is behind a handle, NULL when nothing. Cheap.
wm_comm_t *
wm_comm_find(MPI_Comm user);

// Checks rank (an actual rank, PROC_NULL, or ANY_SOURCE where allowed) and
// tag; WM_ERR_MPI with MPI_ERR_RANK or MPI_ERR_TAG.
WM_MUST_CHECK int
wm_comm_check(const wm_comm_t *comm, const char *argument, int rank, int tag,
              bool receives, wm_error_t *err);

// An MPI call's result as an error naming the call.
WM_MUST_CHECK int
wm_mpi_check(int result, const char *call, wm_error_t *err);

#endif
