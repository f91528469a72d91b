// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "comm/coll/slab.h"

#include <stdlib.h>
#include <time.h>

#include "array/reduce.h"
#include "comm/coll/agreement.h"
#include "comm/engine/engine.h"
#include "comm/node/mapping.h"
#include "cuda/event.h"
#include "cuda/lock.h"
#include "cuda/stream.h"

#define HISTORY 1024 // calls of which it is known what was asked for
#define ENDED 0xffff // a step: the last
#define NAP_NS 100000
#define NAPS 50000 // in vain

_Static_assert(WM_SLAB_STEPS + 1 < ENDED, "of 16 bits");

typedef struct {
    wm_mapping_t *mapping; // NULL: ours
    char *slab;
} rank_t;

struct wm_slabs {
    pthread_mutex_t lock;
    wm_gates_t *gates; // where streams count calls << 16 | steps
    int device, rank, size;
    wm_block_t *block;
    CUstream stream; // of this call
    uint64_t last;   // id of the last one's
    CUevent ended;   // recorded behind the last
    uint32_t calls;  // begun
    bool long_last;  // the last one used a half twice
    wm_error_t lost; // code 0: they are alike so far
    uint64_t history[HISTORY];
    rank_t ranks[];
};

// What a rank says of itself when slabs are made.
typedef struct {
    wm_place_t place;
    uint32_t streams;
} said_t;

// Of a call as `told` has it: 16 bits of its number, 8 of its kind, and 40 of
// what was asked for in this one and those before it.
#define ASKED_BITS 40
#define KIND_BITS 8
#define FAILED 255 // kind

static uint64_t
tell(uint32_t call, int kind, uint64_t asked)
{
    return (uint64_t)(call & 0xffff) << (ASKED_BITS + KIND_BITS)
           | (uint64_t)kind << ASKED_BITS
           | (asked & (((uint64_t)1 << ASKED_BITS) - 1));
}

static uint16_t
number_of(uint64_t told)
{
    return (uint16_t)(told >> (ASKED_BITS + KIND_BITS));
}

static int
kind_of(uint64_t told)
{
    return (int)(told >> ASKED_BITS & ((1 << KIND_BITS) - 1));
}

static int
allocate(wm_slabs_t *slabs, said_t *said, wm_error_t *err)
{
    wm_pointer_t memory;
    int code = wm_block_alloc(slabs->device, 2 * WM_SLAB_HALF, &slabs->block,
                              err);
    if (code < 0)
        return code;
    rank_t *mine = &slabs->ranks[slabs->rank];
    mine->slab = wm_block_pointer(slabs->block);
    wm_block_describe(slabs->block, &memory);
    if (!memory.exportable)
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "collectives on a stream: memory of cuda:%d "
                            "cannot be mapped by other processes; use the "
                            "communicator itself, without on(stream)",
                            slabs->device);
    code = wm_event_create(slabs->device, &slabs->ended, err);
    // Later, streams that wait for others could keep it from being loaded.
    if (code == 0)
        code = wm_reduce_prepare(slabs->device, err);
    if (code < 0)
        return code;
    said->streams = wm_gates_streams_now(slabs->gates);
    wm_gates_tell(slabs->gates, 0);
    wm_engine_lock();
    code = wm_place_export(mine->slab, &memory, &said->place, err);
    wm_engine_unlock();
    return code;
}

static int
map(wm_slabs_t *slabs, const wm_comm_t *comm, wm_error_t *err)
{
    int code = 0;
    wm_engine_lock();
    for (int rank = 0; rank < slabs->size && code == 0; ++rank) {
        const said_t *said = wm_agree_said(comm, rank);
        rank_t *of = &slabs->ranks[rank];
        wm_peer_t *peer = comm->peers[rank];
        wm_gates_set_streams(slabs->gates, rank, said->streams);
        code = wm_node_register(peer, false, slabs->device, err);
        if (code < 0 || rank == slabs->rank)
            continue;
        code = wm_mapping_reach(peer, &said->place, slabs->device,
                                &of->mapping, err);
        if (code == 0)
            of->slab = wm_mapping_at(of->mapping, &said->place);
    }
    wm_engine_unlock();
    return code;
}

