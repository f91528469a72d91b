// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/movers/mover_comm.h"

#include <sched.h>
#include <stdlib.h>

#include "comm/coll/call/stream_calls.h"
#include "comm/coll/movers/mover_abort.h"
#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/engine/modules.h"
#include "comm/node/mapping.h"
#include "cuda/capture.h"
#include "cuda/event.h"
#include "cuda/freeing.h"
#include "cuda/lock.h"
#include "cuda/stream.h"

#define WATCH_US 100000
#define REMOTE_US 8000000 // for MPI to tell which rank is lost
#define BLOCKED_US 200000 // a call that takes so long waits for other ranks

static wm_mover_comm_t *list; // either lock to read, both to change it
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int count;     // of the list
static _Atomic int giving;    // begun, and not ended
static _Atomic int dropped;   // those of the list without `comm`
static _Atomic bool watching; // something of the list is to be looked at

void
wm_mover_comm_add(wm_mover_comm_t *own)
{
    wm_engine_lock();
    wm_lock(&list_lock);
    own->next = list;
    list = own;
    atomic_fetch_add(&count, 1);
    pthread_mutex_unlock(&list_lock);
    wm_engine_unlock();
}

// Runs `function` on the device of the communicator.
static void
mover_comm_enter(wm_mover_comm_t *own, void (*function)(wm_mover_comm_t *own))
{
    wm_scope_t scope;
    if (wm_device_enter(own->device, &scope, NULL) < 0)
        return; // the context is lost, and all that it has
    function(own);
    wm_device_leave(&scope);
}

// Takes a handle, which only one thread ends.
static void *
mover_comm_take(void **handle)
{
    return __atomic_exchange_n(handle, NULL, __ATOMIC_ACQ_REL);
}

void
wm_mover_comm_abort(wm_mover_comm_t *own)
{
    void *handle = mover_comm_take(&own->handle);
    wm_mover_abort_now(own->movers, own->device, handle,
                       mover_comm_take(&own->parent));
}

static void
mover_comm_destroy(wm_mover_comm_t *own)
{
    void *handle = mover_comm_take(&own->handle);
    void *parent = mover_comm_take(&own->parent);
    if (handle != NULL || parent != NULL)
        own->movers->destroy(handle, parent);
}

void
wm_mover_comm_free(wm_mover_comm_t *own)
{
    wm_mover_abort_forget(&own->graphs);
    if (own->last != NULL)
        wm_event_release(own->device, own->last);
    if (own->stream != NULL)
        wm_stream_destroy(own->device, own->stream);
    pthread_mutex_destroy(&own->lock);
    free(own);
}

// Returns true if a call on a stream has not ended, or a thread is in one.
static bool
mover_comm_is_used(wm_mover_comm_t *own)
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

// Returns true if a call that a stream has, or is being given, may wait for
// another rank.
static bool
mover_comm_any_waits(void)
{
    bool any = false;
    if (atomic_load(&giving) > 0)
        return true;
    if (atomic_load(&count) == 0)
        return false;
    if (pthread_mutex_trylock(&list_lock) != 0)
        return true;
    for (wm_mover_comm_t *own = list; own != NULL && !any; own = own->next) {
        bool idle = true;
        any = !atomic_load(&own->broken)
              && (mover_comm_is_used(own)
                  || wm_stream_idle(own->device, own->stream, &idle, NULL) < 0
                  || !idle);
    }
    pthread_mutex_unlock(&list_lock);
    return any;
}

bool
wm_mover_comm_begin_giving(void)
{
    atomic_fetch_add(&giving, 1);
    bool may = !wm_freeing_any();
    if (!may)
        wm_mover_comm_end_giving();
    return may;
}

void
wm_mover_comm_end_giving(void)
{
    atomic_fetch_sub(&giving, 1);
}

