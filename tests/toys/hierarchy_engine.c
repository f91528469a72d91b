// SPDX-License-Identifier: BSD-3-Clause
// A toy: an engine of collectives that does Allreduce by collectives of levels
// (comm/levels.h): each host reduces and scatters, the ranks with one place in
// their hosts reduce their shares, each host gathers. Shares are cut for the
// host with the fewest ranks. The toy shows how little a hierarchy of engines
// needs (coll_schedule.h).
//
// TOY_HIERARCHY chooses it. "unopened": it cannot be opened on the last rank;
// "dies": that rank has failed when its second call starts. "kernels": it
// opens the kernels in each host.
#include <stdlib.h>
#include <string.h>

#include "comm/coll/call/coll_memory.h"
#include "comm/coll/run/coll_engines.h"
#include "comm/coll/run/coll_schedule.h"
#include "comm/comm/levels.h"

typedef struct {
    wm_schedule_t schedule;
    wm_coll_memory_t share; // this rank's share of the vector
    wm_span_t *shares;      // of the ranks of this host
} hierarchy_t;

_Static_assert(sizeof(hierarchy_t) <= WM_COLL_STATE_BYTES, "there is room");

static hierarchy_t *
state_of(wm_coll_op_t *op)
{
    return (hierarchy_t *)op->state;
}

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
hierarchy_does(const wm_coll_facts_t *facts)
{
    return facts->kind == WM_COLL_ALLREDUCE && facts->op != WM_REDUCE_AVG;
}

static bool
hierarchy_serves(const wm_coll_op_t *op)
{
    (void)op;
    return true;
}

// All ranks come to each of these steps. Between hosts the ring may serve. In
// each host the engines that need not be opened do, and maybe kernels.
static int
hierarchy_open(wm_comm_t *comm, int device, void **state, wm_error_t *err)
{
    wm_coll_kind_t kind = WM_COLL_ALLREDUCE;
    *state = NULL;
    int code = wm_levels_open(comm, err);
    if (code < 0)
        return code;
    unsigned among = wm_coll_engines_do(comm->levels.rail, kind);
    code = wm_coll_engines_open(comm->levels.rail, kind, device, &among, err);
    among = strcmp(getenv("TOY_HIERARCHY"), "kernels") == 0
                ? wm_coll_engines_on_stream(comm->levels.local, kind)
                : 0;
    if (code == 0)
        code = wm_coll_engines_open(comm->levels.local, kind, device, &among,
                                    err);
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

// Cuts the vector into shares, and takes memory for this rank's. On an error
// the rank goes on with the others.
static int
cut(wm_coll_op_t *op, wm_error_t *err)
{
    hierarchy_t *own = state_of(op);
    const wm_coll_t *call = op->participant.call;
    const wm_levels_t *levels = &op->participant.comm->levels;
    size_t nbytes = call->receive->nbytes, count = nbytes / call->size;
    size_t ranks = (size_t)levels->hosts.smallest;
    size_t each = (count + ranks - 1) / ranks * call->size;
    own->shares = calloc((size_t)levels->local->size, sizeof *own->shares);
    if (own->shares == NULL) // nobody is told: it is a toy
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    for (size_t i = 0, at = 0; i < (size_t)levels->local->size; ++i) {
        size_t left = i < ranks ? nbytes - at : 0;
        own->shares[i] = (wm_span_t){at, left < each ? left : each};
        at += own->shares[i].nbytes;
    }
    wm_error_t why;
    if (wm_coll_memory_take(
            &own->share, own->shares[levels->hosts.place].nbytes,
            call->on_device ? call->receive->memory.device : -1, &why)
        < 0)
        wm_coll_op_fail(op, &why);
    return 0;
}

static wm_coll_result_t
hierarchy_start(wm_coll_op_t *op, wm_error_t *err)
{
    hierarchy_t *own = state_of(op);
    const wm_coll_t *call = op->participant.call;
    const wm_levels_t *levels = &op->participant.comm->levels;
    *own = (hierarchy_t){.shares = NULL};
    wm_schedule_init(&own->schedule, op);
    int code = cut(op, err);
    if (code < 0)
        return (wm_coll_result_t)code;
    fail(op);
    wm_coll_t scatter = *call, reduce = *call, gather = *call;
    scatter.kind = WM_COLL_REDUCE_SCATTER;
    scatter.send = call->send != NULL ? call->send : call->receive;
    reduce.send = NULL;
    scatter.receive = reduce.receive = &own->share.buffer;
    gather.kind = WM_COLL_ALLGATHERV;
    gather.send = &own->share.buffer;
    scatter.receives = gather.receives = own->shares;
    wm_schedule_add(&own->schedule, levels->local, &scatter);
    if (levels->hosts.place < levels->hosts.smallest)
        wm_schedule_add(&own->schedule, levels->rail, &reduce);
    wm_schedule_add(&own->schedule, levels->local, &gather);
    return wm_schedule_start(&own->schedule, err);
}

static wm_coll_result_t
hierarchy_step(wm_coll_op_t *op, bool *waits, wm_error_t *err)
{
    return wm_schedule_step(&state_of(op)->schedule, waits, err);
}

static void
hierarchy_drop(wm_coll_op_t *op)
{
    hierarchy_t *own = state_of(op);
    wm_schedule_drop(&own->schedule);
    wm_coll_memory_free(&own->share);
    free(own->shares);
}

const wm_coll_engine_t wm_hierarchy_engine = {
    .name = "hierarchy",
    .in_order = true,
    .orders = true,
    .takes = WM_COLL_TAKES_ALL,
    .does = hierarchy_does,
    .spans = hierarchy_spans,
    .open = hierarchy_open,
    .serves = hierarchy_serves,
    .start = hierarchy_start,
    .step = hierarchy_step,
    .drop = hierarchy_drop,
};
