// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/run/coll_on_stream.h"

#include "comm/coll/call/stream_calls.h"
#include "comm/coll/direct/coll_gather.h"
#include "comm/coll/run/coll_engines.h"
#include "comm/coll/run/coll_tell.h"
#include "comm/coll/run/nonblocking.h"
#include "comm/coll/run/stream_watch.h"
#include "comm/coll/stream/coll_desc.h"
#include "comm/coll/stream/coll_order.h"
#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "cuda/device.h"
#include "cuda/event.h"
#include "cuda/settings.h"
#include "cuda/stream.h"

bool
wm_coll_on_stream_serves(wm_comm_t *comm, wm_coll_kind_t kind)
{
    return wm_coll_engines_on_stream(comm, kind) != 0;
}

static int
coll_on_stream_refuse_capture(const wm_coll_engine_t *engine, wm_error_t *err)
{
    return wm_error_set(err, WM_ERR_STATE, 0,
                        "collectives of the engine \"%s\" cannot be captured "
                        "into a graph: make the call outside of the capture",
                        engine->name);
}

// Refuses a call of ranks that no engine spans, or whose engines do no such
// calls.
static int
coll_on_stream_refuse(wm_comm_t *comm, wm_coll_kind_t kind, wm_error_t *err)
{
    if (wm_comm_is_one_host(comm) || comm->barrier != NULL
        || wm_hosts_find(comm).count == 1)
        return wm_error_set(
            err, WM_ERR_VALUE, 0,
            "a collective or a Fence on a stream needs at most %d ranks, all "
            "on one host and able to open each other's shared memory, and "
            "fewer than %d communicators in use; make the call without "
            "on(stream)",
            WM_BARRIER_RANKS, WM_BARRIER_ROWS);
    wm_coll_lacking_t lacking = wm_coll_tell_lacking(comm, kind, true);
    return wm_error_set(err, WM_ERR_VALUE, 0,
                        "%s on a stream between hosts has no engine (%s): "
                        "%smake the call without on(stream)",
                        wm_call_name(kind), lacking.text,
                        lacking.may ? "let one serve, or " : "");
}

// Enqueues a call whose arguments are wrong on this rank: through all engines,
// as only these arguments tell which one the others use.
static int
coll_on_stream_tell(wm_comm_t *comm, unsigned among,
                    const wm_coll_stream_t *on, wm_error_t *err)
{
    wm_error_t wrong = *err;
    int code = err->code;
    for (; among != 0; among &= among - 1) {
        const wm_coll_engine_t *engine = wm_coll_engines_at(
            __builtin_ctz(among));
        *err = wrong;
        code = engine->on_stream->enqueue(
            comm, wm_coll_engines_state(comm, engine), NULL, on, err);
    }
    return code;
}

// Returns a number of a stream. In a capture it is the stream's address, as
// the driver tells no id, and the stream lives.
static uint64_t
coll_on_stream_number(const wm_coll_stream_t *on)
{
    return on->capture != 0 ? (uint64_t)(uintptr_t)on->stream
                            : wm_stream_id(on->device, on->stream);
}

// Orders a call behind the last one of this communicator, which was maybe of
// another engine, on another stream: so kernels that wait for other ranks have
// one order on the GPUs of all ranks. Each engine orders its own calls.
static int
coll_on_stream_follow(wm_comm_t *comm, const wm_coll_stream_t *on,
                      wm_error_t *err)
{
    const wm_comm_last_t *last = &comm->colls.last[on->capture != 0];
    uint64_t stream = coll_on_stream_number(on);
    return last->end == NULL || last->device != on->device
                   || last->capture != on->capture
                   || (stream != 0 && last->stream == stream)
               ? 0
               : wm_stream_wait_event(on->device, on->stream, last->end, err);
}

static bool
coll_on_stream_is_marked(wm_comm_t *comm)
{
    return !wm_comm_is_one_host(comm)
           && wm_coll_engines_several_on_stream(comm);
}

// Makes the event that will mark the call, before other ranks can wait for it.
static int
coll_on_stream_ready(wm_comm_t *comm, const wm_coll_stream_t *on,
                     wm_error_t *err)
{
    wm_comm_last_t *last = &comm->colls.last[on->capture != 0];
    if (!coll_on_stream_is_marked(comm) || last->end != NULL)
        return 0;
    last->device = on->device;
    return wm_event_create(on->device, &last->end, err);
}

