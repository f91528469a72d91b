// SPDX-License-Identifier: BSD-3-Clause
#include "python/request/captured_request.h"

#include "cuda/device.h"

// Finds the capture of a request's stream; 0: none.
static int
find_capture(const wm_prequest_t *self, uint64_t *capture, wm_error_t *err)
{
    *capture = 0;
    return self->channel.device < 0
               ? 0
               : wm_stream_capture(self->channel.device, self->channel.stream,
                                   capture, err);
}

static bool
is_same_stream(const wm_prequest_t *one, const wm_prequest_t *other)
{
    return one->channel.device == other->channel.device
           && one->channel.stream == other->channel.stream;
}

bool
wm_py_captured_is_under_way(const wm_prequest_t *self)
{
    uint64_t capture = 0;
    int code = 0;
    if (!self->request.in_graph)
        return false;
    WM_PY_UNLOCKED(code = find_capture(self, &capture, NULL));
    return code == 0 && capture == self->capture;
}

// Writes the requests whose streams are captured, with their captures, and the
// others. Returns the number of the former, or -1 with an exception.
static int
divide(wm_prequest_t *const *requests, int count, wm_prequest_t **captured,
       uint64_t *captures, wm_prequest_t **others, int *other_count)
{
    wm_error_t err;
    int found = 0, rest = 0, looked = 0, code = 0;
    bool any = false;
    for (int i = 0; i < count; ++i) {
        any |= requests[i]->channel.device >= 0;
        others[i] = requests[i];
    }
    *other_count = count;
    if (!any)
        return 0;
    Py_BEGIN_ALLOW_THREADS;
    for (; looked < count && code == 0; ++looked) {
        uint64_t capture = 0;
        if (found > 0 && is_same_stream(requests[looked], captured[found - 1]))
            capture = captures[found - 1];
        else
            code = find_capture(requests[looked], &capture, &err);
        if (capture == 0)
            others[rest++] = requests[looked];
        else {
            captures[found] = capture;
            captured[found++] = requests[looked];
        }
    }
    Py_END_ALLOW_THREADS;
    if (code < 0) {
        const wm_prequest_t *last = requests[looked - 1];
        wm_py_raise(&err);
        if (!last->receives)
            wm_py_channel_tell_receiver(&last->channel, &last->envelope);
        return -1;
    }
    *other_count = rest;
    return found;
}

// What is enqueued at once: requests of one stream.
typedef struct {
    int count;
    bool waits; // in the same kernel
    wm_prequest_t *requests[WM_PY_AT_ONCE];
    wm_captured_t *ends[WM_PY_AT_ONCE];
    wm_buffer_t buffers[WM_PY_AT_ONCE];
} batch_t; // 9 KiB, which nobody clears as a whole

// Makes the end of a message, unless it was captured before.
static int
make_end(wm_prequest_t *self, wm_buffer_t *buffer, wm_error_t *err)
{
    if (self->captured != NULL)
        return 0;
    wm_buffer_t taken = *buffer;
    buffer->release = NULL;
    return wm_captured_new(self->channel.comm, &taken, &self->envelope,
                           self->receives, &self->captured, err);
}

static int
start_unlocked(batch_t *batch, wm_error_t *err)
{
    const wm_channel_t *channel = &batch->requests[0]->channel;
    int code = 0;
    wm_device_stay();
    for (int i = 0; i < batch->count && code == 0; ++i) {
        wm_prequest_t *self = batch->requests[i];
        wm_producer_t producer = batch->buffers[i].producer;
        code = make_end(self, &batch->buffers[i], err);
        if (code == 0 && producer.kind != WM_PRODUCER_NONE)
            code = wm_producer_before_on(&producer, self->receives,
                                         channel->device, channel->stream,
                                         true, err);
        batch->ends[i] = self->captured;
    }
    if (code == 0)
        code = (batch->waits ? wm_captured_pass : wm_captured_start)(
            batch->ends, batch->count, channel->stream, err);
    wm_device_go();
    return code;
}

