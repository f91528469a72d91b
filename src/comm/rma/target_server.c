// SPDX-License-Identifier: BSD-3-Clause
// The receive of requests, as an operation of the engine that a window has.
#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/rma/target_state.h"

// The operation that receives requests.
typedef struct {
    wm_op_t op;
    wm_target_t *target;
} server_t;

static int
server_post(wm_target_t *target, wm_error_t *err)
{
    return wm_mpi_check(MPI_Irecv(&target->request, sizeof target->request,
                                  MPI_BYTE, MPI_ANY_SOURCE, WM_TARGET_ASKED,
                                  target->comm.match, &target->asking),
                        "MPI_Irecv", err);
}

// After an error of the receive: a rank has died. Returns true if those of the
// other ranks still come.
static bool
server_goes_on(wm_target_t *target)
{
    return wm_failure_go_on(&target->comm)
           && (target->asking != MPI_REQUEST_NULL
               || server_post(target, NULL) == 0);
}

// Returns true when no request comes any more: the receive was cancelled, or
// has failed.
static bool
server_step(wm_op_t *op)
{
    wm_target_t *target = ((server_t *)op)->target;
    int flag = 0, cancelled = 0;
    while (target->asking != MPI_REQUEST_NULL) {
        MPI_Status status;
        if (target->spare == NULL)
            target->spare = wm_serving_new(target);
        if (target->spare == NULL) // memory is exhausted: try again
            return false;
        bool fails = MPI_Test(&target->asking, &flag, &status) != MPI_SUCCESS;
        bool came = fails ? wm_posted_came(&target->asking, &status)
                          : flag != 0;
        if (fails && !came && !server_goes_on(target))
            break;
        if (!came)
            return false;
        MPI_Test_cancelled(&status, &cancelled);
        if (cancelled)
            break;
        wm_serving_begin(target->spare, target, &target->request,
                         status.MPI_SOURCE);
        target->spare = NULL;
        if (server_post(target, NULL) < 0)
            break;
    }
    target->server = NULL;
    return true;
}

// It waits for a message that may never come, as other receives do.
static void
server_about(const wm_op_t *op, wm_about_t *about)
{
    (void)op;
    *about = (wm_about_t){
        .is_message = true,
        .receives = true,
        .rank = MPI_ANY_SOURCE,
        .tag = WM_TARGET_ASKED,
    };
}

static bool
server_cancel(wm_op_t *op)
{
    wm_target_t *target = ((server_t *)op)->target;
    if (target->asking != MPI_REQUEST_NULL)
        MPI_Cancel(&target->asking);
    return true;
}

static wm_asks_t
server_asks(const wm_op_t *op)
{
    (void)op;
    return WM_ASKS_TOO;
}

static void
server_free(wm_op_t *op)
{
    wm_target_t *target = ((server_t *)op)->target;
    if (target->spare != NULL)
        wm_serving_free(target->spare);
    target->spare = NULL;
    wm_target_release(target);
}

static const wm_op_kind_t server_kind = {
    .step = server_step,
    .asks = server_asks,
    .about = server_about,
    .cancel = server_cancel,
    .free = server_free,
};

int
wm_target_serve(wm_target_t *target, wm_error_t *err)
{
    server_t *server = wm_op_new(&server_kind, sizeof *server, target->of);
    if (server == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    wm_target_retain(target);
    server->target = target;
    wm_engine_lock();
    int code = server_post(target, err);
    if (code == 0) {
        target->server = &server->op;
        wm_engine_add_lock_held(&server->op);
    }
    wm_engine_unlock();
    wm_op_release(&server->op); // the engine has a reference
    wm_engine_notify();
    return code;
}

void
wm_target_serve_end(wm_target_t *target)
{
    wm_engine_lock();
    if (target->server != NULL)
        (void)server_cancel(target->server);
    wm_engine_unlock();
}
