// SPDX-License-Identifier: BSD-3-Clause
#include "comm/diagnostics/wait.h"

#include "comm/engine/child.h"
#include "comm/engine/engine.h"
#include "comm/node/mapping.h"
#include "comm/diagnostics/hang.h"

int
wm_op_wait(wm_op_t *op, bool (*interrupted)(wm_op_t *op), wm_error_t *err)
{
    bool told = true;
    if (wm_child_refuse(err) < 0)
        return WM_ERR_STATE;
    while (!atomic_load(&op->done) && told) {
        wm_hang_t hang = {.watcher = {wm_hang_begin, wm_hang_look}};
        wm_mapping_close_stale();
        told = wm_engine_wait(&op->news, op, &hang.watcher, interrupted);
        if (told && !atomic_load(&op->done))
            op->kind->synchronize(op);
    }
    if (!told && wm_engine_check(err) < 0)
        return WM_ERR_STATE;
    if (!told) {
        wm_engine_lock();
        bool back = op->kind->interrupt != NULL && op->kind->interrupt(op);
        wm_engine_unlock();
        // A withdrawn receive loses no message. A send, or an operation that
        // can be waited for again, goes on.
        if (back)
            (void)!wm_op_wait(op, NULL, NULL);
        else
            wm_engine_notify();
        return wm_error_set(err, WM_ERR_PYTHON, 0, "interrupted");
    }
    // The caller may know of the end before the operation leaves the engine.
    if (atomic_load(&op->done) != WM_DONE_ENDED && !wm_op_is_ended(op))
        wm_engine_notify();
    if (op->error.code != 0 && err != NULL)
        *err = op->error;
    return op->error.code;
}

bool
wm_op_hold(wm_op_t *op)
{
    if (op->kind->hold == NULL)
        return true;
    if (!wm_engine_try_lock())
        return false;
    bool held = op->kind->hold(op, true);
    wm_engine_unlock();
    return held;
}

void
wm_op_let_go_on(wm_op_t *op)
{
    if (op->kind->hold == NULL)
        return;
    wm_engine_lock();
    (void)op->kind->hold(op, false);
    wm_engine_unlock();
}
