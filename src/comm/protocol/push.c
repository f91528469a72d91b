// SPDX-License-Identifier: BSD-3-Clause
// Pushes: the sender copies into the receiver's memory (rendezvous by put),
// because the receiver asks it to. Used for large offers if as much goes the
// other way (two copies that write hinder each other less than two that read).
// Also used between processes that take turns on a GPU: the one that copied
// last still has its turn. Only for a sender that waits in our code.
#include "comm/engine/engine.h"
#include "comm/engine/stats.h"
#include "comm/link/link.h"
#include "comm/node/mapping.h"
#include "comm/protocol/offer.h"
#include "comm/protocol/fragments.h"
#include "comm/protocol/rows.h"
#include "comm/protocol/take.h"
#include "cuda/word.h"

// Below this size, asking takes longer than pushing both ways gains.
#define BOTH_WAYS_BYTES ((uint64_t)4 << 20)
#define PATIENCE_US 1000 // a waiting sender begins sooner

// Returns true if a message of `nbytes` or more is under way to a peer.
static bool
is_sending(const wm_peer_t *peer, uint64_t nbytes)
{
    for (wm_op_t *op = wm_engine_first(); op != NULL; op = op->next) {
        const wm_end_t *end = (wm_end_t *)op;
        if (wm_end_is_send(op) && end->peer == peer
            && end->header.nbytes >= nbytes)
            return true;
    }
    return false;
}

static bool
is_worth_it(const wm_end_t *end)
{
    if (wm_take_is_on_same_gpu(end))
        return end->peer->copied;
    return end->header.nbytes >= BOTH_WAYS_BYTES
           && is_sending(end->peer, BOTH_WAYS_BYTES)
           && !wm_take_is_beside(end);
}

// Returns true if nobody uses the buffer any more: the sender could not wait
// for its users.
static bool
is_free(wm_end_t *end)
{
    const wm_producer_t *producer = &end->access.producer;
    bool idle = producer->kind == WM_PRODUCER_NONE;
    if (wm_access_is_noted(&end->access))
        return wm_access_ask_note(&end->access);
    return idle
           || (wm_producer_idle(producer, true, &idle, NULL) == 0 && idle);
}

// Returns the reason why the sender should not push, or NULL.
static const char *
reason_against(wm_end_t *end)
{
    if (!end->header.pushes || end->peer->push_refused)
        return "the sender does not push";
    if (end->link->import == NULL || end->access.user_device >= 0
        || end->buffer.pattern != NULL || !end->buffer.memory.exportable)
        return "the sender cannot write the buffer";
    if (atomic_load(&end->slot->push) != WM_PUSH_NOT)
        return "the sender was asked before";
    if (!is_worth_it(end))
        return "reading is as fast";
    return is_free(end) ? NULL : "the buffer is in use";
}

// Asks the sender to push.
static bool
push_accept(wm_end_t *end, const char **why)
{
    wm_rkey_t into;
    if ((*why = reason_against(end)) != NULL)
        return false;
    *why = "the buffer cannot be exported";
    if (wm_rkey_export(end->buffer.data, &end->buffer.memory, &into, NULL) < 0)
        return false;
    wm_slot_ask_push(end->slot, &into);
    return true;
}

// The time from which the sender could have begun.
WM_STATE(int64_t, since_of, second_state)

// Returns true if the sender could have begun long ago: it has left our code,
// as an interrupted one does.
static bool
is_late(wm_end_t *end)
{
    if (!wm_word_reached(&end->slot->ready, end->header.ready_base + 1))
        return false;
    int64_t now = wm_engine_now(), *since = since_of(end);
    if (*since == 0)
        *since = now;
    return now - *since > PATIENCE_US;
}

// Returns 1 when all data are there, 0 if not yet, -1 if the receiver must
// copy after all (no error).
static int
push_ended(wm_end_t *end)
{
    wm_slot_t *slot = end->slot;
    switch (atomic_load(&slot->push)) {
    case WM_PUSH_ENDED:
        wm_link_count(end->link, end->header.nbytes, false);
        wm_stat_add(WM_STAT_pushed_messages, 1);
        end->peer->copied = true;
        wm_slot_set_taken(slot,
                          end->header.taken_base + end->header.fragments);
        return 1;
    case WM_PUSH_ASKED:
        return is_late(end) && wm_slot_withdraw_push(slot) ? -1 : 0;
    case WM_PUSH_REFUSED:
        end->peer->push_refused = true;
        return -1;
    case WM_PUSH_WITHDRAWN:
        return -1;
    default:
        return 0;
    }
}

// Prepares the copy. Returns false if this fails; then the receiver copies.
static bool
push_prepare(wm_end_t *end, const wm_rkey_t *into)
{
    if (!wm_rkey_holds(into, end->header.nbytes)) {
        wm_slot_refuse_push(end->slot, true);
        return false;
    }
    wm_error_t err;
    int code = wm_mapping_open(end->peer, into, end->access.device,
                               &end->mapping, &err);
    if (code < 0) {
        wm_slot_refuse_push(end->slot, wm_mapping_is_refused(code, &err));
        return false;
    }
    // `ready`: all writes of the buffer have ended.
    wm_access_after_nothing(&end->access);
    if (wm_node_register(wm_node_self(), false, end->access.device, NULL) == 0
        && wm_end_open_stream(end, NULL) == 0)
        return true;
    wm_slot_refuse_push(end->slot, false);
    return false;
}

int
wm_push_serve(wm_end_t *end, wm_error_t *err)
{
    wm_slot_t *slot = end->slot;
    if (atomic_load(&slot->push) != WM_PUSH_ASKED
        || !wm_fragment_is_ready(end, 0) || !wm_slot_accept_push(slot))
        return 0;
    wm_rkey_t into = slot->into;
    if (!push_prepare(end, &into))
        return 0;
    end->access.idle = false;
    int code = wm_memory_copy(
        end->access.device, wm_mapping_at(end->mapping, &into),
        end->buffer.data, end->header.nbytes, end->access.stream, err);
    if (code == 0)
        code = wm_slot_enqueue_pushed(slot, end->access.device,
                                      end->access.stream, err);
    wm_offer_become(end, &wm_sending_pushed, "the receiver asked to push");
    return code < 0 ? code : 1;
}

static int
step_sending(wm_end_t *end, wm_error_t *err)
{
    int code = wm_offer_look(end, err);
    return code < 0 ? code : wm_offer_ended(end, true, err);
}

const wm_sending_t wm_sending_pushed = {
    .name = "pushed",
    .step = step_sending,
    .fail = wm_offer_fail,
    .heard = wm_offer_heard,
    .peer_died = wm_offer_peer_died,
};

// A push that has ended counts, whatever has failed since. Nobody may write
// the buffer any more when the receive fails.
static int
watch_push(wm_end_t *end, wm_error_t *err)
{
    if (wm_take_has_lost(end, err)
        && (end->peer->dead || wm_slot_withdraw_push(end->slot)))
        return WM_ERR_MPI;
    int failed = wm_take_sender_failed(end, err);
    return failed < 0 && push_ended(end) > 0 ? 1 : failed;
}

static int
step_receiving(wm_end_t *end, wm_error_t *err)
{
    int code = push_ended(end);
    if (code >= 0)
        return code > 0 ? code : watch_push(end, err);
    wm_receive_become(end, &wm_receiving_offer); // the receiver copies
    return wm_take_watch(end, 0, err);
}

const wm_receiving_t wm_receiving_pushed = {
    .name = "pushed",
    .accept = push_accept,
    .step = step_receiving,
    .fail = wm_take_fail,
    .peer_died = wm_take_peer_died,
};
