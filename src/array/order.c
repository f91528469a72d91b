// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "array/order.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "cuda/device.h"
#include "cuda/driver.h"
#include "cuda/lock.h"

// Reads remembered at once; a further read is joined with the oldest.
#define READS 8

// Work that may be going on, on the stream with this id (0: unknown). `waiter`
// is the stream that was last made to wait for the work: what `waiter` submits
// later implies this mark.
typedef struct {
    uint64_t serial;
    CUevent event;
    int device;
    CUstream stream;
    uint64_t id;
    int waiter_device;
    CUstream waiter;
} mark_t;

// A stream that one or two orders are asked about. `common` is an event
// recorded on it while the locks of both are held, or shortly before; the
// event is valid until the stream is made to wait. NULL: none.
typedef struct {
    int device;
    CUstream stream;
    uint64_t id;
    CUevent common;
} comer_t;

struct wm_order {
    pthread_mutex_t lock;
    _Atomic int pending; // number of marks; 0 is answered without the lock
    bool written;
    mark_t write;
    int reads;
    mark_t read[READS];
    uint64_t serial; // number of the last mark
    // The host waits for one mark at a time, and the event of this mark is not
    // released meanwhile: a thread that drops the mark leaves the release to
    // the waiting thread.
    pthread_mutex_t waiting;
    uint64_t waited; // serial of the mark waited for; 0: none
    bool orphaned;
};

wm_order_t *
wm_order_new(void)
{
    wm_order_t *order = calloc(1, sizeof(*order));
    if (order != NULL) {
        pthread_mutex_init(&order->lock, NULL);
        pthread_mutex_init(&order->waiting, NULL);
    }
    return order;
}

static void
update_pending_lock_held(wm_order_t *order)
{
    atomic_store_explicit(&order->pending, order->written + order->reads,
                          memory_order_release);
}

static bool
nothing_pending(wm_order_t *order)
{
    return order == NULL
           || atomic_load_explicit(&order->pending, memory_order_acquire) == 0;
}

// Fails in a forked child: threads that the child does not have may hold the
// locks.
static int
refuse_forked(wm_error_t *err)
{
    return wm_driver_forked() ? wm_driver_load(err) : 0;
}

static void
drop_lock_held(wm_order_t *order, const mark_t *mark)
{
    if (order->waited == mark->serial)
        order->orphaned = true;
    else
        wm_event_release(mark->device, mark->event);
}

static void
drop_reads_lock_held(wm_order_t *order)
{
    for (int i = 0; i < order->reads; i++)
        drop_lock_held(order, &order->read[i]);
    order->reads = 0;
}

static void
drop_all_lock_held(wm_order_t *order)
{
    drop_reads_lock_held(order);
    if (order->written) {
        drop_lock_held(order, &order->write);
        order->written = false;
    }
    update_pending_lock_held(order);
}

void
wm_order_free(wm_order_t *order)
{
    if (order == NULL || wm_driver_forked())
        return;
    (void)!wm_order_wait(order, true, NULL);
    drop_all_lock_held(order);
    pthread_mutex_destroy(&order->lock);
    pthread_mutex_destroy(&order->waiting);
    free(order);
}

// Returns true if the work is on this stream, whose id is asked for if need
// be.
static bool
is_own(const mark_t *mark, comer_t *comer)
{
    if (mark->id == 0 || mark->device != comer->device)
        return false;
    if (comer->id == 0)
        comer->id = wm_stream_id(comer->device, comer->stream);
    return mark->id == comer->id;
}

// Makes the stream wait for the mark. The stream that the work is on needs no
// wait.
static int
follow_mark(mark_t *mark, comer_t *comer, wm_error_t *err)
{
    if (!is_own(mark, comer)) {
        int status = wm_stream_wait_event(comer->device, comer->stream,
                                          mark->event, err);
        if (status < 0)
            return status;
        comer->common = NULL;
    }
    mark->waiter_device = comer->device;
    mark->waiter = comer->stream;
    return 0;
}

// Returns true if the next work of the stream already implies the mark.
static bool
stands_for(const mark_t *mark, const comer_t *comer)
{
    return mark->waiter == comer->stream
           && mark->waiter_device == comer->device;
}

