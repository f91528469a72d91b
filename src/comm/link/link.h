// SPDX-License-Identifier: BSD-3-Clause
// A link: a way by which payloads get from one process into another. Users
// know links as transports (wm.transport, WARPMPI_TRANSPORT). A link is a file
// with a row of functions, wm_link_<name>, and a name in WM_LINKS of
// engine/links.h, whose order is that of preference. Links of three kinds have
// functions of their own: a link that maps (`import`) lets us read and write
// memory of the peer, one that carries (`send`) moves bytes itself, and `host`
// has neither: both ends stage the data in page-locked memory. Every row has
// `reach`; a row with `connect` also has `title`, `address` and `disconnect`;
// one with `send` also `title`, `receive`, `test` and `cancel`. Others may be
// NULL.
// Engine lock held. No Python.
#ifndef WM_COMM_LINK_LINK_H
#define WM_COMM_LINK_LINK_H

#include "comm/engine/progress.h"
#include "comm/engine/stats.h"
#include "comm/link/carry.h"
#include "comm/node/mapping.h"

typedef struct wm_link {
    const char *name; // as in WM_LINKS
    // For the reasons of wm.transport(): who delivers data, "UCX"; how GPU
    // data gets into host memory, "one copy".
    const char *title, *how;
    // Makes the link ready for a new communicator. `asked`: WARPMPI_TRANSPORT
    // names it. Returns 0; 1 if it does not serve in this process: then the
    // row is not asked; or an error, which all ranks raise. NULL: it serves.
    int (*open)(bool asked, wm_error_t *err);
    // Functions for the engine, from the first open() that returns 0 on.
    wm_source_t source;
    // Writes the address by which peers find this process, if it fits into
    // `room` bytes, and returns its length, which stays the same. Peers that
    // meet for the first time exchange their addresses. 0: the link is not
    // used here. NULL: it needs no address.
    size_t (*address)(void *into, size_t room);
    // Connects to a peer by its address. An error is the reason why the link
    // does not serve between these two; disconnect() undoes a connection if
    // the peer could not connect.
    int (*connect)(wm_peer_t *peer, const void *address, size_t nbytes,
                   wm_error_t *err);
    void (*disconnect)(wm_peer_t *peer);
    // MPI has reported that the peer died: what is under way ends in an error.
    void (*died)(wm_peer_t *peer);
    // Device memory of ours is about to be freed: what the link keeps of it
    // must not be used again. Any thread, with or without the engine lock,
    // which it must not take. Memory of others, which they free as they like,
    // is known by its buffer id alone: wm_pointer_buffer_id().
    void (*forget_memory)(uint64_t buffer_id);
    // Returns true if GPU data that `peer` sends can come into `into` (NULL:
    // anywhere) by this link; asked by a sender (wm_link_carrier), if `into`,
    // memory of any kind, can go to the peer. *reason, in either case, is one
    // sentence that lives as long as the peer.
    bool (*reach)(const wm_peer_t *peer, const wm_pointer_t *into,
                  const char **reason);
    // Makes memory of the peer's device `theirs` reachable for `device`; *at
    // is its address here. *mapping, if it was set, is in use until
    // wm_mapping_release(). After an error the data is staged instead.
    int (*import)(wm_peer_t *peer, const wm_rkey_t *place, int theirs,
                  int device, wm_mapping_t **mapping, char **at,
                  wm_error_t *err);

    // --- a link that carries ---------------------------------------------
    // true: `number` is one of those that the communicator draws, as MPI has
    // few tags; false: of those that this process draws for the peer.
    bool by_comm;
    // Returns true if send() and receive() take this device memory of ours;
    // else it is staged, as with NULL. Each end decides for itself. Both
    // always take host memory.
    bool (*unstaged)(const wm_peer_t *peer, const wm_pointer_t *memory);
    // Begin a chunk. Nobody else uses its memory until test() has returned 1,
    // or an error. A chunk of 0 bytes says that the sender has failed.
    int (*send)(const wm_carry_t *to, const void *memory, size_t nbytes,
                wm_flight_t *flight, wm_error_t *err);
    int (*receive)(const wm_carry_t *from, void *memory, size_t nbytes,
                   wm_flight_t *flight, wm_error_t *err);
    // Returns 1 if the chunk has ended, and sets *nbytes, unless NULL, to what
    // has come; 0 if not yet; or an error. 1 once more after each of the two.
    int (*test)(wm_flight_t *flight, size_t *nbytes, wm_error_t *err);
    // Ends a receive that nobody will send; no-op if the chunk has ended.
    void (*cancel)(wm_flight_t *flight);
    // Writes why this link, which WARPMPI_TRANSPORT does not rule out, does
    // not take device memory to the peer, and what would mend that. NULL:
    // nothing would.
    void (*tell_lacking)(const wm_peer_t *peer, size_t room, char *told);
    // NULL: it does not access memory of peers.
    const wm_link_access_t *access;
} wm_link_t;

