// SPDX-License-Identifier: BSD-3-Clause
// One end of a message in CUDA graphs, for the files of captured.h. Engine
// lock held, except where noted.
#ifndef WM_COMM_PROTOCOL_CAPTURED_END_H
#define WM_COMM_PROTOCOL_CAPTURED_END_H

#include "array/lane.h"
#include "comm/node/mapping.h"
#include "comm/protocol/captured.h"

#define CAPTURED_SLOTS 2 // of a mailbox
#define CAPTURED_MAPPINGS 2

// What a sender tells the receiver.
typedef struct {
    uint32_t magic;
    uint32_t index; // of its words
    int32_t tag;
    uint32_t element;
    uint64_t nbytes;
    wm_rkey_t lane;
} captured_hello_t;

struct wm_captured {
    struct wm_captured *next; // of the communicator
    wm_comm_t *comm;
    wm_buffer_t buffer;
    bool receives;
    int rank, tag; // as given; of the other end, once they have met
    int device;    // of the stream
    bool met;
    uint32_t slots;
    uint64_t slot_bytes;
    wm_block_t *block; // the lane, and the mailbox behind it; NULL: none
    wm_lane_t *lane;
    int index;            // of its words in our segment; -1: none
    wm_lane_words_t *own; // NULL: none
    wm_lane_words_t *its; // once they have met
    wm_mapping_t *mappings[CAPTURED_MAPPINGS];
    captured_hello_t hello;
    MPI_Request hello_request;
};

// Fails with WM_ERR_STATE if kernels here do not reach a rank's memory.
WM_MUST_CHECK int
wm_captured_check_peer(const wm_comm_t *comm, int rank, wm_error_t *err);

// Adds the end to those of its communicator, and begins to look for the other
// end.
WM_MUST_CHECK int
wm_captured_meet(wm_captured_t *end, wm_error_t *err);

// Releases all that the end has; no kernel uses it. Lock not needed.
void
wm_captured_drop(wm_captured_t *end);

#endif
