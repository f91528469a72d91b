// SPDX-License-Identifier: BSD-3-Clause
// A toy: an engine of collectives that does Allreduce by those of levels: a
// Reduce in each host, an Allreduce of the leaders, a Bcast in each host. It
// shows how little a hierarchy of engines needs (coll_schedule.h).
//
// TOY_HIERARCHY chooses it. "unopened": it cannot be opened on the last rank;
// "dies": that rank has failed when its second call starts.
#include <stdlib.h>
#include <string.h>

#include "comm/coll/run/coll_schedule.h"
#include "comm/comm/levels.h"

_Static_assert(sizeof(wm_schedule_t) <= WM_COLL_STATE_BYTES, "there is room");

static bool
is_asked(const wm_comm_t *comm, const char *what)
{
    const char *text = getenv("TOY_HIERARCHY");
    return text != NULL && comm->rank == comm->size - 1
           && strcmp(text, what) == 0;
}

static bool
hierarchy_spans(const wm_comm_t *comm)
{
    return getenv("TOY_HIERARCHY") != NULL && comm->split == 0
           && wm_hosts_find(comm).count > 1 && wm_hosts_find(comm).largest > 1;
}

static bool
hierarchy_serves(const wm_coll_op_t *op)
{
    const wm_coll_t *call = op->participant.call;
    return call->kind == WM_COLL_ALLREDUCE && op->participant.reducible
           && !call->averages;
}

static int
hierarchy_open(wm_comm_t *comm, int device, void **state, wm_error_t *err)
{
    (void)device;
    *state = NULL;
    int code = wm_levels_open(comm, err); // all ranks come here
    return is_asked(comm, "unopened")
               ? wm_error_set(err, WM_ERR_STATE, 0, "not open")
               : code;
}

// Fails in the second call, if it is to.
static void
fail(wm_coll_op_t *op)
{
    static int calls;
    wm_error_t why;
    if (!is_asked(op->participant.comm, "dies") || ++calls != 2)
        return;
    wm_error_set(&why, WM_ERR_STATE, 0, "the hierarchy has died");
    wm_coll_op_fail(op, &why);
}

static wm_coll_result_t
hierarchy_start(wm_coll_op_t *op, wm_error_t *err)
{
    wm_schedule_t *schedule = (wm_schedule_t *)op->state;
    const wm_coll_t *call = op->participant.call;
    const wm_levels_t *levels = &op->participant.comm->levels;
    bool leads = levels->local->rank == 0;
    wm_coll_t reduce = *call, all = *call, spread = *call;
    reduce.kind = WM_COLL_REDUCE;
    if (!leads && call->send == NULL)
        reduce.send = call->receive;
    if (!leads)
        reduce.receive = NULL;
    all.send = NULL;
    spread.kind = WM_COLL_BCAST;
    reduce.root = spread.root = 0;
    spread.send = leads ? call->receive : NULL;
    spread.receive = leads ? NULL : call->receive;
    fail(op);
    wm_schedule_init(schedule, op);
    wm_schedule_add(schedule, levels->local, &reduce);
    if (leads)
        wm_schedule_add(schedule, levels->rail, &all);
    wm_schedule_add(schedule, levels->local, &spread);
    return wm_schedule_start(schedule, err);
}

static wm_coll_result_t
hierarchy_step(wm_coll_op_t *op, bool *waits, wm_error_t *err)
{
    return wm_schedule_step((wm_schedule_t *)op->state, waits, err);
}

static void
hierarchy_drop(wm_coll_op_t *op)
{
    wm_schedule_drop((wm_schedule_t *)op->state);
}

const wm_coll_engine_t wm_hierarchy_engine = {
    .name = "hierarchy",
    .in_order = true,
    .orders = true,
    .takes = WM_COLL_TAKES_DEVICE | WM_COLL_TAKES_HOST,
    .spans = hierarchy_spans,
    .open = hierarchy_open,
    .serves = hierarchy_serves,
    .start = hierarchy_start,
    .step = hierarchy_step,
    .drop = hierarchy_drop,
};
