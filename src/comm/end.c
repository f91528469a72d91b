// SPDX-License-Identifier: BSD-3-Clause
#include "comm/end.h"

#include "comm/child.h"
#include "comm/op.h"

static void
give_back(wm_op_t *op)
{
    if (atomic_load(&op->done) != WM_DONE_ENDED || wm_is_child())
        return;
    for (int i = 0; i < 2; ++i)
        if (op->parts_of[i] != NULL)
            give_back(op->parts_of[i]);
    wm_buffer_release(&op->buffer);
}

void
wm_op_release_told(wm_op_t *op)
{
    give_back(op);
    wm_op_release(op);
}

static void
tell(wm_op_t *op, wm_done_t done)
{
    bool told = atomic_load(&op->done);
    atomic_store_explicit(&op->done, done, memory_order_release);
    if (told)
        return;
    atomic_store(&op->news, 1);
    if (op->has_request)
        MPI_Grequest_complete(op->request);
}

void
wm_op_complete(wm_op_t *op)
{
    if (!atomic_load(&op->done))
        tell(op, WM_DONE_TOLD);
}

void
wm_op_end(wm_op_t *op)
{
    tell(op, WM_DONE_ENDED);
}

void
wm_op_fail(wm_op_t *op, const wm_error_t *err)
{
    if (op->error.code == 0)
        op->error = *err;
}
