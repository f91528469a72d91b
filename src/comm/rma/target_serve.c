// SPDX-License-Identifier: BSD-3-Clause
// The target's side: it performs the requests of each origin in their order,
// and those that access different bytes at the same time.
#include <stdlib.h>
#include <string.h>

#include "comm/coll/call/reducible.h"
#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/engine/stats.h"
#include "comm/message/p2p.h"
#include "comm/rma/target_layout.h"
#include "comm/rma/target_state.h"
#include "comm/rma/update.h"
#include "cuda/event.h"
#include "cuda/list.h"

// Payloads of updates up to this size stay in page-locked memory, which
// kernels read: that takes less time than a copy.
#define ON_HOST_BYTES 65536
// Requests of one origin that are under way at the same time.
#define ADMITTED 8

typedef enum {
    SERVING_WAITS, // for earlier requests of its origin
    SERVING_LAYOUT,
    SERVING_MOVES, // the payload comes, or the result goes
    SERVING_UPDATES,
    SERVING_LOCKS,
    SERVING_REPLIES,
} serving_state_t;

struct wm_serving {
    wm_op_t op;
    wm_target_t *target;
    wm_serving_t *next, *prev; // of its origin
    int source;
    serving_state_t state;
    bool refused; // its payload is discarded
    bool updated; // its update is enqueued, or done
    wm_target_request_t request;
    int64_t *words;
    MPI_Request layout, replying;
    wm_target_reply_t reply;
    wm_pointer_t memory;   // of the target
    char *at;              // NULL: not known yet
    const char *region;    // the memory that was given, in which `at` is
    wm_pattern_t *pattern; // NULL: no gaps
    wm_coll_memory_t given, result; // of an update
    wm_op_t *receiving, *sending;   // NULL: none
    wm_update_t update;
    CUevent event;   // of its end on the stream
    uint32_t ticket; // of the lock
    bool waits;      // it has the ticket
    bool alone;      // it has the right to update alone
    unsigned looks;
};

_Static_assert(sizeof(wm_serving_t) <= WM_OP_BYTES, "it finds room in a pool");

static int
serving_tag(const wm_serving_t *serving, wm_target_part_t part)
{
    return wm_target_tag(serving->target, serving->request.number, part);
}

static bool
serving_has_payload(const wm_serving_t *serving)
{
    int kind = serving->request.kind;
    return kind == WM_TARGET_PUT || kind == WM_TARGET_ACCUMULATE
           || kind == WM_TARGET_COMPARE
           || (kind == WM_TARGET_FETCH
               && serving->request.op != WM_REDUCE_NO_OP);
}

static bool
serving_updates(const wm_serving_t *serving)
{
    return serving->request.kind >= WM_TARGET_ACCUMULATE
           && serving->request.kind <= WM_TARGET_COMPARE;
}

static bool
serving_has_result(const wm_serving_t *serving)
{
    int kind = serving->request.kind;
    return kind == WM_TARGET_GET || kind == WM_TARGET_FETCH
           || kind == WM_TARGET_COMPARE;
}

// Returns true if the earlier requests of the origin let this one go on: to
// begin, and then to access the memory. The payloads of updates come at the
// same time, up to the bytes of a chunk, and their updates follow each other
// on a stream.
static bool
serving_is_next(const wm_serving_t *serving, bool begins)
{
    const wm_serving_t *one = serving->prev;
    bool next = true;
    uint64_t room = WM_TARGET_CHUNK;
    for (; one != NULL && next; one = one->prev) {
        bool both = serving_updates(one) && serving_updates(serving);
        uint64_t taken = both ? one->request.nbytes : 0;
        room -= taken < room ? taken : room;
        if (begins && both && serving->request.nbytes > room)
            return false;
        next = one->state == SERVING_REPLIES
               || (both && (begins || one->updated))
               || !wm_target_conflict(&one->request, &serving->request);
    }
    return next;
}

