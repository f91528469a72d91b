// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/run/nonblocking_call.h"

#include <string.h>

#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/engine/pool.h"
#include "comm/node/decision_log.h"

static wm_pool_t call_pool = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .bytes = sizeof(wm_nonblocking_call_t),
};

bool
wm_nonblocking_op_fail(wm_nonblocking_op_t *op, const wm_error_t *err)
{
    wm_op_fail(&op->op, err);
    return true;
}

bool
wm_nonblocking_op_is_dead(wm_nonblocking_op_t *op, wm_error_t *err)
{
    return wm_failure_is_due(&op->looks)
           && wm_failure_look_at_all(op->op.comm, err) < 0;
}

// Each of these steps returns true if the call has ended, and sets `state` to
// the next step.

bool
wm_nonblocking_vote(wm_nonblocking_op_t *op, bool *waits)
{
    wm_error_t err;
    *waits = !wm_decision_vote(op->op.comm->aside[0], op->call->turn.number,
                               true);
    op->call->state = *waits ? WM_NONBLOCKING_AHEAD : WM_NONBLOCKING_VOTED;
    return *waits && wm_nonblocking_op_is_dead(op, &err)
           && wm_nonblocking_op_fail(op, &err);
}

static bool
read_decision(wm_nonblocking_op_t *op, bool *waits)
{
    wm_nonblocking_call_t *call = op->call;
    wm_error_t err;
    wm_decision_t who = wm_decision_read(op->op.comm->aside[0],
                                         call->turn.number);
    *waits = who == WM_DECISION_OPEN;
    if (*waits)
        return wm_nonblocking_op_is_dead(op, &err)
               && wm_nonblocking_op_fail(op, &err);
    call->state = who == WM_DECISION_GPUS ? WM_NONBLOCKING_GPUS
                                          : WM_NONBLOCKING_MPIS;
    return false;
}

static bool
nonblocking_call_publish(wm_nonblocking_op_t *op, bool *waits)
{
    wm_nonblocking_call_t *call = op->call;
    wm_error_t err;
    *waits = !wm_turn_has_bank(&call->turn);
    if (*waits)
        return false;
    int ready = call->preflight.code < 0
                    ? 1
                    : wm_direct_is_ready(&call->participant.direct, &err);
    *waits = ready == 0;
    if (*waits)
        return false;
    if (ready < 0) {
        call->preflight.code = ready;
        (void)wm_nonblocking_op_fail(op, &err); // reported at its end
    }
    wm_preflight_publish(op->op.comm, call->participant.direct.barrier,
                         &call->preflight);
    call->state = WM_NONBLOCKING_ARRIVING;
    return false;
}

static bool
arrive(wm_nonblocking_op_t *op, bool *waits)
{
    wm_nonblocking_call_t *call = op->call;
    wm_comm_t *comm = op->op.comm;
    wm_participant_t *participant = &call->participant;
    wm_error_t err, wrong;
    wm_barrier_t *barrier = participant->direct.barrier;
    *waits = !wm_barrier_all_arrived(barrier, 0);
    if (*waits)
        return wm_nonblocking_op_is_dead(op, &err)
               && wm_nonblocking_op_fail(op, &err);
    int code = wm_preflight_conclude(comm, barrier, &call->preflight, &err);
    if (code == 0)
        code = wm_participant_compare(participant, &err);
    if (code < 0)
        return wm_nonblocking_op_fail(op, &err);
    if (!wm_participant_plan(participant, &call->plan, &wrong)) {
        call->state = WM_NONBLOCKING_MPIS;
        return false;
    }
    wm_direct_start(&call->run, &participant->direct, &call->plan,
                    participant->type, participant->op, true, &wrong);
    call->state = WM_NONBLOCKING_FOLLOWING;
    return false;
}

static bool
nonblocking_call_follow(wm_nonblocking_op_t *op, bool *waits)
{
    wm_nonblocking_call_t *call = op->call;
    wm_error_t err;
    *waits = !wm_direct_look(&call->run);
    if (*waits && (call->run.busy || !wm_nonblocking_op_is_dead(op, &err)))
        return false;
    if (*waits)
        return wm_nonblocking_op_fail(op, &err);
    if (!wm_direct_go_on(&call->run))
        return false;
    int code = wm_direct_finish(&call->run, &err);
    if (code > 0)
        call->state = WM_NONBLOCKING_MPIS;
    if (code == 0)
        wm_persistent_restart_note(call);
    return code < 0 ? wm_nonblocking_op_fail(op, &err) : code == 0;
}

static bool
fetch(wm_nonblocking_op_t *op, bool *waits)
{
    wm_nonblocking_call_t *call = op->call;
    wm_participant_t *participant = &call->participant;
    wm_error_t err;
    *waits = !wm_turn_is_first(&call->turn);
    int ready = *waits || op->op.error.code < 0
                    ? 1
                    : wm_direct_is_ready(&participant->direct, &err);
    if (*waits || (*waits = ready == 0))
        return false;
    int code = ready < 0 ? ready : op->op.error.code;
    if (code == 0
        && (code = wm_by_mpi_fetch(&call->by, participant, &err)) < 0)
        wm_by_mpi_end(&call->by);
    if (code < 0) {
        if (op->op.error.code == 0)
            (void)wm_nonblocking_op_fail(op, &err); // reported at its end
        if (wm_by_mpi_spoil(&call->by, participant, &err) < 0)
            return true;
    }
    call->state = WM_NONBLOCKING_FETCHING;
    return false;
}

