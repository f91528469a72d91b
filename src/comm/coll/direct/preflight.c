// SPDX-License-Identifier: BSD-3-Clause
// At the barrier of one host, each rank reads the numbers of all others. Else
// ranks use dissemination: in each round a rank sends its maxima to the rank
// that is `distance` after it in a circle, and receives from the one as far
// before it; the distance doubles. A number may be merged twice, so that any
// number of ranks will do. The circle is that of all ranks; on hosts of equal
// numbers of ranks first that of a host, then that of the ranks with one place
// in their hosts, so that few rounds wait for the network.
#include "comm/coll/direct/preflight.h"

#include <string.h>

#include "comm/coll/call/coll_refused.h"
#include "comm/coll/call/coll_wait.h"
#include "comm/comm/require.h"
#include "comm/engine/engine.h"
#include "comm/engine/posted.h"
#include "comm/message/packet.h"

// The numbers, besides the bits of `all`.
enum {
    FAILED, // 1 + a rank that has failed
    CALL,
    MINUS_CALL,
    NOTICES,   // some rank has posted notices
    ON_DEVICE, // some rank has GPU memory in the call
    VALUES,
};

_Static_assert(VALUES == WM_PREFLIGHT_VALUES, "there is room for each");

// In FAILED, beside the rank: it has refused to stage memory (require.h).
#define STAGED ((int64_t)1 << 32)

// The state of the rounds, in a packet.
typedef struct {
    wm_preflight_values_t known, heard;
    bool between; // the ranks of the circle are on several hosts
    int distance;
    MPI_Request requests[2]; // receive, send
} run_t;

_Static_assert(sizeof(run_t) <= WM_PACKET_BYTES, "a packet holds it");

// The memory that a rank publishes at a barrier.
typedef struct {
    wm_preflight_values_t maxima;
    _Alignas(16) char data[WM_PREFLIGHT_BYTES];
} slot_t;

_Static_assert(sizeof(slot_t) <= WM_BARRIER_BYTES, "a slot holds it");

#define LOOKS 50 // before the engine waits

static bool
has_circles(const wm_comm_t *comm)
{
    const wm_hosts_t *hosts = &comm->hosts;
    return hosts->count > 1 && hosts->smallest == hosts->largest;
}

static int
circle_size(const wm_comm_t *comm, const run_t *run)
{
    return !has_circles(comm) ? comm->size
           : run->between     ? comm->hosts.count
                              : comm->hosts.largest;
}

// Returns the rank so many places after this one.
static int
circle_rank(const wm_comm_t *comm, const run_t *run, int offset)
{
    const wm_hosts_t *hosts = &comm->hosts;
    int size = circle_size(comm, run);
    if (!has_circles(comm))
        return (comm->rank + offset + size) % size;
    int host = hosts->host_of[comm->rank], place = hosts->place;
    return run->between
               ? wm_hosts_rank(hosts, (host + offset + size) % size, place)
               : wm_hosts_rank(hosts, host, (place + offset + size) % size);
}

// Begins a round. Returns 0, 1 if no round is left, or an error.
static int
begin_round(wm_comm_t *comm, run_t *run, wm_error_t *err)
{
    if (run->distance >= circle_size(comm, run) && has_circles(comm)
        && !run->between) {
        run->between = true;
        run->distance = 1;
    }
    if (run->distance >= circle_size(comm, run))
        return 1;
    int before = circle_rank(comm, run, -run->distance);
    int after = circle_rank(comm, run, run->distance);
    int code = wm_mpi_check(MPI_Irecv(&run->heard, (int)sizeof run->heard,
                                      MPI_BYTE, before, comm->tag_limit,
                                      comm->data, &run->requests[0]),
                            "MPI_Irecv", err);
    if (code == 0)
        code = wm_mpi_check(MPI_Isend(&run->known, (int)sizeof run->known,
                                      MPI_BYTE, after, comm->tag_limit,
                                      comm->data, &run->requests[1]),
                            "MPI_Isend", err);
    return code;
}

