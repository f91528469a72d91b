// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/nccl/nccl_comm.h"

#include <sched.h>
#include <stdlib.h>

#include "comm/coll/call/stream_calls.h"
#include "comm/coll/nccl/nccl_abort.h"
#include "comm/coll/nccl/nccl_private.h"
#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/engine/modules.h"
#include "cuda/capture.h"
#include "cuda/event.h"
#include "cuda/lock.h"
#include "cuda/stream.h"

#define WATCH_US 100000
#define REMOTE_US 8000000 // for MPI to tell which rank NCCL has lost
#define FINAL_TURNS 1000
#define BLOCKED_US 200000 // a call that takes so long waits for other ranks

static wm_nccl_comm_t *list;  // engine lock
static _Atomic int count;     // of the list
static _Atomic bool watching; // something of the list is to be looked at

wm_nccl_comm_t *
wm_nccl_comm_add(wm_nccl_comm_t *own)
{
    wm_engine_lock();
    own->next = list;
    list = own;
    atomic_fetch_add(&count, 1);
    wm_engine_unlock();
    return own;
}

// Runs `function` on the device of the communicator.
static void
nccl_comm_enter(wm_nccl_comm_t *own, void (*function)(wm_nccl_comm_t *own))
{
    wm_scope_t scope;
    if (wm_device_enter(own->device, &scope, NULL) < 0)
        return; // the context is lost, and NCCL with it
    function(own);
    wm_device_leave(&scope);
}

// Takes a handle, which only one thread ends.
static wm_nccl_handle_t *
nccl_comm_take(wm_nccl_handle_t **handle)
{
    return __atomic_exchange_n(handle, NULL, __ATOMIC_ACQ_REL);
}

void
wm_nccl_comm_abort(wm_nccl_comm_t *own)
{
    wm_nccl_abort_now(own->device, nccl_comm_take(&own->handle),
                      nccl_comm_take(&own->parent));
}

// Ends the parent, which does not block: it has no work.
static void
nccl_comm_end_parent(wm_nccl_handle_t *parent)
{
    wm_nccl_result_t state = wm_nccl.CommFinalize(parent);
    for (int i = 0; i < FINAL_TURNS && state == WM_NCCL_IN_PROGRESS; ++i)
        if (wm_nccl.CommGetAsyncError(parent, &state) != WM_NCCL_SUCCESS)
            break;
    if (state == WM_NCCL_SUCCESS)
        (void)wm_nccl.CommDestroy(parent);
    else
        (void)wm_nccl.CommAbort(parent);
}

static void
nccl_comm_destroy_both(wm_nccl_comm_t *own)
{
    wm_nccl_handle_t *handle = nccl_comm_take(&own->handle),
                     *parent = nccl_comm_take(&own->parent);
    if (handle != NULL)
        (void)wm_nccl.CommDestroy(handle);
    if (parent != NULL)
        nccl_comm_end_parent(parent);
}

void
wm_nccl_comm_free(wm_nccl_comm_t *own)
{
    if (own->last != NULL)
        wm_event_release(own->device, own->last);
    if (own->stream != NULL)
        wm_stream_destroy(own->device, own->stream);
    pthread_mutex_destroy(&own->lock);
    free(own);
}

// Takes it out of the list, so that this thread alone closes it.
static void
nccl_comm_unlink_lock_held(const wm_nccl_comm_t *own)
{
    wm_nccl_comm_t **at = &list;
    while (*at != own)
        at = &(*at)->next;
    *at = own->next;
    atomic_fetch_sub(&count, 1);
}

static void
nccl_comm_close(wm_nccl_comm_t *own)
{
    nccl_comm_enter(own, nccl_comm_destroy_both);
    wm_nccl_comm_free(own);
}

// A rank that has died, or whose communicator was revoked, waits for nobody in
// NCCL's destructor.
static void
nccl_comm_look_before_end(wm_nccl_comm_t *own)
{
    wm_error_t err;
    (void)!wm_nccl_comm_look(own, &err);
}

