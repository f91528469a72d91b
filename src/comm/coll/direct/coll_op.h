// SPDX-License-Identifier: BSD-3-Clause
// A collective under way on one rank, in any form: its arguments, the engines
// that serve it, and the state of the one that does it. The caller of a
// blocking call steps it; the progress engine steps a nonblocking one. One
// thread at a time.
#ifndef WM_COMM_COLL_DIRECT_COLL_OP_H
#define WM_COMM_COLL_DIRECT_COLL_OP_H

#include "comm/coll/call/coll_engine.h"
#include "comm/coll/direct/participant.h"
#include "comm/engine/op.h"

// Room for the state of the engine that does a call.
#define WM_COLL_STATE_BYTES 14336

// Large: `participant` is partly uninitialized, and `state` wholly.
struct wm_coll_op {
    wm_coll_form_t form;
    uint64_t key;     // of its class (coll_class.h)
    unsigned engines; // bits of engines that serve this rank; between hosts
                      // of the chosen one
    const wm_coll_engine_t *engine; // does the call; NULL: not chosen yet
    bool started;                   // the engine has started it
    void *own;               // state of the engine for this communicator
    wm_coll_result_t result; // of the engine's last step
    int looks; // set by the engine: steps before a blocking call waits
    // Set by the engine: a call after this one may start; it waits for no word
    // of another rank, but for this rank's work, or for MPI; its use of MPI.
    bool begun, alone;
    wm_asks_t asks;
    bool refused; // by MPI, whose blocking call has not happened
    struct wm_moved_coll *moved; // its moved data; NULL: not moved
    // The error of this rank alone, which goes on so that no rank waits for
    // it; code 0: none.
    wm_error_t wrong;
    wm_participant_t participant;
    _Alignas(16) char state[WM_COLL_STATE_BYTES];
};

// Keeps an error of this rank alone; the first one stays.
static inline void
wm_coll_op_fail(wm_coll_op_t *op, const wm_error_t *err)
{
    if (op->wrong.code == 0)
        op->wrong = *err;
}

#endif
