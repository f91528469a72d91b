// SPDX-License-Identifier: BSD-3-Clause
// Host-only communicators: no process has a GPU. No wm_comm_t is attached, and
// every call is MPI's own, on the user's handle. All ranks decide alike, from
// facts that all of them have.
#ifndef WM_COMM_COMM_HOST_ONLY_H
#define WM_COMM_COMM_HOST_ONLY_H

#include <mpi.h>
#include <stdbool.h>

#include "cuda/error.h"

struct wm_comm;

// Attaches `user` unless it is host-only. Attaches a host-only one, too, if
// MPI's collectives of its neighbors are wrong without us (neighbor.h); then
// wm_comm_t.host_only is true. A communicator is host-only if no process, in
// either group of an intercommunicator, has a GPU, or was started with
// WARPMPI_CHECK, which needs our messages.
//
// parent: a communicator with all processes of `user`, which decides for it;
// MPI_COMM_NULL: the ranks find out. Processes of MPI_COMM_WORLD need no
// message for that if the answer for MPI_COMM_WORLD is known, as it is if all
// its processes run on this host, without an NVIDIA driver. Else it is
// collective over `user`. The GIL and the engine lock are not held.
WM_MUST_CHECK int
wm_host_only_attach(MPI_Comm user, MPI_Comm parent, wm_error_t *err);

// Attaches `user` also if it is host-only, for memory that ranks share: MPI
// makes its messages as before. Collective over `user` unless it is attached.
WM_MUST_CHECK int
wm_host_only_attach_too(MPI_Comm user, struct wm_comm **comm, wm_error_t *err);

// Returns true if MPI must not be called on a host-only communicator any more:
// it is finalized, or this is a forked child.
bool
wm_host_only_has_ended(void);

// Returns true if MPI does all calls of host memory alone, on every
// communicator.
bool
wm_host_only_by_mpi(void);

// Returns true after wm_host_only_attach() was called. Before that,
// communicators that are not attached may wait for MPI to be initialized.
bool
wm_host_only_was_asked(void);

#endif