void
wm_nccl_comm_drop(wm_nccl_comm_t *own)
{
    nccl_comm_look_before_end(own);
    wm_engine_lock();
    own->comm = NULL;
    bool ended = atomic_load(&own->graphs) == 0;
    if (ended)
        nccl_comm_unlink_lock_held(own);
    wm_engine_unlock();
    if (ended)
        nccl_comm_close(own);
    else
        atomic_store(&watching, true);
}

static void
nccl_comm_graph_ended(void *object)
{
    wm_nccl_comm_t *own = object;
    atomic_fetch_sub(&own->graphs, 1);
}

int
wm_nccl_comm_keep(wm_nccl_comm_t *own, CUstream stream, wm_error_t *err)
{
    atomic_fetch_add(&own->graphs, 1);
    wm_nccl_comm_watch();
    return wm_capture_keep(own->device, stream, own, nccl_comm_graph_ended,
                           err);
}

// Looks for the dead of a rail, and of the communicator whose rail it is: a
// rank of this host that waited for one of them has no data to go on with.
static int
nccl_comm_look_for_dead(wm_comm_t *comm, wm_error_t *err)
{
    int code = wm_failure_look_at_all(comm, err);
    return code == 0 && comm->parent != NULL
               ? wm_failure_look_at_all((wm_comm_t *)comm->parent, err)
               : code;
}

void
wm_nccl_comm_note(wm_nccl_comm_t *own, CUevent passed)
{
    wm_lock(&own->lock);
    CUevent former = own->last;
    own->last = passed;
    ++own->given;
    pthread_mutex_unlock(&own->lock);
    if (former != NULL)
        wm_event_release(own->device, former);
    wm_nccl_comm_watch();
}

// Returns true if a call on a stream has not ended, or a thread is in one.
static bool
nccl_comm_is_used(wm_nccl_comm_t *own)
{
    bool done = true;
    if (pthread_mutex_trylock(&own->lock) != 0)
        return true;
    bool used = own->last != NULL
                && (wm_event_done(own->device, own->last, &done, NULL) < 0
                    || !done);
    pthread_mutex_unlock(&own->lock);
    return used;
}

// Sets *why to the death of a rank, if MPI knows of one.
static void
nccl_comm_find_cause(wm_nccl_comm_t *own, wm_error_t *why)
{
    wm_error_t cause;
    wm_engine_lock();
    if (own->comm != NULL && !wm_failure_is_cause(why)
        && wm_failure_is_told()) {
        wm_failure_release(own->comm);
        if (nccl_comm_look_for_dead(own->comm, &cause) < 0)
            *why = cause;
    }
    wm_engine_unlock();
}

// Lets the ranks of this host hear, before streams of ours go on with garbage
// to their kernels. The abort waits for kernels of ours that are before it.
static void
nccl_comm_tell_host(wm_nccl_comm_t *own)
{
    wm_engine_lock();
    const wm_comm_t *whole = own->comm;
    if (whole != NULL && whole->parent != NULL)
        whole = whole->parent;
    if (whole != NULL && whole->levels.open
        && (own->given > 0 || whole->levels.given)
        && whole->levels.local->size > 1 && wm_failure_is_told())
        (void)!wm_failure_revoke(whole->levels.local, NULL);
    wm_engine_unlock();
}

// Lets the other ranks hear of an error of this one.
static void
nccl_comm_revoke(wm_nccl_comm_t *own, const wm_error_t *why)
{
    wm_engine_lock();
    if (own->comm != NULL && !wm_failure_is_cause(why) && wm_failure_is_told())
        (void)!wm_failure_revoke(own->comm, NULL);
    wm_engine_unlock();
}

