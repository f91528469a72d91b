// SPDX-License-Identifier: BSD-3-Clause
// The engine "hierarchy": calls of GPU memory between hosts, of which one has
// several ranks (hierarchy.h).
#include "array/kernels.h"
#include "array/pull.h"
#include "comm/coll/hierarchy/hierarchy.h"
#include "comm/coll/hierarchy/hierarchy_blocking.h"
#include "comm/coll/hierarchy/hierarchy_stream.h"
#include "comm/coll/run/coll_engines.h"
#include "comm/coll/run/coll_tell.h"
#include "comm/comm/failure.h"
#include "comm/comm/require.h"
#include "comm/engine/engine.h"

static wm_hierarchy_t *
hierarchy_state(wm_coll_op_t *op)
{
    return (wm_hierarchy_t *)op->state;
}

static bool
hierarchy_spans(const wm_comm_t *comm)
{
    const wm_hosts_t *hosts = &comm->hosts;
    return comm->split == 0 && hosts->count > 1 && hosts->largest > 1;
}

typedef void
hierarchy_plan_t(wm_hierarchy_t *own);

static hierarchy_plan_t *const plans[WM_COLL_KINDS] = {
    [WM_COLL_BCAST] = wm_hierarchy_bcast,
    [WM_COLL_ALLREDUCE] = wm_hierarchy_reduce,
    [WM_COLL_REDUCE] = wm_hierarchy_reduce,
    [WM_COLL_GATHER] = wm_hierarchy_gather,
    [WM_COLL_ALLGATHER] = wm_hierarchy_gather,
    [WM_COLL_ALLGATHERV] = wm_hierarchy_gather,
    [WM_COLL_SCATTER] = wm_hierarchy_scatter,
    [WM_COLL_REDUCE_SCATTER] = wm_hierarchy_scatter,
    [WM_COLL_REDUCE_SCATTER_BLOCK] = wm_hierarchy_scatter,
    [WM_COLL_ALLTOALL] = wm_hierarchy_alltoall,
};

void
wm_hierarchy_plan(wm_hierarchy_t *own)
{
    plans[own->call->kind](own);
}

static bool
hierarchy_does(const wm_coll_facts_t *facts)
{
    const wm_hosts_t *hosts = &facts->comm->hosts;
    return plans[facts->kind] != NULL
           && (facts->kind != WM_COLL_ALLTOALL
               || hosts->smallest == hosts->largest);
}

static bool
hierarchy_serves(const wm_coll_op_t *op, const void *state)
{
    (void)state;
    return op->form != WM_COLL_FORM_PERSISTENT || op->participant.call->read;
}

// Data on another GPU than that of the levels' engines are moved there.
static int
hierarchy_prepare(wm_coll_op_t *op, unsigned bit, wm_error_t *err)
{
    const wm_coll_t *call = op->participant.call;
    const wm_buffer_t *its[] = {call->send, call->receive};
    (void)err;
    for (int i = 0; i < 2; ++i)
        if (its[i] != NULL
            && its[i]->memory.device != op->participant.comm->colls.device)
            op->engines &= ~bit;
    return 0;
}

// Opens the engines of the levels: of each kind of task the first that does
// it. In each host copies need not be opened; where GPUs do not reach each
// other, kernels do blocking calls. All ranks of a level decide alike.
static int
levels_open(wm_comm_t *comm, int device, wm_error_t *err)
{
    wm_comm_t *local = comm->levels.local, *rail = comm->levels.rail;
    wm_error_t later;
    int code = 0, opened = 0;
    if (comm->hosts.place < comm->hosts.smallest) {
        code = wm_coll_engines_open_each(rail, WM_HIERARCHY_RAIL_KINDS, false,
                                         device, err);
        if (code == 0 && rail->colls.opened == 0 && wm_require_is_on(comm))
            code = wm_require_refuse(
                wm_coll_tell_lacking(rail, WM_COLL_ALLREDUCE, false).text,
                "let one serve between hosts", err);
    }
    if (local->size > 1 && !wm_direct_is_reached(local)) {
        // Also after an error, which other ranks of this host may not have.
        opened = wm_coll_engines_open_each(local, WM_HIERARCHY_LOCAL_KINDS,
                                           true, device,
                                           code < 0 ? &later : err);
    }
    return code < 0 ? code : opened;
}

