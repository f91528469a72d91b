// SPDX-License-Identifier: BSD-3-Clause
// The engine "mpi", which can do every call: MPI's nonblocking collectives
// (by_mpi.h), and its blocking ones, in their start. WM_COLL_BY_MPI: only
// mpi4py can give MPI the arguments of a blocking call.
#include "comm/coll/direct/coll_op.h"
#include "comm/coll/mpi/by_mpi.h"
#include "comm/comm/failure.h"
#include "comm/comm/require.h"
#include "comm/engine/engine.h"

typedef enum {
    FETCHING, // waits for its data
    COPYING,  // fills the staging copies
    POSTED,   // with MPI
    STORING,  // copies the result back
} state_t;

typedef struct {
    state_t state;
    wm_by_mpi_t by;
} mpi_t;

_Static_assert(sizeof(mpi_t) <= WM_COLL_STATE_BYTES, "there is room");

static mpi_t *
mpi_state(wm_coll_op_t *op)
{
    return (mpi_t *)op->state;
}

static bool
mpi_lies_over(const wm_buffer_t *one, const wm_buffer_t *other)
{
    return one != NULL && other != NULL
           && one->data < other->data + other->nbytes
           && other->data < one->data + one->nbytes;
}

// Returns true if MPI may be given a call of host memory later, because it
// does not refuse the call.
static bool
mpi_serves(const wm_coll_op_t *op, const void *state)
{
    (void)state;
    const wm_coll_t *call = op->participant.call;
    wm_reduce_type_t type;
    wm_reduce_op_t reduction;
    return op->form == WM_COLL_FORM_NONBLOCKING && call->on_host
           && !mpi_lies_over(call->send, call->receive)
           && (!wm_coll_shape(call->kind)->reduces
               || wm_coll_reducible(call, &type, &reduction));
}

// Returns the error of a call that MPI has done for the other ranks, though it
// was not to be staged.
static int
mpi_judge(const wm_coll_op_t *op, wm_error_t *err)
{
    const wm_coll_t *call = op->participant.call;
    return call->on_device && wm_require_is_on(op->participant.comm)
               ? wm_require_refuse("MPI did the call, as ranks gave other "
                                   "memory, or arguments that kernels do not "
                                   "know",
                                   "give GPU arrays on all ranks", err)
               : 0;
}

// Returns MPI's error, or that a rank has died: MPIs have ended such calls
// with other errors (Open MPI's nonblocking ones), and, where all ranks need
// each other, without one (Open MPI's HAN).
static int
mpi_find_dead(const wm_coll_op_t *op, int code, wm_error_t *err)
{
    wm_comm_t *comm = op->participant.comm;
    const wm_shape_t *shape = wm_coll_shape(op->participant.call->kind);
    wm_error_t dead;
    if (!wm_failure_is_told()
        || (code == 0 && (shape->rooted || shape->neighbors))
        || (code < 0 && wm_failure_is_cause(err)))
        return code;
    wm_engine_lock();
    if (code < 0)
        wm_failure_release(comm);
    int found = wm_failure_look_at_all(comm, &dead);
    wm_engine_unlock();
    if (found < 0)
        *err = dead;
    return found < 0 ? found : code;
}

// Makes MPI's blocking call, which takes half the time of a nonblocking one.
static wm_coll_result_t
mpi_call(wm_coll_op_t *op, wm_error_t *err)
{
    const wm_participant_t *participant = &op->participant;
    bool called;
    int result;
    if (!wm_by_mpi_serves(participant->comm, participant->call))
        return WM_COLL_BY_MPI;
    int code = wm_by_mpi_call(participant->comm, participant->call, &called,
                              &result, err);
    op->started = false; // nothing is left to drop
    op->refused = !called || wm_mpi_refuses(result);
    if (result == MPI_SUCCESS && code == 0)
        code = mpi_judge(op, err);
    if (result == MPI_SUCCESS && code == 0)
        code = mpi_find_dead(op, code, err);
    return result == MPI_SUCCESS ? (wm_coll_result_t)code : WM_COLL_MPIS_ERROR;
}

