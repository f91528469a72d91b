// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/run/coll.h"

#include "comm/coll/call/coll_refused.h"
#include "comm/coll/call/coll_wait.h"
#include "comm/coll/run/coll_class.h"
#include "comm/coll/run/coll_on_stream.h"
#include "comm/coll/run/coll_require.h"
#include "comm/coll/run/nonblocking.h"
#include "comm/comm/require.h"
#include "comm/engine/engine.h"
#include "comm/node/mapping.h"

int
wm_coll_barrier(wm_comm_t *comm, wm_error_t *err)
{
    wm_preflight_t preflight = {.call = WM_COLL_BARRIER}, last = preflight;
    wm_engine_lock();
    preflight.notices = wm_rkey_notify() != 0;
    wm_engine_unlock();
    int code = wm_preflight_run(comm, &preflight, err);
    if (code < 0)
        return code;
    wm_engine_lock();
    wm_mapping_heed_notices(); // also closes what could not be closed before
    wm_engine_unlock();
    return preflight.notices ? wm_preflight_run(comm, &last, err) : 0;
}

bool
wm_coll_is_numbered(wm_comm_t *comm)
{
    return wm_coll_engines_span(comm) != 0;
}

bool
wm_coll_is_mpis(wm_comm_t *comm, wm_coll_kind_t kind)
{
    return (comm->colls.refused & 1u << WM_COLL_FORM_BLOCKING) == 0
           && wm_coll_class_repeat(comm, kind, false);
}

void
wm_coll_decline(wm_comm_t *comm)
{
    if (wm_comm_is_one_host(comm)
        && !wm_coll_was_refused(comm, WM_COLL_FORM_BLOCKING)
        && wm_coll_is_numbered(comm))
        wm_barrier_enter(comm->barrier, false);
}

void
wm_coll_refused(wm_comm_t *comm, wm_coll_form_t form)
{
    if (form == WM_COLL_FORM_BLOCKING && wm_comm_is_one_host(comm)
        && !wm_coll_is_numbered(comm) && !wm_require_is_on(comm))
        return; // the call had no number
    wm_coll_refuse(comm, form);
    if (form == WM_COLL_FORM_PERSISTENT && wm_comm_is_one_host(comm))
        wm_coll_refuse(comm, WM_COLL_FORM_BLOCKING);
}

static int
look_whether_ready(void *context, wm_error_t *err)
{
    return wm_coll_op_is_ready(context, err);
}

static int
look_at_step(void *context, wm_error_t *err)
{
    bool waits = false;
    wm_coll_result_t result = wm_coll_op_step(context, &waits, err);
    return result < 0 ? (int)result : !waits;
}

// Steps the call to its end, without the engine's list of operations: the
// caller waits, so its own thread looks, without a lock.
static wm_coll_result_t
coll_follow(wm_comm_t *comm, wm_coll_op_t *op, wm_error_t *err)
{
    int code = 0;
    while (code == 0 && op->result == WM_COLL_UNDER_WAY)
        code = wm_coll_wait(comm, look_at_step, op, op->looks, err);
    if (code < 0 && op->result == WM_COLL_UNDER_WAY)
        wm_coll_engines_abort(comm, op->engine);
    return code < 0 ? (wm_coll_result_t)code : op->result;
}

// Opens the first engine that serves all ranks, and publishes the data again,
// as all ranks have exchanged others meanwhile.
static int
open_first(wm_comm_t *comm, wm_coll_op_t *op, wm_preflight_t *preflight,
           wm_error_t *err)
{
    unsigned among = preflight->all;
    int code = wm_coll_engines_open(comm, preflight->call,
                                    wm_coll_device(op->participant.call),
                                    &among, err);
    if (code < 0)
        return code;
    op->engines &= among;
    *preflight = wm_coll_op_preflight(op, 0);
    return wm_preflight_run(comm, preflight, err);
}

// Frees what other engines have taken, and lets MPI do the call, if the core
// can give it the arguments. `why` is MPI to do it.
static wm_coll_result_t
coll_by_mpi(wm_coll_op_t *op, wm_coll_result_t why, wm_error_t *err)
{
    wm_coll_op_drop(op);
    op->engine = &wm_mpi_engine;
    wm_coll_result_t result = wm_coll_op_start(op, err);
    if (op->refused && why == WM_COLL_BY_MPI)
        wm_coll_refused(op->participant.comm, WM_COLL_FORM_BLOCKING);
    return result == WM_COLL_BY_MPI ? why : result;
}

