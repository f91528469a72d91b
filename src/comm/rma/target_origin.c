// SPDX-License-Identifier: BSD-3-Clause
// The origin's side: it sends a request and the payload, and waits for the
// reply and the result; or a link accesses the memory. The target keeps the
// order of requests alone. So an operation is held back while an earlier one
// on the same bytes, which is no request or was held back, is under way; and a
// link's while any is.
#include <stdlib.h>
#include <string.h>

#include "comm/coll/call/reducible.h"
#include "comm/engine/engine.h"
#include "comm/engine/hash.h"
#include "comm/message/p2p.h"
#include "comm/rma/target_access.h"
#include "comm/rma/target_layout.h"
#include "comm/rma/target_state.h"
#include "comm/rma/update.h"
#include "cuda/list.h"

typedef enum {
    ASKED_HELD,     // for earlier operations
    ASKED_SENT,     // the request
    ASKED_ACCESSES, // a link does it
} asked_state_t;

struct wm_asked {
    wm_op_t op;
    wm_target_t *target;
    wm_asked_t *next, *prev; // of this rank
    int rank;
    asked_state_t state;
    bool requested;
    bool accesses; // a link does it, or will
    wm_target_request_t request;
    int64_t *words; // the layout, until MPI has sent it
    MPI_Request sending, layout, replying;
    wm_target_reply_t reply;
    bool replied;
    wm_op_t *payload, *result; // NULL: none
    wm_target_move_t move;     // of the link
};

_Static_assert(sizeof(wm_asked_t) <= WM_OP_BYTES, "it finds room in a pool");

// Tests one of MPI's requests; an error of it fails the operation.
static bool
asked_test(wm_asked_t *asked, MPI_Request *request)
{
    return *request == MPI_REQUEST_NULL
           || wm_posted_has_ended(&asked->op, request);
}

// Returns true if a message has ended; its error fails the operation.
static bool
asked_message(wm_asked_t *asked, const wm_op_t *message)
{
    if (message == NULL)
        return true;
    if (!wm_target_has_ended(message))
        return false;
    if (message->error.code != 0)
        wm_op_fail(&asked->op, &message->error);
    return true;
}

static void
asked_read_reply(wm_asked_t *asked)
{
    wm_error_t err;
    asked->replied = true;
    if (asked->reply.code == 0 || asked->op.error.code != 0)
        return;
    asked->reply.text[sizeof asked->reply.text - 1] = '\0';
    wm_error_set(&err, asked->reply.code, asked->reply.detail, "%s",
                 asked->reply.text);
    wm_op_fail(&asked->op, &err);
}

// Keeps the error of an operation that has no request, for the next flush.
static void
asked_keep_error(const wm_asked_t *asked)
{
    wm_target_rank_t *of = &asked->target->ranks[asked->rank];
    if (asked->op.error.code == 0 || asked->requested || of->failure != NULL)
        return;
    of->failure = malloc(sizeof *of->failure);
    if (of->failure != NULL)
        *of->failure = asked->op.error;
}

// Fails an operation with the error that was kept of others on a rank.
static void
target_tell_kept(wm_target_t *target, int rank, wm_op_t *op)
{
    wm_target_rank_t *of = &target->ranks[rank];
    if (of->failure == NULL)
        return;
    wm_op_fail(op, of->failure);
    free(of->failure);
    of->failure = NULL;
}

static void
asked_free(wm_op_t *op)
{
    wm_asked_t *asked = (wm_asked_t *)op;
    if (asked->payload != NULL)
        wm_op_release(asked->payload);
    if (asked->result != NULL)
        wm_op_release(asked->result);
    wm_access_close(&asked->move.users);
    free(asked->words);
    wm_target_release(asked->target);
}

