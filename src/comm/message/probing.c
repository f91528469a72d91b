// SPDX-License-Identifier: BSD-3-Clause
#include "comm/engine/engine.h"
#include "comm/message/p2p.h"
#include "comm/message/unexpected.h"

typedef struct {
    wm_op_t op;
    int rank, tag;
    bool takes_out; // a matching probe
    bool held;      // it must not look for messages
    bool withdrawn; // it was cancelled
    wm_unexpected_t *matched;
} probe_t;

static bool
probing_step(wm_op_t *op)
{
    wm_error_t err;
    wm_unexpected_t *found = NULL;
    probe_t *probe = (probe_t *)op;
    if (probe->held)
        return false;
    op->result.cancelled = probe->withdrawn;
    if (!probe->withdrawn
        && wm_unexpected_probe(op->comm, probe->rank, probe->tag, &found,
                               &op->result, &err)
               < 0)
        wm_op_fail(op, &err);
    if (found == NULL && !probe->withdrawn && op->error.code == 0)
        return false;
    if (found != NULL && probe->takes_out) {
        wm_unexpected_remove(op->comm, found);
        probe->matched = found;
    }
    return true;
}

static void
probing_about(const wm_op_t *op, wm_about_t *about)
{
    const probe_t *probe = (const probe_t *)op;
    *about = (wm_about_t){
        .is_message = true,
        .receives = true,
        .rank = probe->rank,
        .tag = probe->tag,
        .peer = probe->rank >= 0 ? op->comm->peers[probe->rank] : NULL,
    };
}

static bool
probing_cancel(wm_op_t *op)
{
    probe_t *probe = (probe_t *)op;
    probe->withdrawn = true;
    probe->held = false;
    return true;
}

static bool
probing_hold(wm_op_t *op, bool held)
{
    probe_t *probe = (probe_t *)op;
    probe->held = held && !atomic_load(&op->done);
    return probe->held;
}

static const wm_op_kind_t kind = {
    .step = probing_step,
    .about = probing_about,
    .cancel = probing_cancel,
    .interrupt = probing_cancel,
    .hold = probing_hold,
};

int
wm_probe_begin(wm_comm_t *comm, int rank, int tag, bool matched,
               wm_op_t **result, wm_error_t *err)
{
    int code = wm_engine_check(err);
    if (code == 0)
        code = wm_comm_check(comm, "source", rank, tag, true, err);
    probe_t *probe = code == 0 ? wm_op_new(&kind, sizeof *probe, comm) : NULL;
    if (code == 0 && probe == NULL)
        code = wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    if (code < 0)
        return code;
    probe->rank = rank;
    probe->tag = tag;
    probe->takes_out = matched;
    probe->op.result = (wm_result_t){
        .received = true,
        .source = rank,
        .tag = rank == MPI_PROC_NULL ? MPI_ANY_TAG : tag,
    };
    *result = &probe->op;
    if (rank == MPI_PROC_NULL) {
        atomic_store(&probe->op.done, WM_DONE_TOLD);
        return 0;
    }
    wm_engine_add(&probe->op);
    return 0;
}

wm_unexpected_t *
wm_probe_matched(wm_op_t *op)
{
    probe_t *probe = (probe_t *)op;
    wm_engine_lock();
    wm_unexpected_t *matched = probe->matched;
    probe->matched = NULL;
    wm_engine_unlock();
    return matched;
}