int
wm_order_before(wm_order_t *order, bool to_write, int device, CUstream stream,
                uint64_t id, wm_error_t *err)
{
    comer_t comer = {.device = device, .stream = stream, .id = id};
    if (nothing_pending(order))
        return 0;
    int status = refuse_forked(err);
    if (status < 0)
        return status;
    wm_lock(&order->lock);
    if (order->written)
        status = follow_mark(&order->write, &comer, err);
    for (int i = 0; to_write && i < order->reads && status == 0; i++)
        status = follow_mark(&order->read[i], &comer, err);
    pthread_mutex_unlock(&order->lock);
    return status;
}

bool
wm_order_is_of(wm_order_t *order, bool to_write, int device, CUstream stream)
{
    comer_t comer = {.device = device, .stream = stream};
    if (nothing_pending(order))
        return true;
    if (wm_driver_forked())
        return false;
    wm_lock(&order->lock);
    bool own = !order->written || is_own(&order->write, &comer);
    for (int i = 0; to_write && i < order->reads && own; i++)
        own = is_own(&order->read[i], &comer);
    pthread_mutex_unlock(&order->lock);
    return own;
}

// Fills the mark with the common event, or with one that is recorded now and
// becomes the common event. The mark owns a share of the event.
static int
record_lock_held(wm_order_t *order, comer_t *comer, mark_t *mark,
                 wm_error_t *err)
{
    CUevent event = comer->common;
    int device = comer->device;
    if (event == NULL || !wm_event_share(device, event)) {
        int status = wm_event_acquire(device, &event, err);
        if (status < 0)
            return status;
        status = wm_event_record(device, event, comer->stream, err);
        if (status < 0) {
            wm_event_release(device, event);
            return status;
        }
        comer->common = event;
    }
    *mark = (mark_t){
        .serial = ++order->serial,
        .event = event,
        .device = device,
        .stream = comer->stream,
        .id = comer->id,
        .waiter_device = -1,
    };
    return 0;
}

// Finds the index for a read: that of an earlier read on the same stream,
// which the stream is made to wait for (the id tells whether the handle was
// reused) and the new mark replaces; a free one; or, if all are taken, that of
// the oldest read.
static int
read_index_lock_held(wm_order_t *order, comer_t *comer, int *index,
                     wm_error_t *err)
{
    for (int i = 0; i < order->reads; i++) {
        mark_t *mark = &order->read[i];
        if (mark->stream == comer->stream && mark->device == comer->device) {
            *index = i;
            return follow_mark(mark, comer, err);
        }
    }
    if (order->reads < READS) {
        *index = order->reads;
        return 0;
    }
    *index = 0;
    return follow_mark(&order->read[0], comer, err);
}

static int
after_read_lock_held(wm_order_t *order, comer_t *comer, wm_error_t *err)
{
    int index;
    mark_t mark;
    int status = read_index_lock_held(order, comer, &index, err);
    if (status == 0)
        status = record_lock_held(order, comer, &mark, err);
    if (status < 0)
        return status;
    if (index < order->reads)
        drop_lock_held(order, &order->read[index]);
    else
        order->reads++;
    order->read[index] = mark;
    update_pending_lock_held(order);
    return 0;
}

// Makes the stream wait for what other streams submitted since
// wm_order_before(), so that one event stands for all earlier work.
static int
after_write_lock_held(wm_order_t *order, comer_t *comer, wm_error_t *err)
{
    mark_t mark;
    int status = 0;
    if (order->written && !stands_for(&order->write, comer))
        status = follow_mark(&order->write, comer, err);
    for (int i = 0; i < order->reads && status == 0; i++)
        if (!stands_for(&order->read[i], comer))
            status = follow_mark(&order->read[i], comer, err);
    if (status == 0)
        status = record_lock_held(order, comer, &mark, err);
    if (status < 0)
        return status;
    drop_all_lock_held(order);
    order->written = true;
    order->write = mark;
    update_pending_lock_held(order);
    return 0;
}

// Locks both in the order of their addresses, as all threads do.
static void
lock_both(wm_order_t *one, wm_order_t *other)
{
    wm_order_t *low = (uintptr_t)one < (uintptr_t)other ? one : other;
    wm_order_t *high = low == one ? other : one;
    if (low != NULL)
        wm_lock(&low->lock);
    if (high != NULL && high != low)
        wm_lock(&high->lock);
}

static void
unlock_both(wm_order_t *one, wm_order_t *other)
{
    if (one != NULL)
        pthread_mutex_unlock(&one->lock);
    if (other != NULL && other != one)
        pthread_mutex_unlock(&other->lock);
}

