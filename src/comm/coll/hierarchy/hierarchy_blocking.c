// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/hierarchy/hierarchy_blocking.h"

#include "comm/coll/call/coll_wait.h"
#include "comm/coll/call/stream_calls.h"
#include "comm/coll/hierarchy/hierarchy_stream.h"
#include "comm/coll/run/coll_engines.h"
#include "comm/coll/run/coll_on_stream.h"
#include "comm/coll/run/nonblocking.h"
#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "cuda/device.h"
#include "cuda/stream.h"

typedef struct {
    wm_coll_t call;
    wm_buffer_t send, receive; // of the call, without users
    int device;
    CUstream stream; // NULL: none
    bool given;      // it has the call
    unsigned looks;
} blocking_t;

_Static_assert(sizeof(blocking_t) <= WM_COLL_STATE_BYTES, "there is room");

static blocking_t *
blocking_state(wm_coll_op_t *op)
{
    return (blocking_t *)op->state;
}

bool
wm_hierarchy_blocking_serves(const wm_coll_op_t *op)
{
    return op->form == WM_COLL_FORM_BLOCKING
           && op->participant.comm->levels.blocking;
}

// Returns a buffer behind whose users our stream is ordered.
static const wm_buffer_t *
blocking_buffer(wm_buffer_t *own, const wm_buffer_t *buffer)
{
    if (buffer == NULL)
        return NULL;
    *own = (wm_buffer_t){
        .data = buffer->data,
        .nbytes = buffer->nbytes,
        .memory = buffer->memory,
        .producer = {.kind = WM_PRODUCER_NONE},
        .element = buffer->element,
    };
    return own;
}

wm_coll_result_t
wm_hierarchy_blocking_start(wm_coll_op_t *op, wm_error_t *err)
{
    const wm_coll_t *call = op->participant.call;
    blocking_t *own = blocking_state(op);
    wm_error_t why;
    (void)err;
    *own = (blocking_t){.call = *call, .device = wm_coll_device(call)};
    own->call.send = blocking_buffer(&own->send, call->send);
    own->call.receive = blocking_buffer(&own->receive, call->receive);
    if (wm_stream_acquire(own->device, &own->stream, &why) < 0)
        wm_coll_op_fail(op, &why);
    op->looks = WM_LOOKS_AT_STREAM;
    return WM_COLL_UNDER_WAY;
}

static int
blocking_give(wm_coll_op_t *op, wm_error_t *err)
{
    blocking_t *own = blocking_state(op);
    if (op->wrong.code < 0)
        *err = op->wrong;
    int code = op->wrong.code;
    wm_device_stay();
    if (code == 0)
        code = wm_direct_precede(&op->participant.direct, own->device,
                                 own->stream, err);
    own->given = own->stream != NULL;
    code = wm_coll_on_stream_give(op->participant.comm, op->engine,
                                  code == 0 ? &own->call : NULL, own->device,
                                  own->stream, err);
    wm_device_go();
    return code;
}

// Returns true if nonblocking calls before this one have still to begin tasks.
static bool
blocking_is_late(const wm_comm_t *comm)
{
    wm_engine_lock();
    bool late = wm_nonblocking_is_busy(comm)
                || wm_nonblocking_is_busy(comm->levels.local)
                || wm_nonblocking_is_busy(comm->levels.rail);
    wm_engine_unlock();
    return late;
}

wm_coll_result_t
wm_hierarchy_blocking_step(wm_coll_op_t *op, bool *waits, wm_error_t *err)
{
    blocking_t *own = blocking_state(op);
    wm_comm_t *comm = op->participant.comm;
    bool done = false;
    if (!own->given) {
        int code = wm_stream_calls_look(comm, err);
        *waits = code == 0 || (code > 0 && blocking_is_late(comm));
        if (code > 0)
            code = *waits ? 0 : blocking_give(op, err);
        return code < 0 ? (wm_coll_result_t)code : WM_COLL_UNDER_WAY;
    }
    int code = wm_stream_spin(own->device, own->stream, WM_LOOK_TRIES, &done,
                              err);
    *waits = code == 0 && !done;
    if (*waits && wm_failure_is_due(&own->looks))
        wm_coll_engines_abort(comm, op->engine);
    return code < 0 ? (wm_coll_result_t)code
           : done   ? WM_COLL_DONE // with any error that streams have
                    : WM_COLL_UNDER_WAY;
}

void
wm_hierarchy_blocking_drop(wm_coll_op_t *op)
{
    blocking_t *own = blocking_state(op);
    bool done = !own->given;
    if (own->stream == NULL)
        return;
    for (unsigned turn = 1;
         !done && wm_stream_spin(own->device, own->stream, 1, &done, NULL) == 0
         && !done;
         ++turn) {
        if (wm_failure_is_due(&own->looks))
            wm_coll_engines_abort(op->participant.comm, op->engine);
        if (wm_engine_may_wait())
            wm_engine_turn(turn);
    }
    if (done)
        wm_stream_release_idle(own->device, own->stream);
    else
        wm_stream_release(own->device, own->stream);
    own->stream = NULL;
}
