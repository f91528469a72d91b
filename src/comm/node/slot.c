// SPDX-License-Identifier: BSD-3-Clause
#include "comm/node/slot.h"

#include "cuda/word.h"

void
wm_slot_begin(wm_slot_t *slot, uint32_t *ready_base, uint32_t *taken_base)
{
    atomic_store(&slot->staged, 0);
    atomic_store(&slot->failed, 0);
    atomic_store(&slot->claim, WM_CLAIM_NONE);
    atomic_store(&slot->push, WM_PUSH_NOT);
    atomic_store(&slot->answer, WM_ANSWER_NONE);
    *ready_base = atomic_load(&slot->ready);
    *taken_base = atomic_load(&slot->taken);
    atomic_store(&slot->posted, *ready_base);
    atomic_store(&slot->promised, *ready_base);
}

void
wm_slot_set_ready(wm_slot_t *slot, uint32_t ready)
{
    atomic_store(&slot->ready, ready);
}

int
wm_slot_enqueue_ready(wm_slot_t *slot, int device, CUstream stream,
                      uint32_t ready, wm_error_t *err)
{
    return wm_word_write(device, stream, &slot->ready, ready, err);
}

void
wm_slot_set_posted(wm_slot_t *slot, uint32_t posted)
{
    atomic_store(&slot->posted, posted);
}

void
wm_slot_set_promised(wm_slot_t *slot, uint32_t posted)
{
    atomic_store(&slot->promised, posted);
}

void
wm_slot_stage(wm_slot_t *slot, const wm_slot_staging_t *staging)
{
    slot->staging = *staging;
    atomic_store(&slot->staged, 1);
}

void
wm_slot_fail(wm_slot_t *slot, const char *text)
{
    wm_error_cut(text, sizeof slot->error, slot->error);
    atomic_store(&slot->failed, 1);
}

// Changes a word from `before` to `after`. Returns false if it had another
// value, which is *is.
static bool
change(_Atomic uint32_t *word, uint32_t before, uint32_t after, uint32_t *is)
{
    *is = before;
    return atomic_compare_exchange_strong(word, is, after);
}

bool
wm_slot_move(wm_slot_t *slot, const wm_rkey_t *to)
{
    uint32_t claim;
    slot->moved = *to;
    return change(&slot->claim, WM_CLAIM_NONE, WM_CLAIM_MOVED, &claim);
}

bool
wm_slot_take_back(wm_slot_t *slot)
{
    uint32_t claim;
    return change(&slot->claim, WM_CLAIM_NONE, WM_CLAIM_WITHDRAWN, &claim);
}

bool
wm_slot_accept_push(wm_slot_t *slot)
{
    uint32_t push;
    return change(&slot->push, WM_PUSH_ASKED, WM_PUSH_ACCEPTED, &push);
}

void
wm_slot_refuse_push(wm_slot_t *slot, bool for_good)
{
    atomic_store(&slot->push, for_good ? WM_PUSH_REFUSED : WM_PUSH_WITHDRAWN);
}

int
wm_slot_enqueue_pushed(wm_slot_t *slot, int device, CUstream stream,
                       wm_error_t *err)
{
    return wm_word_write(device, stream, &slot->push, WM_PUSH_ENDED, err);
}

bool
wm_slot_claim(wm_slot_t *slot, wm_rkey_t *place)
{
    uint32_t claim;
    if (change(&slot->claim, WM_CLAIM_NONE, WM_CLAIM_TAKEN, &claim)
        || claim != WM_CLAIM_MOVED)
        return false;
    *place = slot->moved;
    return true;
}

void
wm_slot_set_taken(wm_slot_t *slot, uint32_t taken)
{
    atomic_store(&slot->taken, taken);
}

int
wm_slot_enqueue_taken(wm_slot_t *slot, int device, CUstream stream,
                      uint32_t taken, wm_error_t *err)
{
    return wm_word_write(device, stream, &slot->taken, taken, err);
}

void
wm_slot_set_submitted(wm_slot_t *slot, uint32_t submitted)
{
    atomic_store(&slot->submitted, submitted);
}

void
wm_slot_answer_host(wm_slot_t *slot)
{
    if (atomic_load(&slot->answer) != WM_ANSWER_HOST)
        atomic_store(&slot->answer, WM_ANSWER_HOST);
}

void
wm_slot_answer_error(wm_slot_t *slot, int code, const char *text)
{
    wm_error_cut(text, sizeof slot->error, slot->error);
    slot->error_code = code;
    atomic_store(&slot->answer, WM_ANSWER_ERROR);
}

void
wm_slot_ask_push(wm_slot_t *slot, const wm_rkey_t *into)
{
    slot->into = *into;
    atomic_store(&slot->push, WM_PUSH_ASKED);
}

bool
wm_slot_withdraw_push(wm_slot_t *slot)
{
    uint32_t push;
    return change(&slot->push, WM_PUSH_ASKED, WM_PUSH_WITHDRAWN, &push)
           || push == WM_PUSH_WITHDRAWN || push == WM_PUSH_REFUSED;
}

void
wm_slot_ready_for_sender(wm_slot_t *slot, uint32_t ready)
{
    if (!wm_word_reached(&slot->ready, ready))
        atomic_store(&slot->ready, ready);
}

void
wm_slot_fail_for_sender(wm_slot_t *slot)
{
    atomic_store(&slot->failed, 1);
}
