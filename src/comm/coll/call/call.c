// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/call/call.h"

#include <stddef.h>

#include "comm/coll/call/reducible.h"
#include "comm/message/pattern.h"
#include "cuda/device.h"

// Returns true if a rank sends to the root, or receives from it. `itself`: the
// root does so, too.
static bool
is_served(const wm_coll_t *call, int rank, bool itself)
{
    if (call->split == 0)
        return itself || rank != call->root;
    return call->root >= 0
           && (rank < call->split) != (call->root < call->split);
}

bool
wm_coll_sends(const wm_coll_t *call, int rank)
{
    const wm_shape_t *shape = wm_coll_shape(call->kind);
    return !shape->rooted
           || (shape->outward ? rank == call->root
                              : is_served(call, rank, true));
}

bool
wm_coll_receives(const wm_coll_t *call, int rank)
{
    const wm_shape_t *shape = wm_coll_shape(call->kind);
    return !shape->rooted
           || (shape->outward ? is_served(call, rank, shape->scatters)
                              : rank == call->root);
}

bool
wm_coll_keeps(const wm_coll_t *call, int rank)
{
    const wm_shape_t *shape = wm_coll_shape(call->kind);
    return shape->neighbors || (shape->prefix && !shape->inclusive)
           || (call->send == NULL && wm_coll_sends(call, rank));
}

int
wm_coll_device(const wm_coll_t *call)
{
    const wm_buffer_t *either = call->send != NULL ? call->send
                                                   : call->receive;
    int device = either != NULL && call->on_device ? either->memory.device
                                                   : -1;
    if (device < 0)
        device = wm_device_current();
    return device < 0 ? wm_device_default() : device;
}

int
wm_coll_one_device(const wm_coll_t *call)
{
    const wm_buffer_t *sides[] = {call->send, call->receive};
    int device = -1;
    for (int i = 0; i < 2; ++i) {
        if (sides[i] == NULL)
            continue;
        int its = sides[i]->memory.device;
        if (device >= 0 && its != device)
            return -1;
        device = its;
    }
    return device;
}

bool
wm_coll_reducible(const wm_coll_t *call, wm_reduce_type_t *type,
                  wm_reduce_op_t *op)
{
    bool found = wm_reducible(call->type, call->size, call->op, type, op);
    if (call->averages)
        *op = WM_REDUCE_AVG;
    return found;
}

static bool
lie_over(const wm_buffer_t *send, const wm_buffer_t *receive)
{
    char *low, *high, *from, *behind;
    wm_buffer_bounds(send, &low, &high);
    wm_buffer_bounds(receive, &from, &behind);
    return low < behind && from < high;
}

bool
wm_coll_overlap(const wm_buffer_t *send, const wm_buffer_t *receive)
{
    return send != NULL && receive != NULL && wm_buffer_on_device(send)
           && lie_over(send, receive);
}
