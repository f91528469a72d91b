// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "comm/coll/slab.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "array/pull.h"
#include "array/reduce.h"
#include "comm/coll/agreement.h"
#include "comm/coll/fuse.h"
#include "comm/coll/deaths.h"
#include "comm/coll/native.h"
#include "comm/coll/told.h"
#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/node/mapping.h"
#include "cuda/event.h"
#include "cuda/lock.h"
#include "cuda/stream.h"

#define HALF_ALIGN ((size_t)1 << 20)
#define ENDED 0xffff   // a step: the last
#define FAR (1u << 30) // 16384 calls, further than anybody is ahead
// Calls after which a stream waits for who is as far behind: ranks that give
// each other nothing would not, and words that count calls cannot tell who is
// half their range behind from who is ahead.
#define MOST_AHEAD 2048
#define NAP_NS 100000
#define LINGER_NS 1000000 // as kernels do
#define NAPS 50000        // in vain

_Static_assert(WM_SLAB_STEPS + 1 < ENDED, "of 16 bits");
_Static_assert(2 * MOST_AHEAD < FAR >> 16, "so far at most is who is ahead");

struct wm_slabs {
    pthread_mutex_t lock;
    wm_comm_t *comm;
    wm_gates_t *gates; // where streams count calls << 16 | steps, or meets
    bool captured;     // the calls are
    int device, rank, size;
    wm_shared_t *shared;
    wm_points_t points;       // rank 0's
    CUstream stream;          // of this call, or the last
    uint64_t last;            // its id, but in graphs; 0: not known
    CUevent ended;            // in graphs: recorded behind the last
    bool by_kernels;          // what is shared is theirs, else halves
    wm_told_t told;           // of the calls that were begun
    wm_by_kernels_t exchange; // likewise
    uint32_t turn;            // of the halves: the next one that is used
    uint64_t capture;         // of the last call
    uint32_t turns;           // taken so far, in its graph or in all
    uint32_t meets;           // in its graph, so far
    size_t pieces;            // of the last one that took a turn
    wm_block_t **copies;      // that graphs read
    size_t copied;
    wm_error_t lost; // code 0: they are alike so far
};

static _Atomic int captured_count; // of slabs

// What a rank says of itself.
typedef struct {
    uint32_t streams; // what they have counted to
    wm_points_t points;
} said_t;

// What is this rank's alone.
static int
prepare(wm_slabs_t *slabs, said_t *said, wm_error_t *err)
{
    int code = slabs->captured
                   ? wm_event_create(slabs->device, &slabs->ended, err)
                   : 0;
    // Later, streams that wait for others could keep it from being loaded.
    if (code == 0)
        code = wm_reduce_prepare(slabs->device, err);
    if (code == 0)
        code = wm_by_kernels_prepare(slabs->device, err);
    if (code == 0) // of messages
        code = wm_pull_prepare(slabs->device, err);
    wm_fuse_prepare(slabs->device);
    if (code < 0)
        return code;
    if (slabs->captured)
        wm_gates_begin_rounds(slabs->gates);
    else {
        said->streams = wm_gates_streams_now(slabs->gates);
        wm_told_open(&slabs->told, slabs->gates);
    }
    return 0;
}

static int
find_all(wm_slabs_t *slabs, const wm_comm_t *comm, wm_error_t *err)
{
    int code = 0;
    const said_t *first = wm_agree_said(comm->gates, 0);
    slabs->points = first->points;
    wm_engine_lock();
    for (int rank = 0; rank < slabs->size && code == 0; ++rank) {
        const said_t *said = wm_agree_said(comm->gates, rank);
        if (!slabs->captured)
            wm_gates_set_streams(slabs->gates, rank, said->streams);
        code = wm_node_register(comm->peers[rank], false, slabs->device, err);
    }
    wm_engine_unlock();
    return code;
}

