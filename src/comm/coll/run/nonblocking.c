// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/run/nonblocking.h"

#include <stdlib.h>

#include "comm/coll/call/coll_refused.h"
#include "comm/coll/call/coll_wait.h"
#include "comm/coll/run/coll_class.h"
#include "comm/coll/run/nonblocking_call.h"
#include "comm/engine/engine.h"
#include "comm/engine/modules.h"
#include "comm/node/decision_log.h"

// The engine polls after so many begun calls; after more if many operations
// are active, as a poll looks at each.
#define BEGUN_WITHOUT_STEPS 8
#define ACTIVE_A_BEGUN 4

wm_nonblocking_t *
wm_nonblocking_of(wm_comm_t *comm)
{
    if (comm->nonblocking != NULL) // one thread calls at a time
        return comm->nonblocking;
    wm_engine_lock();
    if (comm->nonblocking == NULL)
        comm->nonblocking = calloc(1, sizeof *comm->nonblocking);
    wm_engine_unlock();
    return comm->nonblocking;
}

bool
wm_nonblocking_is_ours(const wm_comm_t *comm)
{
    return wm_nonblocking_is_voted(comm) || wm_coll_class_is_every(comm);
}

bool
wm_nonblocking_is_busy(const wm_comm_t *comm)
{
    return comm->nonblocking != NULL
           && wm_turns_any(&comm->nonblocking->turns);
}

static int
look_at_turns(void *context, wm_error_t *err)
{
    (void)err;
    return !wm_turns_any(context);
}

int
wm_nonblocking_await(wm_comm_t *comm, wm_error_t *err)
{
    return wm_nonblocking_is_busy(comm) ? wm_coll_wait(
               comm, look_at_turns, &comm->nonblocking->turns, 1, err)
                                        : 0;
}

// Gives to MPI all calls that are not decided for GPUs.
static int
withdraw(wm_comm_t *comm, wm_error_t *err)
{
    int code = 0;
    wm_turn_t *turn = comm->nonblocking->turns.first;
    for (; turn != NULL && code == 0; turn = turn->next) {
        wm_nonblocking_call_t *call = (wm_nonblocking_call_t *)turn;
        if (call->state == WM_NONBLOCKING_VOTED)
            wm_decision_withdraw(comm->aside[0], turn->number);
        if (call->state != WM_NONBLOCKING_AHEAD)
            continue;
        code = wm_deferred_votes_add(&comm->nonblocking->deferred_votes, comm,
                                     turn->number, err);
        if (code == 0)
            wm_nonblocking_give_to_mpi(call);
    }
    return code;
}

