// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/owed.h"

#include <stdlib.h>
#include <string.h>

#include "comm/comm/failure.h"
#include "comm/engine/engine.h"

typedef struct {
    wm_op_t op;
    wm_owed_t *owed;
    unsigned looks;
} debt_t;

static bool
pay(wm_op_t *op)
{
    debt_t *debt = (debt_t *)op;
    wm_owed_t *owed = debt->owed;
    wm_error_t err;
    size_t paid = 0;
    while (paid < owed->count
           && wm_barrier_ask(op->comm->aside[0], owed->calls[paid], false))
        ++paid;
    owed->count -= paid;
    memmove(owed->calls, owed->calls + paid,
            owed->count * sizeof *owed->calls);
    if (owed->count > 0 && wm_failure_is_due(&debt->looks)
        && wm_failure_look_at_all(op->comm, &err) < 0)
        owed->count = 0; // nobody asks
    return owed->count == 0;
}

static const wm_op_kind_t kind = {.step = pay};

int
wm_owed_tell(wm_owed_t *owed, wm_comm_t *comm, uint32_t call, wm_error_t *err)
{
    if (owed->count == 0 && wm_barrier_ask(comm->aside[0], call, false))
        return 0;
    if (owed->count == owed->room) {
        size_t room = 2 * owed->room + 64;
        uint32_t *calls = realloc(owed->calls, room * sizeof *calls);
        if (calls == NULL)
            return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
        owed->calls = calls;
        owed->room = room;
    }
    if (owed->count == 0) {
        debt_t *debt = wm_op_new(&kind, sizeof *debt, comm);
        if (debt == NULL)
            return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
        debt->owed = owed;
        wm_engine_add_lock_held(&debt->op);
        wm_op_release(&debt->op); // the engine's reference stays
    }
    owed->calls[owed->count++] = call;
    return 0;
}

void
wm_owed_free(wm_owed_t *owed)
{
    free(owed->calls);
}
