// SPDX-License-Identifier: BSD-3-Clause
// One end of a message, its sender's or its receiver's, from the call to its
// end. Engine lock held, except where told.
#ifndef WM_COMM_MESSAGE_END_H
#define WM_COMM_MESSAGE_END_H

#include "array/access.h"
#include "comm/comm/comm.h"
#include "comm/engine/op.h"
#include "comm/message/p2p.h"
#include "comm/message/packet.h"

typedef struct wm_sending wm_sending_t;           // protocol.h
typedef struct wm_receiving wm_receiving_t;       // protocol.h
typedef struct wm_transport wm_transport_t;       // protocol/transport.h
typedef struct wm_eager_buffer wm_eager_buffer_t; // protocol/device_eager.h

// The fragments of a payload that both ends of every transport move between a
// source or a ring and a buffer.
typedef struct {
    char *remote;         // the ring (or the sender's memory, mapped)
    uint64_t nbytes;      // of a fragment, at most
    uint32_t count, ring; // in all, in the ring
    uint32_t next;        // first not yet submitted
    uint32_t ready_base, taken_base;
    bool on_host; // fragments are copied by this thread
    bool ramped;  // the first are shorter: one quarter, one half
} wm_fragments_t;

// A buffer with gaps (pack.c).
typedef struct {
    wm_block_t *block; // stands in for it
    char *host;        // likewise
    char *span;        // page-locked copy of the memory of a pattern
    int step;          // of unpacking
    bool enqueued;     // what unpacks is, or has run
    bool onto_device;  // what is unpacked on the host goes there
} wm_gaps_t;

// Chunks that MPI carries (protocol/chunks.c).
typedef struct {
    bool carried;          // MPI reaches the device memory itself
    bool reachable;        // nobody else uses that any more
    char *staging;         // two pinned chunks
    char *scratch;         // two chunks that are thrown away
    MPI_Request flying[2]; // of two chunks
    uint32_t copied;       // out of the device so far
    uint32_t given, done;  // to MPI; by MPI
} wm_chunks_t;

// A copy, with which a blocking send need not wait (protocol/eager.c).
typedef struct {
    wm_block_t *block;
    CUstream stream;
    bool unmoved;  // it stays where it is
    int64_t since; // its offer waits, microseconds
} wm_copy_t;

// Copies on our own streams (protocol/pulling.c).
typedef struct {
    CUstream side; // of the pool: every other fragment's; NULL: none
    bool alone;    // it shall share no kernel
    bool signals;  // its stream writes `taken`
    _Atomic bool
        synchronized; // the caller has waited himself (kind->synchronize)
    int code;         // what that gave; in `error` where negative
} wm_pulling_t;

// A kernel that reads the data from an eager LL buffer
// (protocol/device_eager.c).
typedef struct {
    bool under_way;
    bool late; // one did not find them there
} wm_fetch_t;

typedef struct {
    wm_op_t op;
    int state; // send.c, receive.c
    // How the payload comes; NULL: nothing follows the header, or it has not
    // come.
    const wm_sending_t *sending;
    const wm_receiving_t *receiving;
    // What the call said.
    int rank, tag;
    bool receives;
    bool blocking;    // the caller waits: nothing new comes on its streams
    bool synchronous; // completes only once matched
    bool paired;      // a receive of the same call is under way
    bool eager;       // it goes on without its receiver, whatever its size
    bool more;        // others begin at once, and share a kernel with it
    wm_buffer_t buffer;
    wm_access_t access;

    // Of a receive, until it has matched.
    bool was_unexpected;  // the message was in the unexpected queue
    bool held;            // nobody looks for its header now
    bool withdrawn;       // a message that comes now is put back
    bool discards;        // it failed, and takes what still comes
    MPI_Request matching; // of the header, or of the token behind it
    char *packet;
    bool packet_pinned;
    wm_header_t header; // of the message matched or sent
    wm_peer_t *peer;
    bool asked; // whether those who used the buffer have ended

    wm_gaps_t gaps;

    // Of an offer, what several protocols share.
    wm_slot_t *slot;
    int slot_index; // ours, -1 none
    unsigned looks; // how often it waited for words of its peer
    unsigned asks;  // how often its end was looked for
    wm_fragments_t fragments;
    const wm_transport_t *transport;
    wm_mapping_t *mapping;
    bool batched; // its copy, or its announcement, goes with others

    // On the user's stream.
    bool on_stream; // it has been given what takes the message
    CUevent event;  // that our use of the memory ended
    bool recorded;  // that is

    // Each of one protocol, whose file has its name (tests/test_tree.py).
    wm_chunks_t chunks;
    wm_copy_t copy;
    wm_pulling_t pull;
    wm_fetch_t fetch;
    wm_eager_buffer_t *eager_buffer; // the sender's, or NULL
    wm_block_t *handoff;             // exportable copy, or ring
    int staging_ring;                // -1: none
    int64_t left_since;              // to a thread of the program's
    int64_t pushed_since;            // its sender could have begun
} wm_end_t;

_Static_assert(sizeof(wm_end_t) <= WM_OP_BYTES, "it finds room in what is "
                                                "kept");

// Whether an operation is an end, and which.
bool
wm_end_is_send(const wm_op_t *op);
bool
wm_end_is_receive(const wm_op_t *op);

// What both ends do first: checks, and a new operation with one reference,
// done at once for PROC_NULL. Takes over `buffer`, also on failure. Lock not
// held.
WM_MUST_CHECK int
wm_end_new(const wm_op_kind_t *kind, wm_comm_t *comm, wm_buffer_t *buffer,
           const wm_envelope_t *envelope, bool receives, wm_end_t **end,
           wm_error_t *err);

// Around what each end does: the thread stays in the buffer's device for it.
WM_MUST_CHECK int
wm_end_begin_in_device(int (*begin)(wm_comm_t *, wm_buffer_t *,
                                    const wm_envelope_t *, wm_op_t **,
                                    wm_error_t *),
                       wm_comm_t *comm, wm_buffer_t *buffer,
                       const wm_envelope_t *envelope, wm_op_t **op,
                       wm_error_t *err);

// Of a message that has matched: the bytes that fit into the buffer.
uint64_t
wm_end_fitting_bytes(const wm_end_t *end);

// Gives it a packet, page-locked where a stream is to read or write it.
WM_MUST_CHECK int
wm_end_packet(wm_end_t *end, bool pinned, wm_error_t *err);

// Whether the operation is to work on the stream of the buffer's producer.
bool
wm_end_borrows(const wm_end_t *end);

// Gives the operation a stream that is ordered after whoever uses the buffer:
// the producer's own for short work while its owner waits, else one of the
// pool. No-op when it has one.
WM_MUST_CHECK int
wm_end_open_stream(wm_end_t *end, wm_error_t *err);

// Lets go of slots, streams, mappings, staging, whatever an end left.
void
wm_end_drop(wm_end_t *end);

// What both kinds have in common (wm_op_kind_t).
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
