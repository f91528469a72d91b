// SPDX-License-Identifier: BSD-3-Clause
// Dissemination: in each round a rank sends what it knows to the one that is
// `distance` after it, and hears from the one as far before it; the distance
// doubles. The greatest of a number may be told twice, so that any number of
// ranks will do.
#include "comm/agree.h"

#include <stddef.h>
#include <string.h>

#include "comm/failure.h"
#include "comm/p2p.h"
#include "comm/progress.h"

#define LOOKS_FOR_DEAD 64 // steps, before it is asked for ranks that died

// In the operation's packet.
typedef struct {
    wm_agree_t known, heard;
    int distance;
} run_t;

_Static_assert(sizeof(run_t) <= WM_PACKET_BYTES, "a packet holds it");

static void
copy(wm_agree_t *to, const wm_agree_t *from)
{
    memcpy(to, from, offsetof(wm_agree_t, payload) + from->nbytes);
}

// Begins the rounds that are left: 0, 1 when there is none, or an error.
static int
begin_round(wm_op_t *op, wm_error_t *err)
{
    run_t *run = (run_t *)op->packet;
    wm_comm_t *comm = op->comm;
    if (run->distance >= comm->size)
        return 1;
    int before = (comm->rank - run->distance + comm->size) % comm->size;
    int after = (comm->rank + run->distance) % comm->size;
    size_t length = offsetof(wm_agree_t, payload) + run->known.nbytes;
    int code = wm_mpi_check(MPI_Irecv(&run->heard, (int)sizeof run->heard,
                                      MPI_BYTE, before, comm->tag_limit,
                                      comm->data, &op->parts[0]),
                            "MPI_Irecv", err);
    if (code == 0)
        code = wm_mpi_check(MPI_Isend(&run->known, (int)length, MPI_BYTE,
                                      after, comm->tag_limit, comm->data,
                                      &op->parts[1]),
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
advance(wm_op_t *op, wm_error_t *err)
{
    run_t *run = (run_t *)op->packet;
    int code = 0;
    while (code == 0) {
        int flag = 1;
        for (int i = 0; i < 2 && flag && code == 0; ++i)
            code = wm_mpi_check(
                MPI_Test(&op->parts[i], &flag, MPI_STATUS_IGNORE), "MPI_Test",
                err);
        // MPI tells of the two ranks alone, and another that has heard of a
        // dead one has left, and sends nothing.
        if (code == 0 && !flag && ++op->looks % LOOKS_FOR_DEAD == 0)
            code = wm_failure_look_at_all(op->comm, err);
        if (code < 0 || !flag)
            return code;
        merge(run);
        run->distance *= 2;
        code = begin_round(op, err);
    }
    return code;
}

// Ends what MPI does with the packet.
static void
give_up(wm_op_t *op)
{
    if (op->parts[0] != MPI_REQUEST_NULL) {
        MPI_Cancel(&op->parts[0]);
        MPI_Wait(&op->parts[0], MPI_STATUS_IGNORE);
    }
    if (op->parts[1] != MPI_REQUEST_NULL) {
        wm_op_leave(op->comm, &op->parts[1]);
        op->packet = NULL; // given up: MPI may read it
    }
}

static bool
step(wm_op_t *op)
{
    wm_error_t err;
    int code = advance(op, &err);
    if (code == 0)
        return false;
    if (code < 0) {
        wm_op_fail(op, &err);
        give_up(op);
    }
    wm_op_complete(op);
    return true;
}

int
wm_agree(wm_comm_t *comm, wm_agree_t *agreed, wm_error_t *err)
{
    wm_buffer_t none = {.memory = {.device = -1}};
    wm_op_t *op = wm_op_new(comm, &none);
    if (op == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    int code = wm_op_packet(op, false, err);
    if (code == 0) {
        run_t *run = (run_t *)op->packet;
        run->distance = 1;
        copy(&run->known, agreed);
        op->step = step;
        wm_engine_lock();
        code = begin_round(op, err);
        if (code == 0) {
            wm_op_retain(op); // the engine's
            wm_engine_add_lock_held(op);
        }
        else if (code < 0)
            give_up(op);
        wm_engine_unlock();
        if (code == 0)
            code = wm_op_wait(op, NULL, err);
        if (code >= 0)
            copy(agreed, &run->known);
    }
    wm_op_release(op);
    return code < 0 ? code : 0;
}