static void
asked_about(const wm_op_t *op, wm_about_t *about)
{
    static const char *const names[WM_TARGET_KINDS] = {
        [WM_TARGET_PUT] = "Put",
        [WM_TARGET_GET] = "Get",
        [WM_TARGET_ACCUMULATE] = "Accumulate",
        [WM_TARGET_FETCH] = "Get_accumulate or Fetch_and_op",
        [WM_TARGET_COMPARE] = "Compare_and_swap",
        [WM_TARGET_LOCK_SHARED] = "Lock",
        [WM_TARGET_LOCK_EXCLUSIVE] = "Lock",
        [WM_TARGET_UNLOCK] = "Unlock",
    };
    const wm_asked_t *asked = (const wm_asked_t *)op;
    uint64_t mark = asked->replied + wm_target_move_mark(&asked->move);
    if (asked->payload != NULL)
        mark = wm_hash(mark, wm_op_about(asked->payload).mark);
    if (asked->result != NULL)
        mark = wm_hash(mark, wm_op_about(asked->result).mark);
    *about = (wm_about_t){
        .performs = names[asked->request.kind],
        .rank = asked->rank,
        .sized = asked->request.nbytes > 0,
        .nbytes = asked->request.nbytes,
        .peer = asked->target->comm.peers[asked->rank],
        .mark = mark,
    };
}

static int
asked_tag(const wm_asked_t *asked, wm_target_part_t part)
{
    return wm_target_tag(asked->target, asked->request.number, part);
}

static int
asked_layout(wm_asked_t *asked, const wm_target_op_t *what, wm_error_t *err)
{
    if (what->count == 0)
        return 0;
    size_t words = wm_target_layout_words(what->parts, what->count);
    if (words > INT32_MAX / sizeof *asked->words)
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "the target's datatype has too many parts: %zu",
                            what->count);
    asked->words = malloc(words * sizeof *asked->words);
    if (asked->words == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    wm_target_layout_write(what->parts, what->count, asked->words);
    asked->request.words = (uint32_t)words;
    return 0;
}

// Begins the messages of the data; takes over both buffers. The payload comes
// last, as it cannot be taken back.
static int
asked_begin_data(wm_asked_t *asked, wm_buffer_t *origin, wm_buffer_t *result,
                 wm_error_t *err)
{
    wm_comm_t *comm = &asked->target->comm;
    wm_envelope_t envelope = {
        .rank = asked->rank,
        .tag = asked_tag(asked, WM_TARGET_RESULT),
        .stream_device = -1,
    };
    int code = 0;
    if (result != NULL)
        code = wm_receive_begin(comm, result, &envelope, &asked->result, err);
    if (code < 0 && origin != NULL)
        wm_buffer_release(origin);
    if (code < 0 || origin == NULL)
        return code;
    envelope.tag = asked_tag(asked, WM_TARGET_PAYLOAD);
    code = wm_send_begin(comm, origin, &envelope, &asked->payload, err);
    if (code < 0 && asked->result != NULL)
        (void)wm_op_cancel(asked->result);
    return code;
}

static int
asked_post(wm_asked_t *asked, wm_error_t *err)
{
    MPI_Comm comm = asked->target->comm.match;
    int result = MPI_Irecv(&asked->reply, sizeof asked->reply, MPI_BYTE,
                           asked->rank, asked_tag(asked, WM_TARGET_REPLY),
                           comm, &asked->replying);
    if (result == MPI_SUCCESS)
        result = MPI_Isend(&asked->request, sizeof asked->request, MPI_BYTE,
                           asked->rank, WM_TARGET_ASKED, comm,
                           &asked->sending);
    if (result == MPI_SUCCESS && asked->words != NULL)
        result = MPI_Isend(
            asked->words, (int)(asked->request.words * sizeof *asked->words),
            MPI_BYTE, asked->rank, asked_tag(asked, WM_TARGET_LAYOUT), comm,
            &asked->layout);
    return wm_mpi_check(result, "MPI_Isend", err);
}

// Sends the request. If MPI fails, the peer is dead, and the operation ends
// with MPI's error.
static void
asked_send(wm_asked_t *asked)
{
    wm_error_t err;
    asked->state = ASKED_SENT;
    --asked->target->ranks[asked->rank].unsent;
    if (asked_post(asked, &err) < 0)
        wm_op_fail(&asked->op, &err);
}

