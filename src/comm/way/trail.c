// SPDX-License-Identifier: BSD-3-Clause
#include "comm/way/trail.h"

#include <stdlib.h>

#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/message/packet.h"

#define PLACES 256     // packets of a communicator: 1 MiB
#define SWEPT_EVERY 16 // added: nobody may step the engine meanwhile

typedef struct {
    MPI_Request request;
    char *packet;
    int rank, tag;
    size_t nbytes;
} left_t;

struct wm_trail {
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

// It stands for the first of them.
typedef struct {
    wm_op_t op;
    wm_trail_t *trail;
} follower_t;

static bool
step(wm_op_t *op)
{
    if (!sweep(op->comm, ((follower_t *)op)->trail))
        return false;
    op->comm->trail = NULL;
    return true;
}

static void
about(const wm_op_t *op, wm_about_t *about)
{
    wm_trail_t *trail = ((const follower_t *)op)->trail;
    const left_t *left = at(trail, trail->first);
    *about = (wm_about_t){
        .is_message = true,
        .rank = left->rank,
        .tag = left->tag,
        .sized = true,
        .nbytes = left->nbytes,
        .peer = op->comm->peers[left->rank],
        .mark = trail->first,
    };
}

static void
free_trail(wm_op_t *op)
{
    free(((follower_t *)op)->trail);
}

static const wm_op_kind_t kind = {
    .step = step,
    .asks = wm_posted_asks,
    .about = about,
    .free = free_trail,
};

static wm_trail_t *
begin(wm_comm_t *comm)
{
    wm_trail_t *trail = malloc(sizeof *trail);
    follower_t *follower = trail != NULL
                               ? wm_op_new(&kind, sizeof *follower, comm)
                               : NULL;
    if (follower == NULL) {
        free(trail);
        return NULL;
    }
    trail->first = trail->end = 0;
    follower->trail = trail;
    wm_engine_add_lock_held(&follower->op);
    wm_op_release(&follower->op); // it ends by itself
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
    return true;
}
