// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/run/deferred_votes.h"

#include <stdlib.h>
#include <string.h>

#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/node/decision_log.h"

typedef struct {
    wm_op_t op;
    wm_deferred_votes_t *votes;
    unsigned looks;
} deferred_t;

static bool
deferred_votes_step(wm_op_t *op)
{
    deferred_t *deferred = (deferred_t *)op;
    wm_deferred_votes_t *votes = deferred->votes;
    wm_error_t err;
    size_t cast = 0;
    while (cast < votes->count
           && wm_decision_vote(op->comm->aside[0], votes->calls[cast], false))
        ++cast;
    votes->count -= cast;
    memmove(votes->calls, votes->calls + cast,
            votes->count * sizeof *votes->calls);
    if (votes->count > 0 && wm_failure_is_due(&deferred->looks)
        && wm_failure_look_at_all(op->comm, &err) < 0)
        votes->count = 0; // nobody reads these votes
    return votes->count == 0;
}

static const wm_op_kind_t kind = {.step = deferred_votes_step};

int
wm_deferred_votes_add(wm_deferred_votes_t *votes, wm_comm_t *comm,
                      uint32_t call, wm_error_t *err)
{
    if (votes->count == 0 && wm_decision_vote(comm->aside[0], call, false))
        return 0;
    if (votes->count == votes->capacity) {
        size_t capacity = 2 * votes->capacity + 64;
        uint32_t *calls = realloc(votes->calls, capacity * sizeof *calls);
        if (calls == NULL)
            return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
        votes->calls = calls;
        votes->capacity = capacity;
    }
    if (votes->count == 0) {
        deferred_t *deferred = wm_op_new(&kind, sizeof *deferred, comm);
        if (deferred == NULL)
            return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
        deferred->votes = votes;
        wm_engine_add_lock_held(&deferred->op);
        wm_op_release(&deferred->op); // the engine keeps its reference
    }
    votes->calls[votes->count++] = call;
    return 0;
}

void
wm_deferred_votes_free(wm_deferred_votes_t *votes)
{
    free(votes->calls);
}