static int
open_kernels(wm_slabs_t *slabs, wm_error_t *err)
{
    wm_boxes_rank_t ranks[WM_BOXES_RANKS];
    for (int rank = 0; rank < slabs->size; ++rank) {
        wm_word_op_t word = slabs->captured
                                ? wm_gates_gone_word(slabs->gates)
                                : wm_gates_stream_word(slabs->gates, rank, 0);
        ranks[rank] = (wm_boxes_rank_t){
            .word = (const uint32_t *)word.word,
            .base = word.value,
        };
    }
    slabs->by_kernels = slabs->shared->blocks > 0;
    slabs->exchange.counted = slabs->captured;
    return wm_by_kernels_open(&slabs->exchange, slabs->shared, &slabs->points,
                              ranks, slabs->rank, err);
}

static void
discard(wm_slabs_t *slabs)
{
    wm_by_kernels_close(&slabs->exchange);
    wm_told_close(&slabs->told);
    wm_shared_free(slabs->shared);
    for (size_t i = 0; i < slabs->copied; ++i)
        wm_block_free(slabs->copies[i], 0, NULL, NULL);
    free(slabs->copies);
    if (slabs->ended != NULL)
        wm_event_destroy(slabs->device, slabs->ended);
    atomic_fetch_sub(&captured_count, slabs->captured);
    pthread_mutex_destroy(&slabs->lock);
    free(slabs);
}

static wm_slabs_t *
new_slabs(wm_comm_t *comm, int device, bool captured)
{
    wm_slabs_t *slabs = calloc(1, sizeof *slabs);
    if (slabs == NULL)
        return NULL;
    pthread_mutex_init(&slabs->lock, NULL);
    slabs->captured = captured;
    atomic_fetch_add(&captured_count, captured);
    slabs->device = device;
    slabs->rank = comm->rank;
    slabs->size = comm->size;
    slabs->comm = comm;
    slabs->gates = comm->gates;
    return slabs;
}

static int
make(wm_comm_t *comm, wm_slabs_t *slabs, bool on_host, bool *unreached,
     wm_error_t *err)
{
    said_t said = {.streams = 0};
    size_t nbytes = on_host ? WM_BY_KERNELS_BYTES_ON_HOST
                            : WM_BY_KERNELS_BYTES;
    wm_agree_t agree = {.nbytes = 0};
    int code = slabs == NULL
                   ? wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory")
                   : prepare(slabs, &said, err);
    code = wm_shared_tell(comm, code, unreached, NULL, err);
    if (code == 0)
        code = wm_shared_make(comm, slabs->device, on_host, nbytes,
                              wm_by_kernels_clear, &slabs->shared, unreached,
                              err);
    if (code < 0 || *unreached)
        return code;
    wm_points_find(slabs->device, slabs->shared->linked, slabs->size,
                   &said.points);
    code = wm_agree_saying(comm, &agree, &said, sizeof said, err);
    if (code < 0)
        return code;
    code = find_all(slabs, comm, err);
    if (code == 0)
        code = open_kernels(slabs, err);
    if (code < 0 && wm_mapping_is_refused(code, err)) {
        *unreached = true;
        code = 0;
    }
    return wm_shared_tell(comm, code, unreached, NULL, err);
}

