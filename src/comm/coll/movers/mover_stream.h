// SPDX-License-Identifier: BSD-3-Clause
// Collectives by a library's moves (movers.h) on the program's streams, also
// in CUDA graphs. The library runs the calls of a communicator one after the
// other, on whichever streams, in the order in which they are made.
#ifndef WM_COMM_COLL_MOVERS_MOVER_STREAM_H
#define WM_COMM_COLL_MOVERS_MOVER_STREAM_H

#include "comm/coll/call/coll_engine.h"

extern const wm_coll_on_stream_t wm_mover_on_stream;

#endif
