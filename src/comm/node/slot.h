// SPDX-License-Identifier: BSD-3-Clause
// The words that the two ends of an offer share, and all that writes them:
// slot.c, the streams that its functions enqueue to, and the kernels that are
// given a word. One end writes a word, `claim` and `push` both, by compare and
// exchange. Engine lock held.
#ifndef WM_COMM_NODE_SLOT_H
#define WM_COMM_NODE_SLOT_H

#include <stdatomic.h>

#include "comm/node/place.h"

#define WM_STAGING_BY_MPI                                                     \
    UINT32_MAX // no ring: chunks on the data communicator

// What the receiver answers to an offer.
enum {
    WM_ANSWER_NONE = 0,
    WM_ANSWER_HOST,  // cannot reach the memory: stage it
    WM_ANSWER_ERROR, // see slot->error
};

// Who has an offer that may still move.
enum {
    WM_CLAIM_NONE = 0,
    WM_CLAIM_TAKEN,     // the receiver, where the header says it is
    WM_CLAIM_MOVED,     // nobody, and it is where `moved` says
    WM_CLAIM_WITHDRAWN, // nobody any more: `failed` was set before
};

// Who copies an offer, where the receiver would rather have the sender do it.
enum {
    WM_PUSH_NOT = 0,
    WM_PUSH_ASKED,     // by the receiver, to where `into` says
    WM_PUSH_ACCEPTED,  // by the sender
    WM_PUSH_REFUSED,   // by it, for good: the receiver's to copy
    WM_PUSH_WITHDRAWN, // by either, this time: likewise
    WM_PUSH_ENDED,     // all has been copied
};

// How an offer is staged.
typedef struct {
    uint32_t ring;                   // of the sender's, or WM_STAGING_BY_MPI
    uint32_t seq;                    // of MPI's: tag of the chunks
    uint32_t fragment;               // bytes a fragment, or a chunk
    uint32_t ready_base, taken_base; // of the fragments
} wm_slot_staging_t;

// One offer. The words `ready` and `taken` only ever grow (modulo 2^32), so
// that a stream still waiting for an earlier message is never misled; the
// header tells their values when the offer was made. Sender's and receiver's
// words lie on different cache lines.
typedef struct {
    // written by the sender's host or stream
    _Alignas(64) _Atomic uint32_t ready; // fragments that can be taken
    // What `ready` will be once what the sender's stream has been given has
    // run: until then the sender may fail, and no stream should wait for it.
    _Atomic uint32_t posted; // of the first fragment
    _Atomic uint32_t staged; // 1: `staging` is valid
    _Atomic uint32_t failed; // 1: the sender failed, see error
    wm_slot_staging_t staging;
    // written by the receiver's host or stream
    _Alignas(64) _Atomic uint32_t taken; // fragments taken
    _Atomic uint32_t answer;
    // What `taken` will be once the receiver's stream has come to it. Says
    // which message is meant, as it may be written after `taken`, when the
    // slot serves another.
    _Atomic uint32_t submitted;
    // by whoever failed
    _Alignas(64) char error[184];
    // by the sender, before it moves an offer that nobody has claimed
    wm_place_t moved;
    wm_place_t into; // by the receiver
    // by both
    _Atomic uint32_t claim;
    _Atomic uint32_t push; // by the sender's stream, too
} wm_slot_t;

// --- the sender ----------------------------------------------------------

// A slot for a new offer: `ready` and `taken` stay as the last one left them,
// which is what its header tells.
void
wm_slot_begin(wm_slot_t *slot, uint32_t *ready_base, uint32_t *taken_base);

void
wm_slot_set_ready(wm_slot_t *slot, uint32_t ready);

// A stream sets it, when all before has ended.
WM_MUST_CHECK int
wm_slot_enqueue_ready(wm_slot_t *slot, int device, CUstream stream,
                      uint32_t ready, wm_error_t *err);

void
wm_slot_set_posted(wm_slot_t *slot, uint32_t posted);

void
wm_slot_stage(wm_slot_t *slot, const wm_slot_staging_t *staging);

// It failed, and says why.
void
wm_slot_fail(wm_slot_t *slot, const char *text);

// The offer lies elsewhere from now on; false where it was claimed before.
bool
wm_slot_move(wm_slot_t *slot, const wm_place_t *to);

// There is no offer any more; false where it was claimed before.
bool
wm_slot_take_back(wm_slot_t *slot);

// Answers to a push: it will be, never, not this time.
bool
wm_slot_accept_push(wm_slot_t *slot);

void
wm_slot_refuse_push(wm_slot_t *slot, bool for_good);

WM_MUST_CHECK int
wm_slot_enqueue_pushed(wm_slot_t *slot, int device, CUstream stream,
                       wm_error_t *err);

// --- the receiver --------------------------------------------------------

// Takes the offer, where it may have moved to (true: `place` was set).
bool
wm_slot_claim(wm_slot_t *slot, wm_place_t *place);

void
wm_slot_set_taken(wm_slot_t *slot, uint32_t taken);

WM_MUST_CHECK int
wm_slot_enqueue_taken(wm_slot_t *slot, int device, CUstream stream,
                      uint32_t taken, wm_error_t *err);

void
wm_slot_set_submitted(wm_slot_t *slot, uint32_t submitted);

void
wm_slot_answer_host(wm_slot_t *slot);

// It failed, and says why.
void
wm_slot_answer_error(wm_slot_t *slot, const char *text);

void
wm_slot_ask_push(wm_slot_t *slot, const wm_place_t *into);

// False where the sender has begun.
bool
wm_slot_withdraw_push(wm_slot_t *slot);

// --- for an end that writes no more --------------------------------------

// The receiver failed, or is dead: our stream that waits for it goes on.
void
wm_slot_take_for_receiver(wm_slot_t *slot, uint32_t taken);

// The sender failed, likewise.
void
wm_slot_ready_for_sender(wm_slot_t *slot, uint32_t ready);

// The sender is dead: the kernel that waits for it stops.
void
wm_slot_fail_for_sender(wm_slot_t *slot);

#endif
