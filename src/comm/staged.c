// SPDX-License-Identifier: BSD-3-Clause
#include "comm/staged.h"

#include <stdlib.h>

#include "array/copy.h"
#include "comm/p2p.h"
#include "comm/progress.h"
#include "comm/stats.h"

enum { STAGED_MPI, STAGED_COPY };

bool
wm_runs_fit(const wm_run_t *runs, size_t count, size_t nbytes)
{
    for (size_t i = 0; i < count; ++i) {
        const wm_run_t *run = &runs[i];
        if (run->rows == 0)
            continue;
        if (run->offset > nbytes || run->length > nbytes - run->offset)
            return false;
        size_t room = nbytes - run->offset - run->length;
        if (run->rows > 1 && run->stride > room / (run->rows - 1))
            return false;
    }
    return true;
}

static void
describe(wm_array_t *array, char *base, const wm_run_t *run)
{
    array->storage = NULL;
    array->data = base + run->offset;
    array->dtype = WM_UINT8;
    array->readonly = false;
    array->ndim = 2;
    array->shape[0] = (int64_t)run->rows;
    array->shape[1] = (int64_t)run->length;
    array->strides[0] = (int64_t)run->stride;
    array->strides[1] = 1;
}

static int
enqueue(const wm_buffer_t *buffer, char *twin, const wm_run_t *runs,
        size_t count, bool to_host, int device, CUstream stream,
        wm_error_t *err)
{
    int code = 0;
    size_t nbytes = 0;
    for (size_t i = 0; i < count && code == 0; ++i) {
        wm_array_t memory, host;
        describe(&memory, buffer->data, &runs[i]);
        describe(&host, twin, &runs[i]);
        code = wm_copy_enqueue(to_host ? &host : &memory,
                               to_host ? &memory : &host, device, stream, err);
        nbytes += runs[i].rows * runs[i].length;
    }
    if (code == 0)
        wm_stat_add(WM_STAT_staged_bytes, (int64_t)nbytes);
    return code;
}

static int
device_of(const wm_buffer_t *buffer)
{
    return buffer->memory.device >= 0 ? buffer->memory.device : 0;
}

static int
settle(wm_buffer_t *buffer, bool to_write, wm_error_t *err)
{
    wm_envelope_t nowhere = {.stream_device = -1};
    return wm_settle_producer(buffer, &nowhere, to_write, err);
}

int
wm_staged_copy(wm_buffer_t *buffer, char *twin, const wm_run_t *runs,
               size_t count, bool to_host, wm_error_t *err)
{
    CUstream stream;
    int device = device_of(buffer);
    int code = settle(buffer, !to_host, err);
    if (code == 0)
        code = wm_stream_acquire(device, &stream, err);
    if (code < 0)
        return code;
    code = wm_producer_before(&buffer->producer, !to_host, device, stream,
                              err);
    if (code == 0)
        code = enqueue(buffer, twin, runs, count, to_host, device, stream,
                       err);
    // Also after an error: nothing stays in flight.
    int ended = wm_stream_synchronize(device, stream, code == 0 ? err : NULL);
    if (ended == 0)
        wm_stream_release_idle(device, stream);
    else
        wm_stream_release(device, stream);
    return code < 0 ? code : ended;
}

static int
begin_copy(wm_op_t *op, wm_error_t *err)
{
    const wm_staged_t *staged = op->staged;
    int code = wm_stream_acquire(op->device, &op->stream, err);
    if (code < 0)
        return code;
    op->pooled = true;
    if (op->after[0].event != NULL)
        code = wm_stream_wait_event(op->device, op->stream, op->after[0].event,
                                    err);
    else
        code = wm_producer_before(&op->buffer.producer, true, op->device,
                                  op->stream, err);
    if (code == 0)
        code = enqueue(&op->buffer, staged->twin, staged->runs, staged->count,
                       false, op->device, op->stream, err);
    return code;
}

// Whether MPI's part has ended, well or not.
static bool
test(wm_op_t *op)
{
    wm_error_t err;
    int flag = 0;
    if (wm_mpi_check(MPI_Test(&op->parts[0], &flag, &op->staged->status),
                     "MPI_Test", &err)
        == 0)
        return flag;
    wm_op_fail(op, &err);
    return true;
}

static bool
step(wm_op_t *op)
{
    wm_error_t err;
    if (op->state == STAGED_MPI) {
        if (!test(op))
            return false;
        op->state = STAGED_COPY;
        op->idle = op->error.code != 0 || op->staged->count == 0;
        if (!op->idle && begin_copy(op, &err) < 0) {
            wm_op_fail(op, &err);
            if (op->pooled)
                (void)!wm_stream_synchronize(op->device, op->stream, NULL);
            op->idle = true;
        }
    }
    if (!op->idle
        && wm_stream_idle(op->device, op->stream, &op->idle, &err) < 0) {
        wm_op_fail(op, &err);
        op->idle = true;
    }
    if (!op->idle)
        return false;
    op->idle = op->error.code == 0; // its stream
    wm_op_drop_resources(op);
    return true;
}

int
wm_staged_begin(wm_buffer_t *buffer, wm_staged_t *staged, MPI_Request request,
                wm_op_t **result, wm_error_t *err)
{
    int code = wm_engine_start(err);
    wm_op_t *op = code == 0 ? wm_op_new(NULL, buffer) : NULL;
    if (op == NULL) {
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        if (code < 0)
            wm_buffer_release(buffer);
        free(staged);
        return code < 0
                   ? code
                   : wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    }
    op->staged = staged;
    op->device = device_of(&op->buffer);
    op->parts[0] = request;
    op->step = step;
    MPI_Status_set_elements(&staged->status, MPI_BYTE, 0);
    MPI_Status_set_cancelled(&staged->status, 0);
    staged->status.MPI_SOURCE = MPI_ANY_SOURCE;
    staged->status.MPI_TAG = MPI_ANY_TAG;
    if (staged->count > 0 && settle(&op->buffer, true, err) < 0) {
        wm_op_fail(op, err); // told with its end
        staged->count = 0;
    }
    if (staged->count > 0)
        wm_op_take_note(op);
    wm_engine_lock();
    wm_op_retain(op);
    wm_engine_add_lock_held(op);
    wm_engine_unlock();
    wm_engine_notify();
    *result = op;
    return 0;
}

void
wm_staged_status(const wm_op_t *op, MPI_Status *status)
{
    int code = status->MPI_ERROR;
    *status = op->staged->status;
    status->MPI_ERROR = code;
}
