// SPDX-License-Identifier: BSD-3-Clause
// What nccl_open.c needs of nccl_comm.c.
#ifndef WM_COMM_COLL_NCCL_NCCL_PRIVATE_H
#define WM_COMM_COLL_NCCL_NCCL_PRIVATE_H

#include "comm/coll/nccl/nccl_comm.h"

// Adds it to the list of all; returns it.
wm_nccl_comm_t *
wm_nccl_comm_add(wm_nccl_comm_t *own);

// Aborts what NCCL has made, also while another thread is in NCCL.
void
wm_nccl_comm_abort(wm_nccl_comm_t *own);

// Frees what is left, after NCCL's part.
void
wm_nccl_comm_free(wm_nccl_comm_t *own);

#endif
