// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/native.h"

#include <string.h>

#include "comm/coll/preflight_values.h"
#include "comm/coll/coll_wait.h"
#include "comm/engine/engine.h"
#include "comm/engine/stats.h"
#include "comm/message/pattern.h"
#include "comm/protocol/transport.h"

// The longest copy of what the host can read as it is; what is packed is
// copied in any case.
#define STAND_IN_BYTES ((size_t)32 << 20)

bool
wm_native_is_reached(const wm_comm_t *comm)
{
    const wm_transport_t *forced = wm_transport_forced();
    if (comm->barrier == NULL
        || (forced != NULL && forced != &wm_transport_ipc))
        return false;
    for (int rank = 0; rank < comm->size; ++rank)
        if (comm->peers[rank]->ipc_refused)
            return false;
    return true;
}

// Whether it is a GPU's, with no gaps but such as kernels step over; nothing
// is anybody's.
static bool
is_taken(const wm_buffer_t *buffer, int *device)
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

const wm_spread_t *
wm_published_gaps(const wm_published_t *published, int index)
{
    return published->gaps == WM_PUBLISHED_GAPS ? &published->all
           : published->gaps == WM_PUBLISHED_GAPS_EACH
                   && index < WM_PUBLISHED_EACH
               ? &published->each[index]
               : NULL;
}

// Says where what is sent lies, with its gaps; false where that is too much.
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
        if (!wm_spread_describe(&pattern->parts[i], source->data,
                                one ? &published->all : &published->each[i]))
            return false;
    published->gaps = one ? WM_PUBLISHED_GAPS : WM_PUBLISHED_GAPS_EACH;
    return true;
}

// Whether others read a copy of it, without gaps.
static bool
stands_in(const wm_native_t *native, const wm_buffer_t *source, bool copied)
{
    return copied || !source->memory.exportable
           || (source->pattern != NULL
               && native->published.gaps == WM_PUBLISHED_DENSE);
}

static bool
is_too_long(const wm_buffer_t *source, bool copied)
{
    return source->pattern == NULL && (copied || !source->memory.exportable)
           && source->nbytes > STAND_IN_BYTES;
}

// Where memory is short the host serves.
static int
give_way(wm_native_t *native, int code)
{
    native->capable &= code != WM_ERR_MEMORY;
    return native->capable ? code : 0;
}

// A copy of what is sent, without gaps.
static int
copy_source(wm_native_t *native, const wm_buffer_t *source, wm_error_t *err)
{
    wm_access_t *from = &native->from;
    int code = wm_access_open(from, err);
    if (code < 0)
        return code;
    wm_stat_add(WM_STAT_handed_off_bytes, (int64_t)source->nbytes);
    return source->pattern != NULL
               ? wm_pattern_copy_part(source->pattern, 0, native->source,
                                      source->nbytes, true, native->device,
                                      from->stream, err)
               : wm_memory_copy(native->device, native->source, source->data,
                                source->nbytes, from->stream, err);
}

// As it is, once it is there.
static int
come_behind_source(wm_native_t *native, const wm_buffer_t *source,
                   wm_error_t *err)
{
    wm_access_t *from = &native->from;
    bool idle = false;
    int code = wm_producer_idle(&source->producer, from->to_write, &idle, err);
    return code == 0 && !idle ? wm_access_open(from, err) : code;
}

// What others read is there when we arrive at the barrier.
static int
settle(wm_native_t *native, const wm_buffer_t *source, bool copied,
       wm_error_t *err)
{
    wm_pointer_t memory = source->memory;
    native->source = source->data;
    int code = 0;
    if (stands_in(native, source, copied)) {
        code = wm_block_alloc(native->device, source->nbytes,
                              &native->stand_in, err);
        if (code < 0)
            return give_way(native, code);
        native->source = wm_block_pointer(native->stand_in);
        wm_block_describe(native->stand_in, &memory);
        code = copy_source(native, source, err);
    }
    else
        code = come_behind_source(native, source, err);
    if (code < 0)
        return code;
    wm_engine_lock();
    native->capable = wm_place_export(native->source, &memory,
                                      &native->published.sends, NULL)
                      == 0; // else the host serves
    wm_engine_unlock();
    return 0;
}

int
wm_native_take_landing(wm_native_t *native, wm_error_t *err)
{
    int code = wm_block_alloc(native->device, native->nbytes, &native->landing,
                              err);
    if (code == 0)
        native->target = wm_block_pointer(native->landing);
    return code;
}

// Whoever uses a target is noted now; where nobody does a stream is taken when
// there is work for it, as of many calls few have any at once, and that begins
// sooner than behind an event.
static int
come_behind(wm_access_t *into, wm_error_t *err)
{
    bool idle = into->settled;
    int code = idle ? 0 : wm_producer_idle(&into->producer, true, &idle, err);
    if (code < 0)
        return code;
    if (!idle)
        return wm_access_open(into, err);
    wm_access_settle(into);
    return 0;
}

static int
open_target(wm_native_t *native, const wm_buffer_t *target, bool moved,
            wm_error_t *err)
{
    wm_pointer_t memory = target->memory;
    int code = 0;
    native->target = target->data;
    native->gaps = target->pattern;
    native->nbytes = target->nbytes;
    if (native->gaps != NULL && !moved)
        code = wm_native_take_landing(native, err);
    if (code < 0)
        return give_way(native, code);
    if (native->landing != NULL)
        wm_block_describe(native->landing, &memory);
    code = come_behind(&native->into, err);
    if (code < 0 || !memory.exportable || moved)
        return code;
    wm_engine_lock();
    native->published.readable = wm_place_export(native->target, &memory,
                                                 &native->published.receives,
                                                 NULL)
                                 == 0;
    native->published.writable = native->published.readable
                                 && native->landing == NULL;
    wm_engine_unlock();
    return 0;
}