// Waits for a thread that is in a call, which takes microseconds. A thread
// that NCCL or the driver blocks, as the queue of launches is full, returns
// only once the communicator is aborted: then returns false.
static bool
nccl_comm_lock_soon(wm_nccl_comm_t *own)
{
    int64_t begun = wm_engine_now();
    while (pthread_mutex_trylock(&own->lock) != 0) {
        if (wm_engine_now() - begun > BLOCKED_US)
            return false;
        sched_yield();
    }
    return true;
}

static void
nccl_comm_break_one(wm_nccl_comm_t *own, wm_error_t *why)
{
    nccl_comm_find_cause(own, why);
    if (atomic_exchange(&own->breaking, true))
        return;
    own->failure = *why;
    atomic_store(&own->broken, true);
    nccl_comm_tell_host(own);
    bool locked = nccl_comm_lock_soon(own);
    wm_nccl_abort(own->device, nccl_comm_take(&own->handle),
                  nccl_comm_take(&own->parent));
    if (locked)
        pthread_mutex_unlock(&own->lock);
    nccl_comm_revoke(own, why);
    if (own->comm != NULL)
        wm_stream_calls_fail(own->comm, why);
}

// ncclCommAbort() frees page-locked memory. To do that the driver waits until
// the GPU is idle, and lets no thread launch anything. So the kernels of all
// communicators that wait for a rank that has died must leave at once.
static void
nccl_comm_break_others(void)
{
    wm_error_t err;
    wm_engine_lock();
    for (wm_nccl_comm_t *own = list; own != NULL; own = own->next)
        if (own->comm != NULL && !atomic_load(&own->breaking)
            && nccl_comm_look_for_dead(own->comm, &err) < 0)
            nccl_comm_break_one(own, &err);
    wm_engine_unlock();
}

void
wm_nccl_comm_break(wm_nccl_comm_t *own, wm_error_t *why)
{
    nccl_comm_break_one(own, why);
    if (wm_failure_is_told() && wm_failure_is_cause(why))
        nccl_comm_break_others();
}

int
wm_nccl_comm_failure(const wm_nccl_comm_t *own, wm_error_t *err)
{
    if (!atomic_load(&own->broken))
        return 0;
    *err = own->failure;
    return err->code;
}

// Returns the error that NCCL has found since.
static int
nccl_comm_look_at_nccl(wm_nccl_comm_t *own, wm_error_t *err)
{
    wm_nccl_result_t state = WM_NCCL_SUCCESS;
    wm_scope_t scope;
    if (pthread_mutex_trylock(&own->lock) != 0)
        return 0; // a thread is in a call
    int code = wm_device_enter(own->device, &scope, err);
    if (code == 0) {
        if (own->handle != NULL)
            code = WM_NCCL(err, CommGetAsyncError, own->handle, &state);
        if (code == 0)
            code = wm_nccl_check(state, "a collective of NCCL", err);
        wm_device_leave(&scope);
    }
    pthread_mutex_unlock(&own->lock);
    int64_t now = wm_engine_now();
    if (own->remote == 0 && state == WM_NCCL_REMOTE_ERROR)
        own->remote = now;
    return state == WM_NCCL_REMOTE_ERROR && now - own->remote < REMOTE_US
               ? 0
               : code;
}

bool
wm_nccl_comm_lost(const wm_nccl_comm_t *own, const wm_error_t *err)
{
    return err->code == WM_ERR_STATE && err->detail == WM_NCCL_REMOTE_ERROR
           && !atomic_load(&own->broken) && wm_failure_is_told();
}

// Returns the error of a rank that has refused a call on a stream, or failed
// in one. Engine lock held.
static int
nccl_comm_look_at_calls(const wm_comm_t *comm, wm_error_t *err)
{
    wm_stream_calls_t *calls = comm->owner->colls.stream_calls;
    if (calls != NULL)
        wm_stream_calls_hear(calls);
    int code = wm_stream_calls_look(comm, err);
    return code < 0 ? code : 0;
}