static int
coll_on_stream_mark(wm_comm_t *comm, const wm_coll_stream_t *on,
                    wm_error_t *err)
{
    wm_comm_last_t *last = &comm->colls.last[on->capture != 0];
    if (!coll_on_stream_is_marked(comm) || last->device != on->device)
        return 0;
    last->stream = coll_on_stream_number(on);
    last->capture = on->capture;
    int code = wm_coll_order_record(on, last->end, err);
    return code < 0 ? code : 0; // 1: it has ended, as has the one before it
}

// Gives a call to a stream by an engine, behind the call before it.
static int
coll_on_stream_pass(wm_comm_t *comm, const wm_coll_engine_t *engine,
                    const wm_coll_t *call, const wm_coll_stream_t *on,
                    wm_error_t *err)
{
    if (call != NULL
        && (coll_on_stream_follow(comm, on, err) < 0
            || coll_on_stream_ready(comm, on, err) < 0))
        call = NULL;
    int code = engine->on_stream->enqueue(
        comm, wm_coll_engines_state(comm, engine), call, on, err);
    return code < 0 ? code : coll_on_stream_mark(comm, on, err);
}

int
wm_coll_on_stream_give(wm_comm_t *comm, const wm_coll_engine_t *engine,
                       const wm_coll_t *call, int device, CUstream stream,
                       wm_error_t *err)
{
    bool has_work = false;
    const wm_coll_stream_t on = {
        .device = device,
        .stream = stream,
        .given = &has_work,
    };
    wm_stream_watch_begin(comm);
    int code = coll_on_stream_pass(comm, engine, call, &on, err);
    return wm_stream_watch_end(comm, &on, !engine->on_stream->watches, code,
                               err);
}

// Enqueues a call by the first of these engines that does it, which all ranks
// find alike.
static int
coll_on_stream_give(wm_comm_t *comm, wm_coll_kind_t kind, unsigned among,
                    const wm_coll_t *call, const wm_coll_stream_t *on,
                    const wm_coll_engine_t **engine, wm_error_t *err)
{
    if (call == NULL)
        return coll_on_stream_tell(comm, among, on, err);
    *engine = wm_coll_engines_first_on_stream(comm, among, call);
    if (*engine == NULL)
        return coll_on_stream_refuse(comm, kind, err);
    if (!(*engine)->on_stream->captures && on->capture != 0
        && coll_on_stream_refuse_capture(*engine, err) < 0)
        call = NULL;
    int code = coll_on_stream_pass(comm, *engine, call, on, err);
    if (code == 0)
        wm_coll_engines_count(*engine);
    return code;
}

// Waits for calls before this one that are not under way.
static int
coll_on_stream_await(wm_comm_t *comm, wm_error_t *err)
{
    if (wm_comm_is_one_host(comm))
        return 0;
    int code = wm_nonblocking_await(comm, err);
    return code < 0 ? code : wm_stream_watch_await(comm, err);
}

// With WARPMPI_CHECK compares the calls of all ranks between hosts, where no
// library tells a difference: all raise.
static int
coll_on_stream_compare(wm_comm_t *comm, wm_coll_kind_t kind,
                       const wm_coll_t *call, const wm_coll_stream_t *on,
                       wm_error_t *err)
{
    wm_coll_desc_t desc = {
        .call = call,
        .comm = comm,
        .device = on->device,
        .stream = on->stream,
    };
    uint64_t mine = 0, all[WM_BARRIER_RANKS];
    if (!wm_setting_is_on(WM_SETTING_CHECK) || on->capture != 0
        || comm->size > WM_BARRIER_RANKS)
        return 0;
    int code = call == NULL ? err->code : wm_coll_desc_fill(&desc, err);
    if (code == 0)
        mine = wm_coll_desc_hash(&desc);
    code = wm_coll_exchange(comm, wm_call_name(kind), code, &mine, sizeof mine,
                            all, err);
    for (int rank = 0; rank < comm->size && code == 0; ++rank)
        if (all[rank] != all[0])
            code = wm_error_set(err, WM_ERR_TYPE, 0,
                                "%s and %s give other counts, types, op or "
                                "root in %s on a stream: all must give the "
                                "same",
                                wm_comm_name(comm, 0).text,
                                wm_comm_name(comm, rank).text,
                                wm_call_name(kind));
    return code;
}

