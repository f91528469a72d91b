// SPDX-License-Identifier: BSD-3-Clause
// How offered device memory gets across to a receiver that sees the sender's
// segment. All functions of a transport must be there, but for `mpi`, which is
// offered nothing: device memory is given to a CUDA-aware MPI (chunks.c). One
// const array gives the order of preference (transport.c); before it is asked,
// the sender decides whether to offer at all (table.c), and the receiver
// whether the host has to serve (take.c, choose). Engine lock held. No Python.
#ifndef WM_COMM_PROTOCOL_TRANSPORT_H
#define WM_COMM_PROTOCOL_TRANSPORT_H

#include "comm/message/end.h"

struct wm_transport {
    const char *name;
    // The receiver maps the sender's own memory: the user's stream and kernels
    // can read the memory, and messages may be pushed, or go by device eager.
    bool direct;
    // Whether `peer`'s memory offered to a buffer can come this way; the
    // reason, either way, is one sentence that lives as long as the peer.
    bool (*reach)(const wm_peer_t *peer, const wm_pointer_t *into,
                  const char **reason);
    // Receiver: makes end->fragments ready to be pulled (0), or has to be
    // called again (1), or fails: then the host is tried.
    int (*accept)(wm_end_t *end, wm_error_t *err);
    // Counts a message that has come this way.
    void (*count)(const wm_end_t *end);
};

extern const wm_transport_t wm_transport_self;
extern const wm_transport_t wm_transport_ipc;
extern const wm_transport_t wm_transport_host;
extern const wm_transport_t wm_transport_mpi;

// For `wm.transport()`, as table.c and wm_transport_take choose: the one that
// is asked for if it reaches, else the first that reaches; `host` always does.
// The reason: why this one, or, for `host`, why not ipc.
const wm_transport_t *
wm_transport_tell(const wm_peer_t *peer, const wm_pointer_t *into,
                  const char **reason);

// Likewise of those that take what was offered.
const wm_transport_t *
wm_transport_take(const wm_peer_t *peer, const wm_pointer_t *into);

// Whether device memory that goes to, or comes from, a peer without having
// been offered is MPI's to reach, rather than staged: each end decides itself.
bool
wm_transport_is_carried(const wm_peer_t *peer);

// 1: MPI says that it takes device memory, 0: that it does not, -1: nothing.
int
wm_mpi_is_cuda_aware(void);

// Reads WARPMPI_TRANSPORT, when a communicator is made. WM_ERR_VALUE for an
// unknown name, and for `mpi` where MPI says that it is not CUDA-aware.
WM_MUST_CHECK int
wm_transport_configure(wm_error_t *err);

// The one it names; NULL where it is unset.
const wm_transport_t *
wm_transport_forced(void);

#endif
