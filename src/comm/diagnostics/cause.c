// SPDX-License-Identifier: BSD-3-Clause
#include "comm/diagnostics/cause.h"

#include <stdio.h>
#include <string.h>

#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/node/barrier.h"
#include "comm/message/unexpected.h"
#include "comm/diagnostics/report.h"

#define LISTED 4  // messages in a report
#define OTHERS 4  // ranks in a report
#define RANKS 256 // ranks whose answers are read for a report

// Returns our account; NULL before the first communicator.
static wm_account_t *
own_account(void)
{
    const wm_peer_t *self = wm_node_self();
    return self != NULL ? wm_node_account(self) : NULL;
}

uint32_t
wm_cause_asked(void)
{
    wm_account_t *account = own_account();
    return account != NULL
               ? atomic_load_explicit(&account->asked, memory_order_relaxed)
               : 0;
}

// Returns the account of a rank in another process, if we can read it, else
// NULL.
static wm_account_t *
account_of(const wm_comm_t *comm, int rank)
{
    const wm_peer_t *peer = comm->peers[rank];
    return peer->self ? NULL : wm_node_account(peer);
}

// Returns the only rank that an operation waits for, or -1.
static int
awaited(const wm_op_t *op)
{
    wm_about_t about = wm_op_about(op);
    if (about.performs != NULL)
        return about.rank;
    if (!about.is_message)
        return -1;
    return about.receives && about.matched ? wm_op_message(op)->result.source
                                           : about.rank;
}

// Returns the first rank to report, and sets how many; 0: none.
static int
first_awaited(const wm_op_t *op, int *count)
{
    const wm_op_t *message = wm_op_message(op);
    int rank = awaited(op);
    *count = 0;
    if (message->comm != NULL)
        *count = rank >= 0                     ? 1
                 : message->comm->size < RANKS ? message->comm->size
                                               : RANKS;
    return rank >= 0 ? rank : 0;
}

void
wm_cause_ask(const wm_op_t *op)
{
    wm_engine_lock();
    const wm_comm_t *comm = wm_op_has_left(op) ? NULL
                                               : wm_op_message(op)->comm;
    for (int rank = 0; comm != NULL && rank < comm->size; ++rank) {
        wm_account_t *account = account_of(comm, rank);
        if (account != NULL)
            atomic_fetch_add(&account->asked, 1);
    }
    wm_engine_unlock();
}

static void
add_call(wm_words_t *words, const wm_hang_t *hang, const wm_op_t *op,
         int64_t now)
{
    const wm_waiting_call_t *call = &hang->call;
    wm_words_add(words, "%s has waited %.*f s ", call->name,
                 now - hang->began < 9500000,
                 (double)(now - hang->began) / 1e6);
    if (call->collective && wm_op_about(op).performs == NULL) {
        wm_words_add(words, "for the other ranks");
        wm_report_size(words, call->nbytes > 0, call->nbytes, call->type);
    }
    else
        wm_report_awaited(words, op, call->type);
}

// Lock held, and the operation is under way.
static void
answer(const wm_hang_t *hang, const wm_op_t *op, int64_t now)
{
    wm_account_t *account = own_account();
    const wm_op_t *message = wm_op_message(op);
    wm_about_t about = wm_op_about(op);
    int rank = awaited(op);
    wm_words_t words = {.length = 0};
    add_call(&words, hang, op, now);
    if (message->comm != NULL) {
        wm_words_add(&words, " on ");
        wm_report_comm(&words, message->comm->owner->user);
    }
    wm_waiting_t waiting = {
        .when = now,
        .comm = message->comm != NULL ? message->comm->owner->id : 0,
        .kind = hang->call.collective ? WM_WAITS_IN_COLLECTIVE
                : !about.is_message   ? WM_WAITS_OTHER
                : about.receives      ? WM_WAITS_TO_RECEIVE
                                      : WM_WAITS_TO_SEND,
    };
    if (rank >= 0)
        memcpy(waiting.awaited, message->comm->peers[rank]->id,
               sizeof waiting.awaited);
    snprintf(waiting.call, sizeof waiting.call, "%s", hang->call.name);
    snprintf(waiting.text, sizeof waiting.text, "%.255s", words.text);
    atomic_fetch_add(&account->version, 1);
    account->waiting = waiting;
    atomic_fetch_add(&account->version, 1);
}

