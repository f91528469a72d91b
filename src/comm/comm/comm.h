// SPDX-License-Identifier: BSD-3-Clause
// Communicators: the user's handle, two private communicators of the same
// ranks, and the peers of these ranks. `match` is for headers and the
// exchanges that make the communicator; `data` for payloads by MPI, embedded
// arrays, preflights between hosts and MPI's nonblocking collectives. An MPI
// attribute of the user's handle, so that wrapping a handle twice gives one.
#ifndef WM_COMM_COMM_COMM_H
#define WM_COMM_COMM_COMM_H

#include <mpi.h>

#include "comm/comm/comm_colls.h"
#include "comm/comm/hosts.h"
#include "comm/comm/levels.h"
#include "comm/comm/neighbor.h"
#include "comm/engine/posted.h"
#include "comm/node/node.h"

typedef struct wm_unexpected wm_unexpected_t;
typedef struct wm_counted wm_counted_t;
typedef struct wm_pending_sends wm_pending_sends_t;
typedef struct wm_symm wm_symm_t;
typedef struct wm_nonblocking wm_nonblocking_t;

// Consecutive ranks.
typedef struct {
    int first, count;
} wm_ranks_t;

// The room for buffered sends, in bytes (buffered.c).
typedef struct {
    _Atomic size_t
        limit; // 0: none is attached, else one more; SIZE_MAX: no limit
    _Atomic size_t used;
} wm_room_t;

typedef struct wm_comm {
    struct wm_comm *next; // in the list of attached ones; engine lock
    uint64_t id;          // the same on all ranks of an intracommunicator
    MPI_Comm user;        // borrowed; null after it was freed
    MPI_Comm match;       // headers; errors return
    MPI_Comm data;        // all other messages of ours; errors return
    wm_neighbor_rule_t neighbor_rule; // topology of `data`
    int rank;
    int size;      // number of ranks; of an intercommunicator, the remote ones
    int tag_limit; // of preflights; below: graphs, notices, partitioned, drawn
    wm_peer_t **peers;     // by rank
    wm_barrier_t *barrier; // NULL: see wm_comm_is_one_host()
    bool host_only;        // for collectives of neighbors only (host_only.h)
    _Atomic bool required; // of an owner: see require.h
    wm_barrier_t *aside[WM_BARRIER_ASIDE]; // of nonblocking calls, in turn
    bool one_host;                         // see wm_comm_is_one_host()
    wm_hosts_t hosts; // not of an intercommunicator; see hosts.h
    wm_comm_colls_t colls;
    wm_nonblocking_t *nonblocking; // NULL: no nonblocking collective yet
    wm_symm_t *symm;               // NULL: no collective on a stream yet
    wm_symm_t *graph_symm;         // NULL: none in a graph yet
    uint32_t *sequences;      // by rank: numbers drawn for messages on `data`
    _Atomic uint32_t *orders; // by rank: headers sent
    wm_unexpected_t *unexpected; // messages taken from MPI without a receive
    wm_room_t room;              // for buffered sends
    wm_pending_sends_t *pending_sends; // MPI still reads them; engine lock
    wm_counted_t *partitioned; // partitioned requests; lock of partitioned.c
    struct wm_captured_ends *captured; // messages in graphs; NULL: none
    int64_t looked;                    // last look for failures, microseconds
    int64_t ended_at;    // of a level with calls on streams: when a look found
                         // a dead rank, or that it was revoked
    bool revoked;        // as found at that look
    uint32_t halos;      // made of it, ever
    bool abandoned;      // sends were pending when it was freed
    _Atomic int holders; // see wm_comm_retain
    wm_error_t late;     // error of a call that had returned; engine lock
    _Atomic bool is_late;
    // Of embedded arrays: headers go on `data`, tagged with a drawn number of
    // the lower half (partitioned messages: upper). Shares peers, sequences.
    struct wm_comm *object_comm;
    // Of its collectives: itself; both groups of an intercommunicator's.
    struct wm_comm *whole;
    int split; // ranks of its first group; 0: no intercommunicator's
    struct wm_comm *owner; // of object_comm, whole and levels; else itself
    wm_levels_t levels;    // each has a `parent`, and its ranks there
    const struct wm_comm *parent;
    int *parent_ranks;
} wm_comm_t;