static wm_envelope_t
serving_envelope(const wm_serving_t *serving, wm_target_part_t part)
{
    return (wm_envelope_t){
        .rank = serving->source,
        .tag = serving_tag(serving, part),
        .stream_device = -1,
    };
}

// Sends the reply: the operation was performed, or why not.
static int
serving_reply(wm_serving_t *serving, wm_error_t *err)
{
    bool done = serving->reply.code == 0;
    size_t length = done ? offsetof(wm_target_reply_t, text)
                         : sizeof serving->reply;
    serving->state = SERVING_REPLIES;
    wm_stat_add(WM_STAT_served_operations,
                done && serving->request.kind <= WM_TARGET_COMPARE);
    return wm_mpi_check(
        MPI_Isend(&serving->reply, (int)length, MPI_BYTE, serving->source,
                  serving_tag(serving, WM_TARGET_REPLY),
                  serving->target->comm.match, &serving->replying),
        "MPI_Isend", err);
}

// Begins the receive of the payload; `into` without memory discards it.
static int
serving_receive(wm_serving_t *serving, const wm_buffer_t *into,
                wm_error_t *err)
{
    wm_buffer_t buffer = *into;
    wm_envelope_t envelope = serving_envelope(serving, WM_TARGET_PAYLOAD);
    serving->state = SERVING_MOVES;
    return wm_receive_begin(&serving->target->comm, &buffer, &envelope,
                            &serving->receiving, err);
}

static int
serving_send(wm_serving_t *serving, const wm_buffer_t *from, wm_error_t *err)
{
    wm_buffer_t buffer = *from;
    wm_envelope_t envelope = serving_envelope(serving, WM_TARGET_RESULT);
    serving->state = SERVING_MOVES;
    return wm_send_begin(&serving->target->comm, &buffer, &envelope,
                         &serving->sending, err);
}

static void
serving_end_alone(wm_serving_t *serving)
{
    if (serving->alone)
        wm_window_lock_end_update(serving->target->words);
    serving->alone = false;
}

// Goes on with an operation that was refused, when nothing uses its memory any
// more: takes what comes, and tells the origin.
static int
serving_settle(wm_serving_t *serving, wm_error_t *err)
{
    static const wm_buffer_t none = {.memory = {.device = -1}};
    wm_target_t *target = serving->target;
    bool idle = true;
    if (serving->state == SERVING_UPDATES && serving->update.device >= 0
        && wm_stream_spin(target->device, target->stream, 1, &idle, NULL) == 0
        && !idle)
        return 0;
    serving_end_alone(serving);
    if (serving_has_result(serving) && serving->sending == NULL) {
        wm_envelope_t envelope = serving_envelope(serving, WM_TARGET_RESULT);
        wm_send_failure(&target->comm, &envelope, serving->reply.text);
    }
    bool discards = serving_has_payload(serving) && serving->receiving == NULL
                    && serving_receive(serving, &none, err) == 0;
    return discards ? 0 : serving_reply(serving, err);
}

// Refuses the operation.
static int
serving_refuse(wm_serving_t *serving, const wm_error_t *why, wm_error_t *err)
{
    wm_target_reply_t *reply = &serving->reply;
    if (serving->state == SERVING_REPLIES)
        return wm_error_set(err, why->code, why->detail, "%s", why->text);
    reply->code = why->code;
    reply->detail = why->detail;
    wm_error_cut(why->text, sizeof reply->text, reply->text);
    serving->refused = true;
    return serving_settle(serving, err);
}

// The memory of the target, as the buffer of a message.
static wm_buffer_t
serving_place(const wm_serving_t *serving)
{
    return (wm_buffer_t){
        .data = serving->at,
        .nbytes = serving->request.nbytes,
        .memory = serving->memory,
        .pattern = serving->pattern,
    };
}

static int
serving_take(wm_serving_t *serving, wm_coll_memory_t *memory, size_t nbytes,
             wm_error_t *err)
{
    return wm_coll_memory_take(
        memory, nbytes,
        nbytes > ON_HOST_BYTES ? wm_target_device(&serving->memory) : -1, err);
}

