// SPDX-License-Identifier: BSD-3-Clause
// An operation for a receive and a send of one call.
#include "comm/engine/engine.h"
#include "comm/message/p2p.h"

static bool
pair_step(wm_op_t *op)
{
    const wm_op_t *receiving = op->parts_of[0], *sending = op->parts_of[1];
    if (!atomic_load(&receiving->done) || !atomic_load(&sending->done))
        return false;
    op->result = receiving->result;
    const wm_op_t *failed = receiving->error.code != 0 ? receiving : sending;
    if (failed->error.code != 0)
        wm_op_fail(op, &failed->error);
    return true;
}

static bool
pair_cancel(wm_op_t *op)
{
    (void)op; // the send goes on
    return true;
}

static const wm_op_kind_t kind = {.step = pair_step, .cancel = pair_cancel};

wm_op_t *
wm_pair_begin(wm_op_t *receiving, wm_op_t *sending)
{
    wm_op_t *op = wm_op_new(&kind, sizeof *op, receiving->comm);
    if (op == NULL) {
        wm_op_release(receiving);
        wm_op_release(sending);
        return NULL;
    }
    op->result.received = true;
    op->parts_of[0] = receiving;
    op->parts_of[1] = sending;
    wm_engine_add(op);
    return op;
}
