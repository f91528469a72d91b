// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/run/nonblocking_call.h"

#include "comm/coll/direct/preflight.h"
#include "comm/coll/direct/direct_exec.h"
#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/engine/pool.h"
#include "comm/engine/stats.h"
#include "comm/node/decision_log.h"
#include "cuda/stream.h"

// A rank arrives at this step of bank 0 if it does not restart the kept call.
#define DIFFERS (WM_BARRIER_STEPS - 1)

_Static_assert(WM_DIRECT_STEPS <= DIFFERS, "no plan comes so far");

static wm_pool_t call_pool = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .bytes = sizeof(wm_nonblocking_call_t),
};

static wm_comm_t *
comm_of(const wm_nonblocking_call_t *call)
{
    return call->coll.participant.comm;
}

bool
wm_nonblocking_call_fail(wm_nonblocking_call_t *call, const wm_error_t *err)
{
    wm_coll_op_fail(&call->coll, err);
    return true;
}

// Ends the call if a rank has died. Asks only now and then.
static bool
ends_if_dead(wm_nonblocking_call_t *call)
{
    wm_error_t err;
    return wm_failure_is_due(&call->looks)
           && wm_failure_look_at_all(comm_of(call), &err) < 0
           && wm_nonblocking_call_fail(call, &err);
}

void
wm_nonblocking_give_to_mpi(wm_nonblocking_call_t *call)
{
    wm_coll_op_choose_mpi(&call->coll);
    call->state = WM_NONBLOCKING_CHOSEN;
}

// Each of these steps returns true if the call has ended, and sets `state` to
// the next step.

bool
wm_nonblocking_vote(wm_nonblocking_call_t *call, bool *waits)
{
    *waits = !wm_decision_vote(comm_of(call)->aside[0], call->turn.number,
                               true);
    call->state = *waits ? WM_NONBLOCKING_AHEAD : WM_NONBLOCKING_VOTED;
    return *waits && ends_if_dead(call);
}

// Notes that a call has ended after all ranks followed its plan.
static void
restart_note(wm_nonblocking_call_t *call)
{
    wm_persistent_restart_t *restart = &call->nonblocking->restart;
    const wm_coll_restart_t *row = call->coll.engine->restart;
    restart->went = restart->repeats && row != NULL
                    && row->repeats(&call->coll);
}

// Keeps the call for the next start, after restart_note(). Returns true if it
// is kept.
static bool
restart_keep(wm_nonblocking_call_t *call)
{
    wm_persistent_restart_t *restart = &call->nonblocking->restart;
    if (!restart->went || !call->coll.engine->restart->rest(&call->coll))
        return false;
    restart->kept = call;
    return true;
}

// Follows the result of an engine, which may leave the call to MPI.
static bool
nonblocking_call_follow(wm_nonblocking_call_t *call, wm_coll_result_t result,
                        const wm_error_t *err)
{
    if (result < 0)
        return wm_nonblocking_call_fail(call, err);
    if (call->coll.begun)
        wm_turn_pass(&call->turn);
    if (result == WM_COLL_DONE) {
        restart_note(call);
        return true;
    }
    call->state = WM_NONBLOCKING_STARTED;
    if (result == WM_COLL_BY_MPI)
        wm_nonblocking_give_to_mpi(call);
    return false;
}

static bool
read_decision(wm_nonblocking_call_t *call, bool *waits)
{
    wm_decision_t who = wm_decision_read(comm_of(call)->aside[0],
                                         call->turn.number);
    *waits = who == WM_DECISION_OPEN;
    if (*waits)
        return ends_if_dead(call);
    call->state = WM_NONBLOCKING_PREPARED;
    if (who == WM_DECISION_MPI)
        wm_nonblocking_give_to_mpi(call);
    return false;
}

// Returns 1 if the data may be published, 0 if not yet, or an error, which is
// noted.
static int
nonblocking_call_is_ready(wm_nonblocking_call_t *call, bool *waits)
{
    wm_error_t err;
    int ready = wm_coll_op_is_ready(&call->coll, &err);
    *waits = ready == 0;
    if (ready < 0) {
        call->preflight.code = ready;
        wm_coll_op_fail(&call->coll, &err);
    }
    return ready;
}