// Takes memory for an update, and begins to receive the payload.
static int
serving_begin_update(wm_serving_t *serving, wm_error_t *err)
{
    const wm_target_request_t *request = &serving->request;
    size_t nbytes = request->nbytes;
    bool compares = request->kind == WM_TARGET_COMPARE;
    int code = serving_take(serving, &serving->given,
                            compares ? 2 * nbytes : nbytes, err);
    if (code == 0 && serving_has_result(serving))
        code = serving_take(serving, &serving->result, nbytes, err);
    if (code < 0)
        return code;
    serving->given.buffer.nbytes = nbytes;
    if (compares)
        memcpy(serving->given.buffer.data + nbytes, request->compare, nbytes);
    if (serving_has_payload(serving))
        return serving_receive(serving, &serving->given.buffer, err);
    serving->state = SERVING_MOVES;
    return 0;
}

// Begins an operation whose memory is known.
static int
serving_begin(wm_serving_t *serving, wm_error_t *err)
{
    wm_buffer_t place = serving_place(serving);
    switch (serving->request.kind) {
    case WM_TARGET_PUT:
        return serving_receive(serving, &place, err);
    case WM_TARGET_GET:
        return serving_send(serving, &place, err);
    default:
        return serving_begin_update(serving, err);
    }
}

static int
serving_damaged(const wm_serving_t *serving, wm_error_t *err)
{
    return wm_error_set(err, WM_ERR_STATE, 0,
                        "a request of rank %d to a window is damaged",
                        serving->source);
}

// Finds the memory, from `low` to `high` behind the request's place.
static int
serving_find(wm_serving_t *serving, int64_t low, int64_t high, wm_error_t *err)
{
    const wm_target_request_t *request = &serving->request;
    const wm_target_memory_t *region = wm_target_find(
        serving->target, request->at + (uint64_t)low,
        (uint64_t)high - (uint64_t)low);
    if (region == NULL)
        return wm_error_set(
            err, WM_ERR_MPI, MPI_ERR_RMA_RANGE,
            "target: bytes %lld to %lld are not in the memory that %s has "
            "given to the window: check target_disp, count and datatype",
            (long long)(request->at + (uint64_t)low),
            (long long)(request->at + (uint64_t)high),
            wm_comm_name(serving->target->of, serving->target->of->rank).text);
    serving->memory = region->memory;
    serving->region = region->data;
    serving->at = region->data + (request->at - region->at);
    return 0;
}

// Reads the layout, and turns its offsets into addresses.
static int
serving_read_layout(wm_serving_t *serving, const MPI_Status *status,
                    wm_error_t *err)
{
    int64_t low = 0, high = 0;
    int come = 0;
    const wm_target_request_t *request = &serving->request;
    MPI_Get_count(status, MPI_BYTE, &come);
    if ((size_t)come != request->words * sizeof *serving->words)
        return serving_damaged(serving, err);
    size_t size = serving_updates(serving) ? wm_reducible_size(request->type)
                                           : 1;
    int code = wm_target_layout_read(serving->words, request->words,
                                     request->nbytes, size, &serving->pattern,
                                     &low, &high, err);
    if (code == 0)
        code = serving_find(serving, low, high, err);
    for (int i = 0; code == 0 && i < serving->pattern->count; ++i)
        serving->pattern->parts[i].data =
            serving->at + (intptr_t)serving->pattern->parts[i].data;
    return code;
}

static int
serving_receive_layout(wm_serving_t *serving, wm_error_t *err)
{
    size_t nbytes = serving->request.words * sizeof *serving->words;
    serving->words = nbytes <= INT32_MAX ? malloc(nbytes) : NULL;
    if (serving->words == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0,
                            "out of host memory for the gaps of a datatype");
    serving->state = SERVING_LAYOUT;
    return wm_mpi_check(
        MPI_Irecv(serving->words, (int)nbytes, MPI_BYTE, serving->source,
                  serving_tag(serving, WM_TARGET_LAYOUT),
                  serving->target->comm.match, &serving->layout),
        "MPI_Irecv", err);
}

