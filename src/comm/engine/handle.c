// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "comm/engine/handle.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#include "comm/engine/engine.h"
#include "comm/engine/posted.h"
#include "cuda/lock.h"

// Handles that the thread looks at before it releases the lock.
#define LOOKS_A_ROUND 16

struct wm_handle {
    wm_handle_t *next; // in the list of all handles
    const MPI_Request *user;
    MPI_Request request;
    int tag;             // used by this handle only
    wm_op_t *_Atomic op; // under way, borrowed; NULL: none
    bool freed;          // freed by its owner while `op` is under way
};

// The list of all handles; engine lock.
static wm_handle_t *all;
static MPI_Comm alone = MPI_COMM_NULL; // a communicator of this process alone
static int last_tag;
// Next look of the thread; NULL: the first handle.
static wm_handle_t *next_looked_at;

static pthread_t thread;
static bool running; // the thread runs; engine lock
static void (*on_start)(void);
static _Atomic bool stopping;

// Returns the next tag after the last one that no handle has, or an error.
static int
handle_next_tag_lock_held(wm_error_t *err)
{
    int flag = 0, *most = NULL, limit = 32767;
    MPI_Comm_get_attr(alone, MPI_TAG_UB, &most, &flag);
    if (flag)
        limit = *most;
    for (int tried = 0; tried < limit; ++tried) {
        last_tag = last_tag < limit ? last_tag + 1 : 1;
        const wm_handle_t *other = all;
        while (other != NULL && other->tag != last_tag)
            other = other->next;
        if (other == NULL)
            return last_tag;
    }
    return wm_error_set(
        err, WM_ERR_MPI, MPI_ERR_REQUEST,
        "the program has asked for the handles of %d persistent requests and "
        "has freed none of them: free some of these requests",
        limit);
}

static int
handle_make_lock_held(wm_handle_t *handle, wm_error_t *err)
{
    if (alone == MPI_COMM_NULL) {
        int code = wm_mpi_duplicate(MPI_COMM_SELF, &alone, err);
        if (code < 0)
            return code;
    }
    handle->tag = handle_next_tag_lock_held(err);
    if (handle->tag < 0)
        return handle->tag;
    return wm_mpi_check(MPI_Ssend_init(NULL, 0, MPI_BYTE, 0, handle->tag,
                                       alone, &handle->request),
                        "MPI_Ssend_init", err);
}