// `again`: what was published has not changed.
static int
open_sides(wm_native_t *native, const wm_given_t *given, bool again,
           wm_error_t *err)
{
    const wm_buffer_t *receive = given->receive;
    const wm_buffer_t *source = given->in_place ? receive : given->send;
    const wm_producer_t nobody = {.kind = WM_PRODUCER_NONE};
    wm_access_begin(&native->from,
                    source != NULL ? &source->producer : &nobody,
                    given->in_place, native->device);
    wm_access_begin(&native->into,
                    receive != NULL ? &receive->producer : &nobody, true,
                    native->device);
    int code = 0;
    if (source != NULL) {
        code = wm_producer_refuse_capture(&source->producer, err);
        if (code == 0 && source->nbytes > 0)
            code = again ? come_behind_source(native, source, err)
                         : settle(native, source, given->copied, err);
    }
    if (receive != NULL && code == 0 && native->capable) {
        // What is sent is ready before we write, and all on its stream is.
        if (source != NULL && source->nbytes > 0
            && wm_producer_is_same(&source->producer, &receive->producer))
            wm_access_settle(&native->into);
        else
            code = wm_producer_refuse_capture(&receive->producer, err);
        if (code == 0 && receive->nbytes > 0)
            code = again ? come_behind(&native->into, err)
                         : open_target(native, receive, given->moved, err);
    }
    return code;
}

void
wm_native_init(wm_native_t *native, wm_comm_t *comm, wm_barrier_t *barrier)
{
    memset(native, 0, offsetof(wm_native_t, published) + WM_PUBLISHED_BYTES);
    native->comm = comm;
    native->barrier = barrier;
    native->device = -1;
}

int
wm_native_open(wm_native_t *native, wm_comm_t *comm, wm_barrier_t *barrier,
               const wm_given_t *given, wm_error_t *err)
{
    const wm_buffer_t *receive = given->receive;
    bool in_place = given->in_place;
    const wm_buffer_t *source = in_place ? receive : given->send;
    wm_native_init(native, comm, barrier);
    native->capable = wm_native_is_reached(comm)
                      && is_taken(source, &native->device)
                      && is_taken(receive, &native->device)
                      && (source == NULL
                          || !is_too_long(source, given->copied));
    if (!native->capable)
        return 0;
    wm_published_t *published = &native->published;
    if (native->device >= 0 && (comm->rank == 0 || comm->split > 0))
        wm_thresholds_find_alone(native->device, comm->size,
                                 &published->thresholds);
    if (given->moved && !given->copied && source != NULL
        && source->pattern != NULL && source->memory.exportable
        && source->nbytes > 0)
        (void)publish_gaps(source, wm_comm_others(comm, comm->rank).count,
                           published);
    published->aliased = in_place && !stands_in(native, source, given->copied);
    published->overwrites = in_place || given->copied;
    published->readable = receive == NULL || receive->nbytes == 0;
    published->writable = published->readable;
    return open_sides(native, given, false, err);
}

int
wm_native_reopen(wm_native_t *native, const wm_given_t *given, wm_error_t *err)
{
    native->written = false;
    return open_sides(native, given, true, err);
}

int
wm_native_is_ready(wm_native_t *native, wm_error_t *err)
{
    wm_access_t *from = &native->from;
    return !from->opened || from->idle
               ? 1
               : wm_access_look(from, WM_LOOK_TRIES, err);
}

static int
look_whether_ready(void *context, wm_error_t *err)
{
    return wm_native_is_ready(context, err);
}

int
wm_native_await(wm_native_t *native, wm_error_t *err)
{
    return wm_coll_wait(native->comm, look_whether_ready, native,
                        WM_LOOKS_AT_STREAM, err);
}

void
wm_native_facts(const wm_native_t *native, wm_facts_t *facts)
{
    const wm_comm_t *comm = native->comm;
    facts->rank = comm->rank;
    facts->sources = wm_comm_others(comm, comm->rank);
    facts->group = wm_comm_group(comm, comm->rank);
    facts->takers = wm_comm_others(comm, facts->root);
    facts->aliased = false;
    facts->readable = facts->writable = true;
    // Between groups rank 0 may have no part in what another is the root of.
    const wm_published_t *one = wm_preflight_data(
        native->barrier,
        comm->split > 0 && facts->root >= 0 ? facts->root : 0);
    facts->thresholds = one->thresholds;
    for (int rank = 0; rank < comm->size; ++rank) {
        const wm_published_t *published = wm_preflight_data(native->barrier,
                                                            rank);
        facts->aliased |= published->aliased;
        facts->readable &= published->readable;
        facts->writable &= published->writable;
    }
}

// An error tells that some of it may be under way.
static int
close_sides(wm_native_t *native)
{
    wm_access_t *sides[] = {&native->from, &native->into};
    int code = 0;
    for (int i = 0; i < 2; ++i) {
        if (!sides[i]->idle && (i == 0 || native->written) // an error
            && wm_access_synchronize(sides[i], NULL) < 0)
            code = WM_ERR_CUDA;
        wm_access_close(sides[i]);
    }
    if (code < 0)
        native->signal.word = NULL; // which may yet be told, and stays taken
    return code;
}

bool
wm_native_close(wm_native_t *native)
{
    return native->stand_in == NULL && native->landing == NULL
           && close_sides(native) == 0;
}

void
wm_native_end(wm_native_t *native)
{
    (void)close_sides(native);
    if (native->signal.word != NULL)
        wm_signal_release(&native->signal);
    if (native->stand_in != NULL)
        wm_block_free(native->stand_in, 0, NULL, NULL);
    if (native->landing != NULL)
        wm_block_free(native->landing, 0, NULL, NULL);
}
