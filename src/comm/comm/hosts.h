// SPDX-License-Identifier: BSD-3-Clause
// The hosts of a communicator's ranks. Found when the communicator is made, in
// time and memory that grow linearly with the ranks. Constant after that; any
// thread.
#ifndef WM_COMM_COMM_HOSTS_H
#define WM_COMM_COMM_HOSTS_H

#include "comm/engine/op.h"

// The same on all ranks, except `first` and `place`. The arrays belong to the
// communicator.
typedef struct {
    int count;             // of hosts
    int smallest, largest; // ranks of a host
    int first;             // lowest rank on this host
    int place;             // of this rank among those of its host
    const int *host_of;    // by rank: its host; hosts are numbered in the
                           // order of their lowest ranks
    const int *place_of;   // by rank: its place among those of its host
    const int *ranks;      // of host 0 by place, then of host 1, ...
    const int *begin;      // by host: of its ranks in `ranks`; `count` + 1
} wm_hosts_t;

// Returns the hosts of a communicator's ranks, which all ranks know.
wm_hosts_t
wm_hosts_find(const wm_comm_t *comm);

// Finds them, once the peers are known. *hosts owns its memory, also after an
// error: wm_hosts_free().
WM_MUST_CHECK int
wm_hosts_make(const wm_comm_t *comm, wm_hosts_t *hosts, wm_error_t *err);

void
wm_hosts_free(wm_hosts_t *hosts);

// Returns the number of ranks of a host.
static inline int
wm_hosts_ranks(const wm_hosts_t *hosts, int host)
{
    return hosts->begin[host + 1] - hosts->begin[host];
}

// Returns the rank at a place of a host.
static inline int
wm_hosts_rank(const wm_hosts_t *hosts, int host, int place)
{
    return hosts->ranks[hosts->begin[host] + place];
}

#endif