// Takes one out of the list that nobody needs, so that this thread alone
// closes it. NULL: none, or a stream may wait for another rank.
static wm_mover_comm_t *
mover_comm_take_ended(void)
{
    wm_engine_lock();
    wm_mover_comm_t **at = &list;
    while (*at != NULL
           && ((*at)->comm != NULL || atomic_load(&(*at)->graphs) > 0))
        at = &(*at)->next;
    wm_mover_comm_t *ended = *at;
    if (ended != NULL && wm_mapping_would_wait())
        ended = NULL;
    if (ended != NULL) {
        wm_lock(&list_lock);
        *at = ended->next;
        pthread_mutex_unlock(&list_lock);
        atomic_fetch_sub(&count, 1);
        atomic_fetch_sub(&dropped, 1);
    }
    wm_engine_unlock();
    return ended;
}

// Closes those that nobody needs. The library frees memory, for which the
// driver waits until the GPU is idle, and which would end a capture of the
// program. So threads of the program do this.
static void
mover_comm_close_ended(void)
{
    wm_mover_comm_t *own = NULL;
    if (atomic_load(&dropped) == 0 || wm_engine_is_background())
        return;
    wm_freeing_begin();
    while ((own = mover_comm_take_ended()) != NULL) {
        mover_comm_enter(own, mover_comm_destroy);
        wm_mover_comm_free(own);
    }
    wm_freeing_end();
}

wm_mover_comm_t *
wm_mover_comm_new(wm_comm_t *comm, const wm_movers_t *movers, int device,
                  wm_error_t *err)
{
    wm_mover_abort_finish();
    mover_comm_close_ended();
    wm_mover_comm_t *own = calloc(1, sizeof *own);
    if (own == NULL) {
        (void)wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
        return NULL;
    }
    own->comm = comm;
    own->movers = movers;
    own->device = device;
    pthread_mutex_init(&own->lock, NULL);
    int code = wm_stream_create(device, &own->stream, err);
    if (code == 0)
        return own;
    wm_mover_comm_free(own);
    return NULL;
}

// A rank that has died, or whose communicator was revoked, waits for nobody in
// the library's destructor.
static void
mover_comm_look_before_end(wm_mover_comm_t *own)
{
    wm_error_t err;
    (void)!wm_mover_comm_look(own, &err);
}

void
wm_mover_comm_drop(wm_mover_comm_t *own)
{
    mover_comm_look_before_end(own);
    wm_engine_lock();
    own->comm = NULL;
    atomic_fetch_add(&dropped, 1);
    wm_engine_unlock();
    wm_mover_comm_watch();
    mover_comm_close_ended();
}

static void
mover_comm_graph_ended(void *object)
{
    wm_mover_comm_t *own = object;
    atomic_fetch_sub(&own->graphs, 1);
}

int
wm_mover_comm_keep(wm_mover_comm_t *own, CUstream stream, wm_error_t *err)
{
    atomic_fetch_add(&own->graphs, 1);
    wm_mover_comm_watch();
    return wm_capture_keep(own->device, stream, own, mover_comm_graph_ended,
                           err);
}

// Looks for the dead of a rail, and of the communicator whose rail it is: a
// rank of this host that waited for one of them has no data to go on with.
static int
mover_comm_look_for_dead(wm_comm_t *comm, wm_error_t *err)
{
    int code = wm_failure_look_at_all(comm, err);
    return code == 0 && comm->parent != NULL
               ? wm_failure_look_at_all((wm_comm_t *)comm->parent, err)
               : code;
}

void
wm_mover_comm_note(wm_mover_comm_t *own, CUevent passed)
{
    wm_lock(&own->lock);
    CUevent former = own->last;
    own->last = passed;
    ++own->given;
    pthread_mutex_unlock(&own->lock);
    if (former != NULL)
        wm_event_release(own->device, former);
    wm_mover_comm_watch();
}

// Sets *why to the death of a rank, if MPI knows of one.
static void
mover_comm_find_cause(wm_mover_comm_t *own, wm_error_t *why)
{
    wm_error_t cause;
    wm_engine_lock();
    if (own->comm != NULL && !wm_failure_is_cause(why)
        && wm_failure_is_told()) {
        wm_failure_release(own->comm);
        if (mover_comm_look_for_dead(own->comm, &cause) < 0)
            *why = cause;
    }
    wm_engine_unlock();
}

