// SPDX-License-Identifier: BSD-3-Clause
// The wait until another rank has told that it exposes its memory, or that it
// has accessed ours.
#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/rma/target_state.h"

typedef struct {
    wm_op_t op;
    wm_target_t *target;
    int rank;
    wm_target_tell_t what;
    unsigned looks;
} hear_t;

static bool
hear_step(wm_op_t *op)
{
    wm_error_t err;
    hear_t *hear = (hear_t *)op;
    wm_comm_t *comm = &hear->target->comm;
    unsigned *told = &hear->target->ranks[hear->rank].told[hear->what];
    if (*told > 0) {
        --*told;
        return true;
    }
    if (!wm_failure_is_due(&hear->looks)
        || wm_failure_look(comm, hear->rank, &err) == 0)
        return false;
    wm_op_fail(op, &err);
    return true;
}

static void
hear_about(const wm_op_t *op, wm_about_t *about)
{
    const hear_t *hear = (const hear_t *)op;
    *about = (wm_about_t){
        .performs = hear->what == WM_TARGET_POSTED ? "Post" : "Complete",
        .rank = hear->rank,
        .peer = hear->target->comm.peers[hear->rank],
    };
}

static void
hear_free(wm_op_t *op)
{
    wm_target_release(((hear_t *)op)->target);
}

static const wm_op_kind_t hear_kind = {
    .step = hear_step,
    .about = hear_about,
    .free = hear_free,
};

int
wm_target_hear(wm_target_t *target, int rank, wm_target_tell_t what,
               wm_op_t **op, wm_error_t *err)
{
    hear_t *hear = wm_op_new(&hear_kind, sizeof *hear, target->of);
    if (hear == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    wm_target_retain(target);
    hear->target = target;
    hear->rank = rank;
    hear->what = what;
    wm_engine_add(&hear->op);
    *op = &hear->op;
    return 0;
}

bool
wm_target_has_told(wm_target_t *target, int rank, wm_target_tell_t what)
{
    wm_engine_look(NULL);
    wm_engine_lock();
    bool has = target->ranks[rank].told[what] > 0;
    wm_engine_unlock();
    return has;
}