static bool
nonblocking_call_publish(wm_nonblocking_call_t *call, bool *waits)
{
    *waits = !wm_turn_has_bank(&call->turn);
    if (*waits
        || (call->preflight.code >= 0
            && nonblocking_call_is_ready(call, waits) == 0))
        return false;
    wm_preflight_publish(comm_of(call), call->coll.participant.direct.barrier,
                         &call->preflight);
    call->state = WM_NONBLOCKING_ARRIVING;
    return false;
}

// Starts the call once its turn has come, if its engine needs turns.
static bool
nonblocking_call_start(wm_nonblocking_call_t *call, bool *waits)
{
    wm_error_t err;
    *waits = call->coll.engine->in_order && !wm_turn_is_first(&call->turn);
    return !*waits
           && nonblocking_call_follow(
               call, wm_coll_op_start(&call->coll, &err), &err);
}

static bool
arrive(wm_nonblocking_call_t *call, bool *waits)
{
    wm_error_t err;
    wm_barrier_t *barrier = call->coll.participant.direct.barrier;
    *waits = !wm_barrier_all_arrived(barrier, 0);
    if (*waits)
        return ends_if_dead(call);
    int code = wm_preflight_conclude(comm_of(call), barrier, &call->preflight,
                                     &err);
    if (code == 0)
        code = wm_coll_op_choose(&call->coll, call->preflight.all, &err);
    call->state = WM_NONBLOCKING_CHOSEN;
    return code < 0 && wm_nonblocking_call_fail(call, &err);
}

// Takes the engine of the class, if it was open as the call began: ranks hear
// the answer at different times, but all have begun their calls in one order.
static bool
hear_answer(wm_nonblocking_call_t *call, bool *waits)
{
    unsigned engines;
    wm_error_t err;
    int code = wm_coll_class_look(call->class, &engines, &err);
    *waits = code == 0;
    call->coll.asks = *waits ? WM_ASKS_ALONE : WM_ASKS_NOTHING;
    if (*waits)
        return ends_if_dead(call);
    if (code > 0)
        code = wm_coll_op_begin_chosen(
            &call->coll, wm_coll_engines_first(engines & call->usable), &err);
    call->state = WM_NONBLOCKING_BEGUN;
    return code < 0 && wm_nonblocking_call_fail(call, &err);
}

static bool
all_have_begun(wm_nonblocking_call_t *call, bool *waits)
{
    wm_error_t err;
    int flag;
    int code = wm_mpi_check(
        MPI_Test(&call->announced, &flag, MPI_STATUS_IGNORE), "MPI_Test",
        &err);
    if (code < 0)
        return wm_nonblocking_call_fail(call, &err);
    *waits = !flag;
    call->coll.asks = *waits ? WM_ASKS_ALONE : WM_ASKS_NOTHING;
    if (*waits)
        return ends_if_dead(call);
    call->state = WM_NONBLOCKING_CHOSEN;
    return false;
}

static bool
nonblocking_call_advance(wm_nonblocking_call_t *call, bool *waits)
{
    wm_coll_op_t *coll = &call->coll;
    wm_error_t err;
    wm_coll_result_t result = wm_coll_op_step(coll, waits, &err);
    if (!*waits)
        return nonblocking_call_follow(call, result, &err);
    if (coll->alone || !ends_if_dead(call))
        return false;
    wm_coll_engines_abort(comm_of(call), coll->engine);
    return true;
}

static void
restart_publish(wm_barrier_t *barrier, bool alike)
{
    (void)wm_barrier_epoch_begin(barrier);
    wm_published_t *mine = wm_preflight_own_data(barrier);
    if (mine->failed != 0) // else no write: others cache the line
        mine->failed = 0;
    wm_barrier_arrive(barrier, alike ? 0 : DIFFERS);
}

static bool
restart_come(wm_nonblocking_call_t *call, bool *waits)
{
    int ready = nonblocking_call_is_ready(call, waits);
    if (ready == 0)
        return false;
    restart_publish(comm_of(call)->barrier, ready > 0);
    call->state = WM_NONBLOCKING_ALIKE;
    return false;
}

