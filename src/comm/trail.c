// SPDX-License-Identifier: BSD-3-Clause
#include "comm/trail.h"

#include <stdlib.h>

#include "comm/failure.h"
#include "comm/progress.h"

#define PLACES 256     // packets of a communicator: 1 MiB
#define SWEPT_EVERY 16 // added: nobody may step the engine meanwhile

typedef struct {
    MPI_Request request;
    char *packet;
    int rank, tag;
    size_t nbytes;
} left_t;

struct wm_trail {
    wm_op_t *op;
    unsigned first, end; // grow for ever
    left_t left[PLACES];
};

static left_t *
at(wm_trail_t *trail, unsigned number)
{
    return &trail->left[number % PLACES];
}

// What cannot be delivered to a dead rank the next send to it tells.
static void
note_error(wm_comm_t *comm, const left_t *left, const wm_error_t *err)
{
    if (wm_failure_look(comm, left->rank, NULL) == 0)
        wm_comm_keep_error(comm, false, left->rank, left->tag, err);
}

// Lets go of what MPI has read; true when nothing is left.
static bool
sweep(wm_comm_t *comm, wm_trail_t *trail)
{
    for (; trail->first != trail->end; ++trail->first) {
        wm_error_t err;
        int flag = 1;
        left_t *left = at(trail, trail->first);
        if (wm_mpi_check(MPI_Test(&left->request, &flag, MPI_STATUS_IGNORE),
                         "MPI_Test", &err)
            < 0)
            note_error(comm, left, &err);
        else if (!flag)
            return false;
        wm_packet_give(left->packet);
    }
    return true;
}

// What the operation stands for now.
static void
show_first(wm_op_t *op, wm_trail_t *trail)
{
    const left_t *left = at(trail, trail->first);
    op->rank = left->rank;
    op->tag = left->tag;
    op->peer = op->comm->peers[left->rank];
    op->buffer.nbytes = left->nbytes;
    op->parts[0] = left->request;
}

static bool
step(wm_op_t *op)
{
    wm_trail_t *trail = op->buffer.owner;
    if (!sweep(op->comm, trail)) {
        show_first(op, trail);
        return false;
    }
    op->comm->trail = NULL;
    op->parts[0] = MPI_REQUEST_NULL;
    return true;
}

static wm_trail_t *
begin(wm_comm_t *comm)
{
    wm_trail_t *trail = malloc(sizeof *trail);
    if (trail == NULL)
        return NULL;
    wm_buffer_t buffer = {
        .memory = {.device = -1},
        .owner = trail,
        .release = free,
    };
    trail->first = trail->end = 0;
    trail->op = wm_op_new(comm, &buffer);
    if (trail->op == NULL)
        return NULL;
    trail->op->step = step;
    wm_engine_add_lock_held(trail->op); // the only reference is its own
    return comm->trail = trail;
}

bool
wm_trail_add(wm_comm_t *comm, const wm_envelope_t *envelope, size_t nbytes,
             MPI_Request request, char *packet)
{
    wm_trail_t *trail = comm->trail;
    if (trail != NULL && trail->end % SWEPT_EVERY == 0)
        (void)sweep(comm, trail);
    if (trail == NULL && (trail = begin(comm)) == NULL)
        return false;
    if (trail->end - trail->first == PLACES)
        return false;
    *at(trail, trail->end++) = (left_t){
        .request = request,
        .packet = packet,
        .rank = envelope->rank,
        .tag = envelope->tag,
        .nbytes = nbytes,
    };
    show_first(trail->op, trail);
    return true;
}