static void
discard(wm_slabs_t *slabs)
{
    wm_engine_lock();
    for (int rank = 0; rank < slabs->size; ++rank)
        if (slabs->ranks[rank].mapping != NULL)
            wm_mapping_release(slabs->ranks[rank].mapping);
    wm_engine_unlock();
    if (slabs->ended != NULL)
        wm_event_destroy(slabs->device, slabs->ended);
    if (slabs->block != NULL)
        wm_block_free(slabs->block, 0, NULL, NULL);
    pthread_mutex_destroy(&slabs->lock);
    free(slabs);
}

static wm_slabs_t *
new_slabs(const wm_comm_t *comm, int device)
{
    size_t size = (size_t)comm->size;
    wm_slabs_t *slabs = calloc(1, sizeof *slabs + size * sizeof(rank_t));
    if (slabs == NULL)
        return NULL;
    pthread_mutex_init(&slabs->lock, NULL);
    slabs->device = device;
    slabs->rank = comm->rank;
    slabs->size = comm->size;
    slabs->gates = comm->gates;
    return slabs;
}

int
wm_slabs_make(wm_comm_t *comm, int device, int code, wm_error_t *err)
{
    said_t said = {.streams = 0};
    wm_agree_t agree = {.nbytes = 0};
    wm_slabs_t *slabs = code == 0 ? new_slabs(comm, device) : NULL;
    if (code == 0 && slabs == NULL)
        code = wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    if (code == 0)
        code = allocate(slabs, &said, err);
    wm_agreement_t agreed = {.call = WM_CALL_ON_STREAM, .code = code};
    int told = wm_agreement_make(comm, &agreed, err);
    if (told == 0) {
        told = wm_agree_saying(comm, &agree, &said, sizeof said, err);
        code = told == 0 ? map(slabs, comm, err) : told;
        agreed = (wm_agreement_t){.call = WM_CALL_ON_STREAM, .code = code};
        told = wm_agreement_make(comm, &agreed, err);
    }
    if (told == 0)
        comm->slabs = slabs;
    else if (slabs != NULL)
        discard(slabs);
    return told;
}

// What the others have told so far, of calls that were begun here; of others
// they will see it.
static int
compare(wm_slabs_t *slabs, wm_error_t *err)
{
    wm_error_t *lost = &slabs->lost;
    for (int rank = 0; rank < slabs->size && lost->code == 0; ++rank) {
        uint64_t told = wm_gates_told(slabs->gates, rank);
        uint16_t back = (uint16_t)(slabs->calls - number_of(told));
        uint64_t here = slabs->history[(slabs->calls - back) % HISTORY];
        if (told == 0 || told == here || back >= HISTORY
            || back >= slabs->calls)
            continue;
        if (kind_of(told) == FAILED)
            wm_error_set(lost, WM_ERR_STATE, 0,
                         "rank %d failed in a collective on a stream: its "
                         "error tells why; free the communicator",
                         rank);
        else if (kind_of(told) != kind_of(here))
            wm_error_set(lost, WM_ERR_TYPE, 0,
                         "the ranks' collectives on streams differ: where "
                         "rank %d called %s, this one called %s: all must "
                         "make the same calls in the same order; free the "
                         "communicator",
                         rank, wm_call_name((wm_call_kind_t)kind_of(told)),
                         wm_call_name((wm_call_kind_t)kind_of(here)));
        else
            wm_error_set(lost, WM_ERR_VALUE, 0,
                         "the ranks' collectives on streams differ: rank %d "
                         "gave other counts, types, op or root than this one "
                         "to a %s, or to a call before it: all must give the "
                         "same; free the communicator",
                         rank, wm_call_name((wm_call_kind_t)kind_of(told)));
    }
    if (lost->code < 0 && err != NULL)
        *err = *lost;
    return lost->code;
}