static bool
restart_arrive(wm_nonblocking_call_t *call, bool *waits)
{
    wm_coll_op_t *coll = &call->coll;
    wm_barrier_t *barrier = comm_of(call)->barrier;
    *waits = !wm_barrier_all_arrived(barrier, 0);
    if (*waits)
        return ends_if_dead(call);
    // A rank in a later epoch has differed, too: MPI did its call, and it has
    // closed the communicator.
    if (wm_barrier_any_arrived(barrier, DIFFERS)) { // vote anew
        wm_coll_op_leave(coll);
        wm_turn_queue(&call->nonblocking->turns, &call->turn);
        coll->participant.direct.barrier = wm_turns_bank(comm_of(call),
                                                         call->turn.number);
        call->state = WM_NONBLOCKING_AHEAD;
        return false;
    }
    coll->engine->restart->restart(coll, barrier);
    wm_stat_add(WM_STAT_repeated_collectives, 1);
    call->state = WM_NONBLOCKING_STARTED;
    return false;
}

static bool (*const steps[])(wm_nonblocking_call_t *call, bool *waits) = {
    [WM_NONBLOCKING_RESTART] = restart_come,
    [WM_NONBLOCKING_ALIKE] = restart_arrive,
    [WM_NONBLOCKING_AHEAD] = wm_nonblocking_vote,
    [WM_NONBLOCKING_VOTED] = read_decision,
    [WM_NONBLOCKING_PREPARED] = nonblocking_call_publish,
    [WM_NONBLOCKING_ARRIVING] = arrive,
    [WM_NONBLOCKING_ASKED] = hear_answer,
    [WM_NONBLOCKING_BEGUN] = all_have_begun,
    [WM_NONBLOCKING_CHOSEN] = nonblocking_call_start,
    [WM_NONBLOCKING_STARTED] = nonblocking_call_advance,
};

// Orders our stream behind the work that the program has enqueued on a buffer.
static int
follow_stream(wm_nonblocking_call_t *call, const wm_buffer_t *given,
              bool to_write, wm_error_t *err)
{
    const wm_producer_t *producer = &given->producer;
    int code = 0;
    if (!call->ordered) {
        call->device = producer->kind == WM_PRODUCER_STREAM
                           ? producer->device
                           : wm_coll_device(call->coll.participant.call);
        code = wm_stream_acquire(call->device, &call->stream, err);
        call->ordered = code == 0;
    }
    return code < 0 ? code
                    : wm_producer_before(producer, to_write, call->device,
                                         call->stream, err);
}

// Returns a copy of a buffer that is behind the work that the program has
// enqueued.
static const wm_buffer_t *
behind_program(wm_nonblocking_call_t *call, const wm_buffer_t *given,
               bool to_write)
{
    wm_buffer_t *copy = &call->buffers[to_write];
    wm_error_t wrong;
    bool idle = true;
    bool by_stream = wm_buffer_on_device(given)
                     && given->producer.kind != WM_PRODUCER_DEVICE;
    *copy = *given;
    copy->producer = (wm_producer_t){.kind = WM_PRODUCER_NONE};
    int code = wm_producer_refuse_capture(&given->producer, &wrong);
    if (code == 0 && by_stream)
        code = wm_producer_idle(&given->producer, to_write, &idle, &wrong);
    else if (code == 0)
        code = wm_producer_wait(&given->producer, to_write, &wrong);
    if (code == 0 && !idle)
        code = follow_stream(call, given, to_write, &wrong);
    if (code == 0 && !idle)
        copy->producer = (wm_producer_t){
            .kind = WM_PRODUCER_STREAM,
            .device = call->device,
            .stream = call->stream,
        };
    if (code < 0) // the engine tells the others
        wm_coll_op_fail(&call->coll, &wrong);
    return copy;
}

void
wm_nonblocking_follow_program(wm_nonblocking_call_t *call)
{
    const wm_coll_t *asked = call->coll.participant.call;
    call->own = *asked;
    if (asked->send != NULL)
        call->own.send = behind_program(call, asked->send, false);
    if (asked->receive != NULL)
        call->own.receive = behind_program(call, asked->receive, true);
    call->coll.participant.call = &call->own;
}

int
wm_nonblocking_announce(wm_nonblocking_call_t *call, wm_error_t *err)
{
    return wm_mpi_check(MPI_Ibarrier(comm_of(call)->match, &call->announced),
                        "MPI_Ibarrier", err);
}

void
wm_nonblocking_call_free(wm_nonblocking_call_t *call)
{
    wm_coll_op_drop(&call->coll);
    if (call->ordered)
        wm_stream_release(call->device, call->stream);
    wm_pool_put(&call_pool, call);
}

static void
nonblocking_call_end(wm_nonblocking_call_t *call)
{
    wm_turn_pass(&call->turn);
    if (!restart_keep(call))
        wm_nonblocking_call_free(call);
}