static int
coll_on_stream_enqueue(wm_comm_t *comm, wm_coll_kind_t kind,
                       const wm_coll_t *call, const wm_coll_stream_t *on,
                       const wm_coll_engine_t **engine, wm_error_t *err)
{
    if (comm->whole != comm)
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "an intercommunicator has no collectives on "
                            "streams; use it without on(stream)");
    unsigned among;
    wm_error_t late;
    if (coll_on_stream_await(comm, &late) < 0) {
        call = NULL; // a rank has died, or failed, or no memory is left
        *err = late;
    }
    int code = wm_coll_engines_open_on_stream(comm, kind, call, on, &among,
                                              err);
    if (code < 0 || among == 0)
        return code < 0 ? code : coll_on_stream_refuse(comm, kind, err);
    if (wm_comm_is_one_host(comm))
        return coll_on_stream_give(comm, kind, among, call, on, engine, err);
    code = coll_on_stream_compare(comm, kind, call, on, err);
    if (code < 0)
        return code;
    *engine = NULL;
    wm_stream_watch_begin(comm);
    if (call != NULL && on->capture != 0
        && wm_stream_calls_capture(comm, on->device, on->stream, on->capture,
                                   err)
               < 0)
        call = NULL;
    code = coll_on_stream_give(comm, kind, among, call, on, engine, err);
    bool marks = *engine != NULL && !(*engine)->on_stream->watches;
    return wm_stream_watch_end(comm, on, marks, code, err);
}

// Finds if the stream is captured. Returns `call`, or NULL if this fails. Of a
// capture that has failed on->capture is not 0, so that the call is no refused
// one of those that are not captured.
static const wm_coll_t *
coll_on_stream_look(wm_coll_stream_t *on, const wm_coll_t *call,
                    wm_error_t *err)
{
    wm_error_t other;
    int code = wm_stream_capture(on->device, on->stream, &on->capture,
                                 call != NULL ? err : &other);
    return code < 0 ? NULL : call;
}

int
wm_coll_on_stream_call(wm_comm_t *comm, wm_coll_kind_t kind,
                       const wm_coll_t *call, int device, CUstream stream,
                       wm_error_t *err)
{
    const wm_coll_engine_t *engine;
    bool has_work = false;
    wm_coll_stream_t on = {
        .device = device,
        .stream = stream,
        .given = &has_work,
    };
    wm_device_stay();
    call = coll_on_stream_look(&on, call, err);
    int code = coll_on_stream_enqueue(comm, kind, call, &on, &engine, err);
    wm_device_go();
    return code;
}

// The operation of a call on a stream, until the stream has passed the call.
typedef struct {
    wm_op_t op;
    wm_buffer_t kept;
    wm_comm_t *comm; // retained
    const wm_coll_engine_t *engine;
    int device;
    CUevent event;
    uint64_t place;
    unsigned looks;
} given_t;

// Returns the error of a call that the stream has passed, 0, or 1: not known.
static int
coll_on_stream_look_at(const given_t *given, wm_error_t *err)
{
    int code = given->engine->on_stream->look(
        given->comm, wm_coll_engines_state(given->comm, given->engine),
        given->place, err);
    if (code > 0 || wm_comm_is_one_host(given->comm))
        return code;
    if (code < 0)
        wm_stream_calls_fail(given->comm, err);
    else
        code = wm_stream_calls_look(given->comm, err);
    return code < 0 ? code : 0;
}

static bool
coll_on_stream_step(wm_op_t *op)
{
    given_t *given = (given_t *)op;
    wm_error_t err;
    bool done = false;
    if (wm_failure_is_due(&given->looks))
        wm_coll_engines_abort(given->comm, given->engine);
    int code = wm_event_done(given->device, given->event, &done, &err);
    if (code == 0 && done) // the stream has passed it: has it failed?
        code = coll_on_stream_look_at(given, &err);
    if (code < 0)
        wm_op_fail(op, &err);
    return code < 0 || (code == 0 && done);
}

