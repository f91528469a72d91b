// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/run/stream_watch.h"

#include "comm/coll/call/coll_wait.h"
#include "comm/coll/call/stream_calls.h"
#include "comm/coll/run/coll_engines.h"
#include "comm/coll/stream/coll_order.h"
#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/engine/modules.h"

#define WATCH_US 100000

static _Atomic bool watching; // something is to be looked at

static void
stream_watch_wake(void)
{
    if (!atomic_exchange(&watching, true))
        wm_engine_notify();
}

void
wm_stream_watch_begin(wm_comm_t *comm)
{
    wm_stream_calls_t *calls = comm->colls.stream_calls;
    calls->used = true;
    atomic_store(&calls->giving, true);
    stream_watch_wake();
}

static int
stream_watch_mark(wm_comm_t *comm, const wm_coll_stream_t *on, wm_error_t *err)
{
    wm_stream_calls_t *calls = comm->colls.stream_calls;
    int code = 0;
    if (calls->end == NULL) {
        calls->device = on->device;
        code = wm_event_create(on->device, &calls->end, err);
    }
    code = code < 0 ? wm_coll_order_wait(on, code)
                    : wm_coll_order_record(on, calls->end, err);
    return code < 0 ? code : 0;
}

// Ends what waits on streams, on all levels, and tells the other ranks.
static void
stream_watch_fail(wm_stream_calls_t *calls)
{
    wm_comm_t *comm = calls->comm;
    wm_error_t why = calls->failure;
    calls->ended = true;
    wm_stream_calls_tell(calls);
    if (wm_failure_is_told() && !wm_failure_is_cause(&why))
        (void)!wm_failure_revoke(comm, NULL);
    wm_coll_engines_revoke(comm, &why);
}

int
wm_stream_watch_end(wm_comm_t *comm, const wm_coll_stream_t *on, bool marks,
                    int code, wm_error_t *err)
{
    bool captured = on->capture != 0;
    const wm_comm_last_t *last = &comm->colls.last[0]; // marks every call
    bool marked = last->end != NULL && last->device == on->device;
    if (code == 0 && marks && !marked && !captured)
        code = stream_watch_mark(comm, on, err);
    if (code < 0 && *on->given && !captured)
        wm_stream_calls_fail(comm, err);
    else if (code < 0 && !captured)
        wm_stream_calls_refuse(comm, err);
    else if (code < 0)
        wm_stream_calls_lack(comm, on->capture, err);
    else if (captured)
        wm_stream_calls_captured(comm, on->capture);
    if (!captured && (code == 0 || *on->given))
        wm_stream_calls_count(comm);
    atomic_store(&comm->colls.stream_calls->giving, false);
    return code;
}

static int
stream_watch_look_settled(void *context, wm_error_t *err)
{
    return wm_stream_calls_look(context, err);
}

int
wm_stream_watch_await(wm_comm_t *comm, wm_error_t *err)
{
    return wm_coll_wait(comm, stream_watch_look_settled, comm, 1, err);
}

static bool
stream_watch_has_passed(int device, CUevent event)
{
    bool done = true;
    return event == NULL
           || (wm_event_done(device, event, &done, NULL) == 0 && done);
}

// Returns true if something may wait for a rank that never comes.
static bool
stream_watch_waits(const wm_stream_calls_t *calls)
{
    const wm_comm_last_t *last = &calls->comm->colls.last[0];
    return atomic_load(&calls->giving) || calls->refused > calls->settled
           || atomic_load(&calls->broken)
           || wm_stream_calls_are_captured(calls)
           || !stream_watch_has_passed(calls->device, calls->end)
           || !stream_watch_has_passed(last->device, last->end);
}

static void
stream_watch_look(wm_stream_calls_t *calls)
{
    wm_comm_t *comm = calls->comm;
    wm_error_t err;
    wm_stream_calls_hear(calls);
    if (!atomic_load(&calls->broken) && wm_failure_is_told()
        && wm_failure_look_at_all(comm, &err) < 0)
        wm_stream_calls_fail(comm, &err);
    for (unsigned left = comm->colls.opened;
         left != 0 && !atomic_load(&calls->broken); left &= left - 1)
        wm_coll_engines_abort(comm, wm_coll_engines_at(__builtin_ctz(left)));
    if (atomic_load(&calls->broken))
        stream_watch_fail(calls);
}

static void
stream_watch_serve(bool waited)
{
    static _Atomic int64_t looked;
    int64_t now = wm_engine_now();
    bool any = false;
    (void)waited;
    if (!atomic_load(&watching) || now - looked < WATCH_US
        || !wm_engine_try_lock())
        return;
    looked = now;
    atomic_store(&watching, false);
    for (wm_stream_calls_t *calls = wm_stream_calls_all(); calls != NULL;
         calls = calls->next)
        if (!calls->ended && stream_watch_waits(calls)) {
            any = true;
            stream_watch_look(calls);
        }
    wm_engine_unlock();
    if (any)
        atomic_store(&watching, true);
}

static int64_t
stream_watch_rest(void)
{
    return atomic_load(&watching) ? WATCH_US : 0;
}

const wm_module_t wm_stream_watch_module = {
    .serve = stream_watch_serve,
    .rest = stream_watch_rest,
};