// Does a call whose engine is chosen.
static wm_coll_result_t
coll_run(wm_comm_t *comm, wm_coll_op_t *op, int code, wm_error_t *err)
{
    wm_coll_result_t result = code < 0 ? (wm_coll_result_t)code
                              : wm_coll_op_is_mpis(op)
                                  ? WM_COLL_BY_MPI
                                  : wm_coll_op_start(op, err);
    if (result == WM_COLL_UNDER_WAY)
        result = coll_follow(comm, op, err);
    if (result == WM_COLL_DONE)
        result = (wm_coll_result_t)wm_coll_on_stream_find_failure(comm, err);
    bool left = result == WM_COLL_BY_MPI && !wm_coll_op_is_mpis(op)
                && wm_require_is_on(comm); // by all ranks
    if (result == WM_COLL_BY_MPI && !left)
        return coll_by_mpi(op, result, err);
    if (left)
        result = (wm_coll_result_t)wm_coll_require_refuse(
            comm, op->participant.call, err);
    wm_coll_op_drop(op);
    return result;
}

// Lets MPI do a call that no engine does, if no rank refuses to stage memory.
static wm_coll_result_t
coll_by_mpi_if_allowed(wm_coll_op_t *op, bool asks, wm_coll_result_t why,
                       wm_error_t *err)
{
    wm_comm_t *comm = op->participant.comm;
    const wm_coll_t *call = op->participant.call;
    int code = asks ? wm_coll_require_ask(comm, call, err) : 0;
    if (code == 0)
        return coll_by_mpi(op, why, err);
    wm_coll_op_drop(op);
    return (wm_coll_result_t)code;
}

// Does a call of ranks on several hosts, by the engine of its class.
static wm_coll_result_t
call_between_hosts(wm_comm_t *comm, const wm_coll_t *call, wm_error_t *err)
{
    wm_coll_op_t op;
    unsigned engines = 0;
    bool refused = wm_coll_was_refused(comm, WM_COLL_FORM_BLOCKING);
    wm_coll_op_init(&op, comm, NULL, call, WM_COLL_FORM_BLOCKING);
    bool repeats = !refused
                   && wm_coll_class_repeat(comm, call->kind, call->on_device);
    bool known = refused || repeats || wm_coll_class_find(&op, &engines);
    int code = known ? 0 : wm_coll_class_ask(&op, &engines, err);
    if (code == 0 && engines == 0)
        return coll_by_mpi_if_allowed(
            &op, !refused && wm_coll_require_asks(comm, call->kind),
            known && !repeats && !refused ? WM_COLL_UNNUMBERED
                                          : WM_COLL_BY_MPI,
            err);
    if (code == 0)
        code = wm_coll_op_begin_chosen(&op, engines, err);
    if (code == 0 && op.engine->in_order)
        code = wm_nonblocking_await(comm, err);
    return coll_run(comm, &op, code, err);
}

wm_coll_result_t
wm_coll_call(wm_comm_t *comm, const wm_coll_t *call, wm_error_t *err)
{
    wm_coll_op_t op;
    if (!wm_comm_is_one_host(comm))
        return call_between_hosts(comm, call, err);
    wm_coll_op_init(&op, comm, comm->barrier, call, WM_COLL_FORM_BLOCKING);
    int code = wm_coll_op_prepare(&op, err);
    if (code == 0 && op.engines == 0) {
        bool asks = wm_coll_require_asks(comm, call->kind);
        if (!asks)
            wm_coll_decline(comm); // we wait for no other rank
        return coll_by_mpi_if_allowed(&op, asks, WM_COLL_BY_MPI, err);
    }
    if (code == 0)
        code = wm_coll_wait(comm, look_whether_ready, &op, WM_LOOKS_AT_STREAM,
                            err);
    wm_preflight_t preflight = wm_coll_op_preflight(&op, code);
    code = wm_preflight_or_decline(comm, &preflight, err);
    if (code == 0 && !wm_coll_engines_first_is_open(comm, preflight.all))
        code = open_first(comm, &op, &preflight, err);
    if (code == 0 && preflight.all == 0 && wm_require_is_on(comm))
        code = wm_coll_require_judge(comm, call, &preflight, err);
    if (code > 0)
        wm_coll_op_choose_mpi(&op);
    if (code == 0)
        code = wm_coll_op_choose(&op, preflight.all, err);
    return coll_run(comm, &op, code, err);
}