static wm_coll_result_t
mpi_start(wm_coll_op_t *op, wm_error_t *err)
{
    if (op->form == WM_COLL_FORM_BLOCKING)
        return mpi_call(op, err);
    *mpi_state(op) = (mpi_t){
        .state = FETCHING,
        .by.request = MPI_REQUEST_NULL,
    };
    op->alone = true; // MPI reports dead ranks itself
    return WM_COLL_UNDER_WAY;
}

// Prepares the copies. A rank that has failed gives MPI spoilt data, so that
// the others do not wait for it.
static wm_coll_result_t
fetch(wm_coll_op_t *op, bool *waits, wm_error_t *err)
{
    mpi_t *own = mpi_state(op);
    wm_error_t why;
    int ready = op->wrong.code < 0
                    ? 1
                    : wm_direct_is_ready(&op->participant.direct, &why);
    *waits = ready == 0;
    if (*waits)
        return WM_COLL_UNDER_WAY;
    int code = ready < 0 ? ready : op->wrong.code;
    if (code == 0) {
        code = wm_by_mpi_fetch(&own->by, &op->participant, &why);
        if (code < 0)
            wm_by_mpi_finish(&own->by);
    }
    if (code < 0) {
        if (op->wrong.code == 0)
            wm_coll_op_fail(op, &why);
        code = wm_by_mpi_spoil(&own->by, &op->participant, err);
    }
    own->state = COPYING;
    return code < 0 ? (wm_coll_result_t)code : WM_COLL_UNDER_WAY;
}

static wm_coll_result_t
post(wm_coll_op_t *op, bool *waits, wm_error_t *err)
{
    mpi_t *own = mpi_state(op);
    wm_error_t why;
    int copied = wm_by_mpi_is_copied(&own->by, &why);
    *waits = copied == 0;
    if (*waits)
        return WM_COLL_UNDER_WAY;
    if (copied < 0)
        wm_coll_op_fail(op, &why); // MPI gets spoilt data
    int code = wm_by_mpi_begin(&own->by, err);
    if (code < 0)
        return (wm_coll_result_t)code;
    op->begun = true;
    op->asks = WM_ASKS_ALONE;
    own->state = POSTED;
    return WM_COLL_UNDER_WAY;
}

static wm_coll_result_t
test(wm_coll_op_t *op, bool *waits, wm_error_t *err)
{
    mpi_t *own = mpi_state(op);
    int code = wm_by_mpi_test(&own->by, err);
    *waits = code == 0;
    if (*waits)
        return WM_COLL_UNDER_WAY;
    op->asks = WM_ASKS_NOTHING;
    code = mpi_find_dead(op, code < 0 ? code : 0, err);
    if (code == 0 && op->wrong.code == 0)
        code = mpi_judge(op, err);
    if (code < 0 || op->wrong.code < 0)
        return code < 0 ? (wm_coll_result_t)code : WM_COLL_DONE;
    own->state = STORING;
    code = wm_by_mpi_store(&own->by, err);
    return code < 0 ? (wm_coll_result_t)code : WM_COLL_UNDER_WAY;
}

static wm_coll_result_t
store(wm_coll_op_t *op, bool *waits, wm_error_t *err)
{
    int copied = wm_by_mpi_is_copied(&mpi_state(op)->by, err);
    *waits = copied == 0;
    return copied < 0   ? (wm_coll_result_t)copied
           : copied > 0 ? WM_COLL_DONE
                        : WM_COLL_UNDER_WAY;
}

static wm_coll_result_t
mpi_step(wm_coll_op_t *op, bool *waits, wm_error_t *err)
{
    static wm_coll_result_t (*const steps[])(wm_coll_op_t * op, bool *waits,
                                             wm_error_t *err) = {
        [FETCHING] = fetch,
        [COPYING] = post,
        [POSTED] = test,
        [STORING] = store,
    };
    return steps[mpi_state(op)->state](op, waits, err);
}

static void
mpi_drop(wm_coll_op_t *op)
{
    wm_by_mpi_finish(&mpi_state(op)->by);
}

const wm_coll_engine_t wm_mpi_engine = {
    .name = "mpi",
    .in_order = true,
    .takes = WM_COLL_TAKES_ALL, // of nonblocking calls
    .serves = mpi_serves,
    .start = mpi_start,
    .step = mpi_step,
    .drop = mpi_drop,
};