// Lets the ranks of this host hear, before streams of ours go on with garbage
// to their kernels. The abort waits for kernels of ours that are before it.
static void
mover_comm_tell_host(wm_mover_comm_t *own)
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
mover_comm_revoke(wm_mover_comm_t *own, const wm_error_t *why)
{
    wm_engine_lock();
    if (own->comm != NULL && !wm_failure_is_cause(why) && wm_failure_is_told())
        (void)!wm_failure_revoke(own->comm, NULL);
    wm_engine_unlock();
}

// Waits for a thread that is in a call, which takes microseconds. A thread
// that the library or the driver blocks, as the queue of launches is full,
// returns only once the communicator is aborted: then returns false.
static bool
mover_comm_lock_soon(wm_mover_comm_t *own)
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
mover_comm_break_one(wm_mover_comm_t *own, wm_error_t *why)
{
    mover_comm_find_cause(own, why);
    if (atomic_exchange(&own->breaking, true))
        return;
    own->failure = *why;
    atomic_store(&own->broken, true);
    mover_comm_tell_host(own);
    bool locked = mover_comm_lock_soon(own);
    wm_mover_abort(own->movers, own->device, mover_comm_take(&own->handle),
                   mover_comm_take(&own->parent), &own->graphs);
    if (locked)
        pthread_mutex_unlock(&own->lock);
    mover_comm_revoke(own, why);
    if (own->comm != NULL)
        wm_stream_calls_fail(own->comm, why);
}

// An abort, such as ncclCommAbort(), frees page-locked memory. To do that the
// driver waits until the GPU is idle, and lets no thread launch anything. So
// the kernels of all communicators that wait for a dead rank leave at once.
static void
mover_comm_break_others(void)
{
    wm_error_t err;
    wm_engine_lock();
    for (wm_mover_comm_t *own = list; own != NULL; own = own->next)
        if (own->comm != NULL && !atomic_load(&own->breaking)
            && mover_comm_look_for_dead(own->comm, &err) < 0)
            mover_comm_break_one(own, &err);
    wm_engine_unlock();
}

void
wm_mover_comm_break(wm_mover_comm_t *own, wm_error_t *why)
{
    mover_comm_break_one(own, why);
    if (wm_failure_is_told() && wm_failure_is_cause(why))
        mover_comm_break_others();
}

int
wm_mover_comm_failure(const wm_mover_comm_t *own, wm_error_t *err)
{
    if (!atomic_load(&own->broken))
        return 0;
    *err = own->failure;
    return err->code;
}

static bool
mover_comm_tells_loss(const wm_mover_comm_t *own, const wm_error_t *err)
{
    return own->movers->lost != NULL && own->movers->lost(err);
}

// Returns the error that the library has found since.
static int
mover_comm_look_at_library(wm_mover_comm_t *own, wm_error_t *err)
{
    wm_scope_t scope;
    if (own->movers->look == NULL || pthread_mutex_trylock(&own->lock) != 0)
        return 0; // a thread is in a call
    int code = wm_device_enter(own->device, &scope, err);
    if (code == 0) {
        if (own->handle != NULL)
            code = own->movers->look(own->handle, err);
        wm_device_leave(&scope);
    }
    pthread_mutex_unlock(&own->lock);
    int64_t now = wm_engine_now();
    bool lost = code < 0 && mover_comm_tells_loss(own, err);
    if (own->remote == 0 && lost)
        own->remote = now;
    return lost && now - own->remote < REMOTE_US ? 0 : code;
}

bool
wm_mover_comm_lost(const wm_mover_comm_t *own, const wm_error_t *err)
{
    return mover_comm_tells_loss(own, err) && !atomic_load(&own->broken)
           && wm_failure_is_told();
}

