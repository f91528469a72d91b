// SPDX-License-Identifier: BSD-3-Clause
// The header of a message, which MPI matches and carries.
#ifndef WM_COMM_MESSAGE_HEADER_H
#define WM_COMM_MESSAGE_HEADER_H

#include <stddef.h>

#include "comm/engine/buffer.h"
#include "comm/message/pattern.h"
#include "comm/node/rkey.h"

#define WM_EAGER_BYTES 4096 // host payloads that go with the header
// Most bytes of a chunk of DATA; and if the link takes device memory in place.
#define WM_CHUNK_BYTES ((size_t)4 << 20)
#define WM_IN_PLACE_BYTES ((size_t)64 << 20)

typedef enum {
    WM_MESSAGE_EAGER = 1, // the payload goes with the header
    WM_MESSAGE_DATA = 2,  // a link carries it, in chunks
    WM_MESSAGE_OFFER = 3, // it is offered in device memory
} wm_message_kind_t;

// The reason why an offer must come through the host.
typedef enum {
    WM_STAGE_NOT = 0,
    WM_STAGE_FORCED = 1,       // WARPMPI_TRANSPORT=host at the sender
    WM_STAGE_UNEXPORTABLE = 2, // CUDA IPC does not export the memory
    WM_STAGE_NOW = 3,          // short of memory this time
} wm_stage_t;

// How a sender has failed.
typedef enum {
    WM_FAILED_NOT = 0,
    WM_FAILED = 1,
    WM_FAILED_STAGING = 2, // it would have staged GPU memory (require.h)
} wm_failed_t;

#define WM_HEADER_MAGIC 0x7770u

typedef struct {
    uint16_t magic;
    uint8_t kind;
    uint8_t failed; // a wm_failed_t; `text` says why
    uint32_t seq;   // DATA: number of the payload
    uint64_t nbytes;
    uint32_t chunk; // DATA: bytes of a chunk
    // A synchronous send: 1 + the tag, on the data communicator, of an empty
    // message that the receiver of this one takes; 0: none.
    uint32_t token;
    uint8_t pickled;   // of a lower-case call
    uint8_t element;   // of the sender's buffer
    uint8_t link;      // DATA: which carries it
    uint8_t on_device; // DATA: the link takes the sender's GPU memory
    uint32_t order;    // number among the messages to this rank
    // Every message has the header up to here; offers and failures have the
    // rest. More short headers than long ones find room on their way to a
    // peer.
    union {
        char text[160];   // reason why the sender failed
        struct {          // OFFER
            int32_t slot; // in the sender's segment
            uint32_t ready_base, taken_base;
            int32_t device; // the sender's ordinal
            // `fragments` of at most `fragment` bytes use the `ring` places of
            // a ring in turn; a plain offer is one fragment.
            uint64_t fragment;
            uint32_t fragments, ring;
            uint32_t stage_only; // a wm_stage_t
            uint32_t flag;       // of its eager LL lines; 0: plain
            wm_rkey_t place;
            uint8_t uuid[16]; // of the sender's device
            uint8_t pushes;   // the sender can copy the data itself
            uint8_t ramped;   // its first two fragments are shorter
        };
    };
} wm_header_t;

#define WM_HEADER_SHORT offsetof(wm_header_t, slot)

_Static_assert(sizeof(wm_header_t) == 192, "the header is 192 bytes");
_Static_assert(WM_HEADER_SHORT == 32, "32 of them go with every message");

// Fills the description of the buffer that is sent.
void
wm_header_describe(wm_header_t *header, const wm_buffer_t *buffer);

// Returns the bytes of a header that are sent; the payload of EAGER follows.
size_t
wm_header_length(const wm_header_t *header);

// Reads the header of a packet; returns its length.
size_t
wm_header_read(wm_header_t *header, const char *packet);

#endif
