// SPDX-License-Identifier: BSD-3-Clause
// The words that the two ends of an offer share. Only slot.c, the streams to
// which its functions enqueue, and kernels that get a word write them. One end
// writes each word of an offer, except `claim` and `push`, which both write.
// Both change `claim` by compare and exchange. So the sender accepts a push,
// and the receiver withdraws it; asking, refusing and ending are plain stores.
// Engine lock held.
#ifndef WM_COMM_NODE_SLOT_H
#define WM_COMM_NODE_SLOT_H

#include <stdatomic.h>

#include "comm/node/rkey.h"

#define WM_STAGING_BY_MPI UINT32_MAX // no ring: chunks of a link that carries

// The receiver's answer to an offer.
enum {
    WM_ANSWER_NONE = 0,
    WM_ANSWER_HOST,  // it cannot reach the memory: stage it
    WM_ANSWER_ERROR, // see slot->error
};

// The owner of an offer that may still move.
enum {
    WM_CLAIM_NONE = 0,
    WM_CLAIM_TAKEN,     // the receiver; it is where the header says
    WM_CLAIM_MOVED,     // nobody; it is where `moved` says
    WM_CLAIM_WITHDRAWN, // nobody: it was withdrawn, after `failed`
};

// The push: the receiver would rather have the sender copy.
enum {
    WM_PUSH_NOT = 0,
    WM_PUSH_ASKED,     // the receiver asks; `into` is the target
    WM_PUSH_ACCEPTED,  // the sender will copy
    WM_PUSH_REFUSED,   // the sender never copies: the receiver does
    WM_PUSH_WITHDRAWN, // not this time: the receiver copies
    WM_PUSH_ENDED,     // the sender has copied all
};

// The staging of an offer.
typedef struct {
    uint32_t ring;     // ring of the sender, or WM_STAGING_BY_MPI
    uint32_t seq;      // by MPI: tag of the chunks
    uint32_t fragment; // bytes of a fragment, or of a chunk
    uint32_t ready_base, taken_base; // values before the first fragment
} wm_slot_staging_t;

// One offer. The words `ready` and `taken` only grow (modulo 2^32), so that a
// stream that still waits for an earlier message is never misled. The header
// has their values at the time of the offer. The words of the sender and of
// the receiver are on different cache lines.
typedef struct {
    // Written by the sender's host or stream:
    _Alignas(64) _Atomic uint32_t ready; // fragments that can be taken
    // The value of `ready` after the first fragment, set once the sender's
    // stream has been given that work. Until then the sender may fail, and
    // only a kernel that ends then may wait.
    _Atomic uint32_t posted;
    // The value that `posted` will have, set before the sender's kernel is
    // launched.
    _Atomic uint32_t promised;
    _Atomic uint32_t staged; // 1: `staging` is valid
    _Atomic uint32_t failed; // 1: the sender failed; see error
    wm_slot_staging_t staging;
    // Written by the receiver's host or stream:
    _Alignas(64) _Atomic uint32_t taken; // fragments taken
    _Atomic uint32_t answer;
    // The value of `taken` after the work of the receiver's stream. The value
    // says which message is meant, as `submitted` may be written after
    // `taken`, when the slot serves another message.
    _Atomic uint32_t submitted;
    // Written by the end that has failed:
    _Alignas(64) char error[180];
    int32_t error_code;
    // Written by the sender before it moves an offer that nobody has claimed:
    wm_rkey_t moved;
    wm_rkey_t into; // written by the receiver
    // Written by both:
    _Atomic uint32_t claim;
    _Atomic uint32_t push; // also by the sender's stream
} wm_slot_t;

// --- the sender ----------------------------------------------------------

// Prepares the slot for a new offer. `ready` and `taken` stay as the last
// offer left them; returns both for the header.
void
wm_slot_begin(wm_slot_t *slot, uint32_t *ready_base, uint32_t *taken_base);

void
wm_slot_set_ready(wm_slot_t *slot, uint32_t ready);

// Enqueues the write of `ready`, after the work before it.
WM_MUST_CHECK int
wm_slot_enqueue_ready(wm_slot_t *slot, int device, CUstream stream,
                      uint32_t ready, wm_error_t *err);

// Sets `posted`, or `promised`.
void
wm_slot_set_posted(wm_slot_t *slot, uint32_t posted);

void
wm_slot_set_promised(wm_slot_t *slot, uint32_t posted);

// Publishes how the offer is staged.
void
wm_slot_stage(wm_slot_t *slot, const wm_slot_staging_t *staging);

// Publishes that the sender has failed, and why.
void
wm_slot_fail(wm_slot_t *slot, const char *text);

// Moves the offer to another place. Returns false if it was claimed before.
bool
wm_slot_move(wm_slot_t *slot, const wm_rkey_t *to);

// Withdraws the offer. Returns false if it was claimed before.
bool
wm_slot_take_back(wm_slot_t *slot);

// Answer to a push: accept it, false if it was withdrawn; refuse it, for good
// or this time; and enqueue the report that all is copied.
bool
wm_slot_accept_push(wm_slot_t *slot);

void
wm_slot_refuse_push(wm_slot_t *slot, bool for_good);

WM_MUST_CHECK int
wm_slot_enqueue_pushed(wm_slot_t *slot, int device, CUstream stream,
                       wm_error_t *err);

// --- the receiver --------------------------------------------------------

// Claims the offer. Returns true if the offer has moved, and sets `place`.
bool
wm_slot_claim(wm_slot_t *slot, wm_rkey_t *place);

// Sets `taken`. The sender may do so for a receiver that has failed or is
// dead: this releases the sender's stream, which waits for it.
void
wm_slot_set_taken(wm_slot_t *slot, uint32_t taken);

WM_MUST_CHECK int
wm_slot_enqueue_taken(wm_slot_t *slot, int device, CUstream stream,
                      uint32_t taken, wm_error_t *err);

// Sets `submitted`.
void
wm_slot_set_submitted(wm_slot_t *slot, uint32_t submitted);

// Answers that the receiver cannot reach the memory.
void
wm_slot_answer_host(wm_slot_t *slot);

// Publishes that the receiver has failed, with which wm_code_t, and why.
void
wm_slot_answer_error(wm_slot_t *slot, int code, const char *text);

// Asks the sender to push into a place.
void
wm_slot_ask_push(wm_slot_t *slot, const wm_rkey_t *into);

// Withdraws a push. Returns false if the sender has begun it.
bool
wm_slot_withdraw_push(wm_slot_t *slot);

// --- for an end that writes no more --------------------------------------

// The sender failed or is dead: releases our stream, which waits for it.
void
wm_slot_ready_for_sender(wm_slot_t *slot, uint32_t ready);

// The sender is dead: stops the kernel that waits for it.
void
wm_slot_fail_for_sender(wm_slot_t *slot);

#endif