// Returns the error of a rank that has refused a call on a stream, or failed
// in one. Engine lock held.
static int
mover_comm_look_at_calls(const wm_comm_t *comm, wm_error_t *err)
{
    wm_stream_calls_t *calls = comm->owner->colls.stream_calls;
    if (calls != NULL)
        wm_stream_calls_hear(calls);
    int code = wm_stream_calls_look(comm, err);
    return code < 0 ? code : 0;
}

int
wm_mover_comm_look(wm_mover_comm_t *own, wm_error_t *err)
{
    int code = 0;
    if (!atomic_load(&own->broken)) {
        wm_engine_lock();
        if (own->comm != NULL && wm_failure_is_told())
            code = mover_comm_look_for_dead(own->comm, err);
        if (own->comm != NULL && code == 0)
            code = mover_comm_look_at_calls(own->comm, err);
        wm_engine_unlock();
        if (code == 0)
            code = mover_comm_look_at_library(own, err);
        if (code < 0)
            wm_mover_comm_break(own, err);
    }
    return wm_mover_comm_failure(own, err);
}

int
wm_mover_comm_find_failure(wm_mover_comm_t *own, wm_error_t *err)
{
    if (own == NULL || own->told || own->given == 0
        || !atomic_load(&own->broken))
        return 0;
    own->told = true;
    return own->comm != NULL && wm_stream_calls_has_refused(own->comm)
               ? 0 // which this rank has raised as an error
               : wm_mover_comm_failure(own, err);
}

int
wm_mover_find_failures(wm_error_t *err)
{
    int code = 0;
    mover_comm_close_ended();
    wm_engine_lock();
    for (wm_mover_comm_t *own = list; own != NULL && code == 0;
         own = own->next)
        code = wm_mover_comm_find_failure(own, err);
    wm_engine_unlock();
    return code;
}

bool
wm_mover_any(void)
{
    return atomic_load(&count) > 0;
}

void
wm_mover_comm_watch(void)
{
    if (!atomic_exchange(&watching, true))
        wm_engine_notify();
}

// Returns true if work may wait on a stream of the program's.
static bool
mover_comm_is_watched(wm_mover_comm_t *own)
{
    if (atomic_load(&own->broken))
        return false;
    return atomic_load(&own->graphs) > 0 || mover_comm_is_used(own);
}

// Looks at each. Returns true if there is one to be looked at again.
static bool
mover_comm_look_at_all(void)
{
    bool any = false;
    wm_error_t err;
    for (wm_mover_comm_t *own = list; own != NULL; own = own->next) {
        if (!mover_comm_is_watched(own))
            continue;
        any = true;
        (void)!wm_mover_comm_look(own, &err);
    }
    return any;
}

static void
mover_comm_serve(bool waited)
{
    (void)waited;
    static _Atomic int64_t looked;
    int64_t now = wm_engine_now();
    if (!atomic_load(&watching) || now - looked < WATCH_US
        || !wm_engine_try_lock())
        return;
    looked = now;
    atomic_store(&watching, false);
    if (mover_comm_look_at_all())
        atomic_store(&watching, true);
    wm_engine_unlock();
}

static int64_t
mover_comm_rest(void)
{
    return atomic_load(&watching) ? WATCH_US : 0;
}

// Ends those that have nothing under way. Others end with the process.
static void
mover_comm_finish(void)
{
    for (wm_mover_comm_t *own = list, *next; own != NULL; own = next) {
        next = own->next;
        bool idle = false;
        if (!atomic_load(&own->broken) && !mover_comm_is_watched(own)
            && wm_stream_idle(own->device, own->stream, &idle, NULL) == 0
            && idle)
            mover_comm_enter(own, mover_comm_destroy);
    }
    wm_mover_abort_finish();
}

static void
mover_comm_begin(void)
{
    wm_mapping_add_waits(mover_comm_any_waits);
}

const wm_module_t wm_movers_module = {
    .begin = mover_comm_begin,
    .end = mover_comm_finish,
    .serve = mover_comm_serve,
    .rest = mover_comm_rest,
};
