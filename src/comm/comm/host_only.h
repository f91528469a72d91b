// SPDX-License-Identifier: BSD-3-Clause
// Communicators without a GPU in any of their processes. Nothing is attached
// to them: every call is MPI's own, on the user's handle. Their ranks decide
// alike, from facts that all of them have.
#ifndef WM_COMM_COMM_HOST_ONLY_H
#define WM_COMM_COMM_HOST_ONLY_H

#include <mpi.h>
#include <stdbool.h>

#include "cuda/error.h"

// Attaches `user` unless it is host-only, and even then where MPI's
// collectives of its neighbours are wrong without us (neighbor.h): wm_comm_t
// says so. Host-only are those of which no process, in either group of an
// intercommunicator, has a GPU, or was started with WARPMPI_CHECK, which needs
// messages of ours.
//
// parent: a communicator with all processes of `user`, which decides for it;
// MPI_COMM_NULL: the ranks find out. No message is needed for that among
// processes of MPI_COMM_WORLD once the answer for MPI_COMM_WORLD is known, as
// it is where all its processes run on this host, without an NVIDIA driver.
// Else it is collective over `user`. The GIL and the engine lock are not held.
WM_MUST_CHECK int
wm_host_only_attach(MPI_Comm user, MPI_Comm parent, wm_error_t *err);

// Returns true if MPI must not be called on a host-only communicator any more:
// it is finalized, or this is a forked child.
bool
wm_host_only_has_ended(void);

// Reads WARPMPI_HOST_MESSAGES; WM_ERR_VALUE for what it cannot be.
WM_MUST_CHECK int
wm_host_only_configure(wm_error_t *err);

// Returns true if calls of host memory alone are MPI's own on every
// communicator.
bool
wm_host_only_by_mpi(void);

// Returns true once that has been called: until then communicators that are
// not attached may wait for MPI to be initialized.
bool
wm_host_only_was_asked(void);

#endif
