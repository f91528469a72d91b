// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "comm/diagnostics/drain.h"

#include <sched.h>
#include <time.h>

#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/diagnostics/hang.h"
#include "comm/diagnostics/report.h"
#include "comm/engine/modules.h"

// Time at the end for messages that may never be received. One turn counts as
// TURN_US at most, so that the time hardly counts in which a process is
// stopped, by a debugger or because its host is busy.
#define DRAIN_US 5000000
#define TURN_US 100000
#define TOLD 10 // operations in a report

// Returns true if an operation is of a communicator; NULL: of any.
static bool
is_of(const wm_op_t *op, const wm_comm_t *comm)
{
    return comm == NULL || op->comm == comm || op->comm == comm->whole;
}

// Returns true if the receiver may still receive the message. A peer without a
// segment cannot be seen: we wait for it as MPI does, unless we know that it
// is dead.
static bool
is_hopeful(const wm_op_t *op)
{
    wm_about_t about = wm_op_about(op);
    if (about.receives || about.peer == NULL || about.peer->self)
        return false;
    return wm_node_shares(about.peer)
               ? wm_node_may_receive(about.peer)
               : wm_failure_look(op->comm, about.rank, NULL) == 0;
}

// Returns true if the operation waits for a match, which may never come.
static bool
waits_for_match(const wm_op_t *op)
{
    return wm_report_is_unmatched(wm_op_about(op));
}

// Returns true if we must wait for an operation. If it was abandoned when its
// communicator was freed, we wait only if it may still be received, by a
// receive of a matched message or a persistent request.
static bool
drain_is_awaited(const wm_op_t *op, const wm_comm_t *comm)
{
    return is_of(op, comm) && !waits_for_match(op)
           && (comm != NULL || op->comm == NULL || !op->comm->abandoned
               || is_hopeful(op));
}

// Returns true if we must wait for some operation of a communicator (NULL: of
// all). *hopeful becomes true if one may still be received.
static bool
is_busy(const wm_comm_t *comm, bool *hopeful)
{
    bool busy = false;
    wm_engine_lock();
    for (wm_op_t *op = wm_engine_first(); op != NULL; op = op->next)
        if (drain_is_awaited(op, comm)) {
            busy = true;
            *hopeful = *hopeful || is_hopeful(op);
        }
    wm_engine_unlock();
    return busy;
}

// Reports each operation, in a line of its own, that we still wait for, or
// (`abandoned`) waited for in vain.
static void
drain_tell(const wm_comm_t *comm, int64_t waited, bool abandoned)
{
    const char *call = comm == NULL ? "MPI_Finalize" : "MPI_Comm_free";
    int count = 0;
    wm_engine_lock();
    for (wm_op_t *op = wm_engine_first(); op != NULL; op = op->next) {
        wm_words_t words = {.length = 0};
        // An operation with two parts is reported by its parts.
        if (!drain_is_awaited(op, comm) || op->kind->about == NULL
            || op->parts_of[0] != NULL || ++count > TOLD)
            continue;
        wm_report_rank(&words, op->comm->owner);
        wm_words_add(&words, ": %s has waited %.0f s ", call,
                     (double)waited / 1e6);
        wm_report_awaited(&words, op, MPI_DATATYPE_NULL);
        wm_words_add(&words, "%s", abandoned ? ", and gives up" : "");
        wm_about_t about = wm_op_about(op);
        if (about.peer != NULL && wm_node_shares(about.peer)
            && !about.peer->self)
            (void)wm_report_end(&words, about.rank, about.peer);
        wm_words_print(&words);
    }
    if (count > TOLD) {
        wm_words_t words = {.length = 0};
        wm_words_add(&words, "%s has waited for %d more operations", call,
                     count - TOLD);
        wm_words_print(&words);
    }
    wm_engine_unlock();
}

// Returns the microseconds since *before that count, and sets *before to now.
static int64_t
count_turn(int64_t *before)
{
    int64_t now = wm_engine_now(), spent = now - *before;
    *before = now;
    return spent < TURN_US ? spent : TURN_US;
}

// Waits for all operations. Returns true if all have ended. Looks before it
// checks the time.
static bool
wait_for(const wm_comm_t *comm)
{
    int64_t before = wm_engine_now(), waited = 0, in_vain = 0;
    int64_t limit = wm_hang_limit(), due = limit > 0 ? limit : INT64_MAX;
    for (unsigned turn = 1;; ++turn) {
        bool hopeful = false;
        wm_engine_poll();
        if (!is_busy(comm, &hopeful))
            return true;
        // All ranks have come to free a communicator, but not to finalize.
        if (hopeful && comm == NULL)
            in_vain = 0;
        if (in_vain >= DRAIN_US)
            break;
        if (waited >= due) {
            drain_tell(comm, waited, false);
            due = waited + WM_REPORT_AGAIN_US;
        }
        sched_yield();
        if (turn > 1000)
            nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
        int64_t spent = count_turn(&before);
        waited += spent;
        in_vain += spent;
    }
    drain_tell(comm, waited, true);
    return false;
}

// Ends all operations that can be ended: sends get some seconds, receives
// without a match are cancelled.
static void
drain_all(void)
{
    (void)wait_for(NULL);
    wm_engine_lock();
    for (wm_op_t *op = wm_engine_first(); op != NULL; op = op->next)
        // Only receives that MPI has are cancelled; the threads of others
        // learn of the end themselves.
        if (waits_for_match(op) && op->kind->asks != NULL
            && op->kind->asks(op) != WM_ASKS_NOTHING)
            (void)op->kind->cancel(op);
    wm_engine_unlock();
    wm_engine_step(); // ends the cancelled ones
}

// Gives the sends of a communicator, and matched messages, some seconds to
// end; not its receives and embedded arrays, which the program may wait for
// later.
static void
drain_sends(wm_comm_t *comm)
{
    bool ended = wait_for(comm);
    wm_engine_lock();
    comm->abandoned = !ended;
    wm_engine_unlock();
}

bool
wm_drain_is_used(const wm_comm_t *comm)
{
    const wm_op_t *op = wm_engine_first();
    while (op != NULL && (op->comm == NULL || op->comm->owner != comm))
        op = op->next;
    return op != NULL;
}

const wm_module_t wm_drain_module = {
    .end = drain_all,
    .freed = drain_sends,
    .is_used = wm_drain_is_used,
};