static int
hierarchy_open(wm_comm_t *comm, int device, void **state, wm_error_t *err)
{
    wm_error_t later;
    *state = NULL;
    int code = wm_levels_open(comm, err);
    if (code < 0)
        return code; // on all ranks
    if (device < 0)
        code = wm_error_set(err, WM_ERR_STATE, 0, "there is no GPU");
    if (code == 0)
        code = wm_hierarchy_rooms_make(comm, state, err);
    if (code == 0)
        code = wm_pull_prepare(device, err);
    if (code == 0)
        code = wm_kernels_prepare(device, WM_KERNELS_REDUCE, err);
    int opened = levels_open(comm, device, code < 0 ? &later : err);
    code = code < 0 ? code : opened;
    opened = wm_hierarchy_streams_open(comm, device, code < 0 ? &later : err);
    code = code < 0 ? code : opened;
    if (code < 0) {
        wm_hierarchy_rooms_free(*state);
        *state = NULL;
    }
    return code;
}

// Waits until nobody else uses the memory of the call.
static int
hierarchy_come(wm_schedule_work_t *work, wm_error_t *err)
{
    wm_hierarchy_t *own = (wm_hierarchy_t *)work;
    wm_direct_t *direct = &own->op->participant.direct;
    wm_access_t *into = &direct->into;
    int ready = wm_direct_is_ready(direct, err);
    return ready <= 0 || !into->opened || into->idle
               ? ready
               : wm_access_look(into, 1, err);
}

static wm_coll_result_t
hierarchy_start(wm_coll_op_t *op, wm_error_t *err)
{
    wm_hierarchy_t *own = hierarchy_state(op);
    if (wm_hierarchy_blocking_serves(op))
        return wm_hierarchy_blocking_start(op, err);
    int code = wm_hierarchy_init(own, op, err);
    if (code < 0) { // the others wait for this rank
        wm_engine_lock();
        (void)!wm_failure_revoke(op->participant.comm, NULL);
        wm_engine_unlock();
        return (wm_coll_result_t)code;
    }
    own->coming.step = hierarchy_come;
    wm_schedule_add_work(&own->schedule, &own->coming);
    wm_hierarchy_plan(own);
    return wm_schedule_start(&own->schedule, err);
}

static wm_coll_result_t
hierarchy_step(wm_coll_op_t *op, bool *waits, wm_error_t *err)
{
    return wm_hierarchy_blocking_serves(op)
               ? wm_hierarchy_blocking_step(op, waits, err)
               : wm_schedule_step(&hierarchy_state(op)->schedule, waits, err);
}

static void
hierarchy_drop(wm_coll_op_t *op)
{
    if (wm_hierarchy_blocking_serves(op))
        wm_hierarchy_blocking_drop(op);
    else
        wm_hierarchy_drop(hierarchy_state(op));
}

// Ends what waits for dead ranks on the levels.
static void
hierarchy_abort(wm_comm_t *comm, void *state)
{
    wm_comm_t *levels[] = {comm->levels.local, comm->levels.rail};
    (void)state;
    for (int i = 0; i < 2 && comm->levels.open; ++i)
        for (unsigned left = levels[i]->colls.opened; left != 0;
             left &= left - 1)
            wm_coll_engines_abort(levels[i],
                                  wm_coll_engines_at(__builtin_ctz(left)));
}

// Ends what waits on streams of the levels.
static void
hierarchy_revoke(wm_comm_t *comm, void *state, const wm_error_t *why)
{
    wm_comm_t *levels[] = {comm->levels.rail, comm->levels.local};
    bool died = wm_failure_is_cause(why) && !comm->revoked; // each level sees
    (void)state;
    for (int i = 0; i < 2 && comm->levels.open; ++i) {
        wm_coll_engines_revoke(levels[i], why);
        if (!died)
            (void)!wm_failure_revoke(levels[i], NULL);
    }
}

static void
hierarchy_comm_drop(wm_comm_t *comm, void *state)
{
    (void)comm;
    wm_hierarchy_rooms_free(state);
}

const wm_coll_engine_t wm_hierarchy_engine = {
    .name = "hierarchy",
    .in_order = true,
    .takes = WM_COLL_TAKES_DEVICE,
    .does = hierarchy_does,
    .spans = hierarchy_spans,
    .open = hierarchy_open,
    .serves = hierarchy_serves,
    .prepare = hierarchy_prepare,
    .start = hierarchy_start,
    .step = hierarchy_step,
    .drop = hierarchy_drop,
    .abort = hierarchy_abort,
    .revoke = hierarchy_revoke,
    .comm_drop = hierarchy_comm_drop,
    .on_stream = &wm_hierarchy_on_stream,
};