static int
serving_check(const wm_serving_t *serving, wm_error_t *err)
{
    const wm_target_request_t *request = &serving->request;
    bool updates = serving_updates(serving);
    size_t size = 1;
    bool right = request->magic == WM_TARGET_MAGIC && request->kind > 0
                 && request->kind < WM_TARGET_KINDS;
    if (right && updates) {
        right = wm_reducible_takes(request->type, request->op);
        size = right ? wm_reducible_size(request->type) : 1;
        right = right && request->nbytes % size == 0;
    }
    if (right && request->kind == WM_TARGET_COMPARE)
        right = request->nbytes == size && size <= WM_TARGET_COMPARED
                && request->words == 0;
    return right ? 0 : serving_damaged(serving, err);
}

// Begins the request, as it is the first of its origin.
static int
serving_start(wm_serving_t *serving, wm_error_t *err)
{
    const wm_target_request_t *request = &serving->request;
    int code = serving_check(serving, err);
    if (code < 0)
        return code;
    if (request->kind > WM_TARGET_COMPARE) {
        serving->state = SERVING_LOCKS;
        return 0;
    }
    if (request->words > 0)
        return serving_receive_layout(serving, err);
    code = request->nbytes <= INT64_MAX
               ? serving_find(serving, 0, (int64_t)request->nbytes, err)
               : wm_error_set(err, WM_ERR_MPI, MPI_ERR_RMA_RANGE,
                              "target: more bytes than memory has");
    return code < 0 ? code : serving_begin(serving, err);
}

// Takes the right to update from a rank of this host that died with it.
static void
serving_look_at_updater(wm_serving_t *serving)
{
    wm_target_t *target = serving->target;
    int rank = wm_window_lock_updater(target->words);
    if (wm_failure_is_due(&serving->looks) && rank >= 0
        && rank < target->comm.size
        && wm_failure_look(&target->comm, rank, NULL) < 0)
        wm_window_lock_end_update(target->words);
}

// Enqueues the update, or does it; takes the right to update alone first,
// where that is needed.
static int
serving_enqueue(wm_serving_t *serving, wm_error_t *err)
{
    wm_target_t *target = serving->target;
    wm_update_t *update = &serving->update;
    if (!serving->alone && wm_update_is_alone(update)) {
        if (!wm_window_lock_try_update(target->words,
                                       WM_WINDOW_RANK_OF_ENGINE)) {
            serving_look_at_updater(serving);
            return 0;
        }
        serving->alone = true;
    }
    int code = wm_update_step(update, target->stream, err);
    if (code <= 0)
        return code;
    serving->updated = true;
    if (update->device < 0)
        return 0;
    code = wm_event_acquire(target->device, &serving->event, err);
    return code < 0 ? code
                    : wm_event_record(target->device, serving->event,
                                      target->stream, err);
}

// Goes on when the memory is updated.
static int
serving_update(wm_serving_t *serving, wm_error_t *err)
{
    bool done = true;
    int code = serving->updated ? 0 : serving_enqueue(serving, err);
    if (code == 0 && serving->event != NULL)
        code = wm_event_done(serving->target->device, serving->event, &done,
                             err);
    if (code < 0 || !serving->updated || !done)
        return code;
    serving_end_alone(serving);
    return serving_has_result(serving)
               ? serving_send(serving, &serving->result.buffer, err)
               : serving_reply(serving, err);
}

// Begins to update the memory with the payload that has come.
static int
serving_begin_updating(wm_serving_t *serving, wm_error_t *err)
{
    const wm_target_request_t *request = &serving->request;
    const wm_pattern_t *pattern = serving->pattern;
    const char *given = serving->given.buffer.data;
    bool compares = request->kind == WM_TARGET_COMPARE;
    if (!serving_is_next(serving, false))
        return 0;
    serving->update = (wm_update_t){
        .device = wm_target_device(&serving->memory),
        .dst = pattern == NULL ? serving->at : NULL,
        .parts = pattern != NULL ? pattern->parts : NULL,
        .count = pattern != NULL ? pattern->count : 0,
        .type = request->type,
        .op = compares ? WM_REDUCE_REPLACE : request->op,
        .src = given,
        .compare = compares ? given + request->nbytes : NULL,
        .fetched = serving->result.buffer.data,
        .nbytes = request->nbytes,
    };
    serving->state = SERVING_UPDATES;
    return serving_update(serving, err);
}

