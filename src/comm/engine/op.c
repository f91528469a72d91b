// SPDX-License-Identifier: BSD-3-Clause
#include "comm/engine/op.h"

#include <string.h>

#include "comm/engine/buffer.h"
#include "comm/engine/child.h"
#include "comm/engine/engine.h"
#include "comm/engine/handle.h"
#include "comm/engine/modules.h"
#include "comm/engine/pool.h"

static wm_pool_t op_pool = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .bytes = WM_OP_BYTES,
};

void *
wm_op_new(const wm_op_kind_t *kind, size_t size, wm_comm_t *comm)
{
    wm_op_t *op = wm_pool_get(&op_pool);
    if (op == NULL)
        return NULL;
    // Only the text of the error is not zeroed; code 0 says that there is
    // none.
    memset(op, 0, offsetof(wm_op_t, error));
    op->error.code = 0;
    memset((char *)op + sizeof *op, 0, size - sizeof *op);
    op->kind = kind;
    op->comm = comm;
    op->request = MPI_REQUEST_NULL;
    atomic_store(&op->references, 1);
    return op;
}

static const wm_op_kind_t no_kind = {0};

// The first reference is never released.
static wm_op_t ended = {
    .kind = &no_kind,
    .done = WM_DONE_TOLD,
    .news = 1,
    .references = 1,
};

wm_op_t *
wm_op_ended(void)
{
    wm_op_retain(&ended);
    return &ended;
}

bool
wm_op_is_ended(const wm_op_t *op)
{
    return op == &ended;
}

void
wm_op_retain(wm_op_t *op)
{
    atomic_fetch_add(&op->references, 1);
}

static void
give_back_own(wm_op_t *op)
{
    if (op->kind->buffer != NULL)
        wm_buffer_release(op->kind->buffer(op));
}

void
wm_op_release(wm_op_t *op)
{
    if (atomic_fetch_sub(&op->references, 1) != 1 || wm_is_child())
        return;
    if (op->kind->free != NULL)
        op->kind->free(op);
    give_back_own(op);
    for (int i = 0; i < 2; ++i)
        if (op->parts_of[i] != NULL)
            wm_op_release(op->parts_of[i]);
    if (op->holds_comm)
        WM_EACH_MODULE(release, op->comm);
    wm_pool_put(&op_pool, op);
}

static void
op_give_back(wm_op_t *op)
{
    if (atomic_load(&op->done) != WM_DONE_ENDED || wm_is_child())
        return;
    for (int i = 0; i < 2; ++i)
        if (op->parts_of[i] != NULL)
            op_give_back(op->parts_of[i]);
    give_back_own(op);
}

void
wm_op_release_told(wm_op_t *op)
{
    op_give_back(op);
    wm_op_release(op);
}

static void
op_tell(wm_op_t *op, wm_done_t done)
{
    bool told = atomic_load(&op->done);
    atomic_store_explicit(&op->done, done, memory_order_release);
    if (told)
        return;
    atomic_store(&op->news, 1);
    if (op->has_request)
        MPI_Grequest_complete(op->request);
    if (op->handle != NULL)
        wm_handle_end_lock_held(op->handle);
}

void
wm_op_complete(wm_op_t *op)
{
    if (!atomic_load(&op->done))
        op_tell(op, WM_DONE_TOLD);
}

void
wm_op_finish(wm_op_t *op)
{
    op_tell(op, WM_DONE_ENDED);
}

bool
wm_op_has_left(const wm_op_t *op)
{
    return atomic_load(&op->done) == WM_DONE_ENDED;
}

void
wm_op_fail(wm_op_t *op, const wm_error_t *err)
{
    if (op->error.code != 0)
        return;
    op->holds_comm = op->comm != NULL;
    if (op->holds_comm)
        WM_EACH_MODULE(retain, op->comm);
    op->error = *err;
}

wm_buffer_t *
wm_op_buffer(wm_op_t *op)
{
    return op->kind->buffer != NULL ? op->kind->buffer(op) : NULL;
}

const wm_op_t *
wm_op_message(const wm_op_t *op)
{
    while (op->parts_of[0] != NULL) {
        const wm_op_t *other = op->parts_of[1];
        op = other != NULL && atomic_load(&op->parts_of[0]->done)
                 ? other
                 : op->parts_of[0];
    }
    return op;
}

wm_about_t
wm_op_about(const wm_op_t *op)
{
    const wm_op_t *message = wm_op_message(op);
    wm_about_t about = {0};
    if (message->kind->about != NULL)
        message->kind->about(message, &about);
    return about;
}

bool
wm_op_cancel(wm_op_t *op)
{
    bool can = op->kind->cancel != NULL;
    wm_engine_lock();
    can = can && op->kind->cancel(op);
    wm_engine_unlock();
    return can;
}
