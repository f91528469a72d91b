// SPDX-License-Identifier: BSD-3-Clause
#include "comm/rma/waiter.h"

#include "comm/comm/failure.h"
#include "comm/diagnostics/hang.h"
#include "comm/engine/engine.h"
#include "comm/engine/modules.h"
#include "comm/node/mapping.h"
#include "cuda/capture.h"
#include "cuda/lock.h"

#define LOOK_US 100000

// Whoever changes the list has both the engine lock and list_lock, whoever
// reads it one of them: who asks if a stream waits must not wait for the
// engine.
static wm_waiter_t *list;
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
// Held while waiters are taken out of the list and freed: what was left before
// is free then, whichever thread frees it.
static pthread_mutex_t collect_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(wm_waiter_t *) dropped_here; // not yet looked at
static _Atomic int waiters;

void
wm_waiter_add(wm_waiter_t *waiter, const wm_waiter_class_t *class,
              wm_comm_t *comm)
{
    waiter->class = class;
    waiter->comm = comm;
    wm_comm_retain(comm);
    wm_engine_lock();
    wm_lock(&list_lock);
    waiter->next = list;
    list = waiter;
    atomic_fetch_add(&waiters, 1);
    pthread_mutex_unlock(&list_lock);
    wm_engine_unlock();
    wm_engine_notify(); // it now looks for dead ranks
}

int
wm_waiter_check(const wm_waiter_t *waiter, wm_error_t *err)
{
    int dead = atomic_load(&waiter->dead);
    if (atomic_load(&waiter->freed))
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "the communicator of this %s was freed, so that "
                            "no rank can reach another: make a new one",
                            waiter->class->name);
    return dead > 0 ? wm_failure_set(waiter->comm, dead - 1, err) : 0;
}

static void
graph_ended(void *object)
{
    wm_waiter_t *waiter = object;
    if (waiter->shown != NULL)
        atomic_fetch_sub(waiter->shown, 1);
    atomic_fetch_sub(&waiter->graphs, 1); // it may be freed from here on
}

int
wm_waiter_keep(wm_waiter_t *waiter, int device, CUstream stream,
               uint64_t capture, wm_error_t *err)
{
    if (atomic_load(&waiter->captured) == capture)
        return 0;
    atomic_fetch_add(&waiter->graphs, 1);
    if (waiter->shown != NULL)
        atomic_fetch_add(waiter->shown, 1);
    int code = wm_capture_keep(device, stream, waiter, graph_ended, err);
    if (code == 0)
        atomic_store(&waiter->captured, capture);
    return code;
}

// --- the end of waiters ---------------------------------------------------

void
wm_waiter_drop(wm_waiter_t *waiter)
{
    wm_waiter_t *first = atomic_load(&dropped_here);
    do
        waiter->dropped = first;
    while (!atomic_compare_exchange_weak(&dropped_here, &first, waiter));
}

// Returns true if nothing here needs a waiter any more.
static bool
is_left(wm_waiter_t *waiter, bool may_wait)
{
    return waiter->is_dropped && atomic_load(&waiter->graphs) == 0
           && waiter->class->has_ended(waiter)
           && (waiter->class->is_left == NULL
               || waiter->class->is_left(waiter, may_wait));
}

static void
take_dropped(void)
{
    wm_waiter_t *waiter = atomic_exchange(&dropped_here, NULL);
    for (; waiter != NULL; waiter = waiter->dropped)
        waiter->is_dropped = true;
}

void
wm_waiters_leave(void)
{
    take_dropped();
    for (wm_waiter_t *waiter = list; waiter != NULL; waiter = waiter->next)
        (void)is_left(waiter, false);
}