// Returns true while an operation has to wait for earlier ones.
static bool
asked_is_held(const wm_asked_t *asked)
{
    const wm_target_rank_t *of = &asked->target->ranks[asked->rank];
    const wm_asked_t *one = asked->prev;
    bool held = false;
    if (!asked->accesses && of->unsent == 1) // its own
        return false;
    for (; one != NULL && !held; one = one->prev)
        held = (asked->accesses || one->state != ASKED_SENT)
               && wm_target_conflict(&one->request, &asked->request);
    return held;
}

// Returns true when the request has ended.
static bool
asked_is_served(wm_asked_t *asked)
{
    const wm_target_rank_t *of = &asked->target->ranks[asked->rank];
    if (!asked_test(asked, &asked->replying))
        return false;
    if (!asked->replied)
        asked_read_reply(asked);
    return asked_test(asked, &asked->sending)
           && asked_test(asked, &asked->layout)
           && asked_message(asked, asked->payload)
           && asked_message(asked, asked->result)
           // results of others still come
           && (asked->request.kind != WM_TARGET_UNLOCK || of->first == asked);
}

// Returns true when a link has ended the operation, or it has failed. If the
// link has failed, the target's engine does it after all.
static bool
asked_is_accessed(wm_asked_t *asked)
{
    wm_error_t err;
    bool puts = asked->request.kind == WM_TARGET_PUT;
    int code = wm_target_move_step(&asked->move, asked->target, asked->rank,
                                   &asked->request, &err);
    if (code == 2) {
        wm_buffer_t buffer = asked->move.buffer;
        asked->move.buffer.owner = NULL;
        asked->move.buffer.release = NULL;
        buffer.producer.kind = WM_PRODUCER_NONE; // the move has waited
        asked->accesses = false;
        code = asked_begin_data(asked, puts ? &buffer : NULL,
                                puts ? NULL : &buffer, &err);
        if (code == 0)
            asked_send(asked);
    }
    if (code < 0)
        wm_op_fail(&asked->op, &err);
    return code != 0;
}

// Starts an operation, unless it is held back, or has started.
static void
asked_start(wm_asked_t *asked)
{
    if (asked->state != ASKED_HELD || asked_is_held(asked))
        return;
    if (asked->accesses)
        asked->state = ASKED_ACCESSES;
    else
        asked_send(asked);
}

static bool
asked_step(wm_op_t *op)
{
    wm_asked_t *asked = (wm_asked_t *)op;
    wm_target_rank_t *of = &asked->target->ranks[asked->rank];
    asked_start(asked);
    if (asked->state == ASKED_HELD
        || !(asked->state == ASKED_SENT ? asked_is_served(asked)
                                        : asked_is_accessed(asked)))
        return false;
    of->unsent -= asked->state != ASKED_SENT;
    if (asked->request.kind == WM_TARGET_UNLOCK)
        target_tell_kept(asked->target, asked->rank, op);
    asked_keep_error(asked);
    WM_LIST_REMOVE(of->first, of->last, asked);
    return true;
}

static wm_asks_t
asked_asks(const wm_op_t *op)
{
    return ((const wm_asked_t *)op)->state == ASKED_SENT ? wm_posted_asks(op)
                                                         : WM_ASKS_NOTHING;
}

static wm_buffer_t *
asked_buffer(wm_op_t *op)
{
    return &((wm_asked_t *)op)->move.buffer;
}

static const wm_op_kind_t asked_kind = {
    .step = asked_step,
    .asks = asked_asks,
    .about = asked_about,
    .buffer = asked_buffer,
    .free = asked_free,
};

static wm_asked_t *
asked_new(wm_target_t *target, int rank, wm_error_t *err)
{
    wm_asked_t *asked = wm_op_new(&asked_kind, sizeof *asked, target->of);
    if (asked == NULL) {
        (void)wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
        return NULL;
    }
    wm_target_retain(target);
    asked->target = target;
    asked->rank = rank;
    asked->sending = asked->layout = asked->replying = MPI_REQUEST_NULL;
    wm_engine_lock();
    asked->request = (wm_target_request_t){
        .magic = WM_TARGET_MAGIC,
        .number = target->begun++,
    };
    wm_engine_unlock();
    return asked;
}