static void
merge(wm_preflight_values_t *mine, const wm_preflight_values_t *other)
{
    for (int i = 0; i < VALUES; ++i)
        if (other->values[i] > mine->values[i])
            mine->values[i] = other->values[i];
    mine->all &= other->all;
}

// Returns 1 after the last round, 0 if not yet, or an error.
static int
preflight_values_advance(wm_comm_t *comm, run_t *run, wm_error_t *err)
{
    int code = 0;
    while (code == 0) {
        int flag = 1;
        for (int i = 0; i < 2 && flag && code == 0; ++i)
            code = wm_mpi_check(
                MPI_Test(&run->requests[i], &flag, MPI_STATUS_IGNORE),
                "MPI_Test", err);
        if (code < 0 || !flag)
            return code;
        merge(&run->known, &run->heard);
        run->distance *= 2;
        code = begin_round(comm, run, err);
    }
    return code;
}

// Cancels the round. Returns true if MPI no longer needs the packet; else MPI
// may still be sending it.
static bool
preflight_cancel(wm_comm_t *comm, run_t *run)
{
    if (run->requests[0] != MPI_REQUEST_NULL) {
        MPI_Cancel(&run->requests[0]);
        MPI_Wait(&run->requests[0], MPI_STATUS_IGNORE);
    }
    if (run->requests[1] == MPI_REQUEST_NULL)
        return true;
    wm_engine_lock();
    wm_posted_leave(comm, &run->requests[1]);
    wm_engine_unlock();
    return false;
}

typedef struct {
    wm_comm_t *comm;
    run_t *run;
} rounds_t;

static int
preflight_values_look(void *context, wm_error_t *err)
{
    const rounds_t *rounds = context;
    return preflight_values_advance(rounds->comm, rounds->run, err);
}

