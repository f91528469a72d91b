// SPDX-License-Identifier: BSD-3-Clause
// The engine "nccl": collectives of GPU memory between hosts, by NCCL.
#include "comm/coll/movers/mover_engine.h"
#include "comm/coll/movers/mover_stream.h"
#include "comm/coll/nccl/nccl_open.h"

static bool
nccl_serves(const wm_coll_op_t *op, const void *state)
{
    return wm_mover_serves(op, state)
           && (state != NULL || wm_nccl_load(NULL) == 0);
}

const wm_coll_engine_t wm_nccl_engine = {
    .name = "nccl",
    .library = &wm_nccl_for_people,
    .in_order = true,
    .takes = WM_COLL_TAKES_DEVICE,
    .does = wm_mover_does,
    .spans = wm_mover_spans,
    .open = wm_nccl_open,
    .comm_drop = wm_mover_drop_comm,
    .abort = wm_mover_abort_calls,
    .revoke = wm_mover_revoke,
    .serves = nccl_serves,
    .start = wm_mover_start,
    .step = wm_mover_step,
    .drop = wm_mover_drop,
    .on_stream = &wm_mover_on_stream,
};
