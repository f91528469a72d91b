// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/run/moved_coll.h"

#include <stdlib.h>

#include "comm/coll/call/coll_memory.h"
#include "comm/coll/run/coll_engines.h"
#include "comm/diagnostics/wait.h"
#include "comm/engine/stats.h"
#include "comm/message/p2p.h"
#include "cuda/device.h"

#define LOOKS 100

typedef enum {
    MOVING_IN, // the send data, and received data that the call keeps
    RUNNING,   // the call itself
    MOVING_OUT,
} state_t;

// A message of this rank to itself.
typedef struct {
    wm_envelope_t envelope;
    wm_op_t *ops[2]; // its send and its receive; NULL: none
    bool failed;     // a failure was sent
} message_t;

enum { SENT, KEPT, RECEIVED, MESSAGES };

struct wm_moved_coll {
    state_t state;
    message_t messages[MESSAGES];
    wm_coll_t call;
    wm_coll_memory_t ours[2]; // to send, to receive
    wm_error_t failed;        // code 0: none
    wm_coll_op_t op;          // of `call`
};

// Begins the send, or the receive, of a message. The buffer is borrowed.
static int
moved_begin_half(wm_moved_coll_t *moved, int which, const wm_buffer_t *buffer,
                 bool receives, wm_error_t *err)
{
    message_t *message = &moved->messages[which];
    wm_buffer_t borrowed = *buffer;
    borrowed.release = NULL;
    if (buffer->nbytes == 0)
        return 0;
    return (receives ? wm_receive_begin : wm_send_begin)(
        moved->op.participant.comm->object_comm, &borrowed, &message->envelope,
        &message->ops[receives], err);
}

// Returns true if the call reads received data, or leaves some of them, as
// between blocks.
static bool
moved_keeps(const wm_coll_t *call, const wm_comm_t *comm)
{
    size_t nbytes = 0;
    if (wm_coll_keeps(call, comm->rank))
        return true;
    if (call->receives == NULL || !wm_coll_shape(call->kind)->varies)
        return false;
    for (int rank = 0; rank < comm->size; ++rank)
        nbytes += call->receives[rank].nbytes;
    return nbytes < call->receive->nbytes;
}

// Begins all messages but the sending of the result, as a begin may wait for
// the program's work.
static int
moved_begin_messages(wm_moved_coll_t *moved, const wm_coll_t *call,
                     wm_error_t *err)
{
    wm_comm_t *comm = moved->op.participant.comm;
    uint32_t first = wm_comm_draw(comm, comm->rank, MESSAGES);
    uint32_t numbers = (uint32_t)wm_comm_last_number(comm) + 1u;
    int code = 0;
    for (uint32_t i = 0; i < MESSAGES; ++i)
        moved->messages[i].envelope = (wm_envelope_t){
            .rank = comm->rank,
            .tag = (int)((first + i) % numbers),
            .stream_device = -1,
        };
    for (int side = 0; side < 2 && code == 0; ++side) {
        const wm_buffer_t *its = side == 0 ? call->send : call->receive;
        int which = side == 0 ? SENT : KEPT;
        if (its == NULL || (side == 1 && !moved_keeps(call, comm)))
            continue;
        code = moved_begin_half(moved, which, &moved->ours[side].buffer, true,
                                err);
        if (code == 0)
            code = moved_begin_half(moved, which, its, false, err);
    }
    if (code == 0 && call->receive != NULL)
        code = moved_begin_half(moved, RECEIVED, call->receive, true, err);
    return code;
}

// Returns true when a message has ended; sets `failed` to its error.
static bool
moved_has_ended(wm_moved_coll_t *moved, int which)
{
    const message_t *message = &moved->messages[which];
    bool ended = true;
    for (int i = 0; i < 2; ++i) {
        const wm_op_t *op = message->ops[i];
        if (op == NULL)
            continue;
        ended &= atomic_load(&op->done) != 0;
        if (ended && op->error.code < 0 && moved->failed.code == 0)
            moved->failed = op->error;
    }
    return ended;
}

// Keeps the error, and ends receives of messages that are not sent any more.
static void
moved_fail(wm_moved_coll_t *moved, const wm_error_t *err)
{
    if (moved->failed.code == 0)
        moved->failed = *err;
    for (int i = 0; i < MESSAGES; ++i) {
        message_t *message = &moved->messages[i];
        if (message->ops[1] == NULL || message->ops[0] != NULL
            || message->failed)
            continue;
        message->failed = true;
        wm_send_failure(moved->op.participant.comm->object_comm,
                        &message->envelope, moved->failed.text);
    }
}

// Makes the operation of the moved call.
static void
moved_init(wm_moved_coll_t *moved, const wm_coll_op_t *op, unsigned bit)
{
    const wm_coll_t *call = op->participant.call;
    wm_coll_op_t *own = &moved->op;
    moved->call = *call;
    moved->call.on_host = (op->engine->takes & WM_COLL_TAKES_HOST) != 0;
    moved->call.on_device = !moved->call.on_host;
    moved->call.send = call->send != NULL ? &moved->ours[0].buffer : NULL;
    moved->call.receive = call->receive != NULL ? &moved->ours[1].buffer
                                                : NULL;
    wm_coll_op_init(own, op->participant.comm, NULL, &moved->call, op->form);
    own->engines = bit;
    own->engine = op->engine;
    own->own = op->own;
}

