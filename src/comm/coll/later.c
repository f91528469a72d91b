// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/later.h"

#include <stdlib.h>
#include <string.h>

#include "comm/coll/await.h"
#include "comm/coll/by_mpi.h"
#include "comm/coll/owed.h"
#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/engine/spares.h"
#include "comm/engine/stats.h"

// Calls begun one after the other, before those with a room are seen to.
#define BEGUN_WITHOUT_STEPS 8
#define LOOKS_FOR_DEAD 64 // steps, before it is asked for ranks that died
// Of a meeting in room 0: this start does not go the way of the last one.
#define DIFFERS (WM_GATE_STEPS - 1)

typedef enum {
    AGAIN,     // as the start before: what it sends is not ready
    ALIKE,     // for all to have told whether it does
    AHEAD,     // of others, so far that it cannot be asked
    ASKED,     // it is not known who does it
    GPUS,      // they do: it waits for its room, and until it is ready
    MEETING,   // for all to have said what they give
    FOLLOWING, // its plan
    MPIS,      // MPI does: it waits for its turn
    FETCHING,  // copies to the twins
    POSTED,    // with MPI
    STORING,   // copies back
} state_t;

typedef struct later_call {
    struct later_call *next; // of those that have their turn to come
    bool passed;             // it is none of them
    wm_later_t *later;
    wm_op_t *op;
    uint32_t number;
    state_t state;
    wm_part_t part;
    wm_agreement_t agreed;
    wm_plan_t plan;
    wm_native_run_t run;
    wm_by_mpi_t by;
} call_t;

// Of a communicator. Engine lock.
struct wm_later {
    uint32_t asked; // so far
    _Atomic(call_t *) first;
    call_t *last;
    call_t *outside; // the first that has no room yet, so that none steps it
    wm_owed_t owed;
    // Of one persistent call: whether its last start went from GPU to GPU, on
    // all ranks alike, and that, kept for the next, if this rank can.
    bool repeats, went;
    call_t *kept;
};

typedef struct {
    wm_op_t op;
    wm_buffer_t kept;
    unsigned looks;
    call_t *call;
} given_t;

static wm_spares_t spares = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .bytes = sizeof(call_t),
};

static bool
is_first(const call_t *call)
{
    return atomic_load(&call->later->first) == call;
}

// Where the ranks meet in it, once the one before is through there.
static wm_gates_t *
room_of(const wm_comm_t *comm, uint32_t number)
{
    return comm->aside[number % WM_GATE_ASIDE];
}

static bool
has_room(const call_t *call)
{
    return call->number - atomic_load(&call->later->first)->number
           < WM_GATE_ASIDE;
}

// The engine sees to those that have a room alone: of many it would look at
// each, in vain, again and again.
static void
let_in(wm_later_t *later)
{
    call_t *call;
    while ((call = later->outside) != NULL && has_room(call)) {
        later->outside = call->next;
        wm_engine_add_lock_held(call->op);
        wm_op_release(call->op); // which the engine has now
    }
}

// It has been begun by MPI, or has ended: others may.
static void
pass_turn(call_t *call)
{
    wm_later_t *later = call->later;
    call_t *before = later->first;
    if (call->passed)
        return;
    call->passed = true;
    if (before == call) {
        before = NULL;
        atomic_store(&later->first, call->next);
    }
    else {
        while (before->next != call)
            before = before->next;
        before->next = call->next;
    }
    if (later->last == call)
        later->last = before;
    let_in(later);
}

static bool
fail(given_t *given, const wm_error_t *err)
{
    wm_op_fail(&given->op, err);
    return true;
}

static bool
is_dead(given_t *given, wm_error_t *err)
{
    return ++given->looks % LOOKS_FOR_DEAD == 0
           && wm_failure_look_at_all(given->op.comm, err) < 0;
}

// It has its turn now, behind those that were begun before.
static void
take_number(wm_later_t *later, call_t *call)
{
    call->number = ++later->asked;
    call->passed = false;
    call->next = NULL;
    if (later->last != NULL)
        later->last->next = call;
    else
        atomic_store(&later->first, call);
    later->last = call;
}

// Of a persistent call that went from GPU to GPU the ranks tell by one word
// whether each goes the same way again: then they know all the rest.
static void
tell_whether(wm_gates_t *gates, bool alike)
{
    (void)wm_gates_begin(gates);
    wm_said_t *mine = wm_agree_mine(gates);
    if (mine->failed != 0) // else it stays where others have it at hand
        mine->failed = 0;
    wm_gates_reach(gates, alike ? 0 : DIFFERS);
}

// Each of these: whether the call has ended; `state` tells how it goes on.