int
wm_handle_new(const MPI_Request *user, wm_handle_t **result, wm_error_t *err)
{
    wm_handle_t *handle = calloc(1, sizeof *handle);
    if (handle == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    wm_engine_lock();
    int code = handle_make_lock_held(handle, err);
    if (code == 0) {
        handle->user = user;
        handle->next = all;
        all = handle;
    }
    wm_engine_unlock();
    if (code < 0) {
        free(handle);
        return code;
    }
    *result = handle;
    return 0;
}

MPI_Request
wm_handle_request(const wm_handle_t *handle)
{
    return handle->request;
}

void
wm_handle_move(wm_handle_t *handle, const MPI_Request *user)
{
    wm_engine_lock();
    handle->user = user;
    wm_engine_unlock();
}

// Returns true if the handle has been started and has not ended. MPI's own
// state of the request does not tell: Open MPI takes a request that another
// thread waits for to have ended.
static bool
handle_is_active(const wm_handle_t *handle)
{
    int flag = 0;
    MPI_Iprobe(0, handle->tag, alone, &flag, MPI_STATUS_IGNORE);
    return flag;
}

static bool
handle_is_started_lock_held(const wm_handle_t *handle)
{
    return handle->op == NULL && !handle->freed && handle_is_active(handle);
}

// The lock keeps us from looking between the two parts of a start by
// wm_handle_begin().
bool
wm_handle_is_started(const wm_handle_t *handle)
{
    wm_engine_lock();
    bool started = handle_is_started_lock_held(handle);
    wm_engine_unlock();
    return started;
}

static void
handle_complete(const wm_handle_t *handle)
{
    if (handle_is_active(handle)) // else it was cancelled
        MPI_Recv(NULL, 0, MPI_BYTE, 0, handle->tag, alone, MPI_STATUS_IGNORE);
}

int
wm_handle_begin(wm_handle_t *handle, wm_op_t *op, wm_error_t *err)
{
    int code = 0;
    wm_engine_lock();
    if (!handle_is_active(handle)) {
        MPI_Wait(&handle->request, MPI_STATUS_IGNORE); // of the last start
        code = wm_mpi_check(MPI_Start(&handle->request), "MPI_Start", err);
    }
    if (code == 0 && atomic_load(&op->done))
        handle_complete(handle);
    else if (code == 0) {
        handle->op = op;
        op->handle = handle;
    }
    wm_engine_unlock();
    wm_engine_notify();
    return code;
}

void
wm_handle_fail(wm_handle_t *handle)
{
    wm_engine_lock();
    if (handle_is_started_lock_held(handle))
        handle_complete(handle);
    wm_engine_unlock();
}

static void
handle_drop_lock_held(wm_handle_t *handle)
{
    wm_handle_t **link = &all;
    while (*link != handle)
        link = &(*link)->next;
    *link = handle->next;
    if (next_looked_at == handle)
        next_looked_at = NULL;
    free(handle);
}

static void
handle_free_request(wm_handle_t *handle)
{
    MPI_Wait(&handle->request, MPI_STATUS_IGNORE);
    MPI_Request_free(&handle->request);
}

void
wm_handle_end_lock_held(wm_handle_t *handle)
{
    wm_op_t *op = handle->op;
    handle_complete(handle);
    op->handle = NULL;
    handle->op = NULL; // after the receive: else it looks like a new start
    if (!handle->freed)
        return;
    handle_free_request(handle);
    handle_drop_lock_held(handle);
}

void
wm_handle_free(wm_handle_t *handle)
{
    wm_engine_lock();
    bool freed = *handle->user == MPI_REQUEST_NULL;
    handle->user = &handle->request;
    wm_op_t *op = handle->op;
    if (op != NULL && !freed) {
        // An active request is not freed: see wm_posted_leave().
        handle->freed = true;
        wm_engine_unlock();
        return;
    }
    if (op != NULL)
        op->handle = NULL;
    handle_complete(handle); // if a start has no operation
    if (!freed)
        handle_free_request(handle);
    handle_drop_lock_held(handle);
    wm_engine_unlock();
}

// Returns true if a handle has been started for which no operation has begun.
// *any is true if there are handles.
static bool
handle_any_started(bool *any)
{
    bool started = false;
    int flag = 0;
    wm_engine_lock();
    *any = all != NULL;
    if (*any)
        MPI_Iprobe(0, MPI_ANY_TAG, alone, &flag, MPI_STATUS_IGNORE);
    // The message may belong to an operation under way.
    for (int i = 0; flag && i < LOOKS_A_ROUND && !started; ++i) {
        if (next_looked_at == NULL)
            next_looked_at = all;
        started = handle_is_started_lock_held(next_looked_at);
        next_looked_at = next_looked_at->next;
    }
    wm_engine_unlock();
    return started;
}
// Returns the microseconds between two looks. They grow with the time since
// the last start, as a program that starts messages goes on to do so.
static long
handle_pause_us(int64_t quiet)
{
    return quiet < 5000 ? 20 : quiet < 200000 ? 100 : 500;
}

static void *
handle_look_on(void *unused)
{
    (void)unused;
    int64_t since = wm_engine_now();
    prctl(PR_SET_TIMERSLACK, 1000);
    while (!atomic_load(&stopping)) {
        bool any;
        if (handle_any_started(&any)) {
            on_start();
            since = wm_engine_now();
        }
        long pause = any ? handle_pause_us(wm_engine_now() - since) : 10000;
        nanosleep(&(struct timespec){.tv_nsec = pause * 1000}, NULL);
    }
    return NULL;
}

void
wm_handle_watch(void (*started)(void))
{
    wm_engine_lock();
    if (!running && !atomic_load(&stopping) && wm_engine_is_threaded()) {
        on_start = started;
        running = wm_thread_start(handle_look_on, NULL, &thread);
        if (running)
            pthread_setname_np(thread, "warpmpi-start");
    }
    wm_engine_unlock();
}

void
wm_handle_stop_thread(void)
{
    atomic_store(&stopping, true);
    if (running)
        pthread_join(thread, NULL);
    running = false;
}

void
wm_handle_end_all_lock_held(void)
{
    for (wm_handle_t *handle = all; handle != NULL; handle = handle->next) {
        if (*handle->user == MPI_REQUEST_NULL)
            continue;
        handle_complete(handle);
        handle_free_request(handle);
        handle->user = &handle->request; // the request is null
    }
    if (alone != MPI_COMM_NULL)
        MPI_Comm_free(&alone);
}
