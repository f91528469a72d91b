// SPDX-License-Identifier: BSD-3-Clause
#include "comm/engine/request.h"

#include "comm/engine/engine.h"
#include "comm/engine/modules.h"
#include "comm/engine/posted.h"
#include "cuda/settings.h"

void
wm_request_status(const wm_op_t *op, MPI_Status *status)
{
    const wm_result_t *result = &op->result;
    bool received = result->received && !result->cancelled;
    int code = op->error.code;
    bool from_mpi = code == WM_ERR_TRUNCATE || code == WM_ERR_MPI;
    int error = code == 0  ? MPI_SUCCESS
                : from_mpi ? op->error.detail
                           : MPI_ERR_OTHER;
    if (op->kind->status != NULL)
        op->kind->status(op, status);
    else {
        status->MPI_SOURCE = received ? result->source : MPI_ANY_SOURCE;
        status->MPI_TAG = received ? result->tag : MPI_ANY_TAG;
        MPI_Status_set_elements_x(status, MPI_BYTE,
                                  received ? (MPI_Count)result->nbytes : 0);
        MPI_Status_set_cancelled(status, result->cancelled);
    }
    status->MPI_ERROR = error;
}

static _Thread_local bool keeps_errors;

bool
wm_request_keep_errors(bool keep)
{
    bool before = keeps_errors;
    keeps_errors = keep;
    return before;
}

// MPI passes an error returned here to the error handler of MPI_COMM_WORLD, as
// it is of no communicator.
static int
request_query(void *op, MPI_Status *status)
{
    wm_request_status(op, status);
    if (keeps_errors)
        status->MPI_ERROR = MPI_SUCCESS;
    return status->MPI_ERROR;
}

static int
request_let_go(void *given)
{
    wm_op_t *op = given;
    if (wm_setting_is_on(WM_SETTING_CHECK))
        WM_EACH_MODULE(request_freed, op);
    atomic_store(&op->freed, true);
    if (atomic_load(&op->orphaned))
        wm_op_release_told(op);
    else
        wm_op_release(op);
    return MPI_SUCCESS;
}

static int
request_cancel(void *op, int complete)
{
    if (!complete)
        (void)wm_op_cancel(op);
    return MPI_SUCCESS;
}

int
wm_request_start_lock_held(wm_op_t *op, wm_error_t *err)
{
    int code = wm_mpi_check(MPI_Grequest_start(request_query, request_let_go,
                                               request_cancel, op,
                                               &op->request),
                            "MPI_Grequest_start", err);
    if (code < 0)
        return code;
    wm_op_retain(op);
    op->has_request = true;
    if (wm_setting_is_on(WM_SETTING_CHECK))
        WM_EACH_MODULE(requested, op);
    if (atomic_load(&op->done))
        MPI_Grequest_complete(op->request);
    return 0;
}

int
wm_request_start(wm_op_t *op, MPI_Request *request, wm_error_t *err)
{
    if (wm_op_is_ended(op)) // a request that MPI ends at once
        return wm_mpi_check(MPI_Isend(NULL, 0, MPI_BYTE, MPI_PROC_NULL, 0,
                                      MPI_COMM_SELF, request),
                            "MPI_Isend", err);
    wm_engine_lock();
    int code = op->has_request ? 0 : wm_request_start_lock_held(op, err);
    if (code == 0)
        *request = op->request;
    wm_engine_unlock();
    wm_engine_notify();
    return code;
}
