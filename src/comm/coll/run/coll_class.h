// SPDX-License-Identifier: BSD-3-Clause
// The engine of each class of collectives between hosts, where ranks have no
// exchange area. A class is a collective with a range of lengths, which all
// ranks know alike; for a reduction also its type and operation. If lengths
// vary by rank, it is the collective alone. MPI does short calls, and nobody
// is asked. The first blocking call of a class asks all ranks which engines
// serve them; later calls obey the answer. One thread at a time.
#ifndef WM_COMM_COLL_RUN_COLL_CLASS_H
#define WM_COMM_COLL_RUN_COLL_CLASS_H

#include "comm/coll/run/coll_engines.h"

// MPI does calls of fewer bytes.
#define WM_COLL_CLASS_BYTES 4096

// Sets *engines to the bit of the engine of the class of `op`; 0: MPI. Returns
// false if nobody was asked yet; then MPI does a call that may not wait.
bool
wm_coll_class_find(const wm_coll_op_t *op, unsigned *engines);

// Asks all ranks, opens the engine and keeps the answer; collective.
WM_MUST_CHECK int
wm_coll_class_ask(const wm_coll_op_t *op, unsigned *engines, wm_error_t *err);

// Frees the answers of a communicator.
void
wm_coll_class_drop(wm_comm_t *comm);

#endif
