// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/run/persistent_restart.h"

#include "comm/coll/call/preflight_values.h"
#include "comm/coll/direct/direct_run.h"
#include "comm/coll/run/nonblocking_call.h"
#include "comm/engine/engine.h"
#include "comm/engine/stats.h"

// A rank arrives at this step of bank 0 if it does not restart the kept call.
#define DIFFERS (WM_BARRIER_STEPS - 1)

_Static_assert(WM_DIRECT_STEPS <= DIFFERS, "no plan comes so far");

static void
restart_publish(wm_barrier_t *barrier, bool alike)
{
    (void)wm_barrier_epoch_begin(barrier);
    wm_published_t *mine = wm_preflight_own_data(barrier);
    if (mine->failed != 0) // else no write: others cache the line
        mine->failed = 0;
    wm_barrier_arrive(barrier, alike ? 0 : DIFFERS);
}

bool
wm_persistent_restart_come(wm_nonblocking_op_t *op, bool *waits)
{
    wm_nonblocking_call_t *call = op->call;
    wm_error_t err;
    int ready = wm_coll_op_is_ready(&call->coll, &err);
    *waits = ready == 0;
    if (*waits)
        return false;
    if (ready < 0) {
        call->preflight.code = ready;
        wm_coll_op_fail(&call->coll, &err);
    }
    restart_publish(op->op.comm->barrier, ready > 0);
    call->state = WM_NONBLOCKING_ALIKE;
    return false;
}

bool
wm_persistent_restart_arrive(wm_nonblocking_op_t *op, bool *waits)
{
    wm_nonblocking_call_t *call = op->call;
    wm_coll_op_t *coll = &call->coll;
    wm_barrier_t *barrier = op->op.comm->barrier;
    wm_error_t err;
    *waits = !wm_barrier_all_arrived(barrier, 0);
    if (*waits)
        return wm_nonblocking_op_is_dead(op, &err)
               && wm_nonblocking_op_fail(op, &err);
    // A rank in a later epoch has differed, too: MPI did its call, and it has
    // closed the communicator.
    if (wm_barrier_any_arrived(barrier, DIFFERS)) { // vote anew
        wm_coll_op_leave(coll);
        wm_turn_take(&call->nonblocking->turns, &call->turn);
        coll->participant.direct.barrier = wm_turns_bank(op->op.comm,
                                                         call->turn.number);
        call->state = WM_NONBLOCKING_AHEAD;
        return false;
    }
    coll->engine->restart->restart(coll, barrier);
    wm_stat_add(WM_STAT_repeated_collectives, 1);
    call->state = WM_NONBLOCKING_STARTED;
    return false;
}

void
wm_persistent_restart_differ(wm_comm_t *comm)
{
    wm_persistent_restart_t *restart = &comm->nonblocking->restart;
    if (!restart->went)
        return;
    wm_engine_lock();
    restart_publish(comm->barrier, false);
    restart->went = false;
    wm_engine_unlock();
    wm_persistent_restart_drop(restart);
}

static void
restart_enlist(wm_nonblocking_op_t *op, const wm_buffer_t *kept)
{
    wm_persistent_restart_t *restart = &op->call->nonblocking->restart;
    bool waits;
    restart->kept = NULL;
    restart->went = false; // until this start has
    op->kept = *kept;
    op->call->state = WM_NONBLOCKING_RESTART;
    wm_engine_add_lock_held(&op->op);
    (void)wm_persistent_restart_come(op, &waits);
}

static bool
persistent_restart_begin(wm_comm_t *comm, wm_nonblocking_call_t *call,
                         const wm_buffer_t *kept, wm_op_t **op)
{
    wm_nonblocking_op_t *made = wm_nonblocking_op_new(comm, call);
    if (made == NULL)
        return false;
    if (!call->coll.engine->restart->resume(&call->coll)) {
        wm_op_release(&made->op);
        return false;
    }
    wm_engine_lock();
    restart_enlist(made, kept);
    wm_engine_unlock();
    *op = &made->op;
    return true;
}

bool
wm_persistent_restart_begin(wm_comm_t *comm, const wm_coll_t *asked,
                            const wm_buffer_t *kept, wm_op_t **op)
{
    wm_nonblocking_call_t *call = comm->nonblocking->restart.kept;
    if (!comm->nonblocking->restart.went)
        return false;
    if (call != NULL && call->coll.participant.call == asked
        && persistent_restart_begin(comm, call, kept, op))
        return true;
    wm_persistent_restart_differ(comm);
    return false;
}

void
wm_persistent_restart_note(wm_nonblocking_call_t *call)
{
    wm_persistent_restart_t *restart = &call->nonblocking->restart;
    const wm_coll_restart_t *row = call->coll.engine->restart;
    restart->went = restart->repeats && row != NULL
                    && row->repeats(&call->coll);
}

bool
wm_persistent_restart_keep(wm_nonblocking_call_t *call)
{
    wm_persistent_restart_t *restart = &call->nonblocking->restart;
    if (!restart->went || !call->coll.engine->restart->rest(&call->coll))
        return false;
    restart->kept = call;
    return true;
}

void
wm_persistent_restart_drop(wm_persistent_restart_t *restart)
{
    wm_engine_lock();
    if (restart->kept != NULL)
        wm_nonblocking_call_free(restart->kept);
    restart->kept = NULL;
    wm_engine_unlock();
}