static wm_buffer_t *
coll_on_stream_buffer_of(wm_op_t *op)
{
    return &((given_t *)op)->kept;
}

static void
free_given(wm_op_t *op)
{
    const given_t *given = (const given_t *)op;
    if (given->event != NULL)
        wm_event_release(given->device, given->event);
    wm_comm_release(given->comm);
}

static const wm_op_kind_t request_kind = {
    .step = coll_on_stream_step,
    .buffer = coll_on_stream_buffer_of,
    .free = free_given,
};

static int
coll_on_stream_begin(wm_comm_t *comm, wm_coll_kind_t kind,
                     const wm_coll_t *call, int device, CUstream stream,
                     wm_buffer_t *kept, wm_op_t **op, wm_error_t *err)
{
    const wm_coll_engine_t *engine;
    bool has_work = false;
    wm_coll_stream_t on = {
        .device = device,
        .stream = stream,
        .given = &has_work,
    };
    call = coll_on_stream_look(&on, call, err);
    int code = call == NULL ? err->code : 0;
    if (code == 0 && on.capture != 0)
        code = wm_error_set(err, WM_ERR_STATE, 0,
                            "a nonblocking collective cannot be captured into "
                            "a graph, as its request would end at once: make "
                            "the blocking call, which does not wait for the "
                            "stream either");
    if (code == 0)
        code = wm_engine_start(err);
    given_t *given = code == 0 ? wm_op_new(&request_kind, sizeof *given, NULL)
                               : NULL;
    if (code == 0 && given == NULL)
        code = wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    if (code == 0) {
        wm_comm_retain(comm);
        given->comm = comm;
        given->device = device;
        code = wm_event_acquire(device, &given->event, err);
    }
    int begun = coll_on_stream_enqueue(comm, kind, code < 0 ? NULL : call, &on,
                                       &engine, err);
    code = code < 0 ? code : begun;
    if (code == 0) {
        code = wm_coll_order_record(&on, given->event, err);
        given->engine = engine;
        given->place = engine->on_stream->place(
            comm, wm_coll_engines_state(comm, engine));
        if (code < 0)
            engine->on_stream->fail(comm);
    }
    if (code < 0) {
        if (given != NULL)
            wm_op_release(&given->op);
        return code;
    }
    given->kept = *kept;
    wm_engine_add(&given->op);
    wm_engine_notify();
    *op = &given->op;
    return 0;
}

int
wm_coll_on_stream_begin(wm_comm_t *comm, wm_coll_kind_t kind,
                        const wm_coll_t *call, int device, CUstream stream,
                        wm_buffer_t *kept, wm_op_t **op, wm_error_t *err)
{
    wm_device_stay();
    int code = coll_on_stream_begin(comm, kind, call, device, stream, kept, op,
                                    err);
    wm_device_go();
    return code;
}

// Returns what an engine does on streams; NULL: nothing.
static const wm_coll_on_stream_t *
coll_on_stream_row(int engine)
{
    return wm_coll_engines_at(engine)->on_stream;
}

int
wm_coll_on_stream_find_failure(wm_comm_t *comm, wm_error_t *err)
{
    int code = 0;
    for (int i = 0; i < WM_COLL_NUMBER_mpi && code == 0; ++i) {
        const wm_coll_on_stream_t *row = coll_on_stream_row(i);
        if (row != NULL && row->find_failure != NULL)
            code = row->find_failure(comm, comm->colls.state[i], err);
    }
    return code;
}

static bool
coll_on_stream_has_any(int engine)
{
    const wm_coll_on_stream_t *row = coll_on_stream_row(engine);
    return row != NULL && row->any != NULL && row->any();
}

bool
wm_coll_on_stream_any(void)
{
    int i = 0;
    while (i < WM_COLL_NUMBER_mpi && !coll_on_stream_has_any(i))
        ++i;
    return i < WM_COLL_NUMBER_mpi;
}

// Asks the engines of levels before those that are made of them.
int
wm_coll_on_stream_find_failures(wm_error_t *err)
{
    int code = 0;
    for (int i = WM_COLL_NUMBER_mpi - 1; i >= 0 && code == 0; --i)
        if (coll_on_stream_has_any(i))
            code = coll_on_stream_row(i)->find_failures(err);
    return code;
}
