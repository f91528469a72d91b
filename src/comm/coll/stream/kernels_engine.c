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

typedef enum {
    TELLING,    // the ranks exchange errors that only some of them may see
    RUNNING,    // on our stream
    EXCHANGING, // the ranks exchange errors, so that all raise one
    ENDED,
} state_t;

typedef struct {
    state_t state;
    wm_access_t access; // our stream
    wm_preflight_t preflight;
    wm_error_t error; // of this rank; code 0: none
} kernels_t;

_Static_assert(sizeof(kernels_t) <= WM_COLL_STATE_BYTES, "there is room");

static kernels_t *
kernels_state(wm_coll_op_t *op)
{
    return (kernels_t *)op->state;
}

// Between groups there is no symmetric memory.
static bool
kernels_span(const wm_comm_t *comm)
{
    return wm_comm_is_one_host(comm) && comm->split == 0;
}

// Makes the symmetric memory. If this fails on one rank, all fail.
static int
kernels_open(wm_comm_t *comm, int device, void **state, wm_error_t *err)
{
    (void)state; // comm->symm
    int code = device >= 0
                   ? 0
                   : wm_error_set(err, WM_ERR_STATE, 0,
                                  "this rank has no GPU memory in the call");
    wm_device_stay();
    code = wm_symm_make(comm, device, false, code, err);
    wm_device_go();
    return code;
}