static void
note(wm_slabs_t *slabs, int kind, uint64_t asked)
{
    uint64_t told = tell(slabs->calls, kind, asked);
    slabs->history[slabs->calls % HISTORY] = told;
    wm_gates_tell(slabs->gates, told);
}

static int
await(const wm_slabs_t *slabs, uint32_t call, uint32_t step, wm_error_t *err)
{
    int code = 0;
    for (int rank = 0; rank < slabs->size && code == 0; ++rank)
        if (rank != slabs->rank)
            code = wm_gates_enqueue_await(slabs->gates, rank, slabs->device,
                                          slabs->stream, (call << 16) + step,
                                          err);
    return code;
}

static int
reach(const wm_slabs_t *slabs, uint32_t step, wm_error_t *err)
{
    return wm_gates_enqueue_reach(slabs->gates, slabs->device, slabs->stream,
                                  (slabs->calls << 16) + step, err);
}

int
wm_slabs_begin(wm_slabs_t *slabs, int kind, uint64_t asked, CUstream stream,
               wm_error_t *err)
{
    wm_lock(&slabs->lock);
    int code = compare(slabs, err);
    if (code < 0) {
        pthread_mutex_unlock(&slabs->lock);
        return code;
    }
    uint64_t before = slabs->history[slabs->calls % HISTORY];
    ++slabs->calls;
    note(slabs, kind == WM_CALL_UNKNOWN ? FAILED : kind,
         (before ^ asked) * 1099511628211ull >> 8);
    uint64_t last = slabs->last; // it may be gone, and its address another's
    slabs->stream = stream;
    slabs->last = wm_stream_id(slabs->device, stream);
    bool follows = slabs->calls > 1 && slabs->last != last;
    if (follows)
        code = wm_stream_wait_event(slabs->device, stream, slabs->ended, err);
    if (code == 0 && slabs->long_last)
        code = await(slabs, slabs->calls - 1, ENDED, err);
    slabs->long_last = false;
    return code < 0 ? wm_slabs_end(slabs, code, err) : 0;
}

char *
wm_slabs_at(wm_slabs_t *slabs, int rank, size_t piece)
{
    slabs->long_last |= piece > 0;
    return slabs->ranks[rank].slab + (slabs->calls + piece) % 2 * WM_SLAB_HALF;
}

int
wm_slabs_step(const wm_slabs_t *slabs, uint32_t step, wm_error_t *err)
{
    int code = reach(slabs, step + 1, err);
    return code < 0 ? code : await(slabs, slabs->calls, step + 1, err);
}

int
wm_slabs_end(wm_slabs_t *slabs, int code, wm_error_t *err)
{
    int told = reach(slabs, ENDED, code == 0 ? err : NULL);
    if (told == 0)
        told = wm_event_record(slabs->device, slabs->ended, slabs->stream,
                               code == 0 ? err : NULL);
    if (code == 0)
        code = told;
    if (code < 0) {
        wm_error_set(&slabs->lost, WM_ERR_STATE, 0,
                     "this rank failed in a collective on a stream before, "
                     "as its error told; free the communicator");
        note(slabs, FAILED, 0);
    }
    pthread_mutex_unlock(&slabs->lock);
    return code;
}

int
wm_slabs_device(const wm_slabs_t *slabs)
{
    return slabs->device;
}

static bool
have_all_ended(const wm_slabs_t *slabs)
{
    for (int rank = 0; rank < slabs->size; ++rank)
        if (!wm_gates_streams_reached(slabs->gates, rank,
                                      (slabs->calls << 16) + ENDED))
            return false;
    return true;
}

bool
wm_slabs_free(wm_slabs_t *slabs)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    for (int naps = 0; slabs->calls > 0 && !have_all_ended(slabs); ++naps) {
        if (naps == NAPS)
            return false;
        nanosleep(&nap, NULL);
    }
    discard(slabs);
    return true;
}
