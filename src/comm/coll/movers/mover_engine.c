// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/movers/mover_engine.h"

#include "comm/coll/call/coll_wait.h"
#include "comm/coll/call/stream_calls.h"
#include "comm/coll/movers/mover_abort.h"
#include "comm/coll/movers/mover_run.h"
#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "cuda/event.h"
#include "cuda/stream.h"

typedef struct {
    wm_block_t *room; // NULL: none
    CUevent end;      // of a call that is not blocking
    bool given;       // work is on the stream
    bool waits;       // for others to be settled, or for memory to be freed
    bool lost;        // the library refused it, and MPI has not told why
    unsigned looks;
} mover_t;

_Static_assert(sizeof(mover_t) <= WM_COLL_STATE_BYTES, "there is room");

static mover_t *
mover_state(wm_coll_op_t *op)
{
    return (mover_t *)op->state;
}

bool
wm_mover_spans(const wm_comm_t *comm)
{
    return !wm_comm_is_one_host(comm) && comm->split == 0
           && wm_hosts_find(comm).count > 1;
}

bool
wm_mover_does(const wm_coll_facts_t *facts)
{
    const wm_comm_colls_t *colls = &facts->comm->colls;
    const unsigned hierarchy = 1u << WM_COLL_NUMBER_hierarchy;
    return (colls->span & ~colls->closed & hierarchy) == 0
           || !wm_hierarchy_engine.does(facts);
}

void
wm_mover_drop_comm(wm_comm_t *comm, void *state)
{
    (void)comm;
    if (state != NULL)
        wm_mover_comm_drop(state);
}

void
wm_mover_abort_calls(wm_comm_t *comm, void *state)
{
    wm_error_t err;
    (void)comm;
    if (state != NULL)
        (void)!wm_mover_comm_look(state, &err);
}

void
wm_mover_revoke(wm_comm_t *comm, void *state, const wm_error_t *why)
{
    wm_error_t copy = *why;
    (void)comm;
    wm_mover_comm_break(state, &copy);
}

bool
wm_mover_serves(const wm_coll_op_t *op, const void *state)
{
    const wm_participant_t *participant = &op->participant;
    const wm_coll_t *call = participant->call;
    const wm_mover_comm_t *own = state;
    int device = wm_coll_one_device(call);
    if (device < 0
        || (wm_coll_shape(call->kind)->uneven && call->receives == NULL))
        return false;
    return own == NULL || own->device == device;
}

static int
mover_give(wm_coll_op_t *op, wm_mover_comm_t *own, wm_error_t *err)
{
    mover_t *state = mover_state(op);
    wm_mover_run_t run;
    int code = wm_mover_run_fill(&run, own, op->participant.call, own->stream,
                                 err);
    run.room = state->room; // taken by an earlier try
    if (code == 0 && run.room == NULL)
        code = wm_mover_run_take(&run, err);
    state->room = run.room;
    state->waits = code == 0 && !wm_mover_comm_begin_giving();
    if (code < 0 || state->waits) {
        wm_mover_run_drop(&run);
        return code;
    }
    if (op->form != WM_COLL_FORM_BLOCKING)
        code = wm_event_acquire(own->device, &state->end, err);
    if (code == 0)
        code = wm_direct_precede(&op->participant.direct, own->device,
                                 own->stream, err);
    state->given = true;
    if (code == 0)
        code = wm_mover_run_enqueue(&run, err);
    if (code == 0 && state->end != NULL)
        code = wm_event_record(own->device, state->end, own->stream, err);
    if (code < 0 && state->end != NULL) { // the stream tells the end
        wm_event_release(own->device, state->end);
        state->end = NULL;
    }
    wm_mover_comm_end_giving();
    wm_mover_run_drop(&run);
    return code;
}

// Gives the call to the stream, unless it has to wait: then a step tries
// again.
static wm_coll_result_t
mover_try(wm_coll_op_t *op, wm_error_t *err)
{
    wm_mover_comm_t *own = op->own;
    mover_t *state = mover_state(op);
    int settled = wm_stream_calls_look(own->comm, err);
    state->waits = settled == 0 || wm_mover_abort_frees();
    op->looks = WM_LOOKS_AT_STREAM;
    op->begun = op->alone = false;
    if (state->waits)
        return WM_COLL_UNDER_WAY;
    int code = settled < 0 ? settled : op->wrong.code;
    if (code < 0 && settled > 0)
        *err = op->wrong;
    wm_device_stay();
    if (code == 0)
        code = mover_give(op, own, err);
    wm_device_go();
    op->begun = op->alone = !state->waits; // its steps find dead ranks
    state->lost = code < 0 && wm_mover_comm_lost(own, err);
    if (code == 0 || state->lost)
        return WM_COLL_UNDER_WAY;
    own->told = true;
    wm_mover_comm_break(own, err);
    return (wm_coll_result_t)err->code;
}

wm_coll_result_t
wm_mover_start(wm_coll_op_t *op, wm_error_t *err)
{
    *mover_state(op) = (mover_t){.room = NULL};
    return mover_try(op, err);
}

// Returns 1 when the stream has passed the call, 0 if not yet.
static int
mover_ended(wm_coll_op_t *op, int tries, wm_error_t *err)
{
    const wm_mover_comm_t *own = op->own;
    const mover_t *state = mover_state(op);
    bool done = false;
    int code = state->end != NULL
                   ? wm_event_done(own->device, state->end, &done, err)
                   : wm_stream_spin(own->device, own->stream, tries, &done,
                                    err);
    return code < 0 ? code : done;
}

wm_coll_result_t
wm_mover_step(wm_coll_op_t *op, bool *waits, wm_error_t *err)
{
    wm_mover_comm_t *own = op->own;
    mover_t *state = mover_state(op);
    if (state->waits) {
        wm_coll_result_t result = mover_try(op, err);
        *waits = state->waits;
        return result;
    }
    wm_error_t broken;
    bool is_broken = wm_mover_comm_failure(own, &broken) < 0;
    int ended = state->lost && !is_broken
                    ? 0
                    : mover_ended(op, WM_LOOK_TRIES, err);
    *waits = ended == 0;
    if (*waits) { // the stream uses the buffers, even after an abort
        if (!is_broken && wm_failure_is_due(&state->looks))
            (void)!wm_mover_comm_look(own, &broken);
        return WM_COLL_UNDER_WAY;
    }
    // An aborted call ends, too.
    int code = wm_mover_comm_failure(own, err);
    if (code == 0)
        return ended < 0 ? (wm_coll_result_t)ended : WM_COLL_DONE;
    own->told = true;
    return (wm_coll_result_t)code;
}

void
wm_mover_drop(wm_coll_op_t *op)
{
    wm_mover_comm_t *own = op->own;
    mover_t *state = mover_state(op);
    wm_error_t err;
    for (unsigned turn = 1; state->given && mover_ended(op, 1, &err) == 0;
         ++turn) {
        if (wm_failure_is_due(&state->looks))
            (void)!wm_mover_comm_look(own, &err);
        if (wm_engine_may_wait())
            wm_engine_turn(turn);
    }
    if (state->end != NULL)
        wm_event_release(own->device, state->end);
    if (state->room != NULL)
        wm_block_free(state->room, 0, NULL, NULL);
    *state = (mover_t){.room = NULL};
}
