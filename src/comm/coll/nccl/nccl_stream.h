// SPDX-License-Identifier: BSD-3-Clause
// Collectives by NCCL on the program's streams, also in CUDA graphs. NCCL runs
// the calls of a communicator one after the other, on whichever streams, in
// the order in which they are made.
#ifndef WM_COMM_COLL_NCCL_NCCL_STREAM_H
#define WM_COMM_COLL_NCCL_NCCL_STREAM_H

#include "comm/coll/call/coll_engine.h"
#include "comm/coll/nccl/nccl_comm.h"

extern const wm_coll_on_stream_t wm_nccl_on_stream;

// Returns NCCL's communicator of a communicator; NULL: the engine is not open
// there.
wm_nccl_comm_t *
wm_nccl_of(const wm_comm_t *comm);

#endif
