// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/mpi/staged.h"

#include <stdlib.h>

#include "array/access.h"
#include "array/copy.h"
#include "comm/comm/require.h"
#include "comm/engine/engine.h"
#include "comm/engine/stats.h"
#include "comm/message/p2p.h"
#include "comm/message/pattern.h"

bool
wm_runs_fit(const wm_strided_t *runs, size_t count, const char *staging,
            size_t nbytes)
{
    bool fit = true;
    for (size_t i = 0; i < count; ++i) {
        char *low, *high;
        wm_strided_bounds(&runs[i], &low, &high);
        fit &= runs[i].run == 0
               || (low >= staging && high <= staging + nbytes);
    }
    return fit;
}

// Returns how many rows of contiguous bytes a run has.
static size_t
run_rows(const wm_strided_t *run)
{
    return run->run > 0 ? wm_strided_nbytes(run) / (size_t)run->run : 0;
}

static char *
run_row(const wm_strided_t *run, size_t row)
{
    int64_t at = 0, left = (int64_t)row;
    for (int i = run->ndim - 1; i >= 0; left /= run->shape[i--])
        at += left % run->shape[i] * run->strides[i];
    return run->data + at;
}

void
wm_staged_divide(const wm_staged_t *staged)
{
    const wm_staged_average_t *average = &staged->average;
    for (size_t i = 0; i < staged->count && average->ranks > 0; ++i) {
        const wm_strided_t *run = &staged->runs[i];
        for (size_t row = 0; row < run_rows(run); ++row)
            wm_reduce_divide(average->type, run_row(run, row), average->ranks,
                             (size_t)run->run / wm_reduce_size(average->type));
    }
}

// Describes the bytes of a run in the memory at `base`.
static void
staged_describe(wm_array_t *array, char *base, const char *staging,
                const wm_strided_t *run)
{
    *array = (wm_array_t){
        .data = base + (run->data - staging),
        .dtype = WM_UINT8,
        .ndim = run->ndim + 1,
    };
    for (int i = 0; i < run->ndim; ++i) {
        array->shape[i] = run->shape[i];
        array->strides[i] = run->strides[i];
    }
    array->shape[run->ndim] = run->run;
    array->strides[run->ndim] = 1;
}

// Copies one run. If the array has gaps, offsets do not count them. A device
// of -1: host memory, which is copied at once.
static int
copy_run(const wm_buffer_t *buffer, char *staging, const wm_strided_t *run,
         bool to_host, int device, CUstream stream, wm_error_t *err)
{
    wm_array_t memory, host;
    int code = 0;
    for (size_t i = 0;
         buffer->pattern != NULL && i < run_rows(run) && code == 0; ++i) {
        char *row = run_row(run, i);
        code = wm_pattern_copy(buffer, (size_t)(row - staging),
                               (size_t)run->run, row, to_host, device, stream,
                               err);
    }
    if (buffer->pattern != NULL)
        return code;
    staged_describe(&memory, buffer->data, staging, run);
    staged_describe(&host, staging, staging, run);
    return wm_copy_enqueue(to_host ? &host : &memory,
                           to_host ? &memory : &host, device, stream, err);
}

int
wm_staged_enqueue(const wm_buffer_t *buffer, const wm_staged_t *staged,
                  bool to_host, int device, CUstream stream, wm_error_t *err)
{
    int code = 0;
    size_t nbytes = 0;
    for (size_t i = 0; i < staged->count && code == 0; ++i) {
        const wm_strided_t *run = &staged->runs[i];
        if (run->run == 0)
            continue;
        code = copy_run(buffer, staged->staging, run, to_host, device, stream,
                        err);
        nbytes += wm_strided_nbytes(run);
    }
    if (code == 0 && device >= 0)
        wm_stat_add(WM_STAT_staged_bytes, (int64_t)nbytes);
    return code;
}

static int
staged_device_of(const wm_buffer_t *buffer)
{
    return buffer->memory.device >= 0 ? buffer->memory.device : 0;
}

int
wm_staged_await(const wm_buffer_t *buffer, wm_producer_t *producer,
                bool to_write, wm_error_t *err)
{
    wm_envelope_t nowhere = {.stream_device = -1};
    return wm_await_producer(buffer, producer, &nowhere, to_write, err);
}

int
wm_staged_copy(wm_buffer_t *buffer, const wm_staged_t *staged, bool to_host,
               wm_error_t *err)
{
    wm_access_t access;
    int code = wm_staged_await(buffer, &buffer->producer, !to_host, err);
    if (!wm_buffer_on_device(buffer))
        return code < 0
                   ? code
                   : wm_staged_enqueue(buffer, staged, to_host, -1, NULL, err);
    wm_access_begin(&access, &buffer->producer, !to_host,
                    staged_device_of(buffer));
    if (code == 0)
        code = wm_access_open(&access, err);
    if (code == 0)
        code = wm_staged_enqueue(buffer, staged, to_host, access.device,
                                 access.stream, err);
    // Also after an error: nothing stays in flight.
    int ended = wm_access_synchronize(&access, code == 0 ? err : NULL);
    access.idle = ended == 0;
    wm_access_close(&access);
    return code < 0 ? code : ended;
}

