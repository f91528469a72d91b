// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/run/nonblocking_call.h"

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
    wm_coll_op_fail(&op->call->coll, err);
    return true;
}

bool
wm_nonblocking_op_is_dead(wm_nonblocking_op_t *op, wm_error_t *err)
{
    return wm_failure_is_due(&op->looks)
           && wm_failure_look_at_all(op->op.comm, err) < 0;
}

void
wm_nonblocking_give_to_mpi(wm_nonblocking_call_t *call)
{
    wm_coll_op_choose_mpi(&call->coll);
    call->state = WM_NONBLOCKING_CHOSEN;
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

// Follows the result of an engine, which may leave the call to MPI.
static bool
nonblocking_call_follow(wm_nonblocking_op_t *op, wm_coll_result_t result,
                        const wm_error_t *err)
{
    wm_nonblocking_call_t *call = op->call;
    if (result < 0)
        return wm_nonblocking_op_fail(op, err);
    if (call->coll.begun)
        wm_turn_pass(&call->turn);
    if (result == WM_COLL_DONE) {
        wm_persistent_restart_note(call);
        return true;
    }
    call->state = WM_NONBLOCKING_STARTED;
    if (result == WM_COLL_BY_MPI)
        wm_nonblocking_give_to_mpi(call);
    return false;
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
    call->state = WM_NONBLOCKING_PREPARED;
    if (who == WM_DECISION_MPI)
        wm_nonblocking_give_to_mpi(call);
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
                    : wm_coll_op_is_ready(&call->coll, &err);
    *waits = ready == 0;
    if (*waits)
        return false;
    if (ready < 0) {
        call->preflight.code = ready;
        wm_coll_op_fail(&call->coll, &err);
    }
    wm_preflight_publish(op->op.comm, call->coll.participant.direct.barrier,
                         &call->preflight);
    call->state = WM_NONBLOCKING_ARRIVING;
    return false;
}

// Starts the call once its turn has come, if its engine needs turns.
static bool
nonblocking_call_start(wm_nonblocking_op_t *op, bool *waits)
{
    wm_nonblocking_call_t *call = op->call;
    wm_error_t err;
    *waits = call->coll.engine->in_order && !wm_turn_is_first(&call->turn);
    return !*waits
           && nonblocking_call_follow(op, wm_coll_op_start(&call->coll, &err),
                                      &err);
}

static bool
arrive(wm_nonblocking_op_t *op, bool *waits)
{
    wm_nonblocking_call_t *call = op->call;
    wm_error_t err;
    wm_barrier_t *barrier = call->coll.participant.direct.barrier;
    *waits = !wm_barrier_all_arrived(barrier, 0);
    if (*waits)
        return wm_nonblocking_op_is_dead(op, &err)
               && wm_nonblocking_op_fail(op, &err);
    int code = wm_preflight_conclude(op->op.comm, barrier, &call->preflight,
                                     &err);
    if (code == 0)
        code = wm_coll_op_choose(&call->coll, call->preflight.all, &err);
    call->state = WM_NONBLOCKING_CHOSEN;
    return code < 0 && wm_nonblocking_op_fail(op, &err);
}

static bool
nonblocking_call_advance(wm_nonblocking_op_t *op, bool *waits)
{
    wm_coll_op_t *coll = &op->call->coll;
    wm_error_t err;
    wm_coll_result_t result = wm_coll_op_step(coll, waits, &err);
    if (*waits && (coll->alone || !wm_nonblocking_op_is_dead(op, &err)))
        return false;
    if (*waits)
        wm_coll_engines_abort(op->op.comm, coll->engine);
    return *waits ? wm_nonblocking_op_fail(op, &err)
                  : nonblocking_call_follow(op, result, &err);
}

static bool (*const steps[])(wm_nonblocking_op_t *op, bool *waits) = {
    [WM_NONBLOCKING_RESTART] = wm_persistent_restart_come,
    [WM_NONBLOCKING_ALIKE] = wm_persistent_restart_arrive,
    [WM_NONBLOCKING_AHEAD] = wm_nonblocking_vote,
    [WM_NONBLOCKING_VOTED] = read_decision,
    [WM_NONBLOCKING_PREPARED] = nonblocking_call_publish,
    [WM_NONBLOCKING_ARRIVING] = arrive,
    [WM_NONBLOCKING_CHOSEN] = nonblocking_call_start,
    [WM_NONBLOCKING_STARTED] = nonblocking_call_advance,
};

void
wm_nonblocking_call_free(wm_nonblocking_call_t *call)
{
    wm_coll_op_drop(&call->coll);
    wm_pool_give(&call_pool, call);
}

static void
nonblocking_call_end(wm_nonblocking_call_t *call)
{
    wm_turn_pass(&call->turn);
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
        if (op->call->coll.wrong.code < 0)
            wm_op_fail(&op->op, &op->call->coll.wrong);
        nonblocking_call_end(op->call);
        op->call = NULL;
    }
    return ended;
}

static wm_asks_t
nonblocking_call_asks(const wm_op_t *base)
{
    const wm_nonblocking_op_t *op = (const wm_nonblocking_op_t *)base;
    return op->call != NULL ? op->call->coll.asks : WM_ASKS_NOTHING;
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
wm_nonblocking_call_new(wm_nonblocking_t *nonblocking, wm_comm_t *comm,
                        const wm_coll_t *asked)
{
    wm_nonblocking_call_t *call = wm_pool_take(&call_pool);
    if (call == NULL)
        return NULL;
    call->nonblocking = nonblocking;
    wm_coll_op_init(&call->coll, comm,
                    wm_turns_bank(comm, nonblocking->turns.asked + 1), asked,
                    WM_COLL_FORM_NONBLOCKING);
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
