// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/call/stream_calls.h"

#include <stdio.h>
#include <stdlib.h>

#include "comm/coll/call/graph_memory.h"
#include "comm/comm/failure.h"
#include "comm/engine/engine.h"

#define LACKS WM_STREAM_NOTICE_LACKS
#define LACKS_US 5000000 // time in which a rank captures again

static wm_stream_calls_t *list; // engine lock

static int
notice_tag(const wm_comm_t *comm)
{
    return comm->tag_limit - 2;
}

static wm_stream_calls_t *
stream_calls_of(const wm_comm_t *comm)
{
    return comm->owner->colls.stream_calls;
}

int
wm_stream_calls_make(wm_comm_t *comm, wm_error_t *err)
{
    if (comm->owner != comm || comm->colls.stream_calls != NULL)
        return 0;
    wm_stream_calls_t *calls = calloc(1, sizeof *calls);
    uint64_t *heard = calloc(2 * (size_t)comm->size, sizeof *heard);
    if (calls == NULL || heard == NULL) {
        free(calls);
        free(heard);
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    }
    calls->comm = comm;
    calls->heard = heard;
    calls->lacking_in = heard + comm->size;
    wm_engine_lock();
    calls->next = list;
    list = comm->colls.stream_calls = calls;
    wm_engine_unlock();
    return 0;
}

void
wm_stream_calls_drop(wm_comm_t *comm)
{
    wm_stream_calls_t *calls = comm->colls.stream_calls, **at = &list;
    if (calls == NULL)
        return;
    wm_engine_lock();
    while (*at != calls)
        at = &(*at)->next;
    *at = calls->next;
    wm_engine_unlock();
    if (calls->end != NULL)
        wm_event_destroy(calls->device, calls->end);
    wm_graph_marks_leave(calls);
    free(calls->heard);
    free(calls);
    comm->colls.stream_calls = NULL;
}

wm_stream_calls_t *
wm_stream_calls_all(void)
{
    return list;
}

// Sends a notice to all others; a rank that has died gets none.
static void
notice_send(const wm_stream_calls_t *calls, wm_stream_notice_t *notice,
            uint64_t number, const wm_error_t *why)
{
    wm_comm_t *comm = calls->comm;
    notice->number = number;
    snprintf(notice->text, sizeof notice->text, "%s", why->text);
    for (int rank = 0; rank < comm->size; ++rank) {
        MPI_Request request;
        if (rank != comm->rank
            && MPI_Isend(notice, (int)sizeof *notice, MPI_BYTE, rank,
                         notice_tag(comm), comm->data, &request)
                   == MPI_SUCCESS)
            wm_posted_leave(comm, &request);
    }
}

// Notes what another rank has told, as an error of this one: that the
// communicator was revoked, where MPI tells of that.
static void
stream_calls_fail_by(wm_stream_calls_t *calls, int rank, const char *what,
                     const char *text)
{
    const wm_comm_t *comm = calls->comm;
    wm_error_t why;
    int code = WM_ERR_STATE, detail = 0;
    if (wm_failure_is_told()) {
        code = wm_failure_set(comm, comm->size, &why);
        detail = why.detail;
    }
    (void)wm_error_set(&why, code, detail,
                       "%s %s, and this communicator makes no more calls on "
                       "streams; another one may (Dup)%s%s",
                       wm_comm_name(comm, rank).text, what,
                       text[0] != 0 ? ". Its error: " : "", text);
    wm_stream_calls_fail(comm, &why);
}

// Finds calls that other ranks have refused, and this one has begun.
static void
stream_calls_judge(wm_stream_calls_t *calls)
{
    uint64_t settled = calls->settled, refused = calls->refused;
    bool all = refused > settled;
    for (int rank = 0; rank < calls->comm->size; ++rank) {
        uint64_t its = calls->heard[rank];
        if (rank == calls->comm->rank)
            continue;
        if (its > settled && its <= calls->last && its != refused)
            stream_calls_fail_by(calls, rank,
                                 "refused a collective on a stream that this "
                                 "rank had begun",
                                 "");
        all &= its >= refused;
    }
    if (all)
        calls->settled = refused;
}

// Takes a notice about captured calls.
static void
notice_take_captured(wm_stream_calls_t *calls, int rank,
                     const wm_stream_notice_t *notice)
{
    bool lacks = notice->number < 2 * LACKS;
    calls->lacking_in[rank] = lacks ? notice->number - LACKS : 0;
    if (!lacks)
        return;
    calls->lacks_since = wm_engine_now();
    calls->lack_of = rank;
    calls->lack = *notice;
    calls->lack.text[sizeof notice->text - 1] = 0;
}

// Returns true if a graph has begun that may wait for the call which a rank's
// graph lacks. Captures are counted by each rank, and a rank may capture
// alone: a capture that this rank has not come to counts as its last one.
static bool
stream_calls_may_wait(const wm_stream_calls_t *calls, int rank)
{
    uint64_t its = calls->lacking_in[rank], own = calls->captures;
    return its != 0 && wm_graph_marks_any(calls, its < own ? its : own, true);
}

// Fails if graphs have waited for long, or may have.
static void
stream_calls_judge_captured(wm_stream_calls_t *calls)
{
    if (calls->refused_in != 0
        || wm_engine_now() - calls->lacks_since <= LACKS_US)
        return;
    for (int rank = 0; rank < calls->comm->size; ++rank)
        if (stream_calls_may_wait(calls, rank)) {
            calls->found = true;
            stream_calls_fail_by(calls, rank,
                                 "refused a collective that was captured into "
                                 "a CUDA graph, and whose graph lacks it",
                                 rank == calls->lack_of ? calls->lack.text
                                                        : "");
        }
}