static int
start_batch(batch_t *batch, uint64_t capture)
{
    wm_error_t err;
    int prepared = 0, code = 0;
    for (; prepared < batch->count && code == 0; ++prepared) {
        batch->buffers[prepared] = (wm_buffer_t){0};
        code = wm_py_prequest_prepare(batch->requests[prepared]);
        if (code < 0)
            break;
        code = wm_py_prequest_again(batch->requests[prepared],
                                    &batch->buffers[prepared]);
    }
    if (code == 0) {
        WM_PY_UNLOCKED(code = start_unlocked(batch, &err));
        if (code < 0)
            wm_py_raise(&err);
    }
    for (int i = 0; i < prepared; ++i) {
        wm_prequest_t *self = batch->requests[i];
        if (batch->buffers[i].release != NULL)
            wm_buffer_release(&batch->buffers[i]);
        self->starting = false;
        self->request.in_graph = code == 0 && !batch->waits;
        self->capture = capture;
    }
    return code;
}

// Takes the requests of the stream of the first one that is left.
static void
take_batch(batch_t *batch, wm_prequest_t **requests, int count)
{
    const wm_prequest_t *first = NULL;
    batch->count = 0;
    batch->waits = false;
    for (int i = 0; i < count; ++i) {
        if (requests[i] == NULL
            || (first != NULL && !is_same_stream(first, requests[i])))
            continue;
        first = requests[i];
        batch->requests[batch->count++] = requests[i];
        requests[i] = NULL;
    }
}

int
wm_py_captured_start(wm_prequest_t *const *requests, int count,
                     wm_prequest_t **others, int *other_count)
{
    wm_prequest_t *captured[WM_PY_AT_ONCE];
    uint64_t captures[WM_PY_AT_ONCE];
    batch_t batch;
    int found = divide(requests, count, captured, captures, others,
                       other_count);
    for (int i = 0; i < found; ++i) {
        if (captured[i] == NULL)
            continue;
        take_batch(&batch, captured, found);
        if (start_batch(&batch, captures[i]) < 0)
            return -1;
    }
    return found < 0 ? -1 : 0;
}

static int
wait_batch(batch_t *batch)
{
    wm_error_t err;
    const wm_prequest_t *first = batch->requests[0];
    int code;
    for (int i = 0; i < batch->count; ++i)
        batch->ends[i] = batch->requests[i]->captured;
    Py_BEGIN_ALLOW_THREADS;
    code = wm_captured_wait(batch->ends, batch->count, first->channel.stream,
                            &err);
    Py_END_ALLOW_THREADS;
    for (int i = 0; i < batch->count; ++i)
        batch->requests[i]->request.in_graph = false;
    if (code < 0)
        wm_py_raise(&err);
    return code < 0 ? -1 : 0;
}

int
wm_py_captured_pass(wm_prequest_t *const *requests, int count, bool apart)
{
    batch_t batch;
    wm_error_t err;
    uint64_t capture = 0;
    int code = 0;
    batch.count = count;
    batch.waits = !apart;
    for (int i = 0; i < count; ++i)
        batch.requests[i] = requests[i];
    if (apart) {
        WM_PY_UNLOCKED(code = find_capture(requests[0], &capture, &err));
        if (code < 0)
            wm_py_raise(&err);
    }
    if (code == 0)
        code = start_batch(&batch, capture);
    return code == 0 && apart ? wait_batch(&batch) : code;
}

static int
refuse_call(void)
{
    return wm_py_fail(PyExc_RuntimeError,
                      "the request was started in a capture into a CUDA "
                      "graph, where nothing can be asked: call Wait or "
                      "Waitall");
}

int
wm_py_captured_wait_one(wm_request_t *request, bool waits)
{
    batch_t batch;
    if (!request->in_graph)
        return 0;
    if (!waits)
        return refuse_call();
    batch.count = 1;
    batch.requests[0] = (wm_prequest_t *)request;
    return wait_batch(&batch);
}

int
wm_py_captured_wait(PyObject *list, bool waits)
{
    wm_prequest_t *captured[WM_PY_AT_ONCE];
    batch_t batch;
    Py_ssize_t next = 0;
    while (next < PyTuple_GET_SIZE(list)) {
        int found = 0;
        for (; next < PyTuple_GET_SIZE(list) && found < WM_PY_AT_ONCE;
             ++next) {
            PyObject *item = PyTuple_GET_ITEM(list, next);
            if (PyObject_TypeCheck(item, wm_py_state->prequest_type)
                && ((wm_request_t *)item)->in_graph)
                captured[found++] = (wm_prequest_t *)item;
        }
        if (found > 0 && !waits)
            return refuse_call();
        for (int i = 0; i < found; ++i) {
            if (captured[i] == NULL)
                continue;
            take_batch(&batch, captured, found);
            if (wait_batch(&batch) < 0)
                return -1;
        }
    }
    return 0;
}
