// SPDX-License-Identifier: BSD-3-Clause
// The exchange by which the ranks of a new communicator learn of each other.
#ifndef WM_COMM_COMM_BOOTSTRAP_H
#define WM_COMM_COMM_BOOTSTRAP_H

#include "comm/comm/comm.h"

// Finds the peers of all ranks, and makes the barrier if each rank can read
// the slots of all others. Collective over comm->match (`inter`: an
// intercommunicator), before anything else is sent there. If one rank fails,
// all fail; the error of the others refers to that rank's. GIL released,
// engine lock not held.
WM_MUST_CHECK int
wm_bootstrap(wm_comm_t *comm, bool inter, wm_error_t *err);

#endif