static void
notice_take(wm_stream_calls_t *calls, int rank,
            const wm_stream_notice_t *notice)
{
    if (notice->number >= LACKS) {
        notice_take_captured(calls, rank, notice);
        return;
    }
    char text[sizeof notice->text];
    snprintf(text, sizeof text, "%.*s", (int)sizeof text - 1, notice->text);
    if (notice->number == 0) {
        calls->heard_of_it = true;
        stream_calls_fail_by(calls, rank, "failed in a collective on a stream",
                             text);
        return;
    }
    uint64_t refused = calls->refused, before = calls->heard[rank];
    if (refused > calls->settled && before < refused
        && notice->number > refused)
        stream_calls_fail_by(calls, rank,
                             "has begun a collective on a stream that this "
                             "rank refused",
                             "");
    else if (notice->number <= calls->last && notice->number != refused)
        stream_calls_fail_by(calls, rank,
                             "refused a collective on a stream that this "
                             "rank had begun",
                             text);
    calls->heard[rank] = notice->number;
}

void
wm_stream_calls_hear(wm_stream_calls_t *calls)
{
    const wm_comm_t *comm = calls->comm;
    wm_stream_notice_t notice;
    MPI_Status status;
    int tag = notice_tag(comm), flag = 0;
    // An error, as of a rank that has died, is found where we look for those.
    while (!atomic_load(&calls->broken)
           && MPI_Iprobe(MPI_ANY_SOURCE, tag, comm->data, &flag, &status)
                  == MPI_SUCCESS
           && flag
           && MPI_Recv(&notice, (int)sizeof notice, MPI_BYTE,
                       status.MPI_SOURCE, tag, comm->data, MPI_STATUS_IGNORE)
                  == MPI_SUCCESS)
        notice_take(calls, status.MPI_SOURCE, &notice);
    stream_calls_judge(calls);
    stream_calls_judge_captured(calls);
}

void
wm_stream_calls_count(wm_comm_t *comm)
{
    wm_stream_calls_t *calls = stream_calls_of(comm);
    wm_engine_lock();
    ++calls->last;
    wm_engine_unlock();
}

void
wm_stream_calls_refuse(wm_comm_t *comm, const wm_error_t *why)
{
    wm_stream_calls_t *calls = stream_calls_of(comm);
    wm_engine_lock();
    calls->refused = ++calls->last;
    notice_send(calls, &calls->refusal, calls->last, why);
    stream_calls_judge(calls);
    wm_engine_unlock();
}

// Engine lock held.
static void
stream_calls_count_capture(wm_stream_calls_t *calls, uint64_t capture)
{
    if (calls->captured_in == capture)
        return;
    calls->captured_in = capture;
    ++calls->captures;
    calls->marked = false;
}

int
wm_stream_calls_capture(wm_comm_t *comm, int device, CUstream stream,
                        uint64_t capture, wm_error_t *err)
{
    wm_stream_calls_t *calls = stream_calls_of(comm);
    wm_engine_lock();
    stream_calls_count_capture(calls, capture);
    bool marked = calls->marked;
    calls->marked = true;
    uint64_t number = calls->captures;
    wm_engine_unlock();
    return marked ? 0
                  : wm_graph_marks_begin(calls, device, stream, number, err);
}

void
wm_stream_calls_captured(wm_comm_t *comm, uint64_t capture)
{
    wm_stream_calls_t *calls = stream_calls_of(comm);
    const wm_error_t nothing = {.text = ""};
    wm_engine_lock();
    calls->lacks_since = wm_engine_now(); // this rank may have been late
    if (calls->refused_in != 0 && calls->refused_in != capture) {
        calls->refused_in = 0;
        notice_send(calls, &calls->again, 2 * LACKS, &nothing);
    }
    wm_engine_unlock();
}

void
wm_stream_calls_lack(wm_comm_t *comm, uint64_t capture, const wm_error_t *why)
{
    wm_stream_calls_t *calls = stream_calls_of(comm);
    wm_engine_lock();
    stream_calls_count_capture(calls, capture);
    if (calls->refused_in == 0)
        notice_send(calls, &calls->lacks, LACKS + calls->captures, why);
    calls->refused_in = capture;
    wm_engine_unlock();
}

bool
wm_stream_calls_are_captured(const wm_stream_calls_t *calls)
{
    return wm_graph_marks_any(calls, 0, false) || calls->refused_in != 0;
}

void
wm_stream_calls_fail(const wm_comm_t *comm, const wm_error_t *why)
{
    wm_stream_calls_t *calls = stream_calls_of(comm);
    if (calls == NULL || !calls->used
        || atomic_exchange(&calls->breaking, true))
        return;
    calls->failure = *why;
    atomic_store(&calls->broken, true);
}

void
wm_stream_calls_tell(wm_stream_calls_t *calls)
{
    if (!calls->heard_of_it
        && (calls->found || !wm_failure_is_cause(&calls->failure)))
        notice_send(calls, &calls->ending, 0, &calls->failure);
}

bool
wm_stream_calls_has_refused(const wm_comm_t *comm)
{
    const wm_stream_calls_t *calls = stream_calls_of(comm);
    return calls != NULL && calls->refused > calls->settled;
}

int
wm_stream_calls_look(const wm_comm_t *comm, wm_error_t *err)
{
    wm_stream_calls_t *calls = stream_calls_of(comm);
    if (calls == NULL)
        return 1;
    if (calls->refused > calls->settled && !atomic_load(&calls->broken)) {
        wm_engine_lock();
        wm_stream_calls_hear(calls);
        wm_engine_unlock();
    }
    if (atomic_load(&calls->broken)) {
        *err = calls->failure;
        return err->code;
    }
    return calls->refused == calls->settled;
}