// Goes on when the payload has come, or the result has gone.
static int
serving_moved(wm_serving_t *serving, wm_error_t *err)
{
    const wm_op_t *parts[] = {serving->receiving, serving->sending};
    for (int i = 0; i < 2; ++i)
        if (parts[i] != NULL && !wm_target_has_ended(parts[i]))
            return 0;
    for (int i = 0; i < 2 && !serving->refused; ++i)
        if (parts[i] != NULL && parts[i]->error.code != 0) {
            *err = parts[i]->error;
            return err->code;
        }
    const wm_op_t *payload = serving->refused ? NULL : serving->receiving;
    if (payload != NULL && payload->result.nbytes != serving->request.nbytes)
        return serving_damaged(serving, err);
    bool updates = serving_updates(serving) && !serving->refused
                   && serving->sending == NULL;
    return updates ? serving_begin_updating(serving, err)
                   : serving_reply(serving, err);
}

// Leaves the lock in the name of ranks of other hosts that died with it.
// Returns the error of one of this host, which may have died with it as well.
static int
serving_look_at_holders(wm_serving_t *serving, wm_error_t *err)
{
    wm_target_t *target = serving->target;
    int code = 0;
    if (!wm_failure_is_due(&serving->looks))
        return 0;
    for (int rank = 0; rank < target->comm.size && code == 0; ++rank) {
        wm_target_rank_t *of = &target->ranks[rank];
        bool here = wm_node_shares(target->comm.peers[rank]);
        if ((!here && !of->holds)
            || wm_failure_look(&target->comm, rank, here ? err : NULL) == 0)
            continue;
        if (of->holds)
            wm_window_lock_leave(target->words, of->holds_alone);
        of->holds = false;
        code = here ? err->code : 0;
    }
    return code;
}

static int
serving_lock(wm_serving_t *serving, wm_error_t *err)
{
    wm_target_t *target = serving->target;
    wm_target_rank_t *of = &target->ranks[serving->source];
    if (of->holds)
        return wm_error_set(err, WM_ERR_MPI, MPI_ERR_RMA_SYNC,
                            "Lock of a rank that is locked: unlock it first");
    bool exclusive = serving->request.kind == WM_TARGET_LOCK_EXCLUSIVE;
    if (!serving->waits)
        serving->ticket = wm_window_lock_ask(target->words);
    serving->waits = true;
    if (!wm_window_lock_try(target->words, serving->ticket, exclusive))
        return serving_look_at_holders(serving, err);
    of->holds = true;
    of->holds_alone = exclusive;
    return serving_reply(serving, err);
}

static int
serving_unlock(wm_serving_t *serving, wm_error_t *err)
{
    wm_target_rank_t *of = &serving->target->ranks[serving->source];
    if (!of->holds)
        return wm_error_set(err, WM_ERR_MPI, MPI_ERR_RMA_SYNC,
                            "Unlock without Lock");
    wm_window_lock_leave(serving->target->words, of->holds_alone);
    of->holds = false;
    return serving_reply(serving, err);
}

static void
serving_admit(wm_target_rank_t *of)
{
    while (of->queued != NULL && of->admitted < ADMITTED) {
        wm_serving_t *serving = of->queued;
        of->queued = serving->next;
        ++of->admitted;
        wm_engine_add_lock_held(&serving->op);
        wm_op_release(&serving->op); // it ends by itself
    }
}