int
wm_nccl_comm_look(wm_nccl_comm_t *own, wm_error_t *err)
{
    int code = 0;
    if (!atomic_load(&own->broken)) {
        wm_engine_lock();
        if (own->comm != NULL && wm_failure_is_told())
            code = nccl_comm_look_for_dead(own->comm, err);
        if (own->comm != NULL && code == 0)
            code = nccl_comm_look_at_calls(own->comm, err);
        wm_engine_unlock();
        if (code == 0)
            code = nccl_comm_look_at_nccl(own, err);
        if (code < 0)
            wm_nccl_comm_break(own, err);
    }
    return wm_nccl_comm_failure(own, err);
}

int
wm_nccl_comm_find_failure(wm_nccl_comm_t *own, wm_error_t *err)
{
    if (own == NULL || own->told || own->given == 0
        || !atomic_load(&own->broken))
        return 0;
    own->told = true;
    return own->comm != NULL && wm_stream_calls_has_refused(own->comm)
               ? 0 // which this rank has raised as an error
               : wm_nccl_comm_failure(own, err);
}

int
wm_nccl_find_failures(wm_error_t *err)
{
    int code = 0;
    wm_engine_lock();
    for (wm_nccl_comm_t *own = list; own != NULL && code == 0; own = own->next)
        code = wm_nccl_comm_find_failure(own, err);
    wm_engine_unlock();
    return code;
}

bool
wm_nccl_any(void)
{
    return atomic_load(&count) > 0;
}

void
wm_nccl_comm_watch(void)
{
    if (!atomic_exchange(&watching, true))
        wm_engine_notify();
}

// Returns true if work may wait on a stream of the program's.
static bool
nccl_comm_is_watched(wm_nccl_comm_t *own)
{
    if (atomic_load(&own->broken))
        return false;
    if (atomic_load(&own->graphs) > 0)
        return true;
    return own->comm != NULL && nccl_comm_is_used(own);
}

// Looks at each. Returns one that no graph needs any more; NULL: none.
static wm_nccl_comm_t *
nccl_comm_look_at_all(bool *any)
{
    wm_nccl_comm_t *ended = NULL;
    wm_error_t err;
    for (wm_nccl_comm_t *own = list; own != NULL; own = own->next) {
        *any |= own->comm == NULL;
        if (own->comm == NULL && atomic_load(&own->graphs) == 0)
            ended = own;
        if (!nccl_comm_is_watched(own))
            continue;
        *any = true;
        (void)!wm_nccl_comm_look(own, &err);
    }
    return ended;
}

static void
nccl_comm_serve(bool waited)
{
    (void)waited;
    static _Atomic int64_t looked;
    int64_t now = wm_engine_now();
    wm_nccl_comm_t *ended = NULL;
    bool any = false;
    if (!atomic_load(&watching) || now - looked < WATCH_US
        || !wm_engine_try_lock())
        return;
    looked = now;
    atomic_store(&watching, false);
    ended = nccl_comm_look_at_all(&any);
    if (ended != NULL)
        nccl_comm_unlink_lock_held(ended);
    wm_engine_unlock();
    if (ended != NULL)
        nccl_comm_close(ended);
    if (any)
        atomic_store(&watching, true);
}

static int64_t
nccl_comm_rest(void)
{
    return atomic_load(&watching) ? WATCH_US : 0;
}

// Ends those that have nothing under way. Others end with the process.
static void
nccl_comm_finish(void)
{
    for (wm_nccl_comm_t *own = list, *next; own != NULL; own = next) {
        next = own->next;
        bool idle = false;
        if (!atomic_load(&own->broken) && !nccl_comm_is_watched(own)
            && wm_stream_idle(own->device, own->stream, &idle, NULL) == 0
            && idle)
            nccl_comm_enter(own, nccl_comm_destroy_both);
    }
    wm_nccl_abort_finish();
}

const wm_module_t wm_nccl_module = {
    .end = nccl_comm_finish,
    .serve = nccl_comm_serve,
    .rest = nccl_comm_rest,
};