static int
values_by_messages(wm_comm_t *comm, wm_preflight_values_t *maxima,
                   wm_error_t *err)
{
    run_t *run = (run_t *)wm_packet_get();
    if (run == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    run->between = false;
    run->distance = 1;
    run->requests[0] = run->requests[1] = MPI_REQUEST_NULL;
    run->known = *maxima;
    int code = begin_round(comm, run, err);
    rounds_t rounds = {comm, run};
    if (code == 0)
        code = wm_coll_wait(comm, preflight_values_look, &rounds, LOOKS, err);
    else if (code > 0)
        code = 0;
    if (code == 0)
        *maxima = run->known;
    if (code == 0 || preflight_cancel(comm, run))
        wm_packet_put((char *)run);
    return code;
}

// Publishes the numbers, and the data if this rank has any bit, and arrives.
static void
publish_at(wm_barrier_t *barrier, int step,
           const wm_preflight_values_t *maxima,
           const wm_preflight_t *preflight)
{
    slot_t *mine = wm_barrier_epoch_begin(barrier);
    mine->maxima = *maxima;
    if (preflight->data != NULL && preflight->all != 0)
        memcpy(mine->data, preflight->data, preflight->nbytes);
    wm_barrier_arrive(barrier, step);
}

static void
merge_all(const wm_barrier_t *barrier, wm_preflight_values_t *maxima)
{
    for (int rank = 0; rank < wm_barrier_size(barrier); ++rank) {
        const slot_t *its = wm_barrier_published(barrier, rank);
        merge(maxima, &its->maxima);
    }
}

// Returns 1 when every rank has published its numbers, or one has declined.
// The counts of calls are read first: a rank in a later call is in another
// epoch.
static int
look_for_all(void *context, wm_error_t *err)
{
    (void)err;
    wm_barrier_t *barrier = context;
    int have_entered = wm_barrier_all_entered(barrier);
    return have_entered < 0
           || (have_entered > 0 && wm_barrier_all_arrived(barrier, 0));
}

// Exchanges unless a rank declines: then returns 1.
static int
values_ask(wm_comm_t *comm, wm_preflight_values_t *maxima,
           const wm_preflight_t *preflight, wm_error_t *err)
{
    wm_barrier_t *barrier = comm->barrier;
    if (wm_coll_was_refused(comm, WM_COLL_FORM_BLOCKING))
        return 1;
    wm_barrier_enter(barrier, true);
    publish_at(barrier, 0, maxima, preflight);
    int code = wm_coll_wait(comm, look_for_all, barrier, WM_LOOKS_AT_WORDS,
                            err);
    if (code < 0)
        return code;
    if (wm_barrier_all_entered(barrier) < 0) {
        wm_barrier_epoch_abandon(barrier);
        return 1;
    }
    merge_all(barrier, maxima);
    return 0;
}

// A rank of an exchange arrives at this step, which a rank that only asks
// never does: it may withdraw its epoch.
#define EXCHANGES 1

// Returns 1 when every rank has published its numbers. If a rank has declined
// the call and MPI has refused it, the rank comes here by its next call; if it
// comes to a later call, it was in another collective.
static int
look_for_exchange(void *context, wm_error_t *err)
{
    wm_barrier_t *barrier = context;
    int have_entered = wm_barrier_all_entered(barrier);
    bool passed = have_entered < 0 && wm_barrier_any_passed(barrier);
    if (have_entered != 0
        && wm_barrier_all_arrived(barrier, have_entered > 0 ? 0 : EXCHANGES))
        return 1;
    return !passed ? 0
                   : wm_error_set(
                       err, WM_ERR_TYPE, 0,
                       "the ranks are in different collectives, and some "
                       "ranks are in a collective of host memory: all must "
                       "make the same calls in the same order");
}

static void
exchange_begin(wm_comm_t *comm, const wm_preflight_values_t *maxima,
               const wm_preflight_t *preflight)
{
    if (!wm_coll_was_refused(comm, WM_COLL_FORM_BLOCKING))
        wm_barrier_enter(comm->barrier, true);
    publish_at(comm->barrier, EXCHANGES, maxima, preflight);
}

void
wm_preflight_leave(const wm_comm_t *comm)
{
    if (wm_barrier_any_passed(comm->barrier))
        wm_barrier_epoch_abandon(comm->barrier);
}

static int
values_exchange(wm_comm_t *comm, wm_preflight_values_t *maxima,
                const wm_preflight_t *preflight, wm_error_t *err)
{
    wm_barrier_t *barrier = comm->barrier;
    if (barrier == NULL)
        return values_by_messages(comm, maxima, err);
    exchange_begin(comm, maxima, preflight);
    int code = wm_coll_wait(comm, look_for_exchange, barrier,
                            WM_LOOKS_AT_WORDS, err);
    if (code == 0)
        merge_all(barrier, maxima);
    else
        wm_preflight_leave(comm);
    return code;
}

static int
preflight_compare(const wm_preflight_t *mine, const int64_t *most,
                  wm_error_t *err)
{
    int64_t one = -most[MINUS_CALL], other = most[CALL];
    if (one == other)
        return 0;
    return wm_error_set(
        err, WM_ERR_TYPE, 0,
        "the ranks are in different collectives, %s and %s among them, and "
        "this rank is in %s: all must make the same calls in the same order",
        wm_call_name((wm_coll_kind_t)one), wm_call_name((wm_coll_kind_t)other),
        wm_call_name(mine->call));
}

static void
preflight_fill(const wm_comm_t *comm, const wm_preflight_t *preflight,
               wm_preflight_values_t *values)
{
    int64_t *most = values->values;
    values->all = preflight->all;
    most[FAILED] = preflight->code < 0 ? comm->rank + 1 : 0;
    if (preflight->code == WM_ERR_STAGING)
        most[FAILED] |= STAGED;
    most[CALL] = (int64_t)preflight->call;
    most[MINUS_CALL] = -most[CALL];
    most[NOTICES] = preflight->notices;
    most[ON_DEVICE] = preflight->on_device;
}

// Returns the error of another rank.
static int
preflight_raise(const wm_comm_t *comm, int64_t failed, wm_error_t *err)
{
    wm_rank_name_t name = wm_comm_name(comm, (int)(failed & (STAGED - 1)) - 1);
    return (failed & STAGED) != 0
               ? wm_require_refuse("another rank has refused the call",
                                   name.text, err)
               : wm_error_set(err, WM_ERR_CUDA, 0,
                              "%s failed in this collective: its error tells "
                              "why",
                              name.text);
}

static int
preflight_judge(const wm_comm_t *comm, wm_preflight_t *preflight,
                const wm_preflight_values_t *values, int exchanged,
                wm_error_t *err)
{
    const int64_t *most = values->values;
    int code = preflight->code;
    preflight->notices = most[NOTICES] != 0;
    preflight->on_device = most[ON_DEVICE] != 0;
    preflight->all = (unsigned)values->all;
    if (code < 0 || exchanged < 0)
        return code < 0 ? code : exchanged;
    if (most[FAILED] != 0)
        return preflight_raise(comm, most[FAILED], err);
    return preflight_compare(preflight, most, err);
}

void
wm_preflight_publish(const wm_comm_t *comm, wm_barrier_t *barrier,
                     const wm_preflight_t *preflight)
{
    wm_preflight_values_t maxima;
    preflight_fill(comm, preflight, &maxima);
    publish_at(barrier, 0, &maxima, preflight);
}

int
wm_preflight_conclude(const wm_comm_t *comm, const wm_barrier_t *barrier,
                      wm_preflight_t *preflight, wm_error_t *err)
{
    wm_preflight_values_t maxima;
    preflight_fill(comm, preflight, &maxima);
    merge_all(barrier, &maxima);
    return preflight_judge(comm, preflight, &maxima, 0, err);
}

void
wm_preflight_begin(wm_comm_t *comm, const wm_preflight_t *preflight)
{
    wm_preflight_values_t maxima;
    preflight_fill(comm, preflight, &maxima);
    exchange_begin(comm, &maxima, preflight);
}

int
wm_preflight_look(wm_comm_t *comm, wm_preflight_t *preflight, wm_error_t *err)
{
    int come = look_for_exchange(comm->barrier, err);
    if (come < 0)
        wm_preflight_leave(comm);
    if (come <= 0)
        return come;
    int code = wm_preflight_conclude(comm, comm->barrier, preflight, err);
    return code < 0 ? code : 1;
}

typedef int
exchange_t(wm_comm_t *comm, wm_preflight_values_t *maxima,
           const wm_preflight_t *preflight, wm_error_t *err);

static int
preflight_make(wm_comm_t *comm, wm_preflight_t *preflight,
               exchange_t *exchange, wm_error_t *err)
{
    wm_preflight_values_t maxima;
    wm_error_t later;
    preflight_fill(comm, preflight, &maxima);
    int exchanged = exchange(comm, &maxima, preflight,
                             preflight->code < 0 ? &later : err);
    return exchanged > 0
               ? 1
               : preflight_judge(comm, preflight, &maxima, exchanged, err);
}

int
wm_preflight_run(wm_comm_t *comm, wm_preflight_t *preflight, wm_error_t *err)
{
    return preflight_make(comm, preflight, values_exchange, err);
}

int
wm_preflight_or_decline(wm_comm_t *comm, wm_preflight_t *preflight,
                        wm_error_t *err)
{
    return preflight_make(comm, preflight, values_ask, err);
}

int
wm_preflight_tell(wm_comm_t *comm, wm_coll_kind_t call, int code,
                  wm_error_t *err)
{
    wm_preflight_t preflight = {.call = call, .code = code};
    return wm_preflight_run(comm, &preflight, err);
}

int
wm_preflight_share(wm_comm_t *comm, const void *data, size_t nbytes,
                   wm_error_t *err)
{
    const wm_preflight_t preflight = {
        .all = 1,
        .data = data,
        .nbytes = nbytes,
    };
    wm_preflight_values_t nothing = {.all = 0};
    return values_exchange(comm, &nothing, &preflight, err);
}

const void *
wm_preflight_data(const wm_barrier_t *barrier, int rank)
{
    const slot_t *its = wm_barrier_published(barrier, rank);
    return its->data;
}

void *
wm_preflight_own_data(const wm_barrier_t *barrier)
{
    return (void *)wm_preflight_data(barrier, wm_barrier_rank(barrier));
}
