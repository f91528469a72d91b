// SPDX-License-Identifier: BSD-3-Clause
// Who shares this host: this process's shared segment, the peers' segments,
// and what a process tells of itself when a communicator is made. A segment
// is an anonymous memory file that peers open through /proc, so nothing is
// left behind by a crash and /dev/shm is not used. Everything here is called
// with the engine's lock held (comm/engine/engine.h).
#ifndef WM_COMM_NODE_NODE_H
#define WM_COMM_NODE_NODE_H

#include <stdatomic.h>

#include "comm/node/account.h"
#include "comm/node/barrier.h"
#include "comm/node/slot.h"
#include "cuda/device.h"

// Counted with each change of what processes tell each other: headers, what
// they say of their memory, the thresholds.
#define WM_WIRE_VERSION 23u
#define WM_SLOTS 2048
#define WM_NOTICES 1024
#define WM_HOST_BYTES 32
#define WM_STAGING_RINGS 4           // staging rings a segment
#define WM_STAGING_RING_FRAGMENTS 4  // fragments a staging ring
#define WM_FRAGMENT_BYTES (4u << 20) // largest fragment of a staging ring
#define WM_STAGING_RING_BYTES                                                 \
    ((size_t)WM_STAGING_RING_FRAGMENTS * WM_FRAGMENT_BYTES)
#define WM_PINNED_SYMM_COUNT 8 // behind the staging rings
#define WM_PINNED_SYMM_BYTES ((size_t)16u << 20)

typedef struct {
    uint64_t magic;
    uint8_t id[16];           // random, one a process
    _Atomic uint32_t leaving; // 1: it is in MPI_Finalize, and receives no more
    // The beginning of the UUID of the GPU that it last took a long message
    // on; 0: none yet.
    _Atomic uint64_t takes_on;
    wm_account_t account;
    // Buffer ids whose memory was freed: peers close their mappings.
    _Alignas(64) _Atomic uint64_t notice_count;
    _Atomic uint64_t notices[WM_NOTICES];
    wm_slot_t slots[WM_SLOTS];
    wm_barrier_slot_t barrier_slots[WM_BARRIER_SLOTS];
    // How far this rank is in bank 0 of each of its slots (barrier.h): side by
    // side, as a rank that reads one reads several.
    _Alignas(64) _Atomic uint32_t arrived[WM_BARRIER_SLOTS];
} wm_segment_t;

#define WM_CONTROL_BYTES                                                      \
    ((sizeof(wm_segment_t) + 65535) / 65536 * (size_t)65536)
#define WM_EXCHANGE_AREAS_AT                                                  \
    (WM_CONTROL_BYTES + WM_STAGING_RINGS * WM_STAGING_RING_BYTES              \
     + WM_PINNED_SYMM_COUNT * WM_PINNED_SYMM_BYTES)
#define WM_SEGMENT_BYTES                                                      \
    (WM_EXCHANGE_AREAS_AT + WM_BARRIER_SLOTS * sizeof(wm_exchange_area_t))

// What each rank tells all others when a communicator is made.
typedef struct {
    uint32_t wire_version;
    uint8_t failed; // 1: `text` tells why this rank cannot take part
    uint8_t checks; // 1: WARPMPI_CHECK is set
    uint8_t by_mpi; // 1: WARPMPI_HOST_MESSAGES is
    uint8_t unused;
    uint8_t id[16];
    uint8_t host[WM_HOST_BYTES]; // WARPMPI_HOST, boot id or host name, hashed
    int32_t pid, fd;
    wm_barrier_slot_info_t barrier_slot; // of this communicator
    uint64_t made;                       // communicators, before this one
    char version[16];
    char text[176];
} wm_endpoint_t;

typedef struct wm_mapping wm_mapping_t;

// A process we exchange messages with (ourselves included), one a process,
// shared by all communicators.
typedef struct wm_peer {
    struct wm_peer *next;
    uint8_t id[16];
    int pid;
    bool self;
    bool same_host;
    bool settled; // each knows whether the other has opened its segment
    wm_segment_t *segment; // NULL: cannot be shared, `reason` tells why
    char reason[320];
    bool control_registered; // page-locked in this process
    bool staging_registered;
    bool pinned_symm_registered[WM_PINNED_SYMM_COUNT];
    uint64_t notices_seen;
    wm_mapping_t *mappings;
    bool ipc_refused;  // its memory could not be mapped: `host` serves
    bool push_refused; // it could not map ours
    bool dead;         // MPI says so
    bool copied;       // it, and not we, copied the last message between us
} wm_peer_t;

// Fills what this process tells of itself, making its segment at the first
// call. A failure is written into the endpoint (failed, text).
void
wm_node_describe(wm_endpoint_t *endpoint);

// The peer an endpoint tells of. NULL only when memory is exhausted.
wm_peer_t *
wm_node_peer(const wm_endpoint_t *endpoint);

// Whether the peer is there, and not in MPI_Finalize: it may yet receive. Not
// known of other hosts.
bool
wm_node_may_receive(const wm_peer_t *peer);

// The peer's segment is not used: nothing has been offered to it yet.
void
wm_node_refuse(wm_peer_t *peer, const char *reason);

// We are in MPI_Finalize, and receive no more.
void
wm_node_leave(void);

wm_peer_t *
wm_node_self(void);

wm_peer_t *
wm_node_peers(void); // all, linked by next

// Takes a free slot of our segment; -1 when all are in use.
int
wm_slot_acquire(void);

void
wm_slot_release(int slot);

// The exchange area of the slot of that index; ours has memory once it was
// opened, which fails where there is none.
wm_exchange_area_t *
wm_exchange_area_pointer(const wm_peer_t *peer, int index);

WM_MUST_CHECK bool
wm_exchange_area_open(int index);

char *
wm_staging_ring_pointer(const wm_peer_t *peer, int ring);

// Page-locks the words (and the staging rings) of a peer's segment, so that
// streams can read and write them: under the context of `device`, for all
// devices. Idempotent.
WM_MUST_CHECK int
wm_node_register(wm_peer_t *peer, bool staging, int device, wm_error_t *err);

// Takes a free area of our segment's pinned symmetric memory, for a
// communicator whose GPUs do not reach each other. Returns its index; -1 when
// all are in use.
int
wm_pinned_symm_acquire(void);

void
wm_pinned_symm_release(int index);

bool
wm_pinned_symm_is_left(void);

char *
wm_pinned_symm_pointer(const wm_peer_t *peer, int index);

// Page-locks a peer's pinned symmetric memory of this index likewise.
WM_MUST_CHECK int
wm_node_register_pinned_symm(wm_peer_t *peer, int index, int device,
                             wm_error_t *err);

// Number of processes known on this host, this one included.
int
wm_node_local_peers(void);

#endif