typedef struct {
    wm_op_t op;
    wm_buffer_t buffer;
    wm_access_t access;
    MPI_Request request;
    bool has_ended; // MPI's request has ended
    wm_staged_t *staged;
} call_t;

static int
staged_begin_copy(call_t *call, wm_error_t *err)
{
    const wm_staged_t *staged = call->staged;
    wm_access_t *access = &call->access;
    if (!wm_buffer_on_device(&call->buffer)) {
        access->idle = true;
        return wm_staged_enqueue(&call->buffer, staged, false, -1, NULL, err);
    }
    int code = wm_access_open(access, err);
    access->idle = false;
    return code < 0 ? code
                    : wm_staged_enqueue(&call->buffer, staged, false,
                                        access->device, access->stream, err);
}

// Returns true if MPI's request has ended, with or without an error.
static bool
staged_test(call_t *call)
{
    wm_error_t err;
    int flag = 0;
    if (wm_mpi_check(MPI_Test(&call->request, &flag, &call->staged->status),
                     "MPI_Test", &err)
        == 0)
        return flag;
    wm_op_fail(&call->op, &err);
    return true;
}

// Fails a call that MPI has done for the other ranks.
static void
staged_refuse(call_t *call)
{
    wm_error_t err;
    (void)wm_require_refuse("MPI did the call, in host memory",
                            "give host memory, such as a copy of the array",
                            &err);
    wm_op_fail(&call->op, &err);
}

static bool
staged_step(wm_op_t *op)
{
    wm_error_t err;
    call_t *call = (call_t *)op;
    wm_access_t *access = &call->access;
    if (!call->has_ended) {
        if (!staged_test(call))
            return false;
        int cancelled = 0;
        MPI_Test_cancelled(&call->staged->status, &cancelled);
        if (cancelled)
            call->staged->count = 0; // nothing was received
        call->has_ended = true;
        if (call->staged->refused)
            staged_refuse(call);
        access->idle = op->error.code != 0 || call->staged->count == 0;
        if (op->error.code == 0)
            wm_staged_divide(call->staged);
        if (!access->idle && staged_begin_copy(call, &err) < 0) {
            wm_op_fail(op, &err);
            access->idle = wm_access_synchronize(access, NULL) == 0;
            wm_access_close(access);
            return true;
        }
    }
    if (!access->idle) {
        int code = wm_access_look(access, 1, &err);
        if (code == 0)
            return false;
        if (code < 0)
            wm_op_fail(op, &err);
    }
    wm_access_close(access);
    return true;
}

static wm_asks_t
staged_asks(const wm_op_t *op)
{
    return ((const call_t *)op)->has_ended ? WM_ASKS_NOTHING : WM_ASKS_ALONE;
}

static wm_buffer_t *
staged_buffer_of(wm_op_t *op)
{
    return &((call_t *)op)->buffer;
}

static void
get_status(const wm_op_t *op, MPI_Status *status)
{
    *status = ((const call_t *)op)->staged->status;
}

static bool
staged_cancel(wm_op_t *op)
{
    call_t *call = (call_t *)op;
    bool can = call->staged->cancels && !call->has_ended
               && call->request != MPI_REQUEST_NULL;
    if (can)
        MPI_Cancel(&call->request); // the status tells if it was in time
    return can;
}

static void
free_call(wm_op_t *op)
{
    free(((call_t *)op)->staged);
}

static const wm_op_kind_t kind = {
    .step = staged_step,
    .asks = staged_asks,
    .buffer = staged_buffer_of,
    .cancel = staged_cancel,
    .status = get_status,
    .free = free_call,
};

int
wm_staged_begin(wm_comm_t *comm, wm_buffer_t *buffer, wm_staged_t *staged,
                MPI_Request request, wm_op_t **result, wm_error_t *err)
{
    int code = wm_engine_start(err);
    call_t *call = code == 0 ? wm_op_new(&kind, sizeof *call, comm) : NULL;
    if (code == 0 && call == NULL)
        code = wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    if (code < 0) {
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        wm_buffer_release(buffer);
        free(staged);
        return code;
    }
    call->buffer = *buffer;
    call->staged = staged;
    call->request = request;
    wm_access_begin(&call->access, &buffer->producer, true,
                    staged_device_of(buffer));
    MPI_Status_set_elements(&staged->status, MPI_BYTE, 0);
    MPI_Status_set_cancelled(&staged->status, 0);
    staged->status.MPI_SOURCE = MPI_ANY_SOURCE;
    staged->status.MPI_TAG = MPI_ANY_TAG;
    if (staged->count > 0
        && wm_staged_await(buffer, &call->access.producer, true, err) < 0) {
        wm_op_fail(&call->op, err); // raised at its end
        staged->count = 0;
    }
    if (staged->count > 0 && wm_buffer_on_device(buffer))
        wm_access_record(&call->access);
    wm_engine_add(&call->op);
    wm_engine_notify();
    *result = &call->op;
    return 0;
}
