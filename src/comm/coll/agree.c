// SPDX-License-Identifier: BSD-3-Clause
// Dissemination: in each round a rank sends what it knows to the one that is
// `distance` after it, and hears from the one as far before it; the distance
// doubles. The greatest of a number may be told twice, so that any number of
// ranks will do.
#include "comm/coll/agree.h"

#include <stddef.h>
#include <string.h>

#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/engine/posted.h"
#include "comm/message/packet.h"
#include "comm/watch/wait.h"

// In a packet.
typedef struct {
    wm_agree_t known, heard;
    int distance;
    MPI_Request requests[2]; // to hear, to tell
} run_t;

_Static_assert(sizeof(run_t) <= WM_PACKET_BYTES, "a packet holds it");

// The others come at once, as a rule: so often they are looked for before
// there is an operation to wait for.
#define LOOKS 50
#define LOOKS_FOR_DEAD 64 // steps, before it is asked for ranks that died

static void
copy(wm_agree_t *to, const wm_agree_t *from)
{
    memcpy(to, from, offsetof(wm_agree_t, payload) + from->nbytes);
}

// 0, 1 when no round is left, or an error.
static int
begin_round(wm_comm_t *comm, run_t *run, wm_error_t *err)
{
    if (run->distance >= comm->size)
        return 1;
    int before = (comm->rank - run->distance + comm->size) % comm->size;
    int after = (comm->rank + run->distance) % comm->size;
    size_t length = offsetof(wm_agree_t, payload) + run->known.nbytes;
    int code = wm_mpi_check(MPI_Irecv(&run->heard, (int)sizeof run->heard,
                                      MPI_BYTE, before, comm->tag_limit,
                                      comm->data, &run->requests[0]),
                            "MPI_Irecv", err);
    if (code == 0)
        code = wm_mpi_check(MPI_Isend(&run->known, (int)length, MPI_BYTE,
                                      after, comm->tag_limit, comm->data,
                                      &run->requests[1]),
                            "MPI_Isend", err);
    return code;
}

static void
merge(run_t *run)
{
    wm_agree_t *mine = &run->known;
    const wm_agree_t *other = &run->heard;
    for (int i = 0; i < WM_AGREE_VALUES; ++i)
        if (other->values[i] > mine->values[i])
            mine->values[i] = other->values[i];
    if (mine->nbytes == 0 && other->nbytes > 0) {
        mine->nbytes = other->nbytes;
        memcpy(mine->payload, other->payload, other->nbytes);
    }
}

// 1 when it is over, 0 when not yet.
static int
advance(wm_comm_t *comm, run_t *run, wm_error_t *err)
{
    int code = 0;
    while (code == 0) {
        int flag = 1;
        for (int i = 0; i < 2 && flag && code == 0; ++i)
            code = wm_mpi_check(
                MPI_Test(&run->requests[i], &flag, MPI_STATUS_IGNORE),
                "MPI_Test", err);
        if (code < 0 || !flag)
            return code;
        merge(run);
        run->distance *= 2;
        code = begin_round(comm, run, err);
    }
    return code;
}

// Whether MPI needs the packet no longer: it may still be telling.
static bool
give_up(wm_comm_t *comm, run_t *run)
{
    if (run->requests[0] != MPI_REQUEST_NULL) {
        MPI_Cancel(&run->requests[0]);
        MPI_Wait(&run->requests[0], MPI_STATUS_IGNORE);
    }
    if (run->requests[1] == MPI_REQUEST_NULL)
        return true;
    wm_engine_lock();
    wm_posted_leave(comm, &run->requests[1]);
    wm_engine_unlock();
    return false;
}

typedef struct {
    wm_op_t op;
    run_t *run;
    unsigned looks;
} wait_t;

static bool
step(wm_op_t *op)
{
    wm_error_t err;
    wait_t *wait = (wait_t *)op;
    int code = advance(op->comm, wait->run, &err);
    // MPI tells of the two ranks alone, and another that has heard of a dead
    // one has left, and sends nothing.
    if (code == 0 && ++wait->looks % LOOKS_FOR_DEAD == 0)
        code = wm_failure_look_at_all(op->comm, &err);
    if (code == 0)
        return false;
    if (code < 0)
        wm_op_fail(op, &err);
    return true;
}

static const wm_op_kind_t kind = {.step = step};

// By the engine, which sees to whatever else is under way.
static int
wait_for_others(wm_comm_t *comm, run_t *run, wm_error_t *err)
{
    wait_t *wait = wm_op_new(&kind, sizeof *wait, comm);
    if (wait == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    wait->run = run;
    wm_engine_add(&wait->op);
    int code = wm_op_wait(&wait->op, NULL, err);
    wm_op_release(&wait->op);
    return code;
}

int
wm_agree(wm_comm_t *comm, wm_agree_t *agreed, wm_error_t *err)
{
    run_t *run = (run_t *)wm_packet_take();
    if (run == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    run->distance = 1;
    run->requests[0] = run->requests[1] = MPI_REQUEST_NULL;
    copy(&run->known, agreed);
    int code = begin_round(comm, run, err);
    for (int i = 0; i < LOOKS && code == 0; ++i)
        code = advance(comm, run, err);
    if (code == 0)
        code = wait_for_others(comm, run, err);
    if (code >= 0)
        copy(agreed, &run->known);
    if (code >= 0 || give_up(comm, run))
        wm_packet_give((char *)run);
    return code < 0 ? code : 0;
}
