// SPDX-License-Identifier: BSD-3-Clause
#include "comm/engine/posted.h"

#include "comm/engine/engine.h"

typedef struct {
    wm_op_t op;
    MPI_Request request;
} posted_t;

int
wm_mpi_check(int result, const char *call, wm_error_t *err)
{
    if (result == MPI_SUCCESS)
        return 0;
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int length = 0;
    MPI_Error_string(result, text, &length);
    return wm_error_set(err, WM_ERR_MPI, result, "%s: %.400s", call, text);
}

bool
wm_mpi_refuses(int error)
{
    static const int classes[] = {
        MPI_ERR_BUFFER, MPI_ERR_COUNT,   MPI_ERR_TYPE, MPI_ERR_TAG,
        MPI_ERR_COMM,   MPI_ERR_RANK,    MPI_ERR_ROOT, MPI_ERR_GROUP,
        MPI_ERR_OP,     MPI_ERR_ARG,     MPI_ERR_DIMS, MPI_ERR_TOPOLOGY,
        MPI_ERR_INFO,   MPI_ERR_REQUEST,
    };
    int error_class = error;
    MPI_Error_class(error, &error_class);
    for (size_t i = 0; i < sizeof classes / sizeof *classes; ++i)
        if (classes[i] == error_class)
            return true;
    return false;
}

int
wm_mpi_duplicate(MPI_Comm comm, MPI_Comm *duplicate, wm_error_t *err)
{
    // Not MPI_Comm_dup: that would run the program's attribute functions.
    // MPI_Comm_create takes fewer rounds than MPI_Comm_split.
    MPI_Group group = MPI_GROUP_NULL;
    int inter = 0, rank = 0;
    int result = MPI_Comm_test_inter(comm, &inter);
    if (result == MPI_SUCCESS)
        result = inter ? MPI_Comm_rank(comm, &rank)
                       : MPI_Comm_group(comm, &group);
    if (result == MPI_SUCCESS)
        result = inter ? MPI_Comm_split(comm, 0, rank, duplicate)
                       : MPI_Comm_create(comm, group, duplicate);
    if (group != MPI_GROUP_NULL)
        MPI_Group_free(&group);
    int code = wm_mpi_check(result,
                            inter ? "MPI_Comm_split" : "MPI_Comm_create", err);
    if (code == 0)
        MPI_Comm_set_errhandler(*duplicate, MPI_ERRORS_RETURN);
    return code;
}

bool
wm_posted_has_ended(wm_op_t *op, MPI_Request *request)
{
    wm_error_t err;
    int flag = 0;
    if (wm_mpi_check(MPI_Test(request, &flag, MPI_STATUS_IGNORE), "MPI_Test",
                     &err)
        < 0)
        wm_op_fail(op, &err);
    return flag || op->error.code != 0;
}

bool
wm_posted_came(MPI_Request *request, MPI_Status *status)
{
    int ended = 0;
    return *request != MPI_REQUEST_NULL
           && MPI_Request_get_status(*request, &ended, status) == MPI_SUCCESS
           && ended && MPI_Request_free(request) == MPI_SUCCESS;
}

wm_asks_t
wm_posted_asks(const wm_op_t *op)
{
    (void)op;
    return WM_ASKS_ALONE;
}

static bool
posted_step(wm_op_t *op)
{
    return wm_posted_has_ended(op, &((posted_t *)op)->request);
}

static const wm_op_kind_t kind = {.step = posted_step, .asks = wm_posted_asks};

// MPI_Request_free is avoided: if Open MPI ends the request on another thread
// at that moment, it may first reuse the request for the next message.
void
wm_posted_leave(wm_comm_t *comm, MPI_Request *request)
{
    int flag = 0;
    if (MPI_Test(request, &flag, MPI_STATUS_IGNORE) != MPI_SUCCESS || flag)
        return;
    posted_t *posted = wm_op_new(&kind, sizeof *posted, comm);
    if (posted != NULL) {
        posted->request = *request;
        wm_engine_add_lock_held(&posted->op);
        wm_op_release(&posted->op); // it ends by itself
    }
    else
        MPI_Request_free(request);
    wm_engine_notify();
    *request = MPI_REQUEST_NULL;
}
