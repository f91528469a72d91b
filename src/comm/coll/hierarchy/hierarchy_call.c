// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/hierarchy/hierarchy.h"

#include <stdlib.h>
#include <string.h>

#include "comm/engine/engine.h"
#include "comm/engine/stats.h"

// So many bytes of short vectors leave a host at most.
#define SHORT_BYTES 65536

_Static_assert(sizeof(wm_hierarchy_room_t) <= sizeof(wm_span_t),
               "so the head");

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

// Returns the number of ranks of this host, or of hosts.
static int
room_longest(const wm_comm_t *comm)
{
    int ranks = comm->levels.local->size, hosts = comm->hosts.count;
    return ranks > hosts ? ranks : hosts;
}

// Returns a new room; NULL: out of memory.
static wm_hierarchy_room_t *
room_new(const wm_comm_t *comm)
{
    size_t spans = (size_t)room_longest(comm) * WM_HIERARCHY_SPANS;
    return calloc(1 + spans, sizeof(wm_span_t)); // the first is the head
}

static wm_hierarchy_rooms_t *
rooms_of(const wm_comm_t *comm)
{
    return comm->colls.state[WM_COLL_NUMBER_hierarchy];
}

int
wm_hierarchy_rooms_make(const wm_comm_t *comm, void **state, wm_error_t *err)
{
    wm_hierarchy_rooms_t *rooms = calloc(1, sizeof *rooms);
    if (rooms != NULL && (rooms->free = room_new(comm)) != NULL) {
        *state = rooms;
        return 0;
    }
    free(rooms);
    return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
}

void
wm_hierarchy_rooms_free(wm_hierarchy_rooms_t *rooms)
{
    while (rooms != NULL && rooms->free != NULL) {
        wm_hierarchy_room_t *next = rooms->free->next;
        free(rooms->free);
        rooms->free = next;
    }
    free(rooms);
}

static int
room_take(wm_hierarchy_t *own, wm_error_t *err)
{
    const wm_comm_t *comm = own->op->participant.comm;
    wm_hierarchy_rooms_t *rooms = rooms_of(comm);
    size_t spans = (size_t)own->longest * WM_HIERARCHY_SPANS;
    wm_engine_lock();
    own->room = rooms->free;
    if (own->room != NULL)
        rooms->free = own->room->next;
    wm_engine_unlock();
    if (own->room != NULL)
        memset(own->room->spans, 0, spans * sizeof(wm_span_t));
    else
        own->room = room_new(comm);
    return own->room != NULL
               ? 0
               : wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
}

static void
room_give_back(wm_hierarchy_t *own)
{
    wm_hierarchy_rooms_t *rooms = rooms_of(own->op->participant.comm);
    if (own->room == NULL)
        return;
    wm_engine_lock();
    own->room->next = rooms->free;
    rooms->free = own->room;
    wm_engine_unlock();
    own->room = NULL;
}

int
wm_hierarchy_init(wm_hierarchy_t *own, wm_coll_op_t *op, wm_error_t *err)
{
    const wm_comm_t *comm = op->participant.comm;
    const wm_coll_t *call = op->participant.call;
    const wm_hosts_t *hosts = &comm->hosts;
    bool rooted = wm_coll_shape(call->kind)->rooted;
    own->op = op;
    own->streamed = false;
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
    own->longest = room_longest(comm);
    wm_schedule_init(&own->schedule, op);
    return room_take(own, err);
}

void
wm_hierarchy_drop(wm_hierarchy_t *own)
{
    wm_schedule_drop(&own->schedule);
    for (int i = 0; i < own->works_used; ++i)
        wm_hierarchy_work_drop(&own->works[i]);
    for (int i = 0; i < own->memories_used; ++i)
        wm_coll_memory_free(&own->memories[i]);
    room_give_back(own);
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
    *memory = (wm_coll_memory_t){
        .of = own->streamed ? own->op->participant.comm : NULL,
    };
    if (wm_coll_memory_take(memory, nbytes, own->device, &why) < 0)
        wm_coll_op_fail(own->op, &why);
    return &memory->buffer;
}

wm_span_t *
wm_hierarchy_spans(wm_hierarchy_t *own)
{
    return own->room->spans + (size_t)own->spans_used++ * (size_t)own->longest;
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

static void
hierarchy_add(wm_hierarchy_t *own, wm_comm_t *level, uint32_t kinds,
              const wm_coll_t *task)
{
    wm_error_t why;
    if ((kinds & 1u << task->kind) == 0) {
        (void)wm_error_set(&why, WM_ERR_STATE, 0,
                           "%s is not among the kinds of tasks of this level",
                           wm_call_name(task->kind));
        wm_coll_op_fail(own->op, &why);
    }
    wm_schedule_add(&own->schedule, level, task);
}

void
wm_hierarchy_add_local(wm_hierarchy_t *own, const wm_coll_t *task)
{
    hierarchy_add(own, own->local, WM_HIERARCHY_LOCAL_KINDS, task);
}

void
wm_hierarchy_add_rail(wm_hierarchy_t *own, const wm_coll_t *task, size_t sent)
{
    hierarchy_add(own, own->rail, WM_HIERARCHY_RAIL_KINDS, task);
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