// Takes the waiters that are left out of the list, and returns them. To free
// memory may wait for the device: that is for a thread of the program, while
// no stream waits for others. Engine lock held.
static wm_waiter_t *
remove_left(void)
{
    wm_waiter_t *removed = NULL, *waiter;
    bool may_wait = !wm_engine_is_background() && !wm_mapping_would_wait();
    take_dropped();
    for (wm_waiter_t **link = &list; (waiter = *link) != NULL;) {
        if (!is_left(waiter, may_wait)) {
            link = &waiter->next;
            continue;
        }
        wm_lock(&list_lock);
        *link = waiter->next;
        pthread_mutex_unlock(&list_lock);
        waiter->next = removed;
        removed = waiter;
        atomic_fetch_sub(&waiters, 1);
    }
    return removed;
}

// Frees the waiters that are left. Both locks held, which are given back.
static void
collect_and_unlock(void)
{
    wm_waiter_t *removed = remove_left(), *last = NULL;
    wm_engine_unlock();
    while (removed != NULL) {
        wm_waiter_t *waiter = removed;
        wm_comm_t *comm = waiter->comm;
        removed = waiter->next;
        if (waiter->class->release != NULL) {
            waiter->next = last;
            last = waiter;
        }
        waiter->class->free(waiter);
        wm_comm_release(comm);
    }
    pthread_mutex_unlock(&collect_lock);
    while (last != NULL) {
        wm_waiter_t *waiter = last;
        last = waiter->next;
        waiter->class->release(waiter);
    }
}

void
wm_waiters_collect(void)
{
    wm_lock(&collect_lock);
    wm_engine_lock();
    collect_and_unlock();
}

// --- looks ----------------------------------------------------------------

// Returns true if a stream may be waiting for another rank.
static bool
waiter_waits(void)
{
    bool waits = false;
    if (atomic_load(&waiters) == 0)
        return false;
    wm_lock(&list_lock);
    for (wm_waiter_t *waiter = list; waiter != NULL && !waits;
         waiter = waiter->next)
        waits = !waiter->class->has_ended(waiter);
    pthread_mutex_unlock(&list_lock);
    return waits;
}

static void
end_waits(wm_waiter_t *waiter, int rank)
{
    if (atomic_load(&waiter->dead) == 0
        && (waiter->class->end_waits == NULL
            || waiter->class->end_waits(waiter, rank)))
        atomic_store(&waiter->dead, 1 + rank);
}

static void
look_for_dead(wm_waiter_t *waiter)
{
    wm_comm_t *comm = waiter->comm;
    if (atomic_load(&waiter->dead) > 0)
        return;
    if (wm_failure_is_told())
        (void)!wm_failure_look_at_all(comm, NULL);
    if (comm->revoked)
        end_waits(waiter, comm->size);
    for (int rank = 0; rank < comm->size; ++rank)
        if (comm->peers[rank]->dead)
            end_waits(waiter, rank);
}

static void
waiter_serve(bool waited)
{
    (void)waited;
    static _Atomic int64_t looked;
    int64_t now = wm_engine_now(), limit = wm_hang_limit();
    if (now - looked < LOOK_US || atomic_load(&waiters) == 0
        || pthread_mutex_trylock(&collect_lock) != 0)
        return;
    if (!wm_engine_try_lock()) {
        pthread_mutex_unlock(&collect_lock);
        return;
    }
    looked = now;
    for (wm_waiter_t *waiter = list; waiter != NULL; waiter = waiter->next) {
        if (limit > 0 && waiter->class->report != NULL)
            waiter->class->report(waiter, now, limit);
        look_for_dead(waiter);
    }
    collect_and_unlock();
}

static int64_t
waiter_rest(void)
{
    return atomic_load(&waiters) > 0 ? LOOK_US : 0;
}

// The user has freed a communicator: its waiters stay, without calls.
static void
waiter_freed(wm_comm_t *comm)
{
    wm_engine_lock();
    for (wm_waiter_t *waiter = list; waiter != NULL; waiter = waiter->next)
        if (waiter->comm == comm)
            atomic_store(&waiter->freed, true);
    wm_engine_unlock();
    wm_waiters_collect();
}

static void
waiter_begin(void)
{
    wm_mapping_add_waits(waiter_waits);
}

const wm_module_t wm_waiter_module = {
    .begin = waiter_begin,
    .serve = waiter_serve,
    .rest = waiter_rest,
    .freed = waiter_freed,
};