// A nonblocking call would wait for a stream of ours that waits for those of
// all other ranks, whose programs may wait for other work of the GPU.
static bool
kernels_serve(const wm_coll_op_t *op, const void *state)
{
    (void)state;
    const wm_participant_t *participant = &op->participant;
    const wm_comm_t *comm = participant->comm;
    const wm_coll_t *call = participant->call;
    bool waited_for = op->form == WM_COLL_FORM_BLOCKING
                      || op->form == WM_COLL_FORM_TASK;
    int device = waited_for ? wm_coll_one_device(call) : -1;
    if (device < 0
        || (wm_coll_shape(call->kind)->uneven && call->receives == NULL))
        return false;
    return comm->symm != NULL ? wm_symm_serves(comm->symm, device)
                              : wm_pinned_symm_is_left();
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

// Keeps the first error of this rank.
static void
kernels_note(kernels_t *own, int code, const wm_error_t *err)
{
    if (code < 0 && own->error.code == 0)
        own->error = *err;
}

// Notes that symmetric memory is lost: another thread has found so after this
// rank was asked. The recovery would wait for ranks that know of no failure.
static void
kernels_note_loss(wm_coll_op_t *op)
{
    kernels_t *own = kernels_state(op);
    wm_error_t err;
    if (!wm_symm_serves(op->participant.comm->symm, own->access.device))
        kernels_note(own,
                     wm_error_set(&err, WM_ERR_STATE, 0,
                                  "a collective on a stream of this "
                                  "communicator has failed"),
                     &err);
}

// Enqueues the call on a stream of ours. A rank without a stream enqueues no
// call, which must still end on the others.
static wm_coll_result_t
kernels_enqueue(wm_coll_op_t *op)
{
    kernels_t *own = kernels_state(op);
    const wm_coll_t *call = op->participant.call;
    const wm_producer_t nobody = {.kind = WM_PRODUCER_NONE};
    wm_error_t err;
    wm_device_stay();
    wm_access_begin(&own->access, &nobody, true, wm_coll_one_device(call));
    kernels_note(own, wm_access_open(&own->access, &err), &err);
    const wm_coll_stream_t on = {
        .device = own->access.device,
        .stream = own->access.stream,
    };
    kernels_note_loss(op);
    if (own->error.code < 0)
        err = own->error;
    kernels_note(own,
                 wm_stream_coll_call(op->participant.comm,
                                     own->error.code < 0 ? NULL : call, &on,
                                     &err),
                 &err);
    wm_device_go();
    own->state = RUNNING;
    op->looks = WM_LOOKS_AT_STREAM;
    return WM_COLL_UNDER_WAY;
}

static void
kernels_exchange(wm_coll_op_t *op, state_t state, int code)
{
    kernels_t *own = kernels_state(op);
    own->state = state;
    own->preflight = (wm_preflight_t){
        .call = op->participant.call->kind,
        .code = code,
    };
    wm_preflight_begin(op->participant.comm, &own->preflight);
    op->looks = WM_LOOKS_AT_WORDS;
}

// The kernels do not see all errors that ranks may have found.
static wm_coll_result_t
kernels_start(wm_coll_op_t *op, wm_error_t *err)
{
    const wm_coll_t *call = op->participant.call;
    const wm_shape_t *shape = wm_coll_shape(call->kind);
    kernels_t *own = kernels_state(op);
    wm_plan_t plan;
    wm_error_t wrong;
    own->state = ENDED;
    own->error.code = 0;
    if (wm_stream_coll_stages(op->participant.comm, op->participant.comm->symm)
        || !wm_participant_plan(&op->participant, &plan, &wrong))
        return WM_COLL_BY_MPI;
    bool all_see_it = !shape->varies
                      && (shape->reduces || call->kind == WM_COLL_BCAST);
    (void)err;
    if (all_see_it)
        return kernels_enqueue(op);
    kernels_note(own, wrong.code, &wrong);
    kernels_exchange(op, TELLING, wrong.code);
    return WM_COLL_UNDER_WAY;
}

// Looks at the stream. At its end raises a failure in this call, not in a
// later one, and tells the other ranks.
static void
kernels_follow(wm_coll_op_t *op, bool *waits)
{
    kernels_t *own = kernels_state(op);
    wm_comm_t *comm = op->participant.comm;
    wm_error_t err;
    int ended = own->access.opened
                    ? wm_access_look(&own->access, WM_LOOK_TRIES, &err)
                    : 1;
    *waits = ended == 0;
    if (*waits)
        return;
    kernels_note(own, ended, &err);
    kernels_note(own, wm_symm_find_failure(comm->symm, &err), &err);
    wm_access_close(&own->access);
    kernels_exchange(op, EXCHANGING, own->error.code);
}

static wm_coll_result_t
kernels_step(wm_coll_op_t *op, bool *waits, wm_error_t *err)
{
    kernels_t *own = kernels_state(op);
    if (own->state == RUNNING) {
        kernels_follow(op, waits);
        return WM_COLL_UNDER_WAY;
    }
    int met = wm_preflight_look(op->participant.comm, &own->preflight, err);
    *waits = met == 0;
    if (*waits)
        return WM_COLL_UNDER_WAY;
    bool told = own->state == TELLING;
    own->state = ENDED;
    if (own->error.code < 0)
        *err = own->error;
    return met < 0 ? (wm_coll_result_t)met
           : told  ? kernels_enqueue(op)
                   : WM_COLL_DONE;
}

// Leaves a call that a dead rank has ended.
static void
kernels_drop(wm_coll_op_t *op)
{
    kernels_t *own = kernels_state(op);
    wm_comm_t *comm = op->participant.comm;
    if (own->state == RUNNING && own->access.opened)
        kernels_lead_on(comm, &own->access);
    if (own->state == RUNNING)
        wm_access_close(&own->access);
    else if (own->state != ENDED)
        wm_preflight_leave(comm);
    own->state = ENDED;
}

static int
kernels_call(wm_comm_t *comm, void *state, const wm_coll_t *call,
             const wm_coll_stream_t *on, wm_error_t *err)
{
    (void)state;
    return wm_stream_coll_call(comm, call, on, err);
}

static uint64_t
kernels_place(const wm_comm_t *comm, const void *state)
{
    (void)state;
    return wm_symm_place(comm->symm);
}

static int
kernels_look(wm_comm_t *comm, void *state, uint64_t place, wm_error_t *err)
{
    (void)state;
    return wm_symm_look(comm->symm, place, err);
}

static void
kernels_fail(wm_comm_t *comm)
{
    wm_symm_fail(comm->symm);
}

static int
kernels_find_failure(wm_comm_t *comm, void *state, wm_error_t *err)
{
    (void)state;
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
    .unopened = true,
    .check = wm_coll_desc_check,
    .enqueue = kernels_call,
    .place = kernels_place,
    .look = kernels_look,
    .fail = kernels_fail,
    .find_failure = kernels_find_failure,
    .any = wm_symm_any,
    .find_failures = wm_symm_find_failures,
};

// Captured calls have symmetric memory of their own, which the first one
// makes.
const wm_coll_engine_t wm_kernels_engine = {
    .name = "kernels",
    .in_order = true,
    .orders = true,
    .takes = WM_COLL_TAKES_DEVICE,
    .spans = kernels_span,
    .open = kernels_open,
    .comm_drop = kernels_comm_drop,
    .abort = kernels_abort,
    .serves = kernels_serve,
    .start = kernels_start,
    .step = kernels_step,
    .drop = kernels_drop,
    .on_stream = &kernels_on_stream,
};
