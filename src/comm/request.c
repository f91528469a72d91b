// SPDX-License-Identifier: BSD-3-Clause
#include "comm/request.h"

#include "comm/inline.h"
#include "comm/leftovers.h"
#include "comm/p2p.h"
#include "comm/progress.h"
#include "comm/staged.h"

void
wm_request_status(const wm_op_t *op, MPI_Status *status)
{
    bool matched = op->receives && !op->result.cancelled;
    status->MPI_SOURCE = matched ? op->result.source : MPI_ANY_SOURCE;
    status->MPI_TAG = matched ? op->result.tag : MPI_ANY_TAG;
    status->MPI_ERROR = op->error.code == 0 ? MPI_SUCCESS
                        : op->error.code == WM_ERR_TRUNCATE
                                || op->error.code == WM_ERR_MPI
                            ? op->error.detail
                            : MPI_ERR_OTHER;
    if (op->staged != NULL) {
        wm_staged_status(op, status);
        return;
    }
    MPI_Count nbytes = matched ? (MPI_Count)op->result.nbytes : 0;
    if (matched && op->result.nbytes > op->buffer.nbytes)
        nbytes = (MPI_Count)op->buffer.nbytes;
    MPI_Status_set_elements_x(status, MPI_BYTE, nbytes);
    MPI_Status_set_cancelled(status, op->result.cancelled);
}

static int
query(void *op, MPI_Status *status)
{
    wm_request_status(op, status);
    return status->MPI_ERROR;
}

static int
let_go(void *op)
{
    wm_leftovers_strike(op);
    wm_op_release(op);
    return MPI_SUCCESS;
}

static int
cancel(void *op, int complete)
{
    if (!complete)
        wm_op_cancel(op);
    return MPI_SUCCESS;
}

int
wm_request_start_lock_held(wm_op_t *op, wm_error_t *err)
{
    int code = wm_mpi_check(
        MPI_Grequest_start(query, let_go, cancel, op, &op->request),
        "MPI_Grequest_start", err);
    if (code < 0)
        return code;
    wm_op_retain(op);
    op->has_request = true;
    wm_leftovers_note(op);
    if (atomic_load(&op->done))
        MPI_Grequest_complete(op->request);
    return 0;
}

int
wm_request_start(wm_op_t *op, MPI_Request *request, wm_error_t *err)
{
    if (wm_op_is_ended(op)) // what MPI has ended as it began it
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
