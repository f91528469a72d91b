// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/direct/direct.h"

#include <string.h>

#include "comm/coll/direct/preflight.h"
#include "comm/coll/call/coll_wait.h"
#include "comm/engine/engine.h"
#include "comm/engine/stats.h"
#include "comm/link/link.h"
#include "comm/message/pattern.h"
#include "cuda/stream.h"

// Above this size contiguous memory is not copied: the call goes through the
// host. Memory with gaps is packed in any case.
#define STAND_IN_BYTES ((size_t)32 << 20)

_Static_assert(sizeof(wm_published_t) <= WM_PREFLIGHT_BYTES, "it has room");

bool
wm_direct_is_reached(const wm_comm_t *comm)
{
    if (!wm_comm_is_one_host(comm))
        return false;
    for (int rank = 0; rank < comm->size; ++rank)
        if (!wm_link_maps(comm->peers[rank]))
            return false;
    return true;
}

// Returns true for memory of one GPU, contiguous or with gaps that kernels
// step over; NULL fits any GPU.
static bool
direct_is_taken(const wm_buffer_t *buffer, int *device)
{
    if (buffer == NULL)
        return true;
    if (!wm_buffer_on_device(buffer) || buffer->memory.device < 0
        || (buffer->pattern != NULL && !wm_pattern_is_strided(buffer->pattern))
        || (*device >= 0 && *device != buffer->memory.device))
        return false;
    *device = buffer->memory.device;
    return true;
}

const wm_strided_desc_t *
wm_published_gaps(const wm_published_t *published, int index)
{
    return published->gaps == WM_PUBLISHED_GAPS ? &published->all
           : published->gaps == WM_PUBLISHED_GAPS_EACH
                   && index < WM_PUBLISHED_EACH
               ? &published->each[index]
               : NULL;
}

// Publishes the layout of the send data. Returns false if it is too large.
static bool
publish_gaps(const wm_buffer_t *source, int ranks, wm_published_t *published)
{
    const wm_pattern_t *pattern = source->pattern;
    bool one = pattern->count == 1;
    if (!one
        && (!pattern->of_ranks || pattern->count != ranks
            || ranks > WM_PUBLISHED_EACH))
        return false;
    for (int i = 0; i < pattern->count; ++i)
        if (!wm_strided_desc_describe(&pattern->parts[i], source->data,
                                      one ? &published->all
                                          : &published->each[i]))
            return false;
    published->gaps = one ? WM_PUBLISHED_GAPS : WM_PUBLISHED_GAPS_EACH;
    return true;
}

// Returns true if others read a copy of the source, without gaps.
static bool
stands_in(const wm_direct_t *direct, const wm_buffer_t *source, bool copied)
{
    return copied || !source->memory.exportable
           || (source->pattern != NULL
               && direct->published.gaps == WM_PUBLISHED_DENSE);
}

static bool
is_too_long(const wm_buffer_t *source, bool copied)
{
    return source->pattern == NULL && (copied || !source->memory.exportable)
           && source->nbytes > STAND_IN_BYTES;
}

// If memory is short, lets the host do the call: `capable` becomes false.
static int
give_way(wm_direct_t *direct, int code)
{
    direct->capable &= code != WM_ERR_MEMORY;
    return direct->capable ? code : 0;
}

// Begins to copy the source, without gaps.
static int
copy_source(wm_direct_t *direct, const wm_buffer_t *source, wm_error_t *err)
{
    wm_access_t *from = &direct->from;
    int code = wm_access_open(from, err);
    if (code < 0)
        return code;
    wm_stat_add(WM_STAT_handed_off_bytes, (int64_t)source->nbytes);
    return source->pattern != NULL
               ? wm_pattern_copy_part(source->pattern, 0, direct->source,
                                      source->nbytes, true, direct->device,
                                      from->stream, err)
               : wm_memory_copy(direct->device, direct->source, source->data,
                                source->nbytes, from->stream, err);
}

// Orders reads of the source itself after its producer.
static int
come_behind_source(wm_direct_t *direct, const wm_buffer_t *source,
                   wm_error_t *err)
{
    wm_access_t *from = &direct->from;
    bool idle = false;
    int code = wm_producer_idle(&source->producer, from->to_write, &idle, err);
    return code == 0 && !idle ? wm_access_open(from, err) : code;
}