// Makes the wm_comm_t of a handle, or finds it. Collective over `user` unless
// it was attached before. An error of one rank (another version, no segment)
// fails on all. Engine lock not held; the GIL is released by the caller.
WM_MUST_CHECK int
wm_comm_attach(MPI_Comm user, wm_comm_t **comm, wm_error_t *err);

// Returns true if the ranks are on one host and read each other's exchange
// areas: then they have a barrier, where they agree on each collective. All
// ranks get the same result.
static inline bool
wm_comm_is_one_host(const wm_comm_t *comm)
{
    return comm->one_host;
}

// Returns the wm_comm_t of a handle; NULL if there is none. Cheap.
wm_comm_t *
wm_comm_find(MPI_Comm user);

// Returns true if calls on a handle, except those of neighbors, are MPI's own.
bool
wm_comm_is_mpis(MPI_Comm user);

// For a `whole`: return the group of a rank, and the ranks with which it
// exchanges data in collectives, which are the other group. For an
// intracommunicator both are all ranks.
wm_ranks_t
wm_comm_group(const wm_comm_t *comm, int rank);

wm_ranks_t
wm_comm_others(const wm_comm_t *comm, int rank);

// A rank, as the user of this rank knows it.
typedef struct {
    char text[48];
} wm_rank_name_t;

wm_rank_name_t
wm_comm_name(const wm_comm_t *comm, int rank);

// Sets, and returns, the error that a rank's shared segment holds what the
// rank cannot have written.
int
wm_comm_damaged(const wm_comm_t *comm, int rank, wm_error_t *err);

// Keeps the communicator for a holder that may use it after the user has freed
// the handle, until wm_comm_release(): one that may begin operations, or an
// operation that has failed. Any thread.
void
wm_comm_retain(wm_comm_t *comm);

void
wm_comm_release(wm_comm_t *comm);

// Returns the attached ones, linked by next. Engine lock held.
wm_comm_t *
wm_comm_all(void);

// Calls `visit` with each, also with those whose handles were freed, and with
// their levels. Engine lock held.
void
wm_comm_each(void (*visit)(wm_comm_t *comm));

// Returns the last of the numbers that are drawn.
int
wm_comm_last_number(const wm_comm_t *comm);

// Draws `count` numbers for messages to a rank on `data`; returns the first.
// They follow each other modulo wm_comm_last_number() + 1.
uint32_t
wm_comm_draw(wm_comm_t *comm, int rank, uint32_t count);
uint32_t
wm_comm_draw_lock_held(wm_comm_t *comm, int rank, uint32_t count);

// Returns the number of the next header among those to a rank; any thread.
static inline uint32_t
wm_comm_order(wm_comm_t *comm, int rank)
{
    return atomic_fetch_add_explicit(&comm->orders[rank], 1,
                                     memory_order_relaxed);
}

// Checks rank (an actual rank, PROC_NULL or, to receive, ANY_SOURCE) and tag;
// the error calls the rank `argument`. WM_ERR_MPI with MPI_ERR_RANK or
// MPI_ERR_TAG.
WM_MUST_CHECK int
wm_comm_check(const wm_comm_t *comm, const char *argument, int rank, int tag,
              bool receives, wm_error_t *err);

// Keeps the error of a message whose caller has gone on, such as a receive on
// a stream that waited for data that never came. The next message raises it;
// the first error stays. Lock held.
void
wm_comm_keep_error(wm_comm_t *comm, bool receives, int rank, int tag,
                   const wm_error_t *err);

// Raises the kept error, once.
WM_MUST_CHECK int
wm_comm_raise_kept(wm_comm_t *comm, wm_error_t *err);

#endif
