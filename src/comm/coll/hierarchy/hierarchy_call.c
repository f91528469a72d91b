// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/hierarchy/hierarchy.h"

#include <stdlib.h>

#include "comm/engine/stats.h"

// So many bytes of short vectors leave a host at most.
#define SHORT_BYTES 65536

_Static_assert(sizeof(wm_hierarchy_t) <= WM_COLL_STATE_BYTES, "there is room");

// Returns the bytes of each rank's block, if all are alike; else 0.
static size_t
hierarchy_block(const wm_coll_op_t *op)
{
    const wm_coll_t *call = op->participant.call;
    const wm_shape_t *shape = wm_coll_shape(call->kind);
    if (call->receives != NULL && (shape->uneven || shape->varies))
        return 0;
    return call->kind == WM_COLL_ALLGATHERV
               ? call->receive->nbytes / (size_t)op->participant.comm->size
               : wm_participant_block(&op->participant);
}

int
wm_hierarchy_init(wm_hierarchy_t *own, wm_coll_op_t *op, wm_error_t *err)
{
    const wm_comm_t *comm = op->participant.comm;
    const wm_coll_t *call = op->participant.call;
    const wm_hosts_t *hosts = &comm->hosts;
    bool rooted = wm_coll_shape(call->kind)->rooted;
    own->op = op;
    own->call = call;
    own->hosts = hosts;
    own->local = comm->levels.local;
    own->rail = comm->levels.rail;
    own->host = hosts->host_of[comm->rank];
    own->place = hosts->place;
    own->ranks = own->local->size;
    own->carriers = hosts->smallest;
    own->root_host = rooted ? hosts->host_of[call->root] : -1;
    own->root_place = rooted ? hosts->place_of[call->root] : -1;
    own->device = wm_coll_device(call);
    own->unit = call->type != MPI_DATATYPE_NULL ? call->size : 1;
    own->block = hierarchy_block(op);
    own->works_used = own->memories_used = 0;
    own->parts_used = own->spans_used = 0;
    own->longest = own->ranks > hosts->count ? own->ranks : hosts->count;
    wm_schedule_init(&own->schedule, op);
    own->spans = calloc((size_t)own->longest * WM_HIERARCHY_SPANS,
                        sizeof *own->spans);
    return own->spans != NULL
               ? 0
               : wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
}

void
wm_hierarchy_drop(wm_hierarchy_t *own)
{
    wm_schedule_drop(&own->schedule);
    for (int i = 0; i < own->works_used; ++i)
        wm_hierarchy_work_drop(&own->works[i]);
    for (int i = 0; i < own->memories_used; ++i)
        wm_coll_memory_free(&own->memories[i]);
    free(own->spans);
}

const wm_buffer_t *
wm_hierarchy_part(wm_hierarchy_t *own, const wm_buffer_t *whole, size_t at,
                  size_t nbytes)
{
    wm_buffer_t *part = &own->parts[own->parts_used++];
    // The schedule begins when nobody else uses the memory.
    *part = (wm_buffer_t){
        .data = whole->data != NULL ? whole->data + at : NULL,
        .nbytes = nbytes,
        .memory = whole->memory,
        .producer = {.kind = WM_PRODUCER_NONE},
        .element = whole->element,
    };
    return part;
}

const wm_buffer_t *
wm_hierarchy_take(wm_hierarchy_t *own, size_t nbytes)
{
    wm_coll_memory_t *memory = &own->memories[own->memories_used++];
    wm_error_t why;
    *memory = (wm_coll_memory_t){.block = NULL};
    if (wm_coll_memory_take(memory, nbytes, own->device, &why) < 0)
        wm_coll_op_fail(own->op, &why);
    return &memory->buffer;
}

wm_span_t *
wm_hierarchy_spans(wm_hierarchy_t *own)
{
    return own->spans + (size_t)own->spans_used++ * (size_t)own->longest;
}

static wm_hierarchy_work_t *
hierarchy_add_work(wm_hierarchy_t *own, const wm_buffer_t *into,
                   const wm_buffer_t *from)
{
    wm_hierarchy_work_t *work = &own->works[own->works_used++];
    *work = (wm_hierarchy_work_t){
        .base.step = wm_hierarchy_work_step,
        .device = own->device,
        .context = own,
        .into = into,
        .from = from,
    };
    wm_schedule_add_work(&own->schedule, &work->base);
    return work;
}

void
wm_hierarchy_add_copies(wm_hierarchy_t *own, wm_hierarchy_lay_t *lay,
                        const wm_buffer_t *into, const wm_buffer_t *from)
{
    hierarchy_add_work(own, into, from)->lay = lay;
}

void
wm_hierarchy_add_fold(wm_hierarchy_t *own, const wm_buffer_t *vectors,
                      const wm_buffer_t *into)
{
    const wm_participant_t *participant = &own->op->participant;
    wm_hierarchy_work_t *work = hierarchy_add_work(own, into, vectors);
    work->parts = own->hosts->count;
    work->type = participant->type;
    work->op = own->call->averages ? WM_REDUCE_SUM : participant->op;
    work->divisor = own->call->averages ? participant->comm->size : 0;
}

wm_coll_t
wm_hierarchy_task(const wm_hierarchy_t *own, wm_coll_kind_t kind)
{
    wm_coll_t task = *own->call;
    task.kind = kind;
    task.root = 0;
    task.send = task.receive = NULL;
    task.sends = task.receives = NULL;
    task.averages = false; // the last reduction divides
    return task;
}

void
wm_hierarchy_even_out(wm_coll_t *task, const wm_span_t *blocks, int count)
{
    static const wm_coll_kind_t even[WM_COLL_KINDS] = {
        [WM_COLL_GATHERV] = WM_COLL_GATHER,
        [WM_COLL_SCATTERV] = WM_COLL_SCATTER,
        [WM_COLL_ALLGATHERV] = WM_COLL_ALLGATHER,
        [WM_COLL_REDUCE_SCATTER] = WM_COLL_REDUCE_SCATTER_BLOCK,
    };
    size_t each = blocks[0].nbytes;
    for (int i = 0; i < count; ++i)
        if (blocks[i].nbytes != each || blocks[i].at != (size_t)i * each)
            return;
    task->kind = even[task->kind];
    task->sends = task->receives = NULL;
}

bool
wm_hierarchy_is_short(const wm_hierarchy_t *own, size_t nbytes)
{
    return nbytes <= SHORT_BYTES / (size_t)(own->hosts->count - 1)
                         / (size_t)own->carriers;
}

void
wm_hierarchy_add_local(wm_hierarchy_t *own, const wm_coll_t *task)
{
    wm_schedule_add(&own->schedule, own->local, task);
}

void
wm_hierarchy_add_rail(wm_hierarchy_t *own, const wm_coll_t *task, size_t sent)
{
    wm_schedule_add(&own->schedule, own->rail, task);
    wm_stat_add(WM_STAT_rail_bytes, (int64_t)sent);
}

wm_span_t
wm_hierarchy_share(const wm_hierarchy_t *own, size_t nbytes, int count,
                   int index)
{
    size_t elements = nbytes / own->unit, all = (size_t)count;
    size_t each = (elements + all - 1) / all * own->unit;
    size_t at = each * (size_t)index < nbytes ? each * (size_t)index : nbytes;
    size_t left = nbytes - at;
    return (wm_span_t){at, left < each ? left : each};
}
