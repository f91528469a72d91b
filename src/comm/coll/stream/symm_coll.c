// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/stream/symm_coll.h"

#include "array/access.h"
#include "comm/coll/direct/preflight.h"
#include "comm/coll/call/coll_wait.h"
#include "comm/coll/stream/stream_failure.h"
#include "comm/coll/stream/stream_coll.h"
#include "comm/coll/direct/participant.h"
#include "comm/coll/call/reducible.h"
#include "comm/coll/stream/symm.h"
#include "comm/engine/engine.h"

// Returns the GPU of the buffers; -1: not contiguous memory of one GPU.
static int
symm_coll_device_of(const wm_coll_t *call)
{
    const wm_buffer_t *sides[] = {call->send, call->receive};
    int device = -1;
    for (int i = 0; i < 2; ++i) {
        if (sides[i] == NULL)
            continue;
        int its = sides[i]->memory.device;
        if (!wm_buffer_on_device(sides[i]) || sides[i]->pattern != NULL
            || (device >= 0 && its != device))
            return -1;
        device = its;
    }
    return device;
}

bool
wm_symm_coll_serves(const wm_comm_t *comm, const wm_coll_t *call)
{
    wm_reduce_type_t type;
    wm_reduce_op_t op;
    int device = comm->barrier != NULL && comm->split == 0
                     ? symm_coll_device_of(call)
                     : -1;
    const wm_shape_t *shape = wm_coll_shape(call->kind);
    if (device < 0 || (shape->uneven && call->receives == NULL)
        || (shape->reduces && !wm_coll_reducible(call, &type, &op)))
        return false;
    if (comm->symm != NULL)
        return wm_symm_serves(comm->symm, device);
    wm_engine_lock();
    bool left = wm_pinned_symm_is_left();
    wm_engine_unlock();
    return left;
}

static int
symm_coll_look(void *context, wm_error_t *err)
{
    return wm_access_look(context, WM_LOOK_TRIES, err);
}

// Waits for the stream, which uses our buffers, after a rank has died. Poisons
// words until the stream comes to its end.
static void
symm_coll_lead_on(wm_comm_t *comm, wm_access_t *access)
{
    for (unsigned turn = 1; wm_access_look(access, 1, NULL) == 0; ++turn) {
        wm_engine_lock();
        (void)wm_stream_failure_look(comm);
        wm_engine_unlock();
        wm_engine_turn(turn);
    }
}

// Enqueues the call on a stream of ours, and waits for its end.
static int
symm_coll_run(wm_comm_t *comm, const wm_coll_t *call, wm_error_t *err)
{
    wm_access_t access;
    wm_error_t later;
    const wm_producer_t nobody = {.kind = WM_PRODUCER_NONE};
    wm_access_begin(&access, &nobody, true, symm_coll_device_of(call));
    int code = wm_access_open(&access, err);
    if (code < 0) // the call must still end on the other ranks
        later = *err;
    int begun = wm_stream_coll_call(comm, code < 0 ? NULL : call,
                                    access.device, access.stream,
                                    code < 0 ? &later : err);
    code = code < 0 ? code : begun;
    if (access.opened) {
        int ended = wm_coll_wait(comm, symm_coll_look, &access,
                                 WM_LOOKS_AT_STREAM, code < 0 ? &later : err);
        if (ended < 0)
            symm_coll_lead_on(comm, &access);
        code = code < 0 ? code : ended;
    }
    // Raises a failure in this call, not in a later one.
    int found = wm_symm_find_failure(comm->symm, code < 0 ? &later : err);
    code = code < 0 ? code : found;
    wm_access_close(&access);
    return code;
}

int
wm_symm_coll_call(wm_comm_t *comm, const wm_coll_t *call,
                  const wm_error_t *wrong, wm_error_t *err)
{
    wm_preflight_t preflight = {.call = call->kind, .code = wrong->code};
    if (wrong->code < 0)
        *err = *wrong;
    const wm_shape_t *shape = wm_coll_shape(call->kind);
    bool all_see_it = !shape->varies
                      && (shape->reduces || call->kind == WM_COLL_BCAST);
    int code = all_see_it ? 0 : wm_preflight_run(comm, &preflight, err);
    if (code < 0)
        return code;
    code = symm_coll_run(comm, call, err);
    preflight = (wm_preflight_t){.call = call->kind, .code = code};
    return wm_preflight_run(comm, &preflight, err);
}
