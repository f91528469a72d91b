// SPDX-License-Identifier: BSD-3-Clause
// One end of a message, the sender's or the receiver's, from the call to its
// end. Engine lock held, except where noted.
#ifndef WM_COMM_MESSAGE_END_H
#define WM_COMM_MESSAGE_END_H

#include "array/access.h"
#include "comm/comm/comm.h"
#include "comm/engine/op.h"
#include "comm/engine/route.h"
#include "comm/link/link.h"
#include "comm/message/p2p.h"
#include "comm/message/packet.h"

typedef struct wm_sending wm_sending_t;     // protocol.h
typedef struct wm_receiving wm_receiving_t; // protocol.h

// The fragments of a payload, which both ends of all protocols move between
// a source or a ring and a buffer.
typedef struct {
    char *remote;         // the ring, or the sender's memory, mapped
    uint64_t nbytes;      // bytes of a fragment, at most
    uint32_t count, ring; // number in all, and in the ring
    uint32_t next;        // first one not yet submitted
    uint32_t ready_base, taken_base;
    bool on_host; // this thread copies the fragments
    bool ramped;  // the first two are a quarter, and a half
} wm_fragments_t;

// Bytes of a private state, which one file lays out (WM_STATE of protocol.h).
#define WM_STATE_BYTES 64

typedef struct {
    wm_op_t op;
    int state; // send.c, receive.c
    // The payload's protocol. NULL: nothing follows, or no header has come.
    const wm_sending_t *sending;
    const wm_sending_t *taker;  // the row that took the message to send
    const wm_sending_t *around; // packs into end->buffer, or NULL
    const wm_receiving_t *receiving;
    // Arguments of the call.
    int rank, tag;
    bool receives;
    bool blocking;    // the caller waits: no new work on its streams
    bool synchronous; // completes only when matched
    bool paired;      // a receive of the same call is under way
    bool eager;       // goes on without its receiver, at any size
    bool more;        // others begin at once, and share a kernel
    wm_buffer_t buffer;
    wm_access_t access;

    // A receive alone uses these:
    bool was_unexpected; // the message was in the unexpected queue
    bool held;           // it does not look for its header
    bool withdrawn;      // a message that still comes is put back
    bool discards;       // it failed, and discards data that still come

    // Both ends use these:
    MPI_Request matching; // of the header, or of the token after it
    char *packet;
    bool packet_pinned;
    wm_header_t header; // of the message that was matched or sent
    wm_peer_t *peer;
    bool asked_producer; // a receive asked if the buffer's users have ended
    bool unpacks;        // the receiver's row writes gaps itself

    // State of an offer that several protocols share.
    wm_slot_t *slot;
    int slot_index;              // of our segment; -1: none
    unsigned looks, event_looks; // at words of the peer, for its end, so far
    wm_fragments_t fragments;
    const wm_link_t *link; // by which an offer comes
    wm_mapping_t *mapping;
    bool batched; // its work, or announcement, goes with others

    CUevent event; // end of the use of the memory by a user's stream
    bool recorded; // the event is recorded

    // Private states: of the row that took the message or claims the offer; of
    // a row that gets the message from another, of every receiver that accepts
    // an offer, and of chunks; and of pack.c.
    _Alignas(16) unsigned char first_state[WM_STATE_BYTES];
    _Alignas(16) unsigned char second_state[WM_STATE_BYTES];
    _Alignas(16) unsigned char gaps_state[WM_STATE_BYTES];
} wm_end_t;

_Static_assert(sizeof(wm_end_t) <= WM_OP_BYTES, "it finds room in a pool");

bool
wm_end_is_send(const wm_op_t *op);
bool
wm_end_is_receive(const wm_op_t *op);

// Checks the arguments, and makes an operation with one reference, which is
// done at once for PROC_NULL. Takes over `buffer`, also on failure. Lock not
// held.
WM_MUST_CHECK int
wm_end_new(const wm_op_kind_t *kind, wm_comm_t *comm, wm_buffer_t *buffer,
           const wm_envelope_t *envelope, bool receives, wm_end_t **end,
           wm_error_t *err);

// Returns the bytes of a matched message that fit into the buffer.
uint64_t
wm_end_fitting_bytes(const wm_end_t *end);

// Gives the end a packet; `pinned`: for a stream.
WM_MUST_CHECK int
wm_end_packet(wm_end_t *end, bool pinned, wm_error_t *err);

// Returns true if it works on the stream of the buffer's producer.
bool
wm_end_borrows(const wm_end_t *end);

// Gives the operation a stream that is ordered after the users of the buffer:
// the producer's own for short work while its owner waits, else one of the
// pool. No-op if it has one.
WM_MUST_CHECK int
wm_end_open_stream(wm_end_t *end, wm_error_t *err);

// Sender: reports the end when the user's stream has all the work that reads
// the buffer: later work on it may change the buffer.
WM_MUST_CHECK int
wm_end_leave_stream(wm_end_t *end, wm_error_t *err);

// Writes, if asked for, that `row` serves this end (engine/route.h).
void
wm_end_route(const wm_end_t *end, const wm_route_t *route, const char *row);

// Releases all that the end still has: slots, streams, mappings, staging.
void
wm_end_drop(wm_end_t *end);

// Returns true if all fragments are ready that the sender has begun: no stream
// of its may still write the slot.
bool
wm_end_is_quiet(const wm_end_t *end);

// The functions that both kinds share (wm_op_kind_t).
wm_asks_t
wm_end_asks(const wm_op_t *op);
void
wm_end_about(const wm_op_t *op, wm_about_t *about);
wm_buffer_t *
wm_end_buffer(wm_op_t *op);
void
wm_end_synchronize(wm_op_t *op);
void
wm_end_free(wm_op_t *op);

#endif