int
wm_nonblocking_decline(wm_comm_t *comm, wm_error_t *err)
{
    int code = 0;
    wm_nonblocking_t *nonblocking = wm_nonblocking_of(comm);
    if (nonblocking == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    if (wm_coll_was_refused(comm, WM_COLL_FORM_NONBLOCKING))
        return 0;
    wm_persistent_restart_differ(comm);
    if (wm_turns_any(&nonblocking->turns)) {
        wm_engine_lock();
        code = withdraw(comm, err);
        wm_engine_unlock();
        if (code == 0)
            code = wm_coll_wait(comm, look_at_turns, &nonblocking->turns, 1,
                                err);
        if (code < 0)
            return code;
    }
    wm_engine_lock();
    code = wm_deferred_votes_add(&nonblocking->deferred_votes, comm,
                                 wm_turns_skip(&nonblocking->turns), err);
    wm_engine_unlock();
    return code;
}

// Makes the state and the operation of a new call.
static wm_coll_result_t
new_call(wm_comm_t *comm, const wm_coll_t *asked, wm_nonblocking_op_t **op,
         wm_error_t *err)
{
    wm_nonblocking_call_t *call = wm_nonblocking_call_new(
        comm->nonblocking, comm, asked, WM_COLL_FORM_NONBLOCKING);
    *op = call != NULL ? wm_nonblocking_op_new(comm, call) : NULL;
    if (*op != NULL)
        return WM_COLL_DONE;
    if (call != NULL)
        wm_nonblocking_call_free(call);
    return (wm_coll_result_t)wm_error_set(err, WM_ERR_MEMORY, 0,
                                          "out of host memory");
}

// Frees a call that is not begun here.
static void
give_up(wm_nonblocking_op_t *op)
{
    wm_nonblocking_call_free(op->call);
    wm_op_release(&op->op);
}

// Opens this rank's state of a new call; WM_COLL_BY_MPI: the caller makes
// MPI's call.
static wm_coll_result_t
open_call(wm_comm_t *comm, const wm_coll_t *asked, wm_nonblocking_op_t **op,
          wm_error_t *err)
{
    wm_error_t wrong;
    wm_coll_result_t result = new_call(comm, asked, op, err);
    if (result != WM_COLL_DONE)
        return result;
    wm_nonblocking_call_t *call = (*op)->call;
    int code = wm_coll_op_prepare(&call->coll, &wrong);
    bool asks = call->coll.engines != 0;
    if (!asks && !wm_coll_op_may_queue(&call->coll)) {
        give_up(*op);
        return WM_COLL_BY_MPI;
    }
    if (code < 0)
        wm_coll_op_fail(&call->coll, &wrong); // raised at its end
    call->state = WM_NONBLOCKING_AHEAD;
    if (!asks)
        wm_nonblocking_give_to_mpi(call);
    call->preflight = wm_coll_op_preflight(&call->coll, code);
    return WM_COLL_DONE;
}

static void
nonblocking_enlist(wm_nonblocking_t *nonblocking, wm_nonblocking_op_t *op)
{
    wm_nonblocking_call_t *call = op->call;
    wm_error_t wrong;
    bool waits;
    wm_engine_lock();
    wm_turn_enlist(&nonblocking->turns, &call->turn);
    if (call->state == WM_NONBLOCKING_AHEAD)
        (void)wm_nonblocking_vote(call, &waits);
    else if (wm_comm_is_one_host(op->op.comm)
             && wm_deferred_votes_add(&nonblocking->deferred_votes,
                                      op->op.comm, call->turn.number, &wrong)
                    < 0)
        (void)wm_nonblocking_call_fail(call, &wrong);
    wm_engine_unlock();
}

// Polls now and then, after a call has begun, for calls begun before.
static void
see_to_others(void)
{
    static _Atomic unsigned begun;
    unsigned active = (unsigned)wm_engine_active();
    if (++begun >= BEGUN_WITHOUT_STEPS + active / ACTIVE_A_BEGUN) {
        begun = 0;
        wm_engine_poll();
    }
    wm_engine_notify();
}

// Finds the engine of a call whose class is not settled. WM_COLL_UNDER_WAY:
// once the question is answered.
static wm_coll_result_t
find_unsettled(wm_nonblocking_call_t *call, unsigned *engines, wm_error_t *err)
{
    call->usable = wm_coll_op_usable(&call->coll);
    *engines = wm_coll_engines_first(call->usable);
    if (*engines == 0 || wm_coll_engines_first_takes_all(*engines))
        return WM_COLL_DONE;
    wm_nonblocking_follow_program(call);
    int code = wm_coll_class_begin(&call->coll, &call->class, err);
    return code < 0 ? (wm_coll_result_t)code : WM_COLL_UNDER_WAY;
}

// Opens a call of ranks on several hosts, whose engine all know, or hear of.
static wm_coll_result_t
open_between_hosts(wm_comm_t *comm, const wm_coll_t *asked,
                   wm_nonblocking_op_t **op, wm_error_t *err)
{
    unsigned engines;
    wm_coll_result_t result = new_call(comm, asked, op, err);
    if (result != WM_COLL_DONE)
        return result;
    wm_nonblocking_call_t *call = (*op)->call;
    if (!wm_coll_class_find(&call->coll, &engines))
        result = find_unsettled(call, &engines, err);
    bool asks = result == WM_COLL_UNDER_WAY;
    if (result == WM_COLL_DONE && engines == 0)
        result = WM_COLL_UNNUMBERED;
    else if (result == WM_COLL_DONE)
        result = (wm_coll_result_t)wm_coll_op_begin_chosen(&call->coll,
                                                           engines, err);
    call->state = asks ? WM_NONBLOCKING_ASKED : WM_NONBLOCKING_BEGUN;
    if (asks || result == WM_COLL_DONE)
        result = (wm_coll_result_t)wm_nonblocking_announce(call, err);
    if (result != WM_COLL_DONE)
        give_up(*op);
    return result;
}

wm_coll_result_t
wm_nonblocking_begin(wm_comm_t *comm, const wm_coll_t *asked,
                     wm_buffer_t *kept, wm_op_t **op, wm_error_t *err)
{
    wm_nonblocking_op_t *made;
    int code = wm_engine_start(err);
    wm_nonblocking_t *nonblocking = wm_nonblocking_of(comm);
    if (code == 0 && nonblocking == NULL)
        code = wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    if (code < 0)
        return (wm_coll_result_t)code;
    if (wm_coll_was_refused(comm, WM_COLL_FORM_NONBLOCKING))
        return WM_COLL_BY_MPI;
    if (wm_persistent_restart_begin(comm, asked, kept, op)) {
        see_to_others();
        return WM_COLL_DONE;
    }
    wm_coll_result_t result = !wm_comm_is_one_host(comm)
                                  ? open_between_hosts(comm, asked, &made, err)
                              : asked->on_device
                                      || wm_nonblocking_is_busy(comm)
                                  ? open_call(comm, asked, &made, err)
                                  : WM_COLL_BY_MPI;
    if (result == WM_COLL_BY_MPI
        && (code = wm_nonblocking_decline(comm, err)) < 0)
        return (wm_coll_result_t)code;
    if (result != WM_COLL_DONE)
        return result;
    made->kept = *kept;
    *op = &made->op;
    nonblocking_enlist(nonblocking, made);
    see_to_others();
    return WM_COLL_DONE;
}

int
wm_nonblocking_make_persistent(wm_comm_t *comm, wm_error_t *err)
{
    wm_nonblocking_t *nonblocking = wm_nonblocking_of(comm);
    if (nonblocking == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    nonblocking->restart.repeats = true;
    return 0;
}

static void
nonblocking_drop(wm_comm_t *comm)
{
    wm_nonblocking_t *nonblocking = comm->nonblocking;
    if (nonblocking == NULL)
        return;
    wm_persistent_restart_drop(&nonblocking->restart);
    wm_deferred_votes_free(&nonblocking->deferred_votes);
    free(nonblocking);
}

const wm_module_t wm_nonblocking_module = {.drop = nonblocking_drop};