static int
moved_prepare(wm_moved_coll_t *moved, wm_error_t *err)
{
    wm_coll_op_t *own = &moved->op;
    int code = wm_coll_op_prepare(own, err);
    return code < 0 || own->engines != 0 || wm_coll_op_is_mpis(own)
               ? code
               : wm_error_set(err, WM_ERR_STATE, 0,
                              "%s: the engine \"%s\" does not take memory "
                              "of the library",
                              wm_call_name(moved->call.kind),
                              own->engine->name);
}

int
wm_moved_coll_begin(wm_coll_op_t *op, unsigned bit, wm_error_t *err)
{
    const wm_coll_t *call = op->participant.call;
    const wm_buffer_t *its[] = {call->send, call->receive};
    wm_moved_coll_t *moved = calloc(1, sizeof *moved);
    if (moved == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    wm_stat_add(WM_STAT_moved_collectives, 1);
    moved_init(moved, op, bit);
    op->moved = moved;
    op->alone = true;
    op->looks = LOOKS;
    int device = moved->call.on_host ? -1 : op->participant.comm->colls.device;
    int code = 0;
    for (int i = 0; i < 2 && code == 0; ++i)
        if (its[i] != NULL)
            code = wm_coll_memory_take(&moved->ours[i], its[i]->nbytes, device,
                                       err);
    if (code == 0)
        code = moved_prepare(moved, err);
    if (code == 0)
        code = moved_begin_messages(moved, call, err);
    if (code < 0) { // the engine tells the others
        wm_coll_op_fail(&moved->op, err);
        moved_fail(moved, err);
    }
    return 0;
}

// Ends the call itself, and moves the result.
static wm_coll_result_t
moved_end(wm_coll_op_t *op, int code, wm_error_t *err)
{
    wm_moved_coll_t *moved = op->moved;
    op->alone = true;
    op->looks = LOOKS;
    moved->state = MOVING_OUT;
    if (code == 0 && moved->call.receive != NULL)
        code = moved_begin_half(moved, RECEIVED, moved->call.receive, false,
                                err);
    if (code < 0)
        moved_fail(moved, err);
    return WM_COLL_UNDER_WAY;
}

// Tells of the call what the operation around it tells.
static wm_coll_result_t
moved_follow(wm_coll_op_t *op, wm_coll_result_t result, wm_error_t *err)
{
    const wm_coll_op_t *own = &op->moved->op;
    op->begun = own->begun;
    op->alone = own->alone;
    op->asks = own->asks;
    op->looks = own->looks;
    return result == WM_COLL_UNDER_WAY ? result
                                       : moved_end(op, (int)result, err);
}

wm_coll_result_t
wm_moved_coll_step(wm_coll_op_t *op, bool *waits, wm_error_t *err)
{
    wm_moved_coll_t *moved = op->moved;
    wm_coll_op_t *own = &moved->op;
    switch (moved->state) {
    case MOVING_IN:
        *waits = !moved_has_ended(moved, SENT)
                 || !moved_has_ended(moved, KEPT);
        if (*waits)
            return WM_COLL_UNDER_WAY;
        if (moved->failed.code < 0)
            wm_coll_op_fail(own, &moved->failed);
        moved->state = RUNNING;
        return moved_follow(op, wm_coll_op_start(own, err), err);
    case RUNNING:
        return moved_follow(op, wm_coll_op_step(own, waits, err), err);
    case MOVING_OUT:
        break;
    }
    *waits = !moved_has_ended(moved, RECEIVED);
    if (*waits)
        return WM_COLL_UNDER_WAY;
    if (moved->failed.code < 0)
        *err = moved->failed;
    return (wm_coll_result_t)moved->failed.code;
}

// Releases the messages. Returns false if one still uses memory.
static bool
moved_release(const wm_coll_op_t *op)
{
    wm_moved_coll_t *moved = op->moved;
    wm_error_t ignored;
    bool unused = true;
    for (int i = 0; i < 2 * MESSAGES; ++i) {
        wm_op_t *half = moved->messages[i / 2].ops[i % 2];
        if (half == NULL)
            continue;
        if (op->form == WM_COLL_FORM_BLOCKING && !atomic_load(&half->done))
            (void)!wm_op_wait(half, NULL, &ignored);
        unused &= atomic_load(&half->done) != 0 || i / 2 == RECEIVED;
        wm_op_release(half);
    }
    return unused;
}

void
wm_moved_coll_drop(wm_coll_op_t *op)
{
    static const wm_error_t aborted = {.code = WM_ERR_STATE,
                                       .text = "the collective has failed"};
    wm_moved_coll_t *moved = op->moved;
    wm_coll_op_drop(&moved->op);
    moved_fail(moved, &aborted); // no-op but after an error of the call
    if (moved_release(op))
        for (int i = 0; i < 2; ++i)
            wm_coll_memory_free(&moved->ours[i]);
    op->moved = NULL;
    free(moved);
}
