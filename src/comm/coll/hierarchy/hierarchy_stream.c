// SPDX-License-Identifier: BSD-3-Clause
// Hierarchical collectives on the program's streams, also in CUDA graphs: the
// tasks of a call go onto the stream, one after the other, by the engines of
// each host and of the rails.
#include "comm/coll/hierarchy/hierarchy_stream.h"

#include <stdatomic.h>

#include "comm/coll/direct/preflight.h"
#include "comm/coll/hierarchy/hierarchy.h"
#include "comm/coll/run/coll_engines.h"
#include "comm/coll/run/coll_on_stream.h"
#include "comm/coll/run/coll_tell.h"
#include "comm/coll/run/nonblocking.h"
#include "comm/coll/stream/coll_desc.h"
#include "comm/coll/stream/coll_order.h"
#include "comm/coll/stream/symm_state.h"
#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/node/stream_words.h"
#include "cuda/event.h"
#include "cuda/stream.h"

static _Atomic bool any_on_streams;
static wm_error_t *found; // of hierarchy_stream_find_failures(); engine lock

static bool
is_on_rail(const wm_comm_t *comm)
{
    return comm->hosts.place < comm->hosts.smallest;
}

// Returns the bits that all ranks have.
static int
streams_exchange(wm_comm_t *comm, unsigned bits, unsigned *all,
                 wm_error_t *err)
{
    wm_preflight_t preflight = {.call = WM_COLL_ON_STREAM, .all = bits};
    int code = wm_preflight_run(comm, &preflight, err);
    *all = (unsigned)preflight.all;
    return code;
}

// Returns true if the calls of this host are kernels, which do not take turns
// on a GPU.
static bool
local_has_kernels(const wm_comm_t *local)
{
    return local->size == 1
           || (local->symm != NULL && local->symm->kernel_coll);
}

int
wm_hierarchy_streams_open(wm_comm_t *comm, int device, wm_error_t *err)
{
    wm_levels_t *levels = &comm->levels;
    wm_comm_t *local = levels->local;
    unsigned all, has = !is_on_rail(comm)
                        || wm_coll_engines_lack_streams(
                               levels->rail, WM_HIERARCHY_RAIL_KINDS)
                               == 0;
    wm_error_t why;
    if (levels->streams != 0)
        return 0;
    int code = streams_exchange(comm, has, &all, err);
    if (code == 0 && all != 0) {
        const uint32_t kinds = WM_HIERARCHY_LOCAL_KINDS;
        has = local->size == 1
              || (wm_coll_engines_open_each(local, kinds, true, device, &why)
                      == 0
                  && wm_coll_engines_lack_streams(local, kinds) == 0);
        if (has && local_has_kernels(local))
            has |= 2;
        code = streams_exchange(comm, has, &all, err);
    }
    if (code == 0) {
        levels->streams = (all & 1) != 0 ? 1 : -1;
        levels->blocking = (all & 2) != 0 && comm->size <= WM_BARRIER_RANKS;
    }
    return code;
}

// Gives the call of a level to the stream.
static int
level_enqueue(wm_comm_t *level, const wm_coll_t *task,
              const wm_coll_stream_t *on, wm_error_t *err)
{
    const wm_coll_engine_t *engine = wm_coll_engines_first_on_stream(
        level,
        wm_coll_engines_on_stream(level, task->kind) & level->colls.opened,
        task);
    return engine == NULL
               ? wm_error_set(err, WM_ERR_STATE, 0,
                              "no engine does this call on a stream")
               : engine->on_stream->enqueue(
                   level, wm_coll_engines_state(level, engine), task, on, err);
}

// Returns the error of a call that has failed on this rank: it is raised now,
// and not again by a later wait.
static int
streams_fail(wm_comm_t *comm, const wm_error_t *err)
{
    wm_error_t unused;
    comm->levels.told |= wm_failure_is_cause(err);
    (void)!wm_coll_on_stream_find_failure(comm->levels.local, &unused);
    (void)!wm_coll_on_stream_find_failure(comm->levels.rail, &unused);
    return err->code;
}

