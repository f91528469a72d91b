// SPDX-License-Identifier: BSD-3-Clause
// A hierarchical collective: in each host by the engines of the level `local`,
// between hosts each rank's own share on the level `rail` (comm/levels.h). It
// is a schedule of collectives on levels and of works of this rank's GPU. The
// files of this folder have the state below; nothing else includes it.
//
// Each host has as many *carriers* as the smallest host has ranks: those with
// the first places. A carrier has a share of its host's data, and exchanges it
// with the carriers of its place in the other hosts, which are a rail.
#ifndef WM_COMM_COLL_HIERARCHY_HIERARCHY_H
#define WM_COMM_COLL_HIERARCHY_HIERARCHY_H

#include "comm/coll/call/coll_memory.h"
#include "comm/coll/hierarchy/hierarchy_work.h"
#include "comm/coll/run/coll_schedule.h"

#define WM_HIERARCHY_WORKS 4
#define WM_HIERARCHY_MEMORIES 4
#define WM_HIERARCHY_PARTS (2 * WM_SCHEDULE_TASKS)
#define WM_HIERARCHY_SPANS 5

// Room for the spans of a call, kept for later ones: each call that comes when
// the one before it has ended begins without new memory.
typedef struct wm_hierarchy_room {
    struct wm_hierarchy_room *next;
    wm_span_t spans[];
} wm_hierarchy_room_t;

// The state of the engine for a communicator. Engine lock.
typedef struct {
    wm_hierarchy_room_t *free;
} wm_hierarchy_rooms_t;

// The state of a call. Must not move. The buffers and spans that tasks have
// live in it.
typedef struct {
    wm_schedule_work_t coming; // must be first: until nobody else uses the
                               // memory of the call
    wm_schedule_t schedule;
    wm_coll_op_t *op;
    const wm_coll_t *call;
    const wm_hosts_t *hosts;
    wm_comm_t *local, *rail;
    int host, place; // of this rank
    int ranks;       // of this host
    int carriers;    // of each host
    int root_host, root_place;
    int device;
    size_t unit;  // bytes of an element; no share divides one
    size_t block; // bytes of each rank's block, if all are alike
    int works_used, memories_used, parts_used, spans_used;
    int longest;   // of the ranks of this host, and of the hosts
    bool streamed; // its tasks go onto a stream: there is no verdict
    wm_hierarchy_work_t works[WM_HIERARCHY_WORKS];
    wm_coll_memory_t memories[WM_HIERARCHY_MEMORIES];
    wm_buffer_t parts[WM_HIERARCHY_PARTS];
    wm_hierarchy_room_t *room;
} wm_hierarchy_t;

// The kinds of tasks, as bits, for which engines are opened: in hosts, and on
// rails. No task of another kind may be added.
#define WM_HIERARCHY_LOCAL_KINDS                                              \
    (1u << WM_COLL_ALLREDUCE | 1u << WM_COLL_REDUCE | 1u << WM_COLL_BCAST     \
     | 1u << WM_COLL_REDUCE_SCATTER | 1u << WM_COLL_REDUCE_SCATTER_BLOCK      \
     | 1u << WM_COLL_SCATTER | 1u << WM_COLL_SCATTERV                         \
     | 1u << WM_COLL_ALLGATHER | 1u << WM_COLL_ALLGATHERV                     \
     | 1u << WM_COLL_GATHER | 1u << WM_COLL_GATHERV | 1u << WM_COLL_ALLTOALL)
#define WM_HIERARCHY_RAIL_KINDS                                               \
    (1u << WM_COLL_ALLREDUCE | 1u << WM_COLL_REDUCE | 1u << WM_COLL_BCAST     \
     | 1u << WM_COLL_ALLGATHER | 1u << WM_COLL_GATHER                         \
     | 1u << WM_COLL_ALLGATHERV | 1u << WM_COLL_GATHERV                       \
     | 1u << WM_COLL_SCATTERV | 1u << WM_COLL_ALLTOALL                        \
     | 1u << WM_COLL_ALLTOALLV)

