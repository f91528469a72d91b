// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "comm/coll/stream/stream_failure.h"

#include <time.h>

#include "comm/coll/stream/symm.h"
#include "comm/comm/failure.h"
#include "comm/diagnostics/hang.h"
#include "comm/diagnostics/report.h"
#include "comm/engine/engine.h"
#include "comm/engine/modules.h"
#include "comm/node/stream_words.h"
#include "comm/protocol/captured.h"
#include "comm/transfer/epochs.h"

#define AGAIN_US 100000
#define LED_ON_US 500
#define LEVEL_US 300000 // more than two rounds of looks
#define LOOKS_LEFT 20   // short pauses after a graph has last passed an epoch
#define REFUSED_US 2000000 // a rank captures again in this time
#define NAP_NS 100000
#define NAPS 50000 // naps at the end when no rank can come any more

static _Atomic int64_t rest; // microseconds until the next look; 0: none
static int left;             // short pauses left; engine lock

static bool
has_symm(const wm_comm_t *comm)
{
    return comm->symm != NULL || comm->graph_symm != NULL;
}

static bool
is_watched(const wm_comm_t *comm)
{
    return has_symm(comm) || wm_epochs_any_on_streams() || wm_captured_any();
}

// Returns true if a stream may be waiting. Graphs may run at any time.
static bool
may_wait(const wm_comm_t *comm)
{
    return comm->graph_symm != NULL || wm_epochs_any_on_streams()
           || wm_captured_any()
           || (comm->symm != NULL && !wm_stream_word_is_kept(comm->barrier));
}

// Returns true if streams of a level may not go on yet: the ranks of its host
// first hear of the death, and break their rails, which would carry garbage.
static bool
level_is_early(wm_comm_t *comm)
{
    bool any = comm->revoked;
    for (int rank = 0; rank < comm->size; ++rank)
        any |= comm->peers[rank]->dead;
    if (comm->parent == NULL || !any)
        return false;
    if (comm->ended_at == 0)
        comm->ended_at = wm_engine_now();
    return wm_engine_now() - comm->ended_at < LEVEL_US;
}

static bool
stream_failure_poison(wm_comm_t *comm)
{
    if (level_is_early(comm))
        return false;
    bool moved = wm_epochs_release();
    wm_captured_look(comm);
    if (comm->revoked && has_symm(comm))
        moved |= wm_stream_words_poison(comm->barrier, comm->size);
    for (int rank = 0; rank < comm->size && has_symm(comm); ++rank)
        if (comm->peers[rank]->dead)
            moved |= wm_stream_words_poison(comm->barrier, rank);
    if (comm->graph_symm != NULL)
        moved |= wm_symm_end_replays(comm->graph_symm);
    if (comm->symm != NULL)
        wm_symm_release_peers(comm->symm);
    return moved;
}

void
wm_stream_failure_watch(void)
{
    atomic_store(&rest, AGAIN_US);
}

bool
wm_stream_failure_look(wm_comm_t *comm)
{
    if (!is_watched(comm))
        return false;
    if (may_wait(comm) && wm_failure_is_told())
        (void)!wm_failure_look_at_all(comm, NULL);
    return stream_failure_poison(comm);
}

// Reports collectives in graphs that wait long: no call of the program's may.
// Ends them if the other rank's graph lacks a call.
static void
stream_failure_look_at_wait(wm_comm_t *comm)
{
    wm_words_t words = {.length = 0};
    wm_symm_t *symm = comm->graph_symm;
    int64_t waited, now = wm_engine_now(), limit = wm_hang_limit();
    int rank = symm == NULL ? -1 : wm_symm_find_wait(symm, now, &waited);
    if (rank >= 0 && waited >= REFUSED_US)
        wm_symm_end_refused(symm, rank);
    if (rank < 0 || limit <= 0 || waited < limit
        || !wm_symm_tells_wait(symm, now))
        return;
    wm_report_rank(&words, comm);
    wm_words_add(&words,
                 ": a collective of a CUDA graph has waited %.0f s for rank "
                 "%d: has that rank launched as many graphs, of the same "
                 "calls? WARPMPI_CHECK=1, set on all ranks, tells",
                 (double)waited / 1e6, rank);
    wm_words_print(&words);
}

static void
stream_failure_look_comm(wm_comm_t *comm)
{
    if (!is_watched(comm))
        return;
    stream_failure_look_at_wait(comm);
    if (wm_stream_failure_look(comm))
        left = LOOKS_LEFT;
    atomic_store(&rest, left > 0 ? LED_ON_US : AGAIN_US);
}

// Returns the microseconds until the next look; 0: no look is needed until
// symmetric memory is made, epochs on streams, or messages in graphs.
static int64_t
stream_failure_rest(void)
{
    int64_t due = atomic_load(&rest);
    bool waits = wm_epochs_any_on_streams() || wm_captured_any();
    return due == 0 && waits ? AGAIN_US : due;
}

// Looks at all communicators that are due, if the lock is free.
static void
stream_failure_serve(bool waited)
{
    (void)waited;
    static _Atomic int64_t looked;
    int64_t now = wm_engine_now(), due = stream_failure_rest();
    if (due == 0 || now - looked < due || !wm_engine_try_lock())
        return;
    looked = now;
    atomic_store(&rest, 0);
    left -= left > 0;
    wm_comm_each(stream_failure_look_comm);
    wm_engine_unlock();
}

// Streams of ours wait; some for a rank that may still come. Engine lock.
static bool waiting, hopeful;

static void
stream_failure_leave_comm(wm_comm_t *comm)
{
    if (comm->symm == NULL || wm_symm_leave(comm->symm))
        return;
    (void)wm_stream_failure_look(comm);
    waiting = true;
    for (int rank = 0; rank < comm->size; ++rank)
        hopeful |= rank != comm->rank
                   && wm_node_may_receive(comm->peers[rank]);
}

// Called at the end of MPI; lock not held. Releases peers that wait for a call
// that this rank never begins; peers do the same for us when they end. Waits
// for our streams while peers may still end.
static void
stream_failure_leave(void)
{
    for (int naps = 0; naps < NAPS; ++naps) {
        wm_engine_lock();
        waiting = hopeful = false;
        wm_comm_each(stream_failure_leave_comm);
        naps = hopeful ? 0 : naps;
        bool ended = !waiting;
        wm_engine_unlock();
        if (ended)
            return;
        wm_engine_poll();
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
}

const wm_module_t wm_stream_failure_module = {
    .serve = stream_failure_serve,
    .rest = stream_failure_rest,
    .end = stream_failure_leave,
};