// Makes a step. Returns 1 when the request has ended.
static int
serving_advance(wm_serving_t *serving, wm_error_t *err)
{
    int flag = 0, code;
    MPI_Status status;
    switch (serving->state) {
    case SERVING_WAITS:
        return serving_is_next(serving, true) ? serving_start(serving, err)
                                              : 0;
    case SERVING_LAYOUT:
        code = wm_mpi_check(MPI_Test(&serving->layout, &flag, &status),
                            "MPI_Test", err);
        if (code == 0 && flag)
            code = serving_read_layout(serving, &status, err);
        return code < 0 || !flag ? code : serving_begin(serving, err);
    case SERVING_MOVES:
        return serving_moved(serving, err);
    case SERVING_UPDATES:
        return serving->refused ? serving_settle(serving, err)
                                : serving_update(serving, err);
    case SERVING_LOCKS:
        return serving->request.kind == WM_TARGET_UNLOCK
                   ? serving_unlock(serving, err)
                   : serving_lock(serving, err);
    case SERVING_REPLIES:
        break;
    }
    code = wm_mpi_check(MPI_Test(&serving->replying, &flag, MPI_STATUS_IGNORE),
                        "MPI_Test", err);
    return code < 0 ? code : flag;
}

static bool
serving_step(wm_op_t *op)
{
    wm_error_t err, again;
    wm_serving_t *serving = (wm_serving_t *)op;
    wm_target_rank_t *of = &serving->target->ranks[serving->source];
    int code = serving_advance(serving, &err);
    if (code < 0)
        code = serving_refuse(serving, &err, &again);
    if (code == 0)
        return false;
    WM_LIST_REMOVE(of->served, of->newest, serving);
    --of->admitted;
    --serving->target->serving;
    serving_admit(of);
    return true;
}

static wm_asks_t
serving_asks(const wm_op_t *op)
{
    const wm_serving_t *serving = (const wm_serving_t *)op;
    return serving->layout != MPI_REQUEST_NULL
                   || serving->replying != MPI_REQUEST_NULL
               ? WM_ASKS_TOO
               : WM_ASKS_NOTHING;
}

static void
serving_free(wm_op_t *op)
{
    wm_serving_t *serving = (wm_serving_t *)op;
    wm_op_t *parts[] = {serving->receiving, serving->sending};
    for (int i = 0; i < 2; ++i)
        if (parts[i] != NULL)
            wm_op_release(parts[i]);
    if (serving->event != NULL)
        wm_event_release(serving->target->device, serving->event);
    wm_update_free(&serving->update);
    wm_coll_memory_free(&serving->given);
    wm_coll_memory_free(&serving->result);
    free(serving->pattern);
    free(serving->words);
    if (serving->target != NULL)
        wm_target_release(serving->target);
}

static const wm_op_kind_t serving_kind = {
    .step = serving_step,
    .asks = serving_asks,
    .free = serving_free,
};

wm_serving_t *
wm_serving_new(wm_target_t *target)
{
    wm_serving_t *serving = wm_op_new(&serving_kind, sizeof *serving,
                                      target->of);
    if (serving != NULL)
        serving->layout = serving->replying = MPI_REQUEST_NULL;
    return serving;
}

void
wm_serving_free(wm_serving_t *serving)
{
    wm_op_release(&serving->op);
}

void
wm_serving_begin(wm_serving_t *serving, wm_target_t *target,
                 const wm_target_request_t *request, int source)
{
    wm_target_rank_t *of = &target->ranks[source];
    wm_target_retain(target);
    serving->target = target;
    serving->request = *request;
    serving->source = source;
    WM_LIST_APPEND(of->served, of->newest, serving);
    if (of->queued == NULL)
        of->queued = serving;
    ++target->serving;
    serving_admit(of);
}

bool
wm_serving_any_uses(const wm_target_t *target,
                    const wm_target_memory_t *memory)
{
    bool uses = false;
    for (int rank = 0; rank < target->comm.size && !uses; ++rank) {
        const wm_serving_t *one = target->ranks[rank].served;
        for (; one != NULL && !uses; one = one->next)
            uses = one->at != NULL && one->region == memory->data;
    }
    return uses;
}
