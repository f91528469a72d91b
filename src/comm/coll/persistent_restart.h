// SPDX-License-Identifier: BSD-3-Clause
// The starts of one persistent collective. Where one went from GPU to GPU each
// rank keeps its call, and before the next start the ranks publish one word,
// in bank 0 of the barrier, whether each goes the same way: then they
// know all the rest. Where one does not, all ask anew (nonblocking.h). Engine
// lock held, except where noted.
#ifndef WM_COMM_COLL_PERSISTENT_RESTART_H
#define WM_COMM_COLL_PERSISTENT_RESTART_H

#include "comm/coll/coll.h"

struct wm_nonblocking_call; // nonblocking_call.h
struct wm_nonblocking_op;

// Of a communicator; zeroed: its calls are no starts of a persistent one.
typedef struct {
    bool repeats;
    // The last start went from GPU to GPU: on all ranks alike, so the next one
    // begins with their words.
    bool went;
    struct wm_nonblocking_call *kept; // of that, if this rank can restart it
} wm_persistent_restart_t;

// Begins a start: whether it goes the way of the last one, as far as this rank
// goes, and has begun. Publishes if it does not. Lock not held.
bool
wm_persistent_restart_begin(wm_comm_t *comm, const wm_coll_t *asked,
                            const wm_buffer_t *kept, wm_op_t **op);

// The next start differs, as far as this rank goes, and the others wait to
// know. Lock not held.
void
wm_persistent_restart_differ(wm_comm_t *comm);

// The steps of such a start (nonblocking_call.h): whether it has ended.
bool
wm_persistent_restart_come(struct wm_nonblocking_op *op, bool *waits);
bool
wm_persistent_restart_arrive(struct wm_nonblocking_op *op, bool *waits);

// A call ends, after its plan has been followed on all ranks.
void
wm_persistent_restart_note(struct wm_nonblocking_call *call);

// Then: whether it is kept.
bool
wm_persistent_restart_keep(struct wm_nonblocking_call *call);

// Lets go of what is kept. Lock not held.
void
wm_persistent_restart_drop(wm_persistent_restart_t *restart);

#endif
