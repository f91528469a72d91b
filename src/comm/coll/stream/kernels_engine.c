// SPDX-License-Identifier: BSD-3-Clause
// The engine "kernels": collectives on a stream (stream_coll.h), through
// symmetric memory. In a blocking call the stream is one of ours, for which we
// wait: so go calls of GPU memory that other GPUs cannot reach, or that cannot
// be exported.
#include "comm/coll/direct/coll_op.h"

#include "array/access.h"
#include "comm/coll/direct/preflight.h"
#include "comm/coll/call/coll_wait.h"
#include "comm/coll/stream/stream_failure.h"
#include "comm/coll/stream/stream_coll.h"
#include "comm/coll/stream/symm.h"
#include "comm/engine/engine.h"

// Returns the GPU of the buffers; -1: not memory of one GPU.
static int
kernels_device_of(const wm_coll_t *call)
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

// Between groups there is no symmetric memory.
static bool
kernels_span(const wm_comm_t *comm)
{
    return wm_comm_is_one_host(comm) && comm->split == 0;
}

// A nonblocking call would wait for a stream of ours that waits for those of
// all other ranks.
static bool
kernels_serve(const wm_coll_op_t *op)
{
    const wm_participant_t *participant = &op->participant;
    const wm_comm_t *comm = participant->comm;
    const wm_coll_t *call = participant->call;
    int device = op->form == WM_COLL_FORM_BLOCKING ? kernels_device_of(call)
                                                   : -1;
    if (device < 0
        || (wm_coll_shape(call->kind)->uneven && call->receives == NULL))
        return false;
    return comm->symm != NULL ? wm_symm_serves(comm->symm, device)
                              : wm_pinned_symm_is_left();
}

static int
kernels_have_ended(void *context, wm_error_t *err)
{
    return wm_access_look(context, WM_LOOK_TRIES, err);
}

// Waits for the stream, which uses our buffers, after a rank has died. Poisons
// words until the stream comes to its end.
static void
kernels_lead_on(wm_comm_t *comm, wm_access_t *access)
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
kernels_run(wm_comm_t *comm, const wm_coll_t *call, wm_error_t *err)
{
    wm_access_t access;
    wm_error_t later;
    const wm_producer_t nobody = {.kind = WM_PRODUCER_NONE};
    wm_access_begin(&access, &nobody, true, kernels_device_of(call));
    int code = wm_access_open(&access, err);
    if (code < 0) // the call must still end on the other ranks
        later = *err;
    int begun = wm_stream_coll_call(comm, code < 0 ? NULL : call,
                                    access.device, access.stream,
                                    code < 0 ? &later : err);
    code = code < 0 ? code : begun;
    if (access.opened) {
        int ended = wm_coll_wait(comm, kernels_have_ended, &access,
                                 WM_LOOKS_AT_STREAM, code < 0 ? &later : err);
        if (ended < 0)
            kernels_lead_on(comm, &access);
        code = code < 0 ? code : ended;
    }
    // Raises a failure in this call, not in a later one.
    int found = wm_symm_find_failure(comm->symm, code < 0 ? &later : err);
    code = code < 0 ? code : found;
    wm_access_close(&access);
    return code;
}

// Does the whole call: the ranks wait for each other on the host before it, so
// that all raise what one has found, and after it.
static wm_coll_result_t
kernels_start(wm_coll_op_t *op, wm_error_t *err)
{
    wm_comm_t *comm = op->participant.comm;
    const wm_coll_t *call = op->participant.call;
    const wm_shape_t *shape = wm_coll_shape(call->kind);
    wm_plan_t plan;
    wm_error_t wrong;
    if (!wm_participant_plan(&op->participant, &plan, &wrong))
        return WM_COLL_BY_MPI;
    if (wrong.code < 0)
        *err = wrong;
    bool all_see_it = !shape->varies
                      && (shape->reduces || call->kind == WM_COLL_BCAST);
    int code = all_see_it
                   ? 0
                   : wm_preflight_tell(comm, call->kind, wrong.code, err);
    if (code < 0)
        return (wm_coll_result_t)code;
    code = kernels_run(comm, call, err);
    return (wm_coll_result_t)wm_preflight_tell(comm, call->kind, code, err);
}

static uint64_t
kernels_place(const wm_comm_t *comm)
{
    return wm_symm_place(comm->symm);
}

static int
kernels_look(wm_comm_t *comm, uint64_t place, wm_error_t *err)
{
    return wm_symm_look(comm->symm, place, err);
}

static void
kernels_fail(wm_comm_t *comm)
{
    wm_symm_fail(comm->symm);
}

static int
kernels_find_failure(wm_comm_t *comm, wm_error_t *err)
{
    return wm_symm_find_failure(comm->symm, err);
}

static void
kernels_abort(wm_comm_t *comm, void *state)
{
    (void)state;
    (void)wm_stream_failure_look(comm);
}

static void
kernels_comm_drop(wm_comm_t *comm, void *state)
{
    (void)state;
    wm_symm_drop(comm);
}

static const wm_coll_on_stream_t kernels_on_stream = {
    .captures = true,
    .enqueue = wm_stream_coll_call,
    .place = kernels_place,
    .look = kernels_look,
    .fail = kernels_fail,
    .find_failure = kernels_find_failure,
};

// Symmetric memory is made when a stream first needs it.
const wm_coll_engine_t wm_kernels_engine = {
    .name = "kernels",
    .orders = true,
    .takes = WM_COLL_TAKES_DEVICE,
    .spans = kernels_span,
    .comm_drop = kernels_comm_drop,
    .abort = kernels_abort,
    .serves = kernels_serve,
    .start = kernels_start,
    .on_stream = &kernels_on_stream,
};
