// SPDX-License-Identifier: BSD-3-Clause
// What a message is: the header that MPI matches and carries, and the memory
// at one end of it.
#ifndef WM_COMM_MESSAGE_HEADER_H
#define WM_COMM_MESSAGE_HEADER_H

#include <stddef.h>

#include "comm/engine/buffer.h"
#include "comm/message/pattern.h"
#include "comm/node/place.h"

#define WM_EAGER_BYTES 4096 // host payloads that ride the header
#define WM_CHUNK_BYTES                                                        \
    ((size_t)4 << 20) // of payloads on the data communicator
#define WM_CARRIED_BYTES                                                      \
    ((size_t)64 << 20) // likewise, where MPI reaches device memory

typedef enum {
    WM_MESSAGE_EAGER = 1, // the payload follows the header at once
    WM_MESSAGE_DATA = 2,  // it follows on the data communicator, in chunks
    WM_MESSAGE_OFFER = 3, // it is offered in device memory
} wm_message_kind_t;

// Whether, and why, an offer can only come through the host.
typedef enum {
    WM_STAGE_NOT = 0,
    WM_STAGE_FORCED = 1,       // WARPMPI_TRANSPORT=host at the sender
    WM_STAGE_UNEXPORTABLE = 2, // CUDA IPC does not export the memory
    WM_STAGE_NOW = 3,          // short of memory this time
} wm_stage_t;

#define WM_HEADER_MAGIC 0x7770u

typedef struct {
    uint16_t magic;
    uint8_t kind;
    uint8_t failed; // the sender could not go on: `text` tells
    uint32_t seq;   // tag on the data communicator
    uint64_t nbytes;
    uint32_t chunk; // DATA: bytes a chunk
    // A synchronous send: 1 + the tag, on the data communicator, of an empty
    // message that whoever receives this one takes; 0: none.
    uint32_t token;
    uint8_t pickled; // of a lower-case call
    uint8_t element; // the sender's buffer's
    uint8_t spare[2];
    uint32_t order; // of the messages to this rank on a communicator
    // Up to here it goes with every message, the rest with offers and
    // failures: of short headers more find room on their way to a peer.
    union {
        char text[160];   // why the sender failed
        struct {          // OFFER
            int32_t slot; // in the sender's segment
            uint32_t ready_base, taken_base;
            int32_t device; // the sender's ordinal
            // `fragments` of at most `fragment` bytes that take turns in the
            // places of a ring of `ring`; a plain offer is one fragment.
            uint64_t fragment;
            uint32_t fragments, ring;
            uint32_t stage_only; // a wm_stage_t
            uint32_t flag;       // of its eager LL lines; 0: plain
            wm_place_t place;
            uint8_t uuid[16]; // of the sender's device
            uint8_t pushes;   // the sender can copy it itself
            uint8_t ramped;   // its first two fragments are shorter
        };
    };
} wm_header_t;

#define WM_HEADER_SHORT offsetof(wm_header_t, slot)

_Static_assert(sizeof(wm_header_t) == 192, "the header is 192 bytes");
_Static_assert(WM_HEADER_SHORT == 32, "32 of them go with every message");

// What a header says of the buffer that is sent.
void
wm_header_describe(wm_header_t *header, const wm_buffer_t *buffer);

// Bytes of a header that go, and after which the payload of EAGER begins.
size_t
wm_header_length(const wm_header_t *header);

// Takes a header out of a packet that has come; its length.
size_t
wm_header_read(wm_header_t *header, const char *packet);

#endif