// Makes the send data ready for others, before we arrive at the barrier.
static int
direct_after(wm_direct_t *direct, const wm_buffer_t *source, bool copied,
             wm_error_t *err)
{
    wm_pointer_t memory = source->memory;
    direct->source = source->data;
    int code = 0;
    if (stands_in(direct, source, copied)) {
        code = wm_block_alloc(direct->device, source->nbytes,
                              &direct->stand_in, err);
        if (code < 0)
            return give_way(direct, code);
        direct->source = wm_block_pointer(direct->stand_in);
        wm_block_describe(direct->stand_in, &memory);
        code = copy_source(direct, source, err);
    }
    else
        code = come_behind_source(direct, source, err);
    if (code < 0)
        return code;
    wm_engine_lock();
    direct->capable = wm_rkey_export(direct->source, &memory,
                                     &direct->published.sends, NULL)
                      == 0; // else the host does the call
    wm_engine_unlock();
    return 0;
}

int
wm_direct_take_landing(wm_direct_t *direct, wm_error_t *err)
{
    int code = wm_block_alloc(direct->device, direct->nbytes, &direct->landing,
                              err);
    if (code == 0)
        direct->target = wm_block_pointer(direct->landing);
    return code;
}

// Orders our writes after the work that uses the target. If there is none, a
// stream is taken later, when there is work for it: few of many calls need one
// at a time, and work that need not wait for an event begins sooner.
static int
come_behind(wm_access_t *into, wm_error_t *err)
{
    bool idle = into->after_nothing;
    int code = idle ? 0 : wm_producer_idle(&into->producer, true, &idle, err);
    if (code < 0)
        return code;
    if (!idle)
        return wm_access_open(into, err);
    wm_access_after_nothing(into);
    return 0;
}

static int
open_target(wm_direct_t *direct, const wm_buffer_t *target, bool moved,
            wm_error_t *err)
{
    wm_pointer_t memory = target->memory;
    int code = 0;
    direct->target = target->data;
    direct->gaps = target->pattern;
    direct->nbytes = target->nbytes;
    if (direct->gaps != NULL && !moved)
        code = wm_direct_take_landing(direct, err);
    if (code < 0)
        return give_way(direct, code);
    if (direct->landing != NULL)
        wm_block_describe(direct->landing, &memory);
    code = come_behind(&direct->into, err);
    if (code < 0 || !memory.exportable || moved)
        return code;
    wm_engine_lock();
    direct->published.readable = wm_rkey_export(direct->target, &memory,
                                                &direct->published.receives,
                                                NULL)
                                 == 0;
    direct->published.writable = direct->published.readable
                                 && direct->landing == NULL;
    wm_engine_unlock();
    return 0;
}

// Opens both sides. `reopened`: the published data have not changed, or there
// are none.
static int
open_sides(wm_direct_t *direct, const wm_given_t *given, bool reopened,
           wm_error_t *err)
{
    const wm_buffer_t *receive = given->receive;
    const wm_buffer_t *source = given->in_place ? receive : given->send;
    const wm_producer_t nobody = {.kind = WM_PRODUCER_NONE};
    // MPI's engine also takes two devices.
    int device = source != NULL && source->memory.device >= 0
                     ? source->memory.device
                     : direct->device;
    wm_access_begin(&direct->from,
                    source != NULL ? &source->producer : &nobody,
                    given->in_place, device);
    wm_access_begin(&direct->into,
                    receive != NULL ? &receive->producer : &nobody, true,
                    direct->device);
    int code = 0;
    if (source != NULL) {
        code = wm_producer_refuse_capture(&source->producer, err);
        if (code == 0 && source->nbytes > 0)
            code = reopened ? come_behind_source(direct, source, err)
                            : direct_after(direct, source, given->copied, err);
    }
    if (receive != NULL && code == 0 && (reopened || direct->capable)) {
        // If both have one producer, the target is ready when the source is.
        if (source != NULL && source->nbytes > 0
            && wm_producer_is_same(&source->producer, &receive->producer))
            wm_access_after_nothing(&direct->into);
        else
            code = wm_producer_refuse_capture(&receive->producer, err);
        if (code == 0 && receive->nbytes > 0)
            code = reopened ? come_behind(&direct->into, err)
                            : open_target(direct, receive, given->moved, err);
    }
    return code;
}

void
wm_direct_init(wm_direct_t *direct, wm_comm_t *comm, wm_barrier_t *barrier)
{
    memset(direct, 0, offsetof(wm_direct_t, published) + WM_PUBLISHED_BYTES);
    direct->comm = comm;
    direct->barrier = barrier;
    direct->device = -1;
}