int
wm_order_after(wm_order_t *read, wm_order_t *written, int device,
               CUstream stream, uint64_t id, CUevent passed, wm_error_t *err)
{
    comer_t comer = {
        .device = device, .stream = stream, .id = id, .common = passed};
    int status = 0;
    lock_both(read, written);
    if (read != NULL)
        status = after_read_lock_held(read, &comer, NULL);
    if (written != NULL && status == 0)
        status = after_write_lock_held(written, &comer, NULL);
    unlock_both(read, written);
    return status < 0 ? wm_stream_synchronize(device, stream, err) : 0;
}

int
wm_order_after_read(wm_order_t *order, int device, CUstream stream,
                    wm_error_t *err)
{
    return wm_order_after(order, NULL, device, stream, 0, NULL, err);
}

int
wm_order_after_write(wm_order_t *order, int device, CUstream stream,
                     wm_error_t *err)
{
    return wm_order_after(NULL, order, device, stream, 0, NULL, err);
}

// Picks a mark to wait for without the lock, so that other threads can go on.
static bool
begin_wait(wm_order_t *order, bool to_write, mark_t *mark)
{
    bool found = true;
    wm_lock(&order->lock);
    if (order->written)
        *mark = order->write;
    else if (to_write && order->reads > 0)
        *mark = order->read[order->reads - 1];
    else
        found = false;
    if (found) {
        order->waited = mark->serial;
        order->orphaned = false;
    }
    pthread_mutex_unlock(&order->lock);
    return found;
}

static void
order_forget_lock_held(wm_order_t *order, const mark_t *mark)
{
    if (order->written && order->write.serial == mark->serial) {
        drop_lock_held(order, mark);
        order->written = false;
    }
    for (int i = 0; i < order->reads; i++) {
        if (order->read[i].serial == mark->serial) {
            drop_lock_held(order, mark);
            order->read[i] = order->read[--order->reads];
            break;
        }
    }
    update_pending_lock_held(order);
}

static void
end_wait(wm_order_t *order, const mark_t *mark, bool happened)
{
    wm_lock(&order->lock);
    order->waited = 0;
    if (order->orphaned)
        drop_lock_held(order, mark);
    else if (happened)
        order_forget_lock_held(order, mark);
    pthread_mutex_unlock(&order->lock);
}

int
wm_order_wait(wm_order_t *order, bool to_write, wm_error_t *err)
{
    if (nothing_pending(order))
        return 0;
    mark_t mark;
    int status = refuse_forked(err);
    if (status < 0)
        return status;
    wm_lock(&order->waiting);
    while (status == 0 && begin_wait(order, to_write, &mark)) {
        status = wm_event_synchronize(mark.device, mark.event, err);
        end_wait(order, &mark, status == 0);
    }
    pthread_mutex_unlock(&order->waiting);
    return status;
}

static int
idle_lock_held(wm_order_t *order, bool to_write, bool *idle, wm_error_t *err)
{
    bool done = true;
    int status = 0;
    if (order->written) {
        status = wm_event_done(order->write.device, order->write.event, &done,
                               err);
        if (status == 0 && done) {
            drop_lock_held(order, &order->write);
            order->written = false;
        }
    }
    while (to_write && status == 0 && done && order->reads > 0) {
        mark_t *last = &order->read[order->reads - 1];
        status = wm_event_done(last->device, last->event, &done, err);
        if (status == 0 && done) {
            drop_lock_held(order, last);
            order->reads--;
        }
    }
    update_pending_lock_held(order);
    if (status == 0)
        *idle = done;
    return status;
}

int
wm_order_idle(wm_order_t *order, bool to_write, bool *idle, wm_error_t *err)
{
    if (nothing_pending(order)) {
        *idle = true;
        return 0;
    }
    int status = refuse_forked(err);
    if (status < 0)
        return status;
    wm_lock(&order->lock);
    status = idle_lock_held(order, to_write, idle, err);
    pthread_mutex_unlock(&order->lock);
    return status;
}

int
wm_order_detach(wm_order_t *order, int room, CUevent *events, int *devices)
{
    int count = 0;
    if (nothing_pending(order) || wm_driver_forked())
        return 0;
    wm_lock(&order->lock);
    while (order->written || order->reads > 0) {
        mark_t mark = order->write;
        if (order->written)
            order->written = false;
        else
            mark = order->read[--order->reads];
        if (count < room) {
            events[count] = mark.event;
            devices[count++] = mark.device;
        }
        else {
            (void)!wm_event_synchronize(mark.device, mark.event, NULL);
            drop_lock_held(order, &mark);
        }
    }
    update_pending_lock_held(order);
    pthread_mutex_unlock(&order->lock);
    return count;
}