// Tells why no engine does calls on streams of a level.
static wm_coll_lacking_t
level_lacks(wm_comm_t *level, uint32_t kinds)
{
    if (level->size > 1)
        kinds = wm_coll_engines_lack_streams(level, kinds);
    return level->size == 1 || kinds == 0
               ? (wm_coll_lacking_t){.text = "one serves this rank"}
               : wm_coll_tell_lacking(
                   level, (wm_coll_kind_t)__builtin_ctz(kinds), true);
}

// Refuses calls that no rank can make, on all ranks alike.
static int
stream_refuse(const wm_comm_t *comm, wm_error_t *err)
{
    const wm_levels_t *levels = &comm->levels;
    uint32_t on_rail = is_on_rail(comm) ? WM_HIERARCHY_RAIL_KINDS : 0;
    if (levels->streams >= 0)
        return 0;
    return wm_error_set(
        err, WM_ERR_VALUE, 0,
        "a collective on a stream between hosts of several ranks needs "
        "engines of such calls between all hosts (%.150s) and in each host "
        "(%.150s): let them serve, or make the call without on(stream)",
        level_lacks(levels->rail, on_rail).text,
        level_lacks(levels->local, WM_HIERARCHY_LOCAL_KINDS).text);
}

// Returns the error of this rank's arguments.
static int
hierarchy_stream_check(wm_comm_t *comm, const wm_coll_t *call,
                       const wm_coll_stream_t *on, wm_error_t *err)
{
    const wm_buffer_t *its[] = {call->send, call->receive};
    int code = stream_refuse(comm, err);
    if (code == 0)
        code = wm_coll_desc_check(comm, call, on, err);
    for (int i = 0; i < 2 && code == 0; ++i)
        if (its[i] != NULL && its[i]->pattern != NULL)
            code = wm_error_set(err, WM_ERR_VALUE, 0,
                                "%s between hosts: the array has gaps; give a "
                                "contiguous copy",
                                wm_call_name(call->kind));
    return code;
}

// Keeps the memory of the call until the stream has passed it, or the graph is
// gone.
static int
stream_keep(wm_hierarchy_t *own, const wm_coll_stream_t *on, CUevent passed,
            int code, wm_error_t *err)
{
    wm_error_t later;
    for (int i = 0; i < own->memories_used; ++i) {
        wm_block_t *block = own->memories[i].block;
        own->memories[i].block = NULL;
        int kept = wm_coll_order_keep(on, passed, block,
                                      code == 0 ? err : &later);
        code = code < 0 ? code : kept;
    }
    return code;
}

// Gives the tasks to the stream.
static int
stream_give(wm_hierarchy_t *own, const wm_coll_stream_t *on, wm_error_t *err)
{
    CUevent passed = NULL;
    uint64_t id = on->capture == 0 ? wm_stream_id(on->device, on->stream) : 0;
    int code = wm_coll_order_before(own->call, on, id, err);
    *on->given |= code == 0;
    for (int i = 0; i < own->schedule.count && code == 0; ++i) {
        const wm_schedule_task_t *task = &own->schedule.tasks[i];
        code = task->comm == NULL
                   ? wm_hierarchy_work_enqueue(
                       (wm_hierarchy_work_t *)task->work, on->stream, err)
                   : level_enqueue(task->comm, &task->call, on, err);
    }
    if (code == 0)
        code = wm_coll_order_mark(on, &passed, err);
    code = stream_keep(own, on, passed, code, err);
    if (code == 0)
        code = wm_coll_order_after(own->call, on, id, passed, err);
    if (passed != NULL)
        wm_event_release(on->device, passed);
    return code;
}

static int
stream_call(wm_comm_t *comm, const wm_coll_t *call, const wm_coll_stream_t *on,
            wm_error_t *err)
{
    wm_coll_op_t op;
    wm_hierarchy_t *own = (wm_hierarchy_t *)op.state;
    int code = hierarchy_stream_check(comm, call, on, err);
    if (code < 0)
        return code;
    op.form = WM_COLL_FORM_BLOCKING;
    op.wrong.code = 0;
    wm_participant_init(&op.participant, comm, NULL, call);
    code = wm_hierarchy_init(own, &op, err);
    if (code < 0)
        return code;
    own->streamed = true;
    wm_hierarchy_plan(own);
    if (op.wrong.code < 0)
        *err = op.wrong;
    code = op.wrong.code < 0 ? op.wrong.code : stream_give(own, on, err);
    wm_hierarchy_drop(own);
    return code;
}

