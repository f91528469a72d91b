// SPDX-License-Identifier: BSD-3-Clause
#include "comm/rma/window_request.h"

#include <string.h>

#include "comm/engine/engine.h"
#include "cuda/event.h"
#include "cuda/stream.h"

#define STEP_BYTES ((size_t)128 << 10) // delivered with the engine's lock held

// Engine lock held where `window`, `next` and `taken` are used, and `kept`,
// unless the request is taken.
struct wm_window_request {
    wm_op_t op;
    wm_window_request_t *next; // of the window's
    wm_window_t *window;       // NULL: it has ended
    bool taken;                // the window ends it
    int device, target;
    CUstream stream;    // that does the work
    wm_signal_t signal; // of its kernel; word NULL: none
    CUevent event;      // else, behind the work
    unsigned looks;
    int count;
    wm_window_pending_t kept[WM_WINDOW_ARGUMENTS];
};

// Delivers the next bytes of the results. Returns 1 when all are there.
static int
request_deliver(wm_window_request_t *request, size_t most, wm_error_t *err)
{
    int code = 1;
    for (int i = 0; i < request->count && code > 0; ++i)
        code = wm_window_deliver(&request->kept[i], most, err);
    return code;
}

// Leaves the window.
static void
request_end(wm_window_request_t *request, int code, const wm_error_t *err)
{
    wm_window_request_t **link = &request->window->requests;
    if (code < 0)
        wm_op_fail(&request->op, err);
    while (*link != request)
        link = &(*link)->next;
    *link = request->next;
    request->window = NULL;
}

static int
request_look(wm_window_request_t *request, bool *done, wm_error_t *err)
{
    *done = false;
    if (request->signal.word == NULL)
        return wm_event_done(request->device, request->event, done, err);
    *done = wm_signal_is_set(&request->signal);
    return *done || ++request->looks % WM_SIGNAL_LOOKS != 0
               ? 0
               : wm_stream_spin(request->device, request->stream, 1, done,
                                err);
}

static bool
request_step(wm_op_t *op)
{
    wm_window_request_t *request = (wm_window_request_t *)op;
    wm_error_t err;
    bool done;
    if (request->window == NULL || request->taken)
        return request->window == NULL;
    int code = request_look(request, &done, &err);
    if (code == 0 && done)
        code = request_deliver(request, STEP_BYTES, &err);
    if (code == 0)
        return false;
    request_end(request, code, &err);
    return true;
}

static void
request_about(const wm_op_t *op, wm_about_t *about)
{
    const wm_window_request_t *request = (const wm_window_request_t *)op;
    *about = (wm_about_t){
        .performs = "a call with a request",
        .rank = request->target,
        .peer = op->comm != NULL ? op->comm->peers[request->target] : NULL,
    };
}

static void
request_free(wm_op_t *op)
{
    wm_window_request_t *request = (wm_window_request_t *)op;
    if (request->event != NULL)
        wm_event_release(request->device, request->event);
    for (int i = 0; i < request->count; ++i)
        wm_window_release(&request->kept[i]);
}

static const wm_op_kind_t request_kind = {
    .step = request_step,
    .about = request_about,
    .free = request_free,
};

// Takes over the arguments that the window keeps for the call.
static void
request_take(wm_window_request_t *request, const wm_window_call_t *call)
{
    wm_window_t *window = request->window;
    int count = (call->origin != NULL) + (call->compare != NULL)
                + (call->result != NULL);
    window->pending_count -= count;
    memcpy(request->kept, &window->pending[window->pending_count],
           (size_t)count * sizeof *request->kept);
    request->count = count;
}

int
wm_window_begin_requested(wm_window_t *window, wm_window_call_t *call,
                          wm_op_t **op, wm_error_t *err)
{
    int code = wm_window_begin(window, call, err);
    if (code < 0 || call->nbytes == 0) {
        *op = wm_op_ended();
        return code;
    }
    wm_window_request_t *request = wm_op_new(&request_kind, sizeof *request,
                                             window->comm);
    if (request == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    request->window = window;
    request->device = window->device;
    request->target = call->target;
    request->stream = window->stream;
    if (window->signals) // an event takes longer to make and to ask
        request->signal = window->signal;
    else
        code = wm_event_acquire(window->device, &request->event, err);
    if (code == 0 && !window->signals)
        code = wm_event_record(window->device, request->event, request->stream,
                               err);
    if (code < 0) { // the window keeps the arguments
        wm_op_release(&request->op);
        return code;
    }
    request_take(request, call);
    window->requested = true;
    wm_engine_lock();
    request->next = window->requests;
    window->requests = request;
    wm_engine_add_lock_held(&request->op);
    wm_engine_unlock();
    *op = &request->op;
    return 0;
}

void
wm_window_end_requests(wm_window_t *window, int code, const wm_error_t *why)
{
    wm_error_t err;
    wm_window_request_t *request;
    if (!window->requested)
        return;
    window->requested = false;
    wm_engine_lock();
    for (request = window->requests; request != NULL; request = request->next)
        request->taken = true;
    wm_engine_unlock();
    while ((request = window->requests) != NULL) { // ours alone now
        int ended = code < 0 ? code : request_deliver(request, SIZE_MAX, &err);
        wm_engine_lock();
        request_end(request, ended, code < 0 ? why : &err);
        wm_engine_unlock();
    }
    wm_engine_step(); // they leave the engine
}