// --- hierarchy_call.c: what all calls are made of.

// Makes the state of the engine, with a room for one call; frees it.
WM_MUST_CHECK int
wm_hierarchy_rooms_make(const wm_comm_t *comm, void **state, wm_error_t *err);
void
wm_hierarchy_rooms_free(wm_hierarchy_rooms_t *rooms);

// Initializes the state from the call of `op`.
WM_MUST_CHECK int
wm_hierarchy_init(wm_hierarchy_t *own, wm_coll_op_t *op, wm_error_t *err);

// Frees all that it has.
void
wm_hierarchy_drop(wm_hierarchy_t *own);

static inline bool
wm_hierarchy_carries(const wm_hierarchy_t *own)
{
    return own->place < own->carriers;
}

// Returns a part of a buffer of the caller, or of memory of ours; borrowed.
const wm_buffer_t *
wm_hierarchy_part(wm_hierarchy_t *own, const wm_buffer_t *whole, size_t at,
                  size_t nbytes);

// Returns memory of ours on the GPU of the call; borrowed. If there is none,
// the call fails, and this rank goes on without, as others wait for it.
const wm_buffer_t *
wm_hierarchy_take(wm_hierarchy_t *own, size_t nbytes);

// Returns empty spans, as many as this host has ranks, or the rail; borrowed.
wm_span_t *
wm_hierarchy_spans(wm_hierarchy_t *own);

// Adds copies to the tasks; the reduction of the vectors of all hosts, which
// lie one after the other. It ends an average.
void
wm_hierarchy_add_copies(wm_hierarchy_t *own, wm_hierarchy_lay_t *lay,
                        const wm_buffer_t *into, const wm_buffer_t *from);
void
wm_hierarchy_add_fold(wm_hierarchy_t *own, const wm_buffer_t *vectors,
                      const wm_buffer_t *into);

// Returns a task of a kind, without buffers.
wm_coll_t
wm_hierarchy_task(const wm_hierarchy_t *own, wm_coll_kind_t kind);

// Makes a task whose `count` blocks all ranks of its level know one of equal
// blocks, if they are that: engines do it faster, kernels by LL.
void
wm_hierarchy_even_out(wm_coll_t *task, const wm_span_t *blocks, int count);

// Adds a task of the ranks of this host; of the rail. `sent`: the bytes that
// this rank gives to other hosts.
void
wm_hierarchy_add_local(wm_hierarchy_t *own, const wm_coll_t *task);
void
wm_hierarchy_add_rail(wm_hierarchy_t *own, const wm_coll_t *task, size_t sent);

// Returns share `index` of `count` of so many bytes, in whole elements.
wm_span_t
wm_hierarchy_share(const wm_hierarchy_t *own, size_t nbytes, int count,
                   int index);

// Returns true if vectors of so many bytes are so short that the rails
// exchange them whole: one step fewer, and as many times the bytes as there
// are carriers.
bool
wm_hierarchy_is_short(const wm_hierarchy_t *own, size_t nbytes);

// --- hierarchy_engine.c

// Adds the tasks of the call.
void
wm_hierarchy_plan(wm_hierarchy_t *own);

// --- the calls: each adds the tasks of one.

// Reduces vectors of a rail, of which this rank has `from`, into `into`, which
// may be the same: on all hosts (`to` is -1), or on one. The order of the
// reduction is that of the hosts.
void
wm_hierarchy_reduce_rail(wm_hierarchy_t *own, const wm_buffer_t *from,
                         const wm_buffer_t *into, int to);

void
wm_hierarchy_reduce(wm_hierarchy_t *own); // Allreduce, Reduce

void
wm_hierarchy_bcast(wm_hierarchy_t *own);

void
wm_hierarchy_gather(wm_hierarchy_t *own); // Allgather(v), Gather

void
wm_hierarchy_scatter(wm_hierarchy_t *own); // Scatter, Reduce_scatter(_block)

void
wm_hierarchy_alltoall(wm_hierarchy_t *own); // hosts of equal numbers of ranks

#endif