// Waits until the tasks of nonblocking calls on the levels have begun, whose
// order there is that of the calls.
static int
stream_await(const wm_levels_t *levels, wm_error_t *err)
{
    wm_error_t later;
    int code = wm_nonblocking_await(levels->local, err);
    int rails = wm_nonblocking_await(levels->rail, code < 0 ? &later : err);
    return code < 0 ? code : rails;
}

static int
hierarchy_stream_enqueue(wm_comm_t *comm, void *state, const wm_coll_t *call,
                         const wm_coll_stream_t *on, wm_error_t *err)
{
    (void)state;
    wm_error_t wrong = *err;
    int code = wm_hierarchy_streams_open(comm, on->device, err);
    if (code == 0)
        code = stream_refuse(comm, err);
    if (code < 0)
        return code;
    if (call == NULL) {
        *err = wrong;
        return streams_fail(comm, err);
    }
    code = stream_await(&comm->levels, err); // a rank has died, or no memory
    if (code < 0)
        return streams_fail(comm, err);
    comm->levels.given = true;
    atomic_store(&any_on_streams, true);
    code = stream_call(comm, call, on, err);
    return code < 0 ? streams_fail(comm, err) : 0;
}

static uint64_t
hierarchy_stream_place(const wm_comm_t *comm, const void *state)
{
    (void)state;
    (void)comm;
    return 0;
}

// Returns the death, or the end of the level, that another rank of this host
// has published before it let its stream go on.
static int
local_find_dead(const wm_comm_t *local, wm_error_t *err)
{
    int rank = local->size > 1 ? wm_stream_words_dead(local->barrier) : -1;
    return rank < 0 || rank > local->size ? 0
                                          : wm_failure_set(local, rank, err);
}

// Raises, once, that a rank of the communicator has died. Asks MPI at once.
static int
streams_find_dead_lock_held(wm_comm_t *comm, wm_error_t *err)
{
    wm_levels_t *levels = &comm->levels;
    if (!levels->given || levels->told || !wm_failure_is_told())
        return 0;
    wm_failure_release(levels->all);
    int code = wm_failure_look_at_all(levels->all, err);
    if (code == 0)
        code = local_find_dead(levels->local, err);
    levels->told = code < 0;
    return code;
}

static int
hierarchy_stream_find_failure(wm_comm_t *comm, void *state, wm_error_t *err)
{
    (void)state;
    if (comm->levels.streams <= 0)
        return 0;
    wm_engine_lock();
    int code = streams_find_dead_lock_held(comm, err);
    wm_engine_unlock();
    if (code == 0)
        code = wm_coll_on_stream_find_failure(comm->levels.local, err);
    return code < 0 ? code
                    : wm_coll_on_stream_find_failure(comm->levels.rail, err);
}

static bool
hierarchy_stream_any(void)
{
    return atomic_load(&any_on_streams);
}

static void
streams_find_dead_of(wm_comm_t *comm)
{
    if (found->code == 0)
        (void)!streams_find_dead_lock_held(comm, found);
}

// A rank that no level of ours has may have died, and those of our levels then
// have given us garbage.
static int
hierarchy_stream_find_failures(wm_error_t *err)
{
    err->code = 0;
    wm_engine_lock();
    found = err;
    wm_comm_each(streams_find_dead_of);
    wm_engine_unlock();
    return err->code;
}

static int
hierarchy_stream_look(wm_comm_t *comm, void *state, uint64_t place,
                      wm_error_t *err)
{
    (void)state;
    (void)place;
    return hierarchy_stream_find_failure(comm, NULL, err);
}

static void
hierarchy_stream_fail(wm_comm_t *comm)
{
    (void)comm; // the call itself goes on
}

const wm_coll_on_stream_t wm_hierarchy_on_stream = {
    .captures = true,
    .check = hierarchy_stream_check,
    .enqueue = hierarchy_stream_enqueue,
    .place = hierarchy_stream_place,
    .look = hierarchy_stream_look,
    .fail = hierarchy_stream_fail,
    .find_failure = hierarchy_stream_find_failure,
    .any = hierarchy_stream_any,
    .find_failures = hierarchy_stream_find_failures,
};