bool
wm_nonblocking_call_step(wm_nonblocking_call_t *call, bool *waits)
{
    bool ended = false;
    *waits = false;
    while (!*waits && !ended)
        ended = steps[call->state](call, waits);
    return ended;
}

static bool
nonblocking_op_step(wm_op_t *base)
{
    wm_nonblocking_op_t *op = (wm_nonblocking_op_t *)base;
    bool waits;
    bool ended = wm_nonblocking_call_step(op->call, &waits);
    if (ended) {
        if (op->call->coll.wrong.code < 0)
            wm_op_fail(&op->op, &op->call->coll.wrong);
        nonblocking_call_end(op->call);
        op->call = NULL;
    }
    return ended;
}

static wm_asks_t
nonblocking_call_asks(const wm_op_t *base)
{
    const wm_nonblocking_op_t *op = (const wm_nonblocking_op_t *)base;
    return op->call != NULL ? op->call->coll.asks : WM_ASKS_NOTHING;
}

static wm_buffer_t *
nonblocking_call_buffer_of(wm_op_t *op)
{
    return &((wm_nonblocking_op_t *)op)->kept;
}

static const wm_op_kind_t kind = {
    .step = nonblocking_op_step,
    .asks = nonblocking_call_asks,
    .buffer = nonblocking_call_buffer_of,
};

wm_nonblocking_call_t *
wm_nonblocking_call_new(wm_nonblocking_t *nonblocking, wm_comm_t *comm,
                        const wm_coll_t *asked, wm_coll_form_t form)
{
    wm_nonblocking_call_t *call = wm_pool_get(&call_pool);
    if (call == NULL)
        return NULL;
    call->nonblocking = nonblocking;
    call->looks = 0;
    call->announced = MPI_REQUEST_NULL;
    call->ordered = false;
    wm_coll_op_init(&call->coll, comm,
                    wm_turns_bank(comm, nonblocking->turns.asked + 1), asked,
                    form);
    return call;
}

wm_nonblocking_op_t *
wm_nonblocking_op_new(wm_comm_t *comm, wm_nonblocking_call_t *call)
{
    wm_nonblocking_op_t *op = wm_op_new(&kind, sizeof *op, comm);
    if (op == NULL)
        return NULL;
    op->call = call;
    call->turn.op = &op->op;
    return op;
}

void
wm_persistent_restart_differ(wm_comm_t *comm)
{
    wm_persistent_restart_t *restart = &comm->nonblocking->restart;
    if (!restart->went)
        return;
    wm_engine_lock();
    restart_publish(comm->barrier, false);
    restart->went = false;
    wm_engine_unlock();
    wm_persistent_restart_drop(restart);
}

static void
restart_enlist(wm_nonblocking_op_t *op, const wm_buffer_t *kept)
{
    wm_persistent_restart_t *restart = &op->call->nonblocking->restart;
    bool waits;
    restart->kept = NULL;
    restart->went = false; // until this start has
    op->kept = *kept;
    op->call->state = WM_NONBLOCKING_RESTART;
    wm_engine_add_lock_held(&op->op);
    (void)restart_come(op->call, &waits);
}

static bool
persistent_restart_begin(wm_comm_t *comm, wm_nonblocking_call_t *call,
                         const wm_buffer_t *kept, wm_op_t **op)
{
    wm_nonblocking_op_t *made = wm_nonblocking_op_new(comm, call);
    if (made == NULL)
        return false;
    if (!call->coll.engine->restart->resume(&call->coll)) {
        wm_op_release(&made->op);
        return false;
    }
    wm_engine_lock();
    restart_enlist(made, kept);
    wm_engine_unlock();
    *op = &made->op;
    return true;
}

bool
wm_persistent_restart_begin(wm_comm_t *comm, const wm_coll_t *asked,
                            const wm_buffer_t *kept, wm_op_t **op)
{
    wm_nonblocking_call_t *call = comm->nonblocking->restart.kept;
    if (!comm->nonblocking->restart.went)
        return false;
    if (call != NULL && call->coll.participant.call == asked
        && persistent_restart_begin(comm, call, kept, op))
        return true;
    wm_persistent_restart_differ(comm);
    return false;
}

void
wm_persistent_restart_drop(wm_persistent_restart_t *restart)
{
    wm_engine_lock();
    if (restart->kept != NULL)
        wm_nonblocking_call_free(restart->kept);
    restart->kept = NULL;
    wm_engine_unlock();
}
