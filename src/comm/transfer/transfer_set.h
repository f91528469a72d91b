// SPDX-License-Identifier: BSD-3-Clause
// A kept set of transfers: copies and reductions between regions of this
// process and of peers on this host, in phases. The set is mapped once, and
// run any number of times, by steps of the engine. Nothing here waits for
// another rank: the user of the set orders the ranks before, between and after
// the phases, by the barrier of a host (node/barrier.h). The set owns its
// mappings. The user owns all that the set points to, and keeps it as long as
// the set. One thread at a time; GIL not needed. Engine lock held where the
// set maps, rests, resumes and ends.
#ifndef WM_COMM_TRANSFER_TRANSFER_SET_H
#define WM_COMM_TRANSFER_TRANSFER_SET_H

#include "array/access.h"
#include "array/reduce.h"
#include "array/signal.h"
#include "comm/transfer/transfer_region.h"

// Consecutive regions of a set.
typedef struct {
    int first, count;
} wm_transfer_range_t;

// Targets get the data of one source, or a reduction: that of the first
// source, op that of the next, and so on. If one source goes to several
// targets, those of its owner are left out: it has the data. The transfers of
// a phase have no order. Transfers of a set may go both ways.
typedef struct {
    int phase;
    wm_transfer_range_t sources, targets;
    size_t from; // offset in each source
    size_t into; // offset in each target
    size_t nbytes;
} wm_transfer_t;

typedef struct {
    // The user sets these after wm_transfer_set_init().
    int device; // kernels and copies run there
    int region_count, count;
    wm_transfer_region_t *regions;
    const wm_transfer_t *transfers;
    wm_reduce_type_t type; // of all reductions
    wm_reduce_op_t op;
    // The users of this rank's targets, and the stream behind them, which is
    // ours, and opened when there is work for it.
    wm_access_t *access;
    // By this a phase of one kernel tells its end; its word is taken when it
    // is needed. NULL: the stream tells.
    wm_signal_t *signal;
    bool shares; // a reduction may share a kernel with other sets (fuse.h)
    // These describe the phase that was enqueued last; the user only reads
    // them.
    bool signals;        // its only kernel will set `awaited`
    wm_signal_t awaited; // the set's signal, or that of the shared kernel
    unsigned looks;
    bool rests;
    wm_error_t failure; // of the launch of a shared kernel; code 0: none
} wm_transfer_set_t;

void
wm_transfer_set_init(wm_transfer_set_t *set);

// Returns a region whose published place does not hold what transfers read or
// write there; -1: none. Called before the set is mapped.
int
wm_transfer_set_find_damaged(const wm_transfer_set_t *set);

// Maps the regions that transfers use. After an error some are mapped.
WM_MUST_CHECK int
wm_transfer_set_map(wm_transfer_set_t *set, wm_error_t *err);

// Returns true if each copy can step over the gaps of both sides, and no
// other transfer has gaps.
bool
wm_transfer_set_can_copy(const wm_transfer_set_t *set);

// Enqueues the transfers of a phase. Short copies without gaps share a kernel.
// *begun becomes true if work may be under way, also after an error; then look
// at it until it has ended. `more`: the caller enqueues more behind it, on the
// open stream, in any case. With or without the engine lock; with it if the
// set shares kernels.
WM_MUST_CHECK int
wm_transfer_set_enqueue(wm_transfer_set_t *set, int phase, bool more,
                        bool *begun, wm_error_t *err);

// Asks up to `tries` times whether the work has ended. Returns 1 if it has, 0
// if not yet, or an error.
WM_MUST_CHECK int
wm_transfer_set_look(wm_transfer_set_t *set, int tries, wm_error_t *err);

// wm_transfer_set_rest(): the set will be run again; meanwhile its mappings
// may be closed. wm_transfer_set_resume() uses them again. It returns false,
// and the set still rests, if one was closed: drop the set, and make it anew.
void
wm_transfer_set_rest(wm_transfer_set_t *set);
WM_MUST_CHECK bool
wm_transfer_set_resume(wm_transfer_set_t *set);

// Releases all mappings.
void
wm_transfer_set_drop(wm_transfer_set_t *set);

#endif