static bool
come_again(given_t *given, bool *waits)
{
    call_t *call = given->call;
    wm_error_t err;
    int ready = wm_native_is_ready(&call->part.native, &err);
    *waits = ready == 0;
    if (*waits)
        return false;
    if (ready < 0) {
        call->agreed.code = ready;
        (void)fail(given, &err); // told with its end
    }
    tell_whether(given->op.comm->gates, ready > 0);
    call->state = ALIKE;
    return false;
}

static bool
meet_again(given_t *given, bool *waits)
{
    call_t *call = given->call;
    wm_native_t *native = &call->part.native;
    wm_gates_t *gates = given->op.comm->gates;
    wm_error_t err;
    *waits = !wm_gates_have_reached(gates, 0);
    if (*waits)
        return is_dead(given, &err) && fail(given, &err);
    if (wm_gates_any_is_at(gates, DIFFERS)) { // as if it were the first time
        take_number(call->later, call);
        native->gates = room_of(given->op.comm, call->number);
        call->state = AHEAD;
        return false;
    }
    native->gates = gates;
    wm_native_restart(&call->run);
    wm_stat_add(WM_STAT_repeated_collectives, 1);
    call->state = FOLLOWING;
    return false;
}

static bool
come_up(given_t *given, bool *waits)
{
    wm_error_t err;
    *waits = !wm_gates_ask(given->op.comm->aside[0], given->call->number,
                           true);
    given->call->state = *waits ? AHEAD : ASKED;
    return *waits && is_dead(given, &err) && fail(given, &err);
}

static bool
ask(given_t *given, bool *waits)
{
    call_t *call = given->call;
    wm_error_t err;
    wm_book_t who = wm_gates_who(given->op.comm->aside[0], call->number);
    *waits = who == WM_BOOK_OPEN;
    if (*waits)
        return is_dead(given, &err) && fail(given, &err);
    call->state = who == WM_BOOK_GPUS ? GPUS : MPIS;
    return false;
}

static bool
say(given_t *given, bool *waits)
{
    call_t *call = given->call;
    wm_error_t err;
    *waits = !has_room(call);
    if (*waits)
        return false;
    int ready = call->agreed.code < 0
                    ? 1
                    : wm_native_is_ready(&call->part.native, &err);
    *waits = ready == 0;
    if (*waits)
        return false;
    if (ready < 0) {
        call->agreed.code = ready;
        (void)fail(given, &err); // told with its end
    }
    wm_agreement_say(given->op.comm, call->part.native.gates, &call->agreed);
    call->state = MEETING;
    return false;
}

static bool
meet(given_t *given, bool *waits)
{
    call_t *call = given->call;
    wm_comm_t *comm = given->op.comm;
    wm_part_t *part = &call->part;
    wm_error_t err, wrong;
    wm_gates_t *gates = part->native.gates;
    *waits = !wm_gates_have_reached(gates, 0);
    if (*waits)
        return is_dead(given, &err) && fail(given, &err);
    int code = wm_agreement_hear(comm, gates, &call->agreed, &err);
    if (code == 0)
        code = wm_part_compare(part, &err);
    if (code < 0)
        return fail(given, &err);
    if (!wm_part_plan(part, &call->plan, &wrong)) {
        call->state = MPIS;
        return false;
    }
    wm_native_start(&call->run, &part->native, &call->plan, part->type,
                    part->op, true, &wrong);
    call->state = FOLLOWING;
    return false;
}

static bool
follow(given_t *given, bool *waits)
{
    call_t *call = given->call;
    wm_error_t err;
    *waits = !wm_native_look(&call->run);
    if (*waits && (call->run.moves || !is_dead(given, &err)))
        return false;
    if (*waits)
        return fail(given, &err);
    if (!wm_native_go_on(&call->run))
        return false;
    int code = wm_native_finish(&call->run, &err);
    if (code > 0)
        call->state = MPIS;
    call->later->went = code == 0 && call->later->repeats && !call->run.gapped;
    return code < 0 ? fail(given, &err) : code == 0;
}

static bool
fetch(given_t *given, bool *waits)
{
    call_t *call = given->call;
    wm_part_t *part = &call->part;
    wm_error_t err;
    *waits = !is_first(call);
    int ready = *waits || given->op.error.code < 0
                    ? 1
                    : wm_native_is_ready(&part->native, &err);
    if (*waits || (*waits = ready == 0))
        return false;
    int code = ready < 0 ? ready : given->op.error.code;
    if (code == 0 && (code = wm_by_mpi_fetch(&call->by, part, &err)) < 0)
        wm_by_mpi_end(&call->by);
    if (code < 0) {
        if (given->op.error.code == 0)
            (void)fail(given, &err); // told with its end
        if (wm_by_mpi_spoil(&call->by, part, &err) < 0)
            return true;
    }
    call->state = FETCHING;
    return false;
}