void
wm_cause_answer(const wm_hang_t *hang, const wm_op_t *op, int64_t now)
{
    wm_engine_lock();
    if (!wm_op_has_left(op))
        answer(hang, op, now);
    wm_engine_unlock();
}

// Reads the answer of a peer. Returns false if it has not answered since it
// was asked.
static bool
read_answer(wm_account_t *account, int64_t since, wm_waiting_t *waiting)
{
    for (int tries = 0; tries < 100; ++tries) {
        uint32_t version = atomic_load(&account->version);
        *waiting = account->waiting;
        atomic_thread_fence(memory_order_acquire);
        if (version % 2 == 0 && atomic_load(&account->version) == version)
            return waiting->when >= since;
    }
    return false;
}

// Returns the rank of another process, or -1.
static int
rank_of(const wm_comm_t *comm, const uint8_t *id)
{
    for (int rank = 0; rank < comm->size; ++rank)
        if (memcmp(comm->peers[rank]->id, id, sizeof comm->peers[rank]->id)
            == 0)
            return rank;
    return -1;
}

// Returns the number of ranks of a ring, in which this rank waits for `at`,
// and each waits for the next one in the same way; 0: they do not.
static int
ring_of(const wm_comm_t *comm, int64_t since, const wm_waiting_t *at)
{
    wm_waiting_t next = *at;
    for (int count = 2; count <= comm->size; ++count) {
        if (memcmp(next.awaited, wm_node_self()->id, sizeof next.awaited) == 0)
            return count;
        int rank = rank_of(comm, next.awaited);
        wm_account_t *account = rank < 0 ? NULL : account_of(comm, rank);
        if (account == NULL || !read_answer(account, since, &next)
            || next.kind != at->kind || next.comm != at->comm)
            return 0;
    }
    return 0;
}

// Adds advice if ranks wait for each other.
static void
add_ring(wm_words_t *words, const wm_op_t *message, const wm_hang_t *hang,
         const wm_waiting_t *other, bool explained)
{
    wm_about_t about = wm_op_about(message);
    bool receives = about.receives && other->kind == WM_WAITS_TO_RECEIVE;
    bool sends = about.is_message && !about.receives
                 && other->kind == WM_WAITS_TO_SEND;
    bool both = strncmp(hang->call.name, "Sendrecv", 8) == 0;
    bool same = other->comm == message->comm->owner->id;
    int ring = hang->call.collective || explained
                   ? 0
                   : ring_of(message->comm, hang->asked, other);
    char who[32] = "both ranks";
    if (ring > 2)
        snprintf(who, sizeof who, "all %d ranks of a ring", ring);
    if (ring == 2 && !same)
        wm_words_add(words, ": the two calls are on different communicators");
    if (ring == 0 || !same || (ring > 2 && about.rank == MPI_ANY_SOURCE))
        return;
    if (receives && !both)
        wm_words_add(words, ": do %s receive before they send?", who);
    else if (sends)
        wm_words_add(words, ": %s send first: use Sendrecv or Isend", who);
}

// Adds what one rank does instead. Returns false if there is nothing to add.
static bool
add_other(wm_words_t *words, const wm_hang_t *hang, const wm_op_t *message,
          int rank, bool explained)
{
    const wm_peer_t *peer = message->comm->peers[rank];
    wm_account_t *account = account_of(message->comm, rank);
    wm_waiting_t other;
    if (account == NULL)
        return false;
    bool told = read_answer(account, hang->asked, &other);
    bool same = told && other.comm == message->comm->owner->id;
    bool collective = hang->call.collective;
    if (collective && same && strcmp(other.call, hang->call.name) == 0)
        return false;
    const wm_barrier_t *barrier = message->comm->barrier;
    bool ends = wm_report_end(words, rank, peer);
    if (!ends && !told && collective && barrier != NULL
        && wm_barrier_has_declined(barrier, rank))
        wm_words_add(words,
                     "; rank %d is in a collective of host memory: do all "
                     "ranks make the same calls in the same order? "
                     "WARPMPI_CHECK=1, set on all ranks, tells",
                     rank);
    else if (!ends && !told)
        wm_words_add(words, "; rank %d is in no blocking call of warpmpi",
                     rank);
    else if (!ends)
        wm_words_add(words, "; rank %d%s: %.255s", rank,
                     collective ? " is in another call" : "", other.text);
    if (told)
        add_ring(words, message, hang, &other, explained);
    return true;
}

