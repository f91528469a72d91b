// SPDX-License-Identifier: BSD-3-Clause
// How a rank follows its plan of a collective from GPU to GPU (direct.h):
// it maps what it needs of the others' memory, and they wait for each other
// between the phases; at the end all know whether one has failed. Locks as
// noted.
#ifndef WM_COMM_COLL_DIRECT_RUN_H
#define WM_COMM_COLL_DIRECT_RUN_H

#include "array/reduce.h"
#include "comm/coll/direct.h"
#include "comm/node/mapping.h"

// Of an epoch, as many at most: a word, its answer, and each phase.
#define WM_DIRECT_STEPS (2 + WM_PLAN_PHASES)

// A plan that is followed.
typedef struct {
    wm_direct_t *direct;
    const wm_plan_t *plan;
    wm_reduce_type_t type;
    wm_reduce_op_t op;
    wm_error_t why; // this rank cannot go on; code 0: it can
    bool unmapped;  // as another's memory could not be mapped
    bool moves;     // its stream is not through; else others are waited for
    bool signals;   // one kernel does all, and signals its end
    wm_signal_t signal; // by this
    bool fuses;         // it may share kernels with others
    bool waits;         // nothing is written before all can go on
    bool gapped;        // some of what is sent is read with its gaps
    unsigned looks;     // for that
    bool ended;
    bool rests; // between two times that it is followed
    int phase;  // this one; -1: before the first
    int result;
    // Of as many ranks as there are.
    wm_mapping_t *mappings[2][WM_BARRIER_RANKS]; // of what is sent, received
    char *places[2][WM_BARRIER_RANKS];           // as this rank sees it
} wm_direct_run_t;

// `wrong` is what this rank alone finds wrong, code 0: nothing. `fuses`: in
// a round of the engine, and it may share kernels. Engine lock held.
void
wm_direct_start(wm_direct_run_t *run, wm_direct_t *direct,
                const wm_plan_t *plan, wm_reduce_type_t type,
                wm_reduce_op_t op, bool fuses, const wm_error_t *wrong);

// A plan that has been followed to its end rests: streams are let go of, and
// what others gave may be closed, but is known. False where it cannot be
// followed once more; it ends in any case. Engine lock held.
WM_MUST_CHECK bool
wm_direct_rest(wm_direct_run_t *run);

// After wm_direct_reopen(): whether what others gave is there still. If so all
// of it is held again, else none. Engine lock held.
WM_MUST_CHECK bool
wm_direct_resume(wm_direct_run_t *run);

// Then: once more, at `direct->barrier`, where all have begun another epoch.
void
wm_direct_restart(wm_direct_run_t *run);

// Whether that has come for which it waits; and goes on then: whether the
// plan has come to its end. Does not wait; engine lock held, or not.
bool
wm_direct_look(wm_direct_run_t *run);

bool
wm_direct_go_on(wm_direct_run_t *run);

// The end is the same on all ranks: 0, 1 where a rank could not map another's
// memory, nothing was received and the host is to serve, or an error.
WM_MUST_CHECK int
wm_direct_finish(const wm_direct_run_t *run, wm_error_t *err);

// Of a run that was started: lets go of what others gave. Engine lock held.
void
wm_direct_unmap(wm_direct_run_t *run);

// All of it, and waits.
WM_MUST_CHECK int
wm_direct_run(wm_direct_t *direct, const wm_plan_t *plan,
              wm_reduce_type_t type, wm_reduce_op_t op,
              const wm_error_t *wrong, wm_error_t *err);

#endif
