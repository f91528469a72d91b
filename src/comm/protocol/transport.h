// SPDX-License-Identifier: BSD-3-Clause
// A transport: how offered device memory reaches a receiver that sees the
// sender's segment. All functions must be set, except `accept` of `mpi`, which
// gets no offers: a CUDA-aware MPI is given device memory (chunks.c). One
// const array gives the order of preference (transport.c). Before that, the
// sender decides whether to offer at all (`try_take` of offer.c), and the
// receiver whether the host must serve (take.c, choose). Engine lock held. No
// Python.
#ifndef WM_COMM_PROTOCOL_TRANSPORT_H
#define WM_COMM_PROTOCOL_TRANSPORT_H

#include "comm/message/end.h"

struct wm_transport {
    const char *name;
    // The receiver maps the sender's own memory. So the user's stream and
    // kernels can read it, and messages may be pushed, or sent by device
    // eager.
    bool mapped;
    // Returns true if memory that `peer` offers can reach a buffer this way.
    // *reason, in either case, is one sentence that lives as long as the peer.
    bool (*reach)(const wm_peer_t *peer, const wm_pointer_t *into,
                  const char **reason);
    // Receiver: makes end->fragments ready to be pulled. Returns 0; 1 if it
    // must be called again; or an error, then the host is tried.
    int (*accept)(wm_end_t *end, wm_error_t *err);
    // Counts a message that has come this way.
    void (*count)(const wm_end_t *end);
};

extern const wm_transport_t wm_transport_self;
extern const wm_transport_t wm_transport_ipc;
extern const wm_transport_t wm_transport_host;
extern const wm_transport_t wm_transport_mpi;

// Returns the transport for `wm.transport()`, as offer.c and
// wm_transport_take() choose it: the forced one if it reaches the peer, else
// the first that does; `host` always does. *reason says why this one or, for
// `host`, why not ipc.
const wm_transport_t *
wm_transport_tell(const wm_peer_t *peer, const wm_pointer_t *into,
                  const char **reason);

// Returns the transport for an offer likewise.
const wm_transport_t *
wm_transport_take(const wm_peer_t *peer, const wm_pointer_t *into);

// Returns true if MPI reaches device memory that goes to a peer, or comes from
// one, without an offer; else it is staged. Each end decides for itself.
bool
wm_transport_is_carried(const wm_peer_t *peer);

// Returns 1 if MPI says that it takes device memory, 0 if it says that it does
// not, -1 if it says nothing.
int
wm_mpi_is_cuda_aware(void);

// Returns the transport that it names; NULL if it is unset.
const wm_transport_t *
wm_transport_forced(void);

#endif
