// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/await.h"

#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/watch/wait.h"

typedef struct {
    wm_op_t op;
    int (*look)(void *context, wm_error_t *err);
    void *context;
    unsigned looks;
} await_t;

static bool
step(wm_op_t *op)
{
    wm_error_t err;
    await_t *await = (await_t *)op;
    int code = await->look(await->context, &err);
    // MPI tells of two ranks alone, and another that has heard of a dead one
    // has left, and tells nothing.
    if (code == 0 && wm_failure_is_due(&await->looks))
        code = wm_failure_look_at_all(op->comm, &err);
    if (code == 0)
        return false;
    if (code < 0)
        wm_op_fail(op, &err);
    return true;
}

static const wm_op_kind_t kind = {.step = step};

int
wm_coll_await(wm_comm_t *comm, int (*look)(void *context, wm_error_t *err),
              void *context, int looks, wm_error_t *err)
{
    int code = 0;
    for (int i = 0; i < looks && code == 0; ++i)
        code = look(context, err);
    if (code != 0)
        return code < 0 ? code : 0;
    await_t *await = wm_op_new(&kind, sizeof *await, comm);
    if (await == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    await->look = look;
    await->context = context;
    wm_engine_add(&await->op);
    code = wm_op_wait(&await->op, NULL, err);
    wm_op_release(&await->op);
    return code;
}