int
wm_slabs_make(wm_comm_t *comm, int device, bool captured, int code,
              wm_error_t *err)
{
    bool unreached = !wm_native_is_reached(comm), on_host;
    wm_slabs_t *slabs;
    code = wm_shared_tell(comm, code, &unreached, NULL, err);
    if (code < 0)
        return code;
    do { // where others turn out to be out of reach, once more
        on_host = unreached;
        unreached = false;
        slabs = new_slabs(comm, device, captured);
        code = make(comm, slabs, on_host, &unreached, err);
        if ((code < 0 || unreached) && slabs != NULL)
            discard(slabs);
    } while (code == 0 && unreached && !on_host);
    if (code == 0 && unreached)
        code = wm_error_set(err, WM_ERR_CUDA, 0,
                            "page-locked memory cannot be mapped");
    if (code < 0)
        return code;
    wm_engine_lock();
    *(captured ? &comm->graph_slabs : &comm->slabs) = slabs;
    wm_deaths_watch();
    wm_engine_unlock();
    wm_engine_notify(); // it looks for dead ranks from now on
    return 0;
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
await_late(const wm_slabs_t *slabs, wm_error_t *err)
{
    uint32_t calls = slabs->told.calls;
    return calls > MOST_AHEAD && calls % MOST_AHEAD == 0
               ? await(slabs, calls - MOST_AHEAD, ENDED, err)
               : 0;
}

static int
reach(const wm_slabs_t *slabs, uint32_t step, wm_error_t *err)
{
    return wm_gates_enqueue_reach(slabs->gates, slabs->device, slabs->stream,
                                  (slabs->told.calls << 16) + step, err);
}

// Behind the last call, of that number: our word tells that it has ended.
static int
await_last(const wm_slabs_t *slabs, uint32_t number, wm_error_t *err)
{
    return number == 0 ? 0
                       : wm_gates_enqueue_await(slabs->gates, slabs->rank,
                                                slabs->device, slabs->stream,
                                                (number << 16) + ENDED, err);
}

// Likewise, or on its stream.
static int
follow(wm_slabs_t *slabs, uint32_t number, CUstream stream, wm_error_t *err)
{
    uint64_t last = slabs->last; // it may be gone, and its address another's
    slabs->stream = stream;
    slabs->last = wm_stream_id(slabs->device, stream);
    return last != 0 && slabs->last == last ? 0
                                            : await_last(slabs, number, err);
}

// Not by its id within a capture, which asking for that would end.
static int
follow_captured(wm_slabs_t *slabs, bool first, CUstream stream,
                wm_error_t *err)
{
    bool same = first || slabs->stream == stream;
    slabs->stream = stream;
    return same ? 0
                : wm_stream_wait_event(slabs->device, stream, slabs->ended,
                                       err);
}

// There will be no more of it on this rank, for which others wait that are
// ahead: behind the call of that number. Where the driver fails in that as
// well, its streams have ended.
static void
leave(wm_slabs_t *slabs, uint32_t number)
{
    uint32_t value = (slabs->told.calls << 16) + FAR;
    wm_gates_promise(slabs->gates, value);
    if (await_last(slabs, number, NULL) < 0
        || wm_gates_enqueue_reach(slabs->gates, slabs->device, slabs->stream,
                                  value, NULL)
               < 0)
        wm_gates_leave(slabs->gates, value);
}

static int
look_for_lost(const wm_slabs_t *slabs, wm_error_t *err)
{
    int dead = wm_gates_dead(slabs->gates);
    if (dead < 0)
        return wm_told_compare(&slabs->told, slabs->gates, err);
    (void)wm_gates_bury(slabs->gates, dead); // another may have found it
    return wm_failure_set(slabs->comm, dead, err);
}

int
wm_slabs_begin(wm_slabs_t *slabs, const wm_laid_t *laid, CUstream stream,
               wm_error_t *err)
{
    wm_lock(&slabs->lock);
    if (slabs->lost.code == 0 && look_for_lost(slabs, &slabs->lost) < 0) {
        slabs->stream = stream;
        leave(slabs, slabs->told.calls);
    }
    if (slabs->lost.code < 0) {
        int lost = slabs->lost.code;
        if (err != NULL)
            *err = slabs->lost;
        pthread_mutex_unlock(&slabs->lock);
        return lost;
    }
    wm_gates_promise(slabs->gates, ((slabs->told.calls + 1) << 16) + ENDED);
    int code = wm_told_begin(&slabs->told, slabs->gates, laid, err);
    int follows = follow(slabs, slabs->told.calls - 1, stream,
                         code == 0 ? err : NULL);
    code = code < 0 ? code : follows;
    if (code == 0)
        code = await_late(slabs, err);
    return code < 0 ? wm_slabs_end(slabs, code, err) : 0;
}

int
wm_slabs_begin_captured(wm_slabs_t *slabs, uint64_t capture, CUstream stream,
                        wm_error_t *err)
{
    wm_lock(&slabs->lock);
    bool first = slabs->capture != capture;
    if (first) {
        slabs->capture = capture;
        slabs->turns = 0;
    }
    int code = follow_captured(slabs, first, stream, err);
    return code < 0 ? wm_slabs_end(slabs, code, err) : 0;
}

uint64_t
wm_slabs_stream_id(const wm_slabs_t *slabs)
{
    return slabs->last;
}

bool
wm_slabs_any_captured(void)
{
    return atomic_load(&captured_count) > 0;
}

bool
wm_slabs_continue(const wm_slabs_t *slabs, uint64_t capture)
{
    return slabs->capture == capture;
}

void
wm_slabs_forget(wm_slabs_t *slabs)
{
    slabs->capture = 0;
}

// Of a graph all know how many pieces the call before had, and nobody waits.
static int
take_turn_captured(wm_slabs_t *slabs, wm_error_t *err)
{
    bool first = slabs->turns++ == 0;
    slabs->turn = first ? 0 : slabs->turn + (uint32_t)slabs->pieces;
    if (!first)
        return 0;
    slabs->meets = 0;
    return wm_gates_enqueue_round(slabs->gates, slabs->device, slabs->stream,
                                  err);
}

int
wm_slabs_take_turn(wm_slabs_t *slabs, wm_error_t *err)
{
    int code = 0;
    if (slabs->captured)
        code = take_turn_captured(slabs, err);
    else {
        slabs->turn = ++slabs->turns;
        if (slabs->pieces > 1) // it used a half twice
            code = await(slabs, slabs->told.calls - 1, ENDED, err);
    }
    slabs->pieces = 0;
    return code;
}

char *
wm_slabs_at(wm_slabs_t *slabs, int rank, size_t piece)
{
    slabs->pieces = piece + 1;
    return slabs->shared->ranks[rank].memory
           + (slabs->turn + piece) % 2 * wm_slabs_half(slabs);
}

int
wm_slabs_step(wm_slabs_t *slabs, uint32_t step, wm_error_t *err)
{
    if (slabs->captured)
        return wm_gates_enqueue_meet(slabs->gates, slabs->device,
                                     slabs->stream, ++slabs->meets, err);
    int code = reach(slabs, step + 1, err);
    return code < 0 ? code : await(slabs, slabs->told.calls, step + 1, err);
}

int
wm_slabs_leave_turn(wm_slabs_t *slabs, wm_error_t *err)
{
    return slabs->captured ? 0 : reach(slabs, ENDED, err);
}

int
wm_slabs_keep(wm_slabs_t *slabs, wm_block_t *memory, wm_error_t *err)
{
    CUevent event = NULL;
    if (slabs->captured) {
        wm_block_t **more = realloc(slabs->copies,
                                    (slabs->copied + 1) * sizeof(*more));
        if (more == NULL)
            return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
        slabs->copies = more;
        slabs->copies[slabs->copied++] = memory;
        return 0;
    }
    int code = wm_event_acquire(slabs->device, &event, err);
    if (code == 0)
        code = wm_event_record(slabs->device, event, slabs->stream, err);
    if (code == 0)
        wm_block_free(memory, 1, &event, &slabs->device);
    else if (event != NULL) // it is left, as nobody knows its end
        wm_event_release(slabs->device, event);
    return code;
}

static int
enqueue_copied(wm_slabs_t *slabs, const wm_laid_t *laid,
               const wm_by_kernels_words_t *words, wm_error_t *err)
{
    wm_laid_t given = *laid; // 2 KiB
    wm_block_t *copy;
    size_t nbytes = laid->call->receive->nbytes;
    int code = wm_block_alloc(slabs->device, nbytes, &copy, err);
    if (code < 0)
        return code;
    given.source = wm_block_pointer(copy);
    code = wm_memory_copy(slabs->device, given.source, laid->source, nbytes,
                          slabs->stream, err);
    if (code == 0)
        code = wm_by_kernels_enqueue(&slabs->exchange, &given, words, err);
    int kept = wm_slabs_keep(slabs, copy, code == 0 ? err : NULL);
    return code < 0 ? code : kept;
}

int
wm_slabs_exchange(wm_slabs_t *slabs, const wm_laid_t *laid, wm_error_t *err)
{
    uint32_t call = slabs->told.calls << 16;
    wm_word_op_t own = wm_gates_stream_word(slabs->gates, slabs->rank,
                                            call + ENDED);
    wm_by_kernels_words_t words = {
        .own = slabs->captured ? NULL : (uint32_t *)own.word,
        .begun = own.value - ENDED,
        .done = own.value,
        .call = slabs->captured ? 0 : call,
    };
    return wm_laid_is_overwritten(laid)
               ? enqueue_copied(slabs, laid, &words, err)
               : wm_by_kernels_enqueue(&slabs->exchange, laid, &words, err);
}

int
wm_slabs_end(wm_slabs_t *slabs, int code, wm_error_t *err)
{
    if (code == 0 && slabs->captured)
        code = wm_event_record(slabs->device, slabs->ended, slabs->stream,
                               err);
    if (code < 0 && !slabs->captured) {
        wm_error_set(&slabs->lost, WM_ERR_STATE, 0,
                     "this rank failed in a collective on a stream before, "
                     "as its error told; free the communicator");
        wm_told_fail(&slabs->told, slabs->gates);
        leave(slabs, slabs->told.calls - 1);
    }
    pthread_mutex_unlock(&slabs->lock);
    return code;
}

int
wm_slabs_look(wm_slabs_t *slabs, wm_error_t *err)
{
    if (pthread_mutex_trylock(&slabs->lock) != 0)
        return 1;
    int code = slabs->lost.code;
    if (code < 0)
        *err = slabs->lost;
    else
        code = look_for_lost(slabs, err);
    pthread_mutex_unlock(&slabs->lock);
    return code;
}

// Kernels may wait for each other in vain in a call that not all were asked
// for alike: we give nothing more in it.
static void
leave_amiss(const wm_slabs_t *slabs)
{
    uint32_t at = wm_gates_streams_at(slabs->gates), last = slabs->told.calls;
    bool between = at == 0 || (at & 0xffff) == ENDED; // of that call the next
    uint32_t call = last - (uint16_t)(last - (at >> 16)) + between;
    if (call <= last && wm_told_is_amiss(&slabs->told, slabs->gates, call))
        wm_gates_leave_from(slabs->gates, at, (call << 16) + ENDED - 1);
}

void
wm_slabs_give_up(wm_slabs_t *slabs)
{
    bool ended = wm_gates_have_kept(slabs->gates);
    if ((ended && wm_gates_dead(slabs->gates) < 0)
        || pthread_mutex_trylock(&slabs->lock) != 0)
        return;
    if (ended)
        wm_gates_leave(slabs->gates, (slabs->told.calls << 16) + FAR);
    else if (slabs->by_kernels)
        leave_amiss(slabs);
    pthread_mutex_unlock(&slabs->lock);
}

int
wm_slabs_device(const wm_slabs_t *slabs)
{
    return slabs->device;
}

size_t
wm_slabs_half(const wm_slabs_t *slabs)
{
    return slabs->shared->nbytes / 2 / HALF_ALIGN * HALF_ALIGN;
}

bool
wm_slabs_have_kernels(const wm_slabs_t *slabs)
{
    return slabs->by_kernels;
}

bool
wm_slabs_are_on_host(const wm_slabs_t *slabs)
{
    return slabs->shared->on_host;
}

const wm_points_t *
wm_slabs_points(const wm_slabs_t *slabs)
{
    return &slabs->points;
}

bool
wm_slabs_serve(const wm_slabs_t *slabs, int device)
{
    return slabs->device == device && slabs->lost.code == 0;
}

static bool
have_all_ended(const wm_slabs_t *slabs)
{
    for (int rank = 0; rank < slabs->size; ++rank)
        if (!wm_gates_streams_reached(slabs->gates, rank,
                                      (slabs->told.calls << 16) + ENDED))
            return false;
    return wm_gates_have_kept(slabs->gates);
}

bool
wm_slabs_free(wm_slabs_t *slabs)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    // Of graphs nobody here knows whether they are running.
    for (int naps = 0; slabs->told.calls > 0 && !have_all_ended(slabs);
         ++naps) {
        if (naps == NAPS)
            return false;
        wm_engine_lock();
        (void)wm_deaths_look(slabs->comm);
        wm_engine_unlock();
        nanosleep(&nap, NULL);
    }
    if (slabs->by_kernels) // what they wrote may come behind their words
        nanosleep(&(struct timespec){.tv_nsec = LINGER_NS}, NULL);
    discard(slabs);
    return true;
}