static void
add_others(wm_words_t *words, const wm_hang_t *hang, const wm_op_t *op,
           bool explained)
{
    const wm_op_t *message = wm_op_message(op);
    int count, first = first_awaited(op, &count), told = 0;
    for (int rank = first; rank < first + count && told < OTHERS; ++rank)
        told += add_other(words, hang, message, rank, explained);
    if (told == OTHERS && count > OTHERS)
        wm_words_add(words, "; perhaps also other ranks");
}

static bool
is_from(const wm_result_t *come, int rank)
{
    return rank == MPI_ANY_SOURCE || come->source == rank;
}

// Adds messages that have come and do not match. Returns true if there are
// any.
static bool
add_unmatched(wm_words_t *words, const wm_op_t *message, int rank)
{
    wm_result_t list[LISTED];
    bool tags = false;
    int count = wm_unexpected_list(message->comm, list, LISTED);
    if (count == 0)
        return false;
    wm_words_add(
        words, "; %d%s message%s come with another source or tag: ", count,
        count >= LISTED ? " or more" : "", count == 1 ? " has" : "s have");
    wm_report_messages(words, list, count, LISTED);
    for (int i = 0; i < count && i < LISTED; ++i)
        tags |= is_from(&list[i], rank);
    wm_words_add(words, "%s",
                 tags ? ": do the tags differ?"
                      : ": is the source another rank?");
    return true;
}

// Returns true if we can ask MPI about the user's own communicator. If a rank
// is dead, MPI returns an error, which may end the program.
static bool
is_whole(wm_comm_t *comm)
{
    bool whole = true;
    wm_failure_release(comm);
    for (int rank = 0; rank < comm->size; ++rank)
        whole &= !comm->peers[rank]->dead;
    return whole && !comm->revoked && comm->user != MPI_COMM_NULL;
}

// Adds a message that was sent by mpi4py's own communicator of the same ranks;
// we never receive it. Returns true if there is one.
static bool
add_plain(wm_words_t *words, const wm_op_t *message, int rank)
{
    MPI_Status status;
    int flag = 0;
    MPI_Comm user = message->comm->user;
    if (!is_whole(message->comm)
        || MPI_Iprobe(rank, MPI_ANY_TAG, user, &flag, &status) != MPI_SUCCESS
        || !flag)
        return false;
    wm_words_add(words,
                 "; a message from rank %d with tag %d has come that was not "
                 "sent by a wm.Comm: do all ranks use a wm.Comm? (if C code "
                 "sent the message: set WARPMPI_HOST_MESSAGES=mpi)",
                 status.MPI_SOURCE, status.MPI_TAG);
    return true;
}

// Lock held, and the operation is under way.
static void
add_report(wm_words_t *words, const wm_hang_t *hang, const wm_op_t *op,
           int64_t now)
{
    const wm_op_t *message = wm_op_message(op);
    if (message->comm != NULL)
        wm_report_rank(words, message->comm->owner);
    wm_words_add(words, "%s", message->comm != NULL ? ": " : "");
    add_call(words, hang, op, now);
    bool own = message->comm != NULL && message->comm->owner == message->comm;
    bool explained = false;
    wm_about_t about = wm_op_about(message);
    if (own && wm_report_is_unmatched(about)) {
        explained = add_unmatched(words, message, about.rank);
        explained |= add_plain(words, message, about.rank);
    }
    if (message->comm != NULL)
        add_others(words, hang, op, explained);
}

void
wm_cause_report(const wm_hang_t *hang, const wm_op_t *op, int64_t now)
{
    wm_words_t words = {.length = 0};
    wm_engine_lock();
    bool left = wm_op_has_left(op);
    if (!left)
        add_report(&words, hang, op, now);
    wm_engine_unlock();
    if (!left)
        wm_words_print(&words);
}
