// SPDX-License-Identifier: BSD-3-Clause
// The engine "copies": a plan of copies and reductions on memory that ranks
// map from each other, on one host (direct_exec.h).
#include "comm/coll/call/coll_wait.h"
#include "comm/coll/direct/coll_op.h"
#include "comm/coll/direct/direct_exec.h"
#include "comm/engine/engine.h"

#define LOOKS_AT_ENDS 6400 // steps before a blocking call waits
#define LOOKS_AT_ONCE 100  // looks at the signal in each of these steps

typedef struct {
    wm_plan_t plan;
    wm_direct_exec_t run;
} copies_t;

_Static_assert(sizeof(copies_t) <= WM_COLL_STATE_BYTES, "there is room");

static copies_t *
copies_state(wm_coll_op_t *op)
{
    return (copies_t *)op->state;
}

static bool
copies_serve(const wm_coll_op_t *op, const void *state)
{
    (void)state;
    return wm_direct_is_reached(op->participant.comm);
}

static int
copies_prepare(wm_coll_op_t *op, unsigned bit, wm_error_t *err)
{
    int code = wm_participant_open(&op->participant, err);
    if (!op->participant.direct.capable)
        op->engines &= ~bit;
    return code;
}

static int
copies_are_ready(wm_coll_op_t *op, wm_error_t *err)
{
    return wm_direct_is_ready(&op->participant.direct, err);
}

// Notes what the call waits for now.
static wm_coll_result_t
under_way(wm_coll_op_t *op)
{
    const wm_direct_exec_t *run = &copies_state(op)->run;
    op->alone = run->busy;
    op->looks = run->set.signals ? LOOKS_AT_ENDS
                : run->busy      ? WM_LOOKS_AT_STREAM
                                 : WM_LOOKS_AT_WORDS;
    return WM_COLL_UNDER_WAY;
}

static wm_coll_result_t
copies_start(wm_coll_op_t *op, wm_error_t *err)
{
    copies_t *own = copies_state(op);
    wm_participant_t *participant = &op->participant;
    wm_error_t wrong;
    (void)err;
    own->run.direct = NULL;
    if (!wm_participant_plan(participant, &own->plan, &wrong))
        return WM_COLL_BY_MPI;
    wm_engine_lock();
    wm_direct_start(&own->run, &participant->direct, &own->plan,
                    participant->type, participant->op,
                    op->form != WM_COLL_FORM_BLOCKING, &wrong);
    wm_engine_unlock();
    return under_way(op);
}

static wm_coll_result_t
copies_step(wm_coll_op_t *op, bool *waits, wm_error_t *err)
{
    wm_direct_exec_t *run = &copies_state(op)->run;
    if (op->form == WM_COLL_FORM_BLOCKING)
        for (int i = 0; run->set.signals && i < LOOKS_AT_ONCE; ++i)
            if (wm_signal_is_set(&run->set.awaited))
                break;
    *waits = !wm_direct_look(run);
    if (*waits || !wm_direct_go_on(run))
        return under_way(op);
    return (wm_coll_result_t)wm_direct_finish(run, err);
}

static void
copies_drop(wm_coll_op_t *op)
{
    wm_direct_exec_t *run = &copies_state(op)->run;
    if (run->direct == NULL)
        return;
    wm_engine_lock();
    wm_direct_unmap(run);
    wm_engine_unlock();
}

// Ranks publish gaps anew at each start.
static bool
copies_repeat(const wm_coll_op_t *op)
{
    return !((const copies_t *)op->state)->run.gapped;
}

static bool
copies_rest(wm_coll_op_t *op)
{
    return wm_direct_rest(&copies_state(op)->run);
}

static bool
copies_resume(wm_coll_op_t *op)
{
    wm_error_t err; // the ordinary start will raise it
    if (wm_participant_reopen(&op->participant, &err) < 0)
        return false;
    wm_engine_lock();
    bool resumed = wm_direct_resume(&copies_state(op)->run);
    wm_engine_unlock();
    return resumed;
}

static void
copies_restart(wm_coll_op_t *op, wm_barrier_t *barrier)
{
    op->participant.direct.barrier = barrier;
    wm_direct_restart(&copies_state(op)->run);
    (void)under_way(op);
}

static const wm_coll_restart_t restarting = {
    .repeats = copies_repeat,
    .rest = copies_rest,
    .resume = copies_resume,
    .restart = copies_restart,
};

const wm_coll_engine_t wm_copies_engine = {
    .name = "copies",
    .takes = WM_COLL_TAKES_DEVICE | WM_COLL_TAKES_GAPS,
    .spans = wm_comm_is_one_host,
    .serves = copies_serve,
    .prepare = copies_prepare,
    .is_ready = copies_are_ready,
    .start = copies_start,
    .step = copies_step,
    .drop = copies_drop,
    .restart = &restarting,
};