// Gives the operation to the engine.
static void
asked_begin(wm_asked_t *asked)
{
    wm_target_rank_t *of = &asked->target->ranks[asked->rank];
    wm_engine_lock();
    WM_LIST_APPEND(of->first, of->last, asked);
    ++of->unsent;
    wm_engine_add_lock_held(&asked->op);
    asked_start(asked);
    bool ended = asked->state == ASKED_ACCESSES && asked_step(&asked->op);
    if (ended)
        wm_engine_remove_lock_held(&asked->op);
    wm_engine_begun_lock_held();
    wm_engine_unlock();
    if (ended)
        wm_op_release(&asked->op);
    wm_engine_notify();
}

static int
target_check_op(const wm_target_t *target, const wm_target_op_t *what,
                wm_error_t *err)
{
    bool updates = what->kind >= WM_TARGET_ACCUMULATE;
    if (what->rank < 0 || what->rank >= target->comm.size)
        return wm_error_set(err, WM_ERR_MPI, MPI_ERR_RANK,
                            "target_rank=%d is not a rank of this window: use "
                            "0 to %d or PROC_NULL",
                            what->rank, target->comm.size - 1);
    if (updates && !wm_reducible_takes(what->type, what->op))
        return wm_error_set(err, WM_ERR_MPI, MPI_ERR_OP,
                            "op: MPI has no such operation for elements of "
                            "this datatype");
    if (updates
        && wm_update_check(what->parts, what->count, what->type, err) < 0)
        return err->code;
    size_t size = updates ? wm_reducible_size(what->type) : 1;
    if (what->nbytes % size != 0)
        return wm_error_set(err, WM_ERR_MPI, MPI_ERR_TYPE,
                            "%zu bytes are no number of whole elements, which "
                            "have %zu",
                            what->nbytes, size);
    if (what->kind == WM_TARGET_COMPARE
        && (what->nbytes != size || size > WM_TARGET_COMPARED))
        return wm_error_set(err, WM_ERR_MPI, MPI_ERR_COUNT,
                            "Compare_and_swap takes one element of at most "
                            "%d bytes",
                            WM_TARGET_COMPARED);
    return 0;
}

static void
target_release_buffers(wm_buffer_t *origin, wm_buffer_t *result)
{
    if (origin != NULL)
        wm_buffer_release(origin);
    if (result != NULL)
        wm_buffer_release(result);
}

// Keeps the buffer for the link, when host memory is ready.
static int
asked_begin_access(wm_asked_t *asked, wm_buffer_t *buffer, bool gets,
                   wm_error_t *err)
{
    const wm_envelope_t nowhere = {.stream_device = -1};
    int code = wm_await_producer(buffer, &buffer->producer, &nowhere, gets,
                                 err);
    if (code < 0) {
        wm_buffer_release(buffer);
        return code;
    }
    wm_target_move_begin(&asked->move, buffer, gets);
    asked->accesses = true;
    return 0;
}

// Begins an operation that was checked.
static int
target_begin_one(wm_target_t *target, const wm_target_op_t *what,
                 wm_buffer_t *origin, wm_buffer_t *result, wm_op_t **op,
                 wm_error_t *err)
{
    int code = 0;
    bool gets = what->kind == WM_TARGET_GET;
    wm_buffer_t *moved = gets ? result : origin;
    wm_asked_t *asked = asked_new(target, what->rank, err);
    code = asked != NULL ? asked_layout(asked, what, err) : WM_ERR_MEMORY;
    wm_engine_lock();
    bool accesses = code == 0 && wm_target_takes_access(target, what, moved);
    wm_engine_unlock();
    if (code < 0)
        target_release_buffers(origin, result);
    else
        code = accesses ? asked_begin_access(asked, moved, gets, err)
                        : asked_begin_data(asked, origin, result, err);
    if (code < 0) {
        if (asked != NULL)
            wm_op_release(&asked->op);
        return code;
    }
    asked->requested = what->requested;
    asked->request.kind = (uint8_t)what->kind;
    asked->request.type = (uint8_t)what->type;
    asked->request.op = (uint8_t)what->op;
    asked->request.at = what->at;
    asked->request.nbytes = what->nbytes;
    if (what->kind == WM_TARGET_COMPARE)
        memcpy(asked->request.compare, what->compare, what->nbytes);
    asked_begin(asked);
    if (op != NULL)
        *op = &asked->op;
    else
        wm_op_release(&asked->op); // it ends by itself
    return 0;
}