#define X(name) extern const wm_link_t wm_link_##name;
WM_LINKS(X)
#undef X

// Writes the addresses of all links, if they fit into `room` bytes. Returns
// their length, which stays the same until the next communicator is made.
size_t
wm_link_addresses(char *into, size_t room);

// Connects each link that both processes use, with the addresses that the peer
// has sent. No-op if the two know each other.
void
wm_link_connect(wm_peer_t *peer, const char *addresses, size_t nbytes);

// Ends the connections that the peer does not have: `theirs` is what it has in
// `connected` for this process.
void
wm_link_confirm(wm_peer_t *peer, uint32_t theirs);

// Tells all links of a peer's death.
void
wm_link_peer_died(wm_peer_t *peer);

// Returns true if WARPMPI_TRANSPORT names the link; NULL: it is unset.
bool
wm_link_is_asked(const wm_link_t *link);

// Returns the link for `wm.transport()`, as the functions below choose it: the
// one that was asked for if it reaches the peer, else the first that does;
// `host` always does. *reason says why this one or, for `host`, why not ipc.
const wm_link_t *
wm_link_tell(const wm_peer_t *peer, const wm_pointer_t *into,
             const char **reason);

// Returns a link of WM_LINKS; NULL if there is none of that number.
const wm_link_t *
wm_link_numbered(unsigned number);

unsigned
wm_link_number(const wm_link_t *link);

// Sender: returns true if device memory is offered to the peer, whose end
// takes it by wm_link_for_offer(). Else *why is the reason, and
// wm_link_carrier() carries it.
bool
wm_link_offers(const wm_peer_t *peer, const char **why);

// Writes what each link lacks that could carry device memory to the peer.
void
wm_link_tell_lacking(const wm_peer_t *peer, size_t room, char *told);

// Receiver: returns the link by which offered memory comes.
const wm_link_t *
wm_link_for_offer(const wm_peer_t *peer, const wm_pointer_t *into);

// Sender: returns the link that carries a payload from `memory` without an
// offer, which the header names. `mpi` carries what no other link does.
const wm_link_t *
wm_link_carrier(const wm_peer_t *peer, const wm_pointer_t *memory);

// Returns the link that accesses memory of the peer by itself; NULL: none.
// Both ends find the same one.
const wm_link_t *
wm_link_accessor(const wm_peer_t *peer);

// Returns true if collectives may map memory of the peer.
bool
wm_link_maps(const wm_peer_t *peer);

// Counts a message that has come by the link. `staged`: this end has copied it
// through host memory.
void
wm_link_count(const wm_link_t *link, uint64_t nbytes, bool staged);

// Returns 1 if MPI says that it takes device memory, 0 if it says that it does
// not, -1 if it says nothing.
int
wm_mpi_is_cuda_aware(void);

#endif
