// SPDX-License-Identifier: BSD-3-Clause
#include <stdint.h>

#include "comm/p2p.h"
#include "comm/progress.h"
#include "comm/stash.h"

static bool
step(wm_op_t *op)
{
    wm_error_t err;
    wm_stashed_t *found = NULL;
    if (op->held)
        return false;
    op->result.cancelled = op->withdrawn;
    if (!op->withdrawn
        && wm_stash_probe(op->comm, op->rank, op->tag, &found, &op->result,
                          &err)
               < 0)
        wm_op_fail(op, &err);
    if (found == NULL && !op->withdrawn && op->error.code == 0)
        return false;
    if (found != NULL && op->takes_out) {
        wm_stash_remove(op->comm, found);
        op->matched = found;
    }
    return true;
}

int
wm_probe_begin(wm_comm_t *comm, int rank, int tag, bool matched,
               wm_op_t **result, wm_error_t *err)
{
    wm_op_t *op;
    // As many bytes as have come.
    wm_buffer_t none = {.nbytes = SIZE_MAX, .memory = {.device = -1}};
    wm_envelope_t envelope = {
        .rank = rank,
        .tag = tag,
        .blocking = true,
        .stream_device = -1,
    };
    int code = wm_begin_op(comm, &none, &envelope, true, &op, err);
    if (code < 0)
        return code;
    *result = op;
    op->step = step;
    op->takes_out = matched;
    wm_engine_lock();
    if (!atomic_load(&op->done)) {
        wm_op_retain(op); // the engine's
        wm_engine_add_lock_held(op);
    }
    wm_engine_unlock();
    return 0;
}

wm_stashed_t *
wm_probe_take(wm_op_t *op)
{
    wm_engine_lock();
    wm_stashed_t *matched = op->matched;
    op->matched = NULL;
    wm_engine_unlock();
    return matched;
}
