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

typedef struct wm_sending wm_sending_t;           // protocol.h
typedef struct wm_receiving wm_receiving_t;       // protocol.h
typedef struct wm_eager_buffer wm_eager_buffer_t; // protocol/device_eager.h

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

// The state of a buffer with gaps (pack.c).
typedef struct {
    wm_block_t *block; // stands in for the buffer
    char *host;        // stands in for the buffer
    char *span;        // page-locked copy of a pattern's memory
    int step;          // state of unpacking
    bool enqueued;     // unpacking is enqueued, or has run
    bool onto_device;  // the host unpacks into device memory
} wm_gaps_t;

// Chunks that MPI carries (protocol/chunks.c).
typedef struct {
    bool carried;          // MPI reaches the device memory itself
    bool reachable;        // nobody else uses that memory
    char *staging;         // page-locked chunks: two, or all
    bool whole;            // all: the caller need not wait for the receiver
    char *scratch;         // two chunks for data to discard
    MPI_Request flying[2]; // of two chunks
    uint32_t copied;       // chunks copied out of the device
    uint32_t given, done;  // chunks given to MPI; completed by MPI
} wm_chunks_t;

// The copy with which a blocking send need not wait (protocol/eager.c).
typedef struct {
    wm_block_t *block; // on the buffer's device; NULL: see `host`
    void *host;        // page-locked, if the device had no memory
    CUstream stream;
    bool unmoved;  // the offer stays where it is
    int64_t since; // time when the offer began to wait, microseconds
} wm_copy_t;

// Copies on our own streams (protocol/pulling.c).
typedef struct {
    CUstream side; // of the pool, every other fragment's; NULL: none
    bool alone;    // it must not share a kernel
    bool signals;  // its stream writes `taken`
    _Atomic bool synchronized; // the caller has waited (kind->synchronize)
    int code;                  // result of that wait; negative: see `error`
} wm_pulling_t;

// A kernel that reads an eager LL buffer (protocol/device_eager.c).
typedef struct {
    bool under_way;
    bool late; // a kernel did not find the data
} wm_fetch_t;

typedef struct {
    wm_op_t op;
    int state; // send.c, receive.c
    // The payload's protocol. NULL: nothing follows, or no header has come.
    const wm_sending_t *sending;
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

    wm_gaps_t gaps;
    bool in_place; // the receiver's row writes them itself

    // State of an offer that several protocols share.
    wm_slot_t *slot;
    int slot_index;              // of our segment; -1: none
    unsigned looks, event_looks; // at words of the peer, for its end, so far
    wm_fragments_t fragments;
    const wm_link_t *link; // by which an offer comes
    wm_mapping_t *mapping;
    bool batched; // its copy or announcement goes with others

    // State of a message on the user's stream.
    bool on_stream; // the stream has the work that takes the message
    CUevent event;  // end of our use of the memory
    bool recorded;  // the event is recorded

    // State of one protocol each (see OWN in tests/test_tree.py).
    wm_chunks_t chunks;
    wm_copy_t copy;
    wm_pulling_t pull;
    wm_fetch_t fetch;
    wm_eager_buffer_t *eager_buffer; // the sender's, or NULL
    wm_block_t *handoff;             // exportable copy, or ring
    int staging_ring;                // -1: none
    int64_t left_since;   // time when it was left to a thread of the program
    int64_t pushed_since; // time from which the sender could have begun
} wm_end_t;

_Static_assert(sizeof(wm_end_t) <= WM_OP_BYTES, "it finds room in what is "
                                                "kept");

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

// Calls `begin` while the thread stays in the buffer's device.
WM_MUST_CHECK int
wm_end_begin_in_device(int (*begin)(wm_comm_t *, wm_buffer_t *,
                                    const wm_envelope_t *, wm_op_t **,
                                    wm_error_t *),
                       wm_comm_t *comm, wm_buffer_t *buffer,
                       const wm_envelope_t *envelope, wm_op_t **op,
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

// Writes, if asked for, that `row` serves this end (engine/route.h).
void
wm_end_route(const wm_end_t *end, const wm_route_t *route, const char *row);

// Releases all that the end still has: slots, streams, mappings, staging.
void
wm_end_drop(wm_end_t *end);

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
