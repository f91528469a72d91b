// SPDX-License-Identifier: BSD-3-Clause
// The engine "copies": a plan of copies and reductions on memory that ranks
// map from each other, on one host (direct_run.h).
#ifndef WM_COMM_COLL_DIRECT_COPIES_H
#define WM_COMM_COLL_DIRECT_COPIES_H

#include "comm/coll/direct/coll_op.h"

extern const wm_coll_engine_t wm_copies_engine;

#endif
