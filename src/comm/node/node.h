// SPDX-License-Identifier: BSD-3-Clause
// The processes on this host: the shared segment of this process, the segments
// of its peers, and the endpoints that processes exchange when a communicator
// is made. A segment is an anonymous memory file that peers open through
// /proc, so nothing is left behind by a crash and /dev/shm is not used. Engine
// lock held (comm/engine/engine.h).
#ifndef WM_COMM_NODE_NODE_H
#define WM_COMM_NODE_NODE_H

#include "comm/engine/links.h"
#include "comm/node/peer_stats.h"
#include "comm/node/segment.h"
#include "cuda/device.h"
#include "cuda/settings.h"

// Increased by each change of the data that processes exchange (headers,
// places of memory, thresholds), and of the algorithm that a call takes.
#define WM_WIRE_VERSION 43u
#define WM_HOST_BYTES 32
#define WM_MACHINE_BYTES 16 // the first of these

// The data that each rank sends to all others when a communicator is made.
// Ranks that meet for the first time then send the addresses of their links
// (link.h), which may have any length.
typedef struct {
    uint32_t wire_version;
    uint8_t failed; // 1: `text` says why this rank cannot take part
    uint8_t unused[3];
    uint8_t id[16];
    // Hashes of the machine (boot id or host name), then of WARPMPI_HOST or
    // the PID namespace.
    uint8_t host[WM_HOST_BYTES];
    int32_t pid;
    uint32_t addresses; // bytes of the addresses of its links
    wm_settings_alike_t settings;
    wm_barrier_row_info_t barrier_row; // of this communicator
    uint64_t made;                     // communicators made before this one
    char version[16];
    char text[176];
} wm_endpoint_t;

typedef struct wm_mapping wm_mapping_t;

// A process with which we exchange messages, or this one. All communicators
// share one struct for each process.
typedef struct wm_peer {
    struct wm_peer *next;    // see wm_node_peers()
    struct wm_peer *chained; // of those that node.c looks among for an id
    uint8_t id[16];
    uint8_t host[WM_HOST_BYTES]; // as in its endpoint
    int pid;
    bool self;
    bool same_host;
    bool same_machine;     // perhaps in another container, which is a host
    bool linked;           // both ends know which links connect them
    uint32_t connected;    // bits 1 << WM_LINK_…: links that connect
    wm_segment_t *segment; // NULL: it is not shared
    // By link: the reason why it does not serve; NULL: there is none.
    char *refused[WM_LINKS_KNOWN];
    void *own[WM_LINKS_KNOWN]; // by link, which alone knows what it is
    bool control_registered;   // page-locked in this process
    bool staging_registered;
    bool pinned_symm_registered[WM_PINNED_SYMM_COUNT];
    uint64_t notices_seen;
    uint32_t drawn; // numbers of payloads that links carry to it
    wm_mapping_t *mappings;
    bool push_refused; // it could not map our memory
    bool dead;         // MPI has reported that it died
    bool copied;       // it copied the last message between us; we did not
    wm_peer_stats_t stats;
} wm_peer_t;

// Fills the endpoint of this process. The first call makes the segment. A
// failure is written into the endpoint (failed, text).
void
wm_node_describe(wm_endpoint_t *endpoint);

// Returns the peer of an endpoint, without its segment if the peer is new;
// NULL: out of memory.
wm_peer_t *
wm_node_peer(const wm_endpoint_t *endpoint);

// Returns true if the peer and this process see each other's segments.
static inline bool
wm_node_shares(const wm_peer_t *peer)
{
    return peer->segment != NULL;
}

// Returns a slot of the peer's segment; NULL: there is none.
wm_slot_t *
wm_node_slot(const wm_peer_t *peer, int slot);

// Returns the account of a peer; NULL if its segment is not shared.
wm_account_t *
wm_node_account(const wm_peer_t *peer);

// Returns true if the peer, whose segment is shared, is in MPI_Finalize.
bool
wm_node_is_leaving(const wm_peer_t *peer);

// Publishes the GPU on which this process last received a long message, by the
// first bytes of its UUID. Returns true if, as far as we have seen, another
// process of this host receives there, too.
bool
wm_node_takes_on(uint64_t gpu);

// Returns true if the peer may still receive: it runs, and is not in
// MPI_Finalize. False for peers on other hosts, of which we do not know.
bool
wm_node_may_receive(const wm_peer_t *peer);

// Returns the number by which peers open our segment; -1: they cannot.
int
wm_node_segment_number(void);

// Opens the segment of a peer by this number.
WM_MUST_CHECK int
wm_node_open_segment(wm_peer_t *peer, int number, wm_error_t *err);

// Memory that is shared apart from the segment: a file like the segment's,
// whose first WM_NODE_FILE_HEAD bytes tell whose it is. wm_node_make_file()
// makes one, zero behind these; peers open it by its number, while the owner
// has it. wm_node_close_file() unmaps it; number: -1 for a peer's. The lock is
// not needed.
#define WM_NODE_FILE_HEAD 24
WM_MUST_CHECK int
wm_node_make_file(size_t nbytes, int *number, void **memory, wm_error_t *err);
WM_MUST_CHECK int
wm_node_open_file(const wm_peer_t *peer, int number, size_t nbytes,
                  void **memory, wm_error_t *err);
void
wm_node_close_file(int number, void *memory, size_t nbytes);

// Stops using the segment of a peer to which nothing has been offered yet.
void
wm_node_close_segment(wm_peer_t *peer);

// Remembers that a link does not serve for a peer, and why; the first reason
// stays.
void
wm_peer_refuse(wm_peer_t *peer, int link, const char *reason);

// Publishes the exception that ends this program, in one line.
void
wm_node_raised(const char *text);

// Returns the struct of this process; NULL before the first communicator.
wm_peer_t *
wm_node_self(void);
// Returns all peers, linked by `next`: those of this host first.
wm_peer_t *
wm_node_peers(void);

// Takes a free slot of our segment; returns -1 if all are in use.
int
wm_slot_acquire(void);
void
wm_slot_release(int slot);

// wm_exchange_area_pointer() returns the exchange area of a barrier slot. Our
// own has memory after wm_exchange_area_open(), which returns false if there
// is no memory.
wm_exchange_area_t *
wm_exchange_area_pointer(const wm_peer_t *peer, int index);
WM_MUST_CHECK bool
wm_exchange_area_open(int index);

// Returns the memory of a staging ring.
char *
wm_staging_ring_pointer(const wm_peer_t *peer, int ring);

// Page-locks the words of a peer's segment and, with `staging`, its staging
// rings, so that streams can read and write them. Done in the context of
// `device`, for all devices. Idempotent.
WM_MUST_CHECK int
wm_node_register(wm_peer_t *peer, bool staging, int device, wm_error_t *err);

// Takes a free area of our pinned symmetric memory, for a communicator whose
// GPUs do not reach each other. Returns its index; -1 if all are in use.
int
wm_pinned_symm_acquire(void);
void
wm_pinned_symm_release(int index);

// Returns true if an area is free. Any thread, without the lock.
bool
wm_pinned_symm_is_left(void);

char *
wm_pinned_symm_pointer(const wm_peer_t *peer, int index);

// Page-locks an area of a peer's pinned symmetric memory likewise.
WM_MUST_CHECK int
wm_node_register_pinned_symm(wm_peer_t *peer, int index, int device,
                             wm_error_t *err);

#endif
