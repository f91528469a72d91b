// SPDX-License-Identifier: BSD-3-Clause
// Communicators: the user's own handle, two private ones of the same ranks
// behind it (headers and blocking collectives; payloads that MPI carries,
// parts of pickled objects and nonblocking collectives), and who its ranks
// are. Attached to the user's handle as an MPI attribute, so wrapping twice
// gives the same one. Once the handle has been freed, what has begun goes on,
// and what is behind it goes when nothing refers to it and the next one is
// made, or freed.
#ifndef WM_COMM_COMM_COMM_H
#define WM_COMM_COMM_COMM_H

#include <mpi.h>

#include "comm/comm/neighbor.h"
#include "comm/engine/posted.h"
#include "comm/node/node.h"

typedef struct wm_unexpected wm_unexpected_t;
typedef struct wm_room wm_room_t;
typedef struct wm_counted wm_counted_t;
typedef struct wm_pending_sends wm_pending_sends_t;
typedef struct wm_symm wm_symm_t;
typedef struct wm_nonblocking wm_nonblocking_t;

// One after the other.
typedef struct {
    int first, count;
} wm_ranks_t;

typedef struct wm_comm {
    struct wm_comm *next; // of those that are attached; engine lock
    uint64_t id;          // the same on all ranks of an intracommunicator
    MPI_Comm user;        // borrowed; null once it was freed
    MPI_Comm match;       // headers, and blocking collectives; errors return
    MPI_Comm data;        // payloads in chunks, and nonblocking collectives;
                          // errors return; has the topology that there is,
    wm_neighbor_rule_t neighbor_rule; // as this says
    int rank;
    int size; // of the ranks that messages go to: an intercommunicator's
              // others
    int tag_limit;
    wm_peer_t **peers;     // by rank
    wm_barrier_t *barrier; // NULL: ranks exchange messages instead
    bool host_only;        // for its neighbours' collectives alone; all other
                           // calls are MPI's own (host_only.h)
    // Where there are: those of nonblocking calls, each the next one's.
    wm_barrier_t *aside[WM_BARRIER_ASIDE];
    wm_nonblocking_t *nonblocking; // NULL: no nonblocking collective yet
    wm_symm_t *symm;               // NULL: no collective on a stream yet
    wm_symm_t *graph_symm;         // NULL: none in a graph yet
    uint32_t *sequences;      // by rank: numbers drawn for what goes on `data`
    _Atomic uint32_t *orders; // by rank: headers sent
    wm_unexpected_t *unexpected; // queue: taken from MPI without a receive
    wm_room_t *room;             // attached for buffered sends
    // Packets that MPI still reads; engine lock.
    wm_pending_sends_t *pending_sends;
    wm_counted_t *partitioned; // requests; partitioned.c's lock
    int64_t looked;            // for failures, microseconds
    bool revoked;              // as found then
    bool abandoned;            // sends that were pending when it was freed
    _Atomic int holders;       // see wm_comm_retain
    wm_error_t late;           // of a call that had returned; engine lock
    _Atomic bool is_late;
    // The communicator of arrays embedded in pickled objects: headers go on
    // `data` under a number as tag, where no wildcard of the user's looks.
    // Partitioned messages use it as well, with the upper half of the numbers.
    // It shares peers and sequences.
    struct wm_comm *object_comm;
    // Who take part in its collectives: itself; of an intercommunicator both
    // groups, one of which is the first `split` ranks.
    struct wm_comm *whole;
    int split;             // of such a one; else 0
    struct wm_comm *owner; // of parts, of both groups; itself otherwise
    // The others are in MPI's call, whose arguments this rank refused: its
    // next one of those that block, or of those that do not ([1]), is that,
    // and they are not asked again (direct_call.c).
    bool mpi_awaits[2];
} wm_comm_t;

// Collective over `user` unless it was attached before: makes, or finds, what
// is behind it. What is wrong with one rank (another version, no segment)
// fails on all. Engine lock not held; the GIL is released by the caller.
WM_MUST_CHECK int
wm_comm_attach(MPI_Comm user, wm_comm_t **comm, wm_error_t *err);

// What is behind a handle, NULL when nothing. Cheap.
wm_comm_t *
wm_comm_find(MPI_Comm user);

// Returns true if the calls on a handle, but those of neighbours, are MPI's
// own.
bool
wm_comm_is_mpis(MPI_Comm user);

// Of a `whole`: the group of a rank, and with whom it exchanges something in
// collectives, which is the other group; of an intracommunicator all.
wm_ranks_t
wm_comm_group(const wm_comm_t *comm, int rank);

wm_ranks_t
wm_comm_others(const wm_comm_t *comm, int rank);

// A rank as the user of this one knows it.
typedef struct {
    char text[48];
} wm_rank_name_t;

wm_rank_name_t
wm_comm_name(const wm_comm_t *comm, int rank);

// Sets, and returns, the error that a rank's shared segment holds what the
// rank cannot have written there.
int
wm_comm_damaged(const wm_comm_t *comm, int rank, wm_error_t *err);

// For who may begin something on it after the user has freed its handle, until
// it is released. Any thread.
void
wm_comm_retain(wm_comm_t *comm);

void
wm_comm_release(wm_comm_t *comm);

// All that are attached, linked by next. Engine lock held.
wm_comm_t *
wm_comm_all(void);

// Calls it with each, those that their users have freed as well. Engine lock
// held.
void
wm_comm_each(void (*visit)(wm_comm_t *comm));

// The last of the numbers that are drawn.
int
wm_comm_last_number(const wm_comm_t *comm);

// Draws `count` numbers for what goes to a rank on `data`; the first. They
// follow each other modulo wm_comm_last_number() + 1.
uint32_t
wm_comm_draw(wm_comm_t *comm, int rank, uint32_t count);

uint32_t
wm_comm_draw_lock_held(wm_comm_t *comm, int rank, uint32_t count);

// The place of the next header to a rank among all to it; any thread.
static inline uint32_t
wm_comm_order(wm_comm_t *comm, int rank)
{
    return atomic_fetch_add_explicit(&comm->orders[rank], 1,
                                     memory_order_relaxed);
}

// Checks rank (an actual rank, PROC_NULL, or ANY_SOURCE to receive), which the
// text calls `argument`, and tag; WM_ERR_MPI with MPI_ERR_RANK or MPI_ERR_TAG.
WM_MUST_CHECK int
wm_comm_check(const wm_comm_t *comm, const char *argument, int rank, int tag,
              bool receives, wm_error_t *err);

// Keeps the error of a message whose caller has gone on already (of a receive:
// on a stream that waited for data that never came) for whoever begins the
// next one; the first stays. Lock held.
void
wm_comm_keep_error(wm_comm_t *comm, bool receives, int rank, int tag,
                   const wm_error_t *err);

// Raises what was kept, once.
WM_MUST_CHECK int
wm_comm_raise_kept(wm_comm_t *comm, wm_error_t *err);

#endif
