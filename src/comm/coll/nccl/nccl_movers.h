// SPDX-License-Identifier: BSD-3-Clause
// NCCL as a library that moves (coll/movers/movers.h).
#ifndef WM_COMM_COLL_NCCL_NCCL_MOVERS_H
#define WM_COMM_COLL_NCCL_NCCL_MOVERS_H

#include "comm/coll/movers/movers.h"

extern const wm_movers_t wm_nccl_movers;

#endif