static bool
post(given_t *given, bool *waits)
{
    call_t *call = given->call;
    wm_error_t err;
    int copied = wm_by_mpi_is_copied(&call->by, &err);
    *waits = copied == 0;
    if (*waits)
        return false;
    if (copied < 0)
        (void)fail(given, &err); // what is sent is spoilt, and it ends
    if (wm_by_mpi_begin(&call->by, &err) < 0)
        return fail(given, &err);
    pass_turn(call);
    call->state = POSTED;
    return false;
}

static bool
test(given_t *given, bool *waits)
{
    call_t *call = given->call;
    wm_error_t err;
    int ended = wm_by_mpi_test(&call->by, &err);
    *waits = ended == 0;
    if (*waits)
        return false;
    if (ended < 0)
        return fail(given, &err);
    if (given->op.error.code < 0)
        return true;
    call->state = STORING;
    return wm_by_mpi_store(&call->by, &err) < 0 && fail(given, &err);
}

static bool
store(given_t *given, bool *waits)
{
    wm_error_t err;
    int copied = wm_by_mpi_is_copied(&given->call->by, &err);
    *waits = copied == 0;
    return copied < 0 ? fail(given, &err) : copied > 0;
}

static bool (*const steps[])(given_t *given, bool *waits) = {
    [AGAIN] = come_again, [ALIKE] = meet_again, [AHEAD] = come_up,
    [ASKED] = ask,        [GPUS] = say,         [MEETING] = meet,
    [FOLLOWING] = follow, [MPIS] = fetch,       [FETCHING] = post,
    [POSTED] = test,      [STORING] = store,
};

static void
let_go(call_t *call)
{
    if (call->run.native != NULL)
        wm_native_unmap(&call->run);
    wm_native_end(&call->part.native);
    wm_spares_give(&spares, call);
}

static void
end(call_t *call)
{
    wm_later_t *later = call->later;
    pass_turn(call);
    wm_by_mpi_end(&call->by);
    if (later->went && wm_native_rest(&call->run))
        later->kept = call;
    else
        let_go(call);
}

static bool
step(wm_op_t *op)
{
    given_t *given = (given_t *)op;
    bool waits = false, ended = false;
    while (!waits && !ended)
        ended = steps[given->call->state](given, &waits);
    if (ended) {
        end(given->call);
        given->call = NULL;
    }
    return ended;
}

static wm_asks_t
asks(const wm_op_t *op)
{
    const given_t *given = (const given_t *)op;
    return given->call != NULL && given->call->state == POSTED
               ? WM_ASKS_ALONE
               : WM_ASKS_NOTHING;
}

static wm_buffer_t *
buffer_of(wm_op_t *op)
{
    return &((given_t *)op)->kept;
}

static const wm_op_kind_t kind = {
    .step = step,
    .asks = asks,
    .buffer = buffer_of,
};

static wm_later_t *
later_of(wm_comm_t *comm)
{
    if (comm->later != NULL) // of the threads that call, one at a time
        return comm->later;
    wm_engine_lock();
    if (comm->later == NULL)
        comm->later = calloc(1, sizeof *comm->later);
    wm_engine_unlock();
    return comm->later;
}

bool
wm_later_is_busy(const wm_comm_t *comm)
{
    return comm->later != NULL && atomic_load(&comm->later->first) != NULL;
}

static int
look_at_turns(void *context, wm_error_t *err)
{
    wm_later_t *later = context;
    (void)err;
    return atomic_load(&later->first) == NULL;
}

// MPI does what is not known to be done by GPUs.
static int
withdraw(wm_comm_t *comm, wm_error_t *err)
{
    int code = 0;
    call_t *call = comm->later->first;
    for (; call != NULL && code == 0; call = call->next) {
        if (call->state == ASKED)
            wm_gates_withdraw(comm->aside[0], call->number);
        if (call->state != AHEAD)
            continue;
        code = wm_owed_tell(&comm->later->owed, comm, call->number, err);
        call->state = code < 0 ? AHEAD : MPIS;
    }
    return code;
}

// The next start differs, as far as this rank goes, and the others wait to
// hear it.
static void
differ(wm_comm_t *comm)
{
    wm_later_t *later = comm->later;
    wm_engine_lock();
    if (later->went)
        tell_whether(comm->gates, false);
    later->went = false;
    if (later->kept != NULL)
        let_go(later->kept);
    later->kept = NULL;
    wm_engine_unlock();
}

