// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/call/coll_wait.h"

#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/diagnostics/wait.h"

typedef struct {
    wm_op_t op;
    int (*look)(void *context, wm_error_t *err);
    void *context;
    unsigned looks;
    bool held, withdrawn; // it does not look now, or any more
} coll_wait_t;

static bool
coll_wait_step(wm_op_t *op)
{
    wm_error_t err;
    coll_wait_t *wait = (coll_wait_t *)op;
    if (wait->withdrawn || wait->held)
        return wait->withdrawn;
    int code = wait->look(wait->context, &err);
    // We ask about all ranks: MPI reports a failure only to ranks that
    // exchange messages with the dead one. A rank that knows of it has left
    // the call, and reports nothing.
    if (code == 0 && wm_failure_is_due(&wait->looks))
        code = wm_failure_look_at_all(op->comm, &err);
    if (code == 0)
        return false;
    if (code < 0)
        wm_op_fail(op, &err);
    return true;
}

static bool
coll_wait_hold(wm_op_t *op, bool held)
{
    coll_wait_t *wait = (coll_wait_t *)op;
    wait->held = held && !atomic_load(&op->done);
    return wait->held;
}

static bool
coll_wait_interrupt(wm_op_t *op)
{
    ((coll_wait_t *)op)->withdrawn = true;
    return true;
}

static const wm_op_kind_t kind = {
    .step = coll_wait_step,
    .interrupt = coll_wait_interrupt,
    .hold = coll_wait_hold,
};

int
wm_coll_wait(wm_comm_t *comm, int (*look)(void *context, wm_error_t *err),
             void *context, int looks, wm_error_t *err)
{
    return wm_coll_wait_unless(comm, look, context, looks, NULL, err);
}

int
wm_coll_wait_unless(wm_comm_t *comm,
                    int (*look)(void *context, wm_error_t *err), void *context,
                    int looks, bool (*interrupted)(wm_op_t *op),
                    wm_error_t *err)
{
    int code = 0;
    for (int i = 0; i < looks && code == 0; ++i)
        code = look(context, err);
    if (code != 0)
        return code < 0 ? code : 0;
    coll_wait_t *wait = wm_op_new(&kind, sizeof *wait, comm);
    if (wait == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    wait->look = look;
    wait->context = context;
    wm_engine_add(&wait->op);
    code = wm_op_wait(&wait->op, interrupted, err);
    wm_op_release(&wait->op);
    return code;
}
