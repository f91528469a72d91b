// SPDX-License-Identifier: BSD-3-Clause
// An operation: one end of one message (or one MPI request of a collective),
// from the call that began it to its end. Reference-counted: the engine holds
// one while it is on the list, the caller one, its MPI request one. Fields are
// the engine lock's.
#ifndef WM_COMM_OP_H
#define WM_COMM_OP_H

#include "comm/comm.h"
#include "comm/end.h"
#include "comm/mailbox.h"
#include "comm/message.h"

typedef struct wm_staged wm_staged_t; // staged.h
typedef struct wm_transport wm_transport_t;

// Moving pieces between a source or a ring and a buffer: what both ends of
// every transport do.
typedef struct {
    char *remote;          // the ring (or the sender's memory, mapped)
    uint64_t piece;        // bytes a piece, at most
    uint32_t pieces, ring; // in all, in the ring
    uint32_t next;         // first not yet submitted
    uint32_t ready_base, taken_base;
    bool on_host; // pieces are copied by this thread
    bool ramped;  // the first are shorter: one quarter, one half
} wm_pieces_t;

typedef struct {
    int source, tag;
    uint64_t nbytes;
    bool cancelled;
} wm_result_t;

// A packet: header, eager payload and, of a receive into a device, the word
// that tells how fetching from a mailbox ended.
#define WM_PACKET_BYTES (sizeof(wm_header_t) + WM_EAGER_BYTES)
#define WM_STATUS_BYTES 64

struct wm_op {
    wm_op_t *next, *previous; // on the engine's list
    wm_op_t *finished;        // on the list of those to be let go
    // One step; true when it has ended: the engine tells the caller, unless he
    // was told before (wm_op_complete), and lets go of it.
    bool (*step)(wm_op_t *op);
    int state;        // of the step function
    _Atomic int done; // wm_done_t, 0: not yet
    // Wakes the waiting caller: done, or it is to wait for op->stream itself
    // and say so in `synchronized`. Until then the engine leaves it alone.
    _Atomic int news;
    _Atomic bool synchronized;
    int sync_code; // what that waiting gave; in `error` where negative
    bool discards; // it failed, and takes what still comes to throw it away
    _Atomic int references;
    wm_comm_t *comm;
    int rank, tag; // as given
    bool receives;
    bool stashed;   // the message was in the stash
    bool held;      // nobody looks for its header now
    bool withdrawn; // a message that comes now is put back
    bool synchronous;
    wm_buffer_t buffer;
    CUstream user_stream; // comm.on(stream)
    int user_device;      // -1: none
    MPI_Request request;  // the generalized one
    bool has_request;
    MPI_Request parts[3]; // header, two chunks
    char *packet;
    bool packet_pinned;
    wm_header_t header; // of the message matched or sent
    wm_slot_t *slot;
    int slot_index, lane; // ours, -1 none
    wm_peer_t *peer;
    wm_mapping_t *mapping;
    wm_block_t *handoff; // exportable copy, or ring
    wm_mailbox_t *box;   // or mailbox
    bool carried;        // MPI reaches the device memory itself
    bool reachable;      // nobody else uses that any more
    char *staging;       // two pinned chunks
    char *scratch;       // two chunks that are thrown away
    wm_staged_t *staged; // of a call of MPI's own, freed with it
    wm_block_t *packed;  // stands in for a buffer with gaps (pack.c)
    char *packed_host;   // likewise
    char *span;          // page-locked copy of the memory of a pattern
    int unpacking;       // how far that is
    bool unpacked;       // what unpacks has been enqueued, or has run
    bool onto_device;    // what is unpacked on the host goes there
    size_t offset;       // chunks given to MPI so far (payload.c)
    uint32_t chunks[2];  // copied out of the device; MPI is done with
    const wm_transport_t *transport;
    wm_pieces_t pieces;
    int device;      // on which our stream works
    CUstream side;   // of the pool: every other piece's; NULL: none
    CUstream stream; // of the pool where `pooled`, else the producer's
    bool opened, pooled;
    wm_stashed_t *matched; // what a matching probe found
    wm_op_t *parts_of[2];  // of one call: it ends when both have
    bool takes_out;        // a matching probe
    // a blocking send that need not wait (eager.c)
    wm_block_t *copy;
    CUstream copying;
    int64_t since;  // its offer waits, microseconds
    bool unmoved;   // it stays where it is
    bool paired;    // a receive of the same call is under way
    bool eager;     // whatever its size
    bool more;      // others begin at once, and share a kernel with it
    bool on_stream; // the user's stream has been given the pull
    bool batched;   // its copy, or its announcement, goes with others
    bool alone;     // it shall not
    bool fetching;  // a kernel takes the data out of a mailbox
    bool recorded;  // its event, behind the pull
    bool late;      // one did not find them there
    bool asked;     // whether those who used the buffer have ended
    bool signals;   // its stream writes `taken`
    unsigned asks;  // how often its end was looked for
    unsigned looks; // how often it waited for words of its peer
    bool idle;      // nothing of ours is pending on it
    bool blocking;  // the caller waits: nothing new comes on its streams
    struct {
        CUevent event; // NULL: none
        int device;
        uint64_t stream; // the id of that it was recorded on
        uint64_t number; // grows with the events recorded
    } after[2];   // of the streams of producer and user: work that comes first
    bool settled; // nothing else comes first
    CUevent event; // that our use of the memory ended, on a user's stream
    wm_result_t result;
    wm_error_t error; // code 0: none; last, see wm_op_new
};

// A new operation, one reference for the caller; takes over the buffer, also
// on failure.
wm_op_t *
wm_op_new(wm_comm_t *comm, wm_buffer_t *buffer);

// Gives it a packet, page-locked where a stream is to read or write it.
WM_MUST_CHECK int
wm_op_packet(wm_op_t *op, bool pinned, wm_error_t *err);

void
wm_op_retain(wm_op_t *op);

// An operation that ends when MPI's request does, or NULL. Lock held.
wm_op_t *
wm_op_of_request(wm_comm_t *comm, MPI_Request request);

// Sees a request that nobody waits for to its end; frees none. Lock held.
void
wm_op_leave(wm_comm_t *comm, MPI_Request *request);

// Gives back a reference; the last releases the buffer. Engine lock not held.
void
wm_op_release(wm_op_t *op);

// Whether the operation is to work on the stream of the buffer's producer.
bool
wm_op_borrows(const wm_op_t *op);

// Whether the user's stream itself posts the message to a mailbox: the buffer
// is free behind that, whenever the receiver comes.
bool
wm_op_posts(const wm_op_t *op);

// Takes note, by events, of the work on the streams that the operation comes
// after, on the thread that began it: later there may be more on them, they
// may be gone, and the per-thread one would be another. What cannot be noted
// is waited for as it is then.
void
wm_op_take_note(wm_op_t *op);

// Whether what one operation has taken note of (its buffer's stream) comes
// behind what the other has: it has ended only if that has.
bool
wm_op_note_covers(const wm_op_t *op, const wm_op_t *other);

// What it has taken note of has ended: nobody uses the buffer.
void
wm_op_note_ended(wm_op_t *op);

// Gives the operation a stream that is ordered after whoever uses the buffer:
// the producer's own for short work while its owner waits (no event, no query,
// its priority), else one of the pool. No-op when it has one.
WM_MUST_CHECK int
wm_op_open_stream(wm_op_t *op, wm_error_t *err);

// Lets go of slots, streams, mappings, staging, whatever an end left. Lock
// held.
void
wm_op_drop_resources(wm_op_t *op);

#endif