int
wm_later_decline(wm_comm_t *comm, wm_error_t *err)
{
    int code = 0;
    wm_later_t *later = later_of(comm);
    if (later == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    if (later->went)
        differ(comm);
    if (atomic_load(&later->first) != NULL) {
        wm_engine_lock();
        code = withdraw(comm, err);
        wm_engine_unlock();
        if (code == 0)
            code = wm_coll_await(comm, look_at_turns, later, 1, err);
        if (code < 0)
            return code;
    }
    wm_engine_lock();
    code = wm_owed_tell(&later->owed, comm, ++later->asked, err);
    wm_engine_unlock();
    return code;
}

static void
enlist(wm_later_t *later, call_t *call)
{
    take_number(later, call);
    if (later->outside == NULL)
        later->outside = call;
    wm_op_retain(call->op);
    let_in(later);
}

// What is large is left as it is: a plan, and a run, until there is one.
static call_t *
new_call(wm_op_t *op)
{
    call_t *call = wm_spares_take(&spares);
    if (call == NULL)
        return NULL;
    call->op = op;
    call->run.native = NULL;
    memset(&call->by, 0, sizeof call->by);
    return call;
}

// Whether a persistent call goes the way of its last start, as far as this
// rank goes, and has begun.
static bool
begin_again(wm_comm_t *comm, const wm_coll_t *asked, const wm_buffer_t *kept,
            wm_op_t **op)
{
    wm_later_t *later = comm->later;
    call_t *call = later->kept;
    wm_error_t err;
    bool waits;
    given_t *given = call != NULL && call->part.call == asked
                         ? wm_op_new(&kind, sizeof *given, comm)
                         : NULL;
    if (given == NULL || wm_part_reopen(&call->part, &err) < 0) {
        if (given != NULL)
            wm_op_release(&given->op);
        return false;
    }
    given->kept = *kept;
    given->call = call;
    call->op = &given->op;
    call->state = AGAIN;
    *op = &given->op;
    wm_engine_lock();
    later->kept = NULL;
    later->went = false; // until it has
    wm_engine_add_lock_held(&given->op);
    (void)come_again(given, &waits);
    wm_engine_unlock();
    return true;
}

// After a call has begun: now and then those are seen to that were before.
static void
see_to_others(void)
{
    static _Atomic unsigned begun;
    if (++begun % BEGUN_WITHOUT_STEPS == 0)
        wm_engine_poll();
    wm_engine_notify();
}

int
wm_later_begin(wm_comm_t *comm, const wm_coll_t *asked, wm_buffer_t *kept,
               wm_op_t **op, wm_error_t *err)
{
    int code = wm_engine_start(err);
    wm_later_t *later = later_of(comm);
    if (code < 0)
        return code;
    if (later != NULL && later->went) {
        if (begin_again(comm, asked, kept, op)) {
            see_to_others();
            return 0;
        }
        differ(comm);
    }
    if (!asked->on_device && (!asked->on_host || !wm_later_is_busy(comm))) {
        code = wm_later_decline(comm, err);
        return code < 0 ? code : 1;
    }
    given_t *given = wm_op_new(&kind, sizeof *given, comm);
    call_t *call = given != NULL ? new_call(&given->op) : NULL;
    if (later == NULL || call == NULL) {
        free(call);
        if (given != NULL)
            wm_op_release(&given->op);
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    }
    wm_part_t *part = &call->part;
    wm_error_t wrong;
    code = wm_part_open(part, comm, room_of(comm, later->asked + 1), asked,
                        &wrong);
    bool capable = part->native.capable, waits;
    if (!capable && !asked->on_host) {
        wm_native_end(&part->native);
        wm_spares_give(&spares, call);
        wm_op_release(&given->op);
        code = wm_later_decline(comm, err);
        return code < 0 ? code : 1;
    }
    if (code < 0)
        (void)fail(given, &wrong); // told with its end
    given->kept = *kept;
    given->call = call;
    call->later = later;
    call->state = capable ? AHEAD : MPIS;
    call->agreed = (wm_agreement_t){
        .call = asked->kind,
        .code = code,
        .native = &part->native,
        .nbytes = wm_part_nbytes(part),
    };
    wm_engine_lock();
    enlist(later, call);
    if (capable)
        (void)come_up(given, &waits);
    else if (wm_owed_tell(&later->owed, comm, call->number, &wrong) < 0)
        (void)fail(given, &wrong);
    wm_engine_unlock();
    see_to_others();
    *op = &given->op;
    return 0;
}

int
wm_later_repeat(wm_comm_t *comm, wm_error_t *err)
{
    wm_later_t *later = later_of(comm);
    if (later == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    later->repeats = true;
    return 0;
}

void
wm_later_free(wm_later_t *later)
{
    if (later == NULL)
        return;
    wm_engine_lock();
    if (later->kept != NULL)
        let_go(later->kept);
    wm_engine_unlock();
    wm_owed_free(&later->owed);
    free(later);
}
