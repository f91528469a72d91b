// SPDX-License-Identifier: BSD-3-Clause
// A link: a way by which payloads get from one process into another. Users
// know links as transports (wm.transport, WARPMPI_TRANSPORT). A link is a file
// with a row of functions, wm_link_<name>, and a name in WM_LINKS of
// engine/links.h, whose order is that of preference. Links of three kinds have
// functions of their own: a link that maps (`import`) lets us read and write
// memory of the peer, one that carries (`send`) moves bytes itself, and `host`
// has neither: both ends stage the data in page-locked memory. Functions that
// a row does not need are NULL. Engine lock held. No Python.
#ifndef WM_COMM_LINK_LINK_H
#define WM_COMM_LINK_LINK_H

#include "comm/engine/stats.h"
#include "comm/node/mapping.h"

typedef struct wm_link {
    const char *name;
    wm_stat_t messages, bytes; // counters of messages that came this way
    // Makes the link ready for a new communicator. `asked`: WARPMPI_TRANSPORT
    // names it. Returns an error, which all ranks raise, if it cannot serve.
    int (*open)(bool asked, wm_error_t *err);
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
    // Returns true if GPU data that `peer` sends can come into `into` by this
    // link. *reason, in either case, is one sentence that lives as long as the
    // peer.
    bool (*reach)(const wm_peer_t *peer, const wm_pointer_t *into,
                  const char **reason);
    // Makes memory of the peer's device `theirs` reachable for `device`; *at
    // is its address here. *mapping, if it was set, is in use until
    // wm_mapping_release(). After an error the data is staged instead.
    int (*import)(wm_peer_t *peer, const wm_place_t *place, int theirs,
                  int device, wm_mapping_t **mapping, char **at,
                  wm_error_t *err);
} wm_link_t;

#define X(name) extern const wm_link_t wm_link_##name;
WM_LINKS(X)
#undef X

// The begin of a row.
#define WM_LINK_NAMED(link)                                                   \
    .name = #link, .messages = WM_STAT_##link##_messages,                     \
    .bytes = WM_STAT_##link##_bytes

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
wm_link_settle(wm_peer_t *peer, uint32_t theirs);

// Returns true if WARPMPI_TRANSPORT names the link; NULL: it is unset.
bool
wm_link_is_asked(const wm_link_t *link);

// Returns the link for `wm.transport()`, as the functions below choose it: the
// one that was asked for if it reaches the peer, else the first that does;
// `host` always does. *reason says why this one or, for `host`, why not ipc.
const wm_link_t *
wm_link_tell(const wm_peer_t *peer, const wm_pointer_t *into,
             const char **reason);

// Sender: returns true if device memory is offered to the peer, whose end
// takes it by wm_link_for_offer(); else wm_link_carries() or chunks do.
bool
wm_link_offers(const wm_peer_t *peer);

// Receiver: returns the link by which offered memory comes.
const wm_link_t *
wm_link_for_offer(const wm_peer_t *peer, const wm_pointer_t *into);

// Returns true if MPI reaches device memory that goes to a peer, or comes from
// one, without an offer; else it is staged. Each end decides for itself.
bool
wm_link_carries(const wm_peer_t *peer);

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
