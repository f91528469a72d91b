// SPDX-License-Identifier: BSD-3-Clause
// One end of a message in CUDA graphs, for the files of captured.h. Engine
// lock held, except where noted.
#ifndef WM_COMM_PROTOCOL_CAPTURED_END_H
#define WM_COMM_PROTOCOL_CAPTURED_END_H

#include "array/port.h"
#include "comm/node/mapping.h"
#include "comm/protocol/captured.h"

#define CAPTURED_SLOTS 2 // of a mailbox
#define CAPTURED_MAPPINGS 2

// The words by which a sender tells the receiver of itself.
typedef struct {
    uint32_t magic;
    uint32_t index;  // of its words
    uint32_t serial; // as there
    uint32_t mps;    // of its GPU
    CUuuid gpu;
    int32_t tag;
    uint32_t element;
    uint64_t nbytes;
    wm_rkey_t port;
} captured_header_t;

// A rank tells this to the other end of a message that it has refused.
#define CAPTURED_REFUSAL_MAGIC 0x6c616e66u
typedef struct {
    uint32_t magic;
    uint32_t receives; // 1: the refused call is a receive
    int32_t tag;       // of a receive maybe MPI_ANY_TAG
    char text[100];    // its error; "": the receive is captured after all
} captured_refusal_t;

_Static_assert(sizeof(captured_refusal_t) <= sizeof(captured_header_t),
               "both come under one tag");

// A refusal that this rank has told, or heard.
typedef struct wm_captured_refused {
    struct wm_captured_refused *next;
    bool heard;
    bool open; // the call was not captured again
    int rank;  // the other one
    captured_refusal_t what, withdrawn;
} wm_captured_refused_t;

struct wm_captured {
    struct wm_captured *next;   // of the communicator
    struct wm_captured *listed; // the next of all, or of those to drop
    wm_comm_t *comm;            // NULL: it was freed
    _Atomic int holders;        // a request, and threads that close it
    _Atomic int graphs;         // that may still run
    uint64_t kept;              // the latest capture, which counts
    int others;                 // of the graphs, when it did so first
    // The capture, and the stream there, in which the message has begun and is
    // not waited for yet. 0: none.
    uint64_t pending;
    CUstream pending_on;
    // The kernels' waits, as the host has seen them.
    uint32_t beat;
    int64_t beat_at, waits_since, told_at;
    uint32_t passed; // with WARPMPI_CHECK: as in the words, for the other end
    bool counted;    // `passed` was looked for
    bool closed;     // no message passes any more
    bool left;       // the other end knows that nothing is left
    bool told;       // so the program was told
    wm_buffer_t buffer;
    bool receives, synchronous;
    bool plain;      // of no persistent request
    int as_given[2]; // rank and tag
    int rank, tag;   // as given; of the other end, once they have met
    int device;      // of the stream
    bool matched;
    wm_peer_t *peer; // of the other end; NULL: not known yet
    uint32_t slots;
    uint64_t slot_bytes;
    wm_block_t *block; // the port, and the mailbox behind it; NULL: none
    wm_port_t *port;
    int index;            // of its words in our segment; -1: none
    wm_port_words_t *own; // NULL: none
    wm_port_words_t *its; // once they have met
    wm_mapping_t *mappings[CAPTURED_MAPPINGS];
    captured_header_t header;
    bool header_sent; // a sender whose header has begun to go
    MPI_Request header_request;
};

// A sender that no receiver of ours has matched yet.
typedef struct captured_unexpected {
    struct captured_unexpected *next;
    int rank;
    captured_header_t header;
    int64_t since;
    bool told;
} captured_unexpected_t;

// The ends of a communicator.
struct wm_captured_ends {
    wm_captured_t *first, **last;
    captured_unexpected_t *unexpected;
    wm_captured_refused_t *refused;
    bool matching; // an operation looks for the other ends
};

// Fails with WM_ERR_STATE if kernels here do not reach a rank's memory.
WM_MUST_CHECK int
wm_captured_check_peer(const wm_comm_t *comm, int rank, wm_error_t *err);

// Adds the end to those of its communicator, and begins to look for the other
// end.
WM_MUST_CHECK int
wm_captured_match(wm_captured_t *end, wm_error_t *err);

// Reads the receiver's answer, if it has come, for a sender that has none yet.
void
wm_captured_look_for_answer(wm_captured_t *end);

// Returns the ends of a communicator, which are made if need be; NULL: out of
// memory.
struct wm_captured_ends *
wm_captured_ends(wm_comm_t *comm);

// Returns the tag of headers and refusals on `data`.
int
wm_captured_header_tag(const wm_comm_t *comm);

// Stops the kernels of an end whose message never passes, and tells the
// program at its next call.
void
wm_captured_fail(wm_captured_t *end, const wm_error_t *err);

// Notes that a call was captured after all, of this rank or (`heard`) another,
// and tells this of a receive; notes what another rank has told. Returns the
// text of a refusal of the other end, and its rank, or NULL. Frees all.
void
wm_captured_withdraw_refusal(wm_comm_t *comm, bool heard, bool receives,
                             int rank, int tag);
void
wm_captured_hear_refusal(wm_comm_t *comm, int rank,
                         const captured_refusal_t *what);
const char *
wm_captured_find_refusal(const wm_captured_t *end, int *rank);
void
wm_captured_drop_refusals(struct wm_captured_ends *ends);

// Gives up a sender that no receiver has answered.
void
wm_captured_withdraw(wm_captured_t *end);

// Takes the end from the list of its communicator.
void
wm_captured_leave(wm_captured_t *end);

// Adds the end to the list of all, which drops it once it is closed and no
// graph has it.
void
wm_captured_list(wm_captured_t *end);

// Finds long sends that have begun in a capture, on a stream, and that are not
// waited for yet; `room` at most. Returns how many.
int
wm_captured_find_pending(uint64_t capture, CUstream stream,
                         wm_captured_t **found, int room);

// Fails, once, if the message has begun in a capture that has ended without
// its wait, and there is a graph of the message. May let the lock go.
WM_MUST_CHECK int
wm_captured_check_begun(wm_captured_t *end, wm_error_t *err);

// Makes the graph of a capture count.
WM_MUST_CHECK int
wm_captured_keep(wm_captured_t *end, uint64_t capture, CUstream stream,
                 wm_error_t *err);

// Closes the ends of a communicator or, NULL, all, and waits, for some
// seconds, for messages that are under way. Lock not held.
void
wm_captured_close_all(wm_comm_t *comm);

// Returns true if ends may still go by themselves, for one who has waited so
// many microseconds: some that nobody needs, and those of graphs that the
// driver has not yet told to be gone. Lock not held.
bool
wm_captured_are_going(int64_t waited);

// Drops the ends that nobody needs. Lock not held.
void
wm_captured_collect(void);

// Does so now and then, if the lock is free.
void
wm_captured_serve(bool waited);

// Releases all that the end has; no kernel uses it. Lock not needed.
void
wm_captured_drop(wm_captured_t *end);

#endif