// A buffer whose chunks are those of several operations.
typedef struct {
    _Atomic int uses;
    wm_buffer_t whole;
} shared_t;

static void
shared_release(void *owner)
{
    shared_t *shared = owner;
    if (atomic_fetch_sub(&shared->uses, 1) != 1)
        return;
    wm_buffer_release(&shared->whole);
    free(shared);
}

// Returns a chunk; NULL if there is no buffer.
static wm_buffer_t *
shared_chunk(shared_t *shared, size_t at, size_t nbytes, wm_buffer_t *chunk)
{
    if (shared == NULL)
        return NULL;
    atomic_fetch_add(&shared->uses, 1);
    *chunk = shared->whole;
    chunk->data += at;
    chunk->nbytes = nbytes;
    chunk->owner = shared;
    chunk->release = shared_release;
    return chunk;
}

// Returns a buffer that is used once; takes over *buffer on success.
static int
shared_new(wm_buffer_t *buffer, shared_t **shared, wm_error_t *err)
{
    *shared = NULL;
    if (buffer == NULL)
        return 0;
    *shared = malloc(sizeof **shared);
    if (*shared == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    (*shared)->uses = 1;
    (*shared)->whole = *buffer;
    return 0;
}

// Returns true if a long update is made of several, so that the target needs
// memory for one of them at a time, and updates one while the next one comes.
static bool
target_splits(const wm_target_op_t *what, const wm_buffer_t *origin,
              const wm_buffer_t *result, wm_op_t **op)
{
    return what->kind >= WM_TARGET_ACCUMULATE && op == NULL
           && what->nbytes > WM_TARGET_CHUNK && what->count == 0
           && (origin == NULL || origin->pattern == NULL)
           && (result == NULL || result->pattern == NULL);
}

static int
target_begin_chunks(wm_target_t *target, const wm_target_op_t *what,
                    wm_buffer_t *origin, wm_buffer_t *result, wm_error_t *err)
{
    shared_t *given, *taken;
    wm_buffer_t sent, received;
    wm_target_op_t chunk = *what;
    int code = shared_new(origin, &given, err);
    if (code == 0 && shared_new(result, &taken, err) < 0) {
        free(given);
        code = WM_ERR_MEMORY;
    }
    if (code < 0) {
        target_release_buffers(origin, result);
        return code;
    }
    for (size_t at = 0; at < what->nbytes && code == 0; at += chunk.nbytes) {
        chunk.at = what->at + at;
        chunk.nbytes = what->nbytes - at < WM_TARGET_CHUNK ? what->nbytes - at
                                                           : WM_TARGET_CHUNK;
        code = target_begin_one(
            target, &chunk, shared_chunk(given, at, chunk.nbytes, &sent),
            shared_chunk(taken, at, chunk.nbytes, &received), NULL, err);
    }
    if (given != NULL)
        shared_release(given);
    if (taken != NULL)
        shared_release(taken);
    return code;
}

int
wm_target_begin(wm_target_t *target, const wm_target_op_t *what,
                wm_buffer_t *origin, wm_buffer_t *result, wm_op_t **op,
                wm_error_t *err)
{
    int code = target_check_op(target, what, err);
    if (code < 0 || what->nbytes == 0) {
        target_release_buffers(origin, result);
        if (code == 0 && op != NULL)
            *op = wm_op_ended();
        return code;
    }
    return target_splits(what, origin, result, op)
               ? target_begin_chunks(target, what, origin, result, err)
               : target_begin_one(target, what, origin, result, op, err);
}

// Waits for the operations that began before it.
typedef struct {
    wm_op_t op;
    wm_target_t *target;
    int rank;      // -1: all
    uint32_t upto; // number of the first request that begins later
} flush_t;

// Returns the first operation that a flush waits for, or NULL. A lock is not
// one: it may be another thread's, and wait for what is behind the flush.
static const wm_asked_t *
first_flushed(const wm_target_t *target, int rank)
{
    const wm_asked_t *asked = target->ranks[rank].first;
    while (asked != NULL
           && (asked->request.kind == WM_TARGET_LOCK_SHARED
               || asked->request.kind == WM_TARGET_LOCK_EXCLUSIVE))
        asked = asked->next;
    return asked;
}

static bool
flush_step(wm_op_t *op)
{
    flush_t *flush = (flush_t *)op;
    wm_target_t *target = flush->target;
    bool ended = true;
    int first = flush->rank < 0 ? 0 : flush->rank;
    int behind = flush->rank < 0 ? target->comm.size : first + 1;
    for (int rank = first; rank < behind && ended; ++rank) {
        const wm_asked_t *asked = first_flushed(target, rank);
        ended = asked == NULL
                || (int32_t)(asked->request.number - flush->upto) >= 0;
    }
    for (int rank = first; rank < behind && ended; ++rank)
        target_tell_kept(target, rank, op);
    return ended;
}

// Tells of the first operation that it waits for.
static void
flush_about(const wm_op_t *op, wm_about_t *about)
{
    const flush_t *flush = (const flush_t *)op;
    const wm_target_t *target = flush->target;
    int rank = flush->rank < 0 ? 0 : flush->rank;
    while (flush->rank < 0 && rank + 1 < target->comm.size
           && first_flushed(target, rank) == NULL)
        ++rank;
    const wm_asked_t *asked = first_flushed(target, rank);
    if (asked != NULL)
        asked_about(&asked->op, about);
}

static void
flush_free(wm_op_t *op)
{
    wm_target_release(((flush_t *)op)->target);
}

static const wm_op_kind_t flush_kind = {
    .step = flush_step,
    .about = flush_about,
    .free = flush_free,
};

int
wm_target_flush(wm_target_t *target, int rank, wm_op_t **op, wm_error_t *err)
{
    flush_t *flush = wm_op_new(&flush_kind, sizeof *flush, target->of);
    if (flush == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    wm_target_retain(target);
    flush->target = target;
    flush->rank = rank;
    wm_engine_lock();
    flush->upto = target->begun;
    wm_engine_add_lock_held(&flush->op);
    bool ended = flush_step(&flush->op);
    if (ended)
        wm_engine_remove_lock_held(&flush->op);
    wm_engine_unlock();
    if (ended)
        wm_op_release(&flush->op);
    *op = &flush->op;
    return 0;
}

static int
target_ask_lock(wm_target_t *target, int rank, int kind, wm_op_t **op,
                wm_error_t *err)
{
    wm_asked_t *asked = asked_new(target, rank, err);
    if (asked == NULL)
        return WM_ERR_MEMORY;
    asked->requested = true;
    asked->request.kind = (uint8_t)kind;
    asked_begin(asked);
    *op = &asked->op;
    return 0;
}

int
wm_target_lock(wm_target_t *target, int rank, bool exclusive, wm_op_t **op,
               wm_error_t *err)
{
    return target_ask_lock(
        target, rank,
        exclusive ? WM_TARGET_LOCK_EXCLUSIVE : WM_TARGET_LOCK_SHARED, op, err);
}

int
wm_target_unlock(wm_target_t *target, int rank, wm_op_t **op, wm_error_t *err)
{
    return target_ask_lock(target, rank, WM_TARGET_UNLOCK, op, err);
}
