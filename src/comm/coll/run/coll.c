// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/run/coll.h"

#include "comm/coll/direct/preflight.h"
#include "comm/coll/call/reducible.h"
#include "comm/coll/stream/symm_coll.h"
#include "comm/coll/direct/direct_run.h"
#include "comm/coll/direct/participant.h"
#include "comm/engine/engine.h"
#include "comm/node/mapping.h"

int
wm_coll_barrier(wm_comm_t *comm, wm_error_t *err)
{
    wm_preflight_t preflight = {.call = WM_COLL_BARRIER}, last = preflight;
    wm_engine_lock();
    preflight.notices = wm_place_notify() != 0;
    wm_engine_unlock();
    int code = wm_preflight_run(comm, &preflight, err);
    if (code < 0)
        return code;
    wm_engine_lock();
    wm_mapping_heed_notices(); // also closes what could not be closed before
    wm_engine_unlock();
    return preflight.notices ? wm_preflight_run(comm, &last, err) : 0;
}

void
wm_coll_decline(wm_comm_t *comm)
{
    (void)wm_barrier_enter(comm->barrier, false);
}

void
wm_coll_refused(wm_comm_t *comm)
{
    if (wm_coll_has_barrier(comm))
        wm_barrier_enter_again(comm->barrier);
}

// Returns true if MPI, which does the call on all ranks, refuses its operation
// for these elements, or may do so.
static bool
may_be_refused(const wm_coll_t *call)
{
    wm_reduce_type_t type;
    wm_reduce_op_t op;
    return wm_coll_shape(call->kind)->reduces
           && call->type != MPI_DATATYPE_NULL
           && wm_reducible_op(call->op) < WM_REDUCE_OPS
           && !wm_coll_reducible(call, &type, &op);
}

int
wm_coll_call(wm_comm_t *comm, const wm_coll_t *call, wm_error_t *err)
{
    if (may_be_refused(call)) { // a refused call waits for no other rank
        wm_coll_decline(comm);
        return 1;
    }
    wm_participant_t participant;
    wm_error_t wrong;
    wm_plan_t plan;
    wm_preflight_t preflight = {
        .call = call->kind,
        .direct = &participant.direct,
    };
    preflight.code = wm_participant_open(&participant, comm, comm->barrier,
                                         call, err);
    if (preflight.code == 0)
        preflight.code = wm_direct_wait(&participant.direct, err);
    preflight.nbytes = wm_participant_nbytes(&participant);
    preflight.symm = wm_symm_coll_serves(comm, call);
    if (preflight.symm && !participant.direct.capable)
        wm_participant_publish(&participant);
    int code = wm_preflight_or_decline(comm, &preflight, err);
    bool by_symm = !preflight.all_capable && preflight.symm;
    if (code == 0 && !preflight.all_capable && !by_symm)
        code = 1;
    if (code == 0)
        code = wm_participant_compare(&participant, err);
    if (code == 0)
        code = !wm_participant_plan(&participant, &plan, &wrong);
    if (code == 0 && by_symm)
        code = wm_symm_coll_call(comm, call, &wrong, err);
    else if (code == 0)
        code = wm_direct_run(&participant.direct, &plan, participant.type,
                             participant.op, &wrong, err);
    wm_direct_end(&participant.direct);
    return code;
}