int
wm_direct_open(wm_direct_t *direct, const wm_given_t *given, wm_error_t *err)
{
    const wm_comm_t *comm = direct->comm;
    const wm_buffer_t *receive = given->receive;
    bool in_place = given->in_place;
    const wm_buffer_t *source = in_place ? receive : given->send;
    direct->capable = direct_is_taken(source, &direct->device)
                      && direct_is_taken(receive, &direct->device)
                      && (source == NULL
                          || !is_too_long(source, given->copied));
    if (!direct->capable)
        return 0;
    wm_published_t *published = &direct->published;
    if (direct->device >= 0 && (comm->rank == 0 || comm->split > 0))
        wm_thresholds_find_alone(direct->device, comm->size,
                                 &published->thresholds);
    if (given->moved && !given->copied && source != NULL
        && source->pattern != NULL && source->memory.exportable
        && source->nbytes > 0)
        (void)publish_gaps(source, wm_comm_others(comm, comm->rank).count,
                           published);
    published->aliased = in_place && !stands_in(direct, source, given->copied);
    published->overwrites = in_place || given->copied;
    published->readable = receive == NULL || receive->nbytes == 0;
    published->writable = published->readable;
    return open_sides(direct, given, false, err);
}

int
wm_direct_reopen(wm_direct_t *direct, const wm_given_t *given, wm_error_t *err)
{
    direct->written = false;
    return open_sides(direct, given, true, err);
}

int
wm_direct_is_ready(wm_direct_t *direct, wm_error_t *err)
{
    wm_access_t *from = &direct->from;
    return !from->opened || from->idle
               ? 1
               : wm_access_look(from, WM_LOOK_TRIES, err);
}

int
wm_direct_precede(const wm_direct_t *direct, int device, CUstream stream,
                  wm_error_t *err)
{
    const wm_access_t *sides[] = {&direct->from, &direct->into};
    int code = 0;
    for (int i = 0; i < 2 && code == 0; ++i)
        if (sides[i]->opened && !sides[i]->idle)
            code = wm_stream_follow(device, stream, sides[i]->device,
                                    sides[i]->stream, err);
    return code;
}

void
wm_direct_facts(const wm_direct_t *direct, wm_facts_t *facts)
{
    const wm_comm_t *comm = direct->comm;
    facts->rank = comm->rank;
    facts->ranks = comm->size;
    facts->sources = wm_comm_others(comm, comm->rank);
    facts->group = wm_comm_group(comm, comm->rank);
    facts->takers = wm_comm_others(comm, facts->root);
    facts->aliased = false;
    facts->readable = facts->writable = true;
    // Between groups, rank 0 may take no part in a call of another root.
    const wm_published_t *one = wm_preflight_data(
        direct->barrier,
        comm->split > 0 && facts->root >= 0 ? facts->root : 0);
    facts->thresholds = one->thresholds;
    for (int rank = 0; rank < comm->size; ++rank) {
        const wm_published_t *published = wm_preflight_data(direct->barrier,
                                                            rank);
        facts->aliased |= published->aliased;
        facts->readable &= published->readable;
        facts->writable &= published->writable;
    }
}

// Returns an error if some work may still be under way.
static int
close_sides(wm_direct_t *direct)
{
    wm_access_t *sides[] = {&direct->from, &direct->into};
    int code = 0;
    for (int i = 0; i < 2; ++i) {
        if (!sides[i]->idle && (i == 0 || direct->written) // after an error
            && wm_access_synchronize(sides[i], NULL) < 0)
            code = WM_ERR_CUDA;
        wm_access_close(sides[i]);
    }
    if (code < 0)
        direct->signal.word = NULL; // a kernel may set it: stays taken
    return code;
}

int
wm_direct_order(wm_direct_t *direct, const wm_given_t *given, wm_error_t *err)
{
    const wm_buffer_t *either = given->receive != NULL ? given->receive
                                                       : given->send;
    if (either == NULL)
        return 0;
    (void)close_sides(direct); // of an engine that does not serve after all
    direct->device = either->memory.device;
    return open_sides(direct, given, true, err);
}

bool
wm_direct_close(wm_direct_t *direct)
{
    return direct->stand_in == NULL && direct->landing == NULL
           && close_sides(direct) == 0;
}

void
wm_direct_drop(wm_direct_t *direct)
{
    (void)close_sides(direct);
    if (direct->signal.word != NULL)
        wm_signal_release(&direct->signal);
    if (direct->stand_in != NULL)
        wm_block_free(direct->stand_in, 0, NULL, NULL);
    if (direct->landing != NULL)
        wm_block_free(direct->landing, 0, NULL, NULL);
}