static bool
post(wm_nonblocking_op_t *op, bool *waits)
{
    wm_nonblocking_call_t *call = op->call;
    wm_error_t err;
    int copied = wm_by_mpi_is_copied(&call->by, &err);
    *waits = copied == 0;
    if (*waits)
        return false;
    if (copied < 0)
        (void)wm_nonblocking_op_fail(op,
                                     &err); // MPI gets spoilt data
    if (wm_by_mpi_begin(&call->by, &err) < 0)
        return wm_nonblocking_op_fail(op, &err);
    wm_turn_pass(&call->turn);
    call->state = WM_NONBLOCKING_POSTED;
    return false;
}

static bool
nonblocking_call_test(wm_nonblocking_op_t *op, bool *waits)
{
    wm_nonblocking_call_t *call = op->call;
    wm_error_t err;
    int ended = wm_by_mpi_test(&call->by, &err);
    *waits = ended == 0;
    if (*waits)
        return false;
    if (ended < 0)
        return wm_nonblocking_op_fail(op, &err);
    if (op->op.error.code < 0)
        return true;
    call->state = WM_NONBLOCKING_STORING;
    return wm_by_mpi_store(&call->by, &err) < 0
           && wm_nonblocking_op_fail(op, &err);
}

static bool
store(wm_nonblocking_op_t *op, bool *waits)
{
    wm_error_t err;
    int copied = wm_by_mpi_is_copied(&op->call->by, &err);
    *waits = copied == 0;
    return copied < 0 ? wm_nonblocking_op_fail(op, &err) : copied > 0;
}

static bool (*const steps[])(wm_nonblocking_op_t *op, bool *waits) = {
    [WM_NONBLOCKING_RESTART] = wm_persistent_restart_come,
    [WM_NONBLOCKING_ALIKE] = wm_persistent_restart_arrive,
    [WM_NONBLOCKING_AHEAD] = wm_nonblocking_vote,
    [WM_NONBLOCKING_VOTED] = read_decision,
    [WM_NONBLOCKING_GPUS] = nonblocking_call_publish,
    [WM_NONBLOCKING_ARRIVING] = arrive,
    [WM_NONBLOCKING_FOLLOWING] = nonblocking_call_follow,
    [WM_NONBLOCKING_MPIS] = fetch,
    [WM_NONBLOCKING_FETCHING] = post,
    [WM_NONBLOCKING_POSTED] = nonblocking_call_test,
    [WM_NONBLOCKING_STORING] = store,
};

void
wm_nonblocking_call_free(wm_nonblocking_call_t *call)
{
    if (call->run.direct != NULL)
        wm_direct_unmap(&call->run);
    wm_direct_end(&call->participant.direct);
    wm_pool_give(&call_pool, call);
}

static void
nonblocking_call_end(wm_nonblocking_call_t *call)
{
    wm_turn_pass(&call->turn);
    wm_by_mpi_end(&call->by);
    if (!wm_persistent_restart_keep(call))
        wm_nonblocking_call_free(call);
}

static bool
nonblocking_call_step(wm_op_t *base)
{
    wm_nonblocking_op_t *op = (wm_nonblocking_op_t *)base;
    bool waits = false, ended = false;
    while (!waits && !ended)
        ended = steps[op->call->state](op, &waits);
    if (ended) {
        nonblocking_call_end(op->call);
        op->call = NULL;
    }
    return ended;
}

static wm_asks_t
nonblocking_call_asks(const wm_op_t *base)
{
    const wm_nonblocking_op_t *op = (const wm_nonblocking_op_t *)base;
    return op->call != NULL && op->call->state == WM_NONBLOCKING_POSTED
               ? WM_ASKS_ALONE
               : WM_ASKS_NOTHING;
}

static wm_buffer_t *
nonblocking_call_buffer_of(wm_op_t *op)
{
    return &((wm_nonblocking_op_t *)op)->kept;
}

static const wm_op_kind_t kind = {
    .step = nonblocking_call_step,
    .asks = nonblocking_call_asks,
    .buffer = nonblocking_call_buffer_of,
};

wm_nonblocking_call_t *
wm_nonblocking_call_new(wm_nonblocking_t *nonblocking)
{
    wm_nonblocking_call_t *call = wm_pool_take(&call_pool);
    if (call == NULL)
        return NULL;
    call->nonblocking = nonblocking;
    call->run.direct = NULL;
    memset(&call->by, 0, sizeof call->by);
    return call;
}

wm_nonblocking_op_t *
wm_nonblocking_op_new(wm_comm_t *comm, wm_nonblocking_call_t *call)
{
    wm_nonblocking_op_t *op = wm_op_new(&kind, sizeof *op, comm);
    if (op == NULL)
        return NULL;
    op->call = call;
    call->turn.op = &op->op;
    return op;
}
