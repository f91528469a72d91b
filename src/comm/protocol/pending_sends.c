// SPDX-License-Identifier: BSD-3-Clause
#include "comm/protocol/pending_sends.h"

#include <stdlib.h>

#include "comm/comm/failure.h"
#include "comm/engine/engine.h"
#include "comm/message/packet.h"

#define PLACES 256     // packets of a communicator: 1 MiB
#define SWEPT_EVERY 16 // sends between sweeps, if nobody steps the engine

typedef struct {
    MPI_Request request;
    char *packet;
    int rank, tag;
    size_t nbytes;
} left_t;

struct wm_pending_sends {
    unsigned first, end; // numbers that only grow
    left_t left[PLACES];
};

static left_t *
at(wm_pending_sends_t *sends, unsigned number)
{
    return &sends->left[number % PLACES];
}

// Keeps an error for the next send to that rank, unless the rank is dead: then
// that send fails by itself.
static void
note_error(wm_comm_t *comm, const left_t *left, const wm_error_t *err)
{
    if (wm_failure_look(comm, left->rank, NULL) == 0)
        wm_comm_keep_error(comm, false, left->rank, left->tag, err);
}

// Releases the packets that MPI has read. Returns true when none is left.
static bool
sweep(wm_comm_t *comm, wm_pending_sends_t *sends)
{
    for (; sends->first != sends->end; ++sends->first) {
        wm_error_t err;
        int flag = 1;
        left_t *left = at(sends, sends->first);
        if (wm_mpi_check(MPI_Test(&left->request, &flag, MPI_STATUS_IGNORE),
                         "MPI_Test", &err)
            < 0)
            note_error(comm, left, &err);
        else if (!flag)
            return false;
        wm_packet_put(left->packet);
    }
    return true;
}

// The operation. In reports it stands for the first pending send.
typedef struct {
    wm_op_t op;
    wm_pending_sends_t *sends;
} follower_t;

static bool
pending_sends_step(wm_op_t *op)
{
    if (!sweep(op->comm, ((follower_t *)op)->sends))
        return false;
    op->comm->pending_sends = NULL;
    return true;
}

static void
pending_sends_about(const wm_op_t *op, wm_about_t *about)
{
    wm_pending_sends_t *sends = ((const follower_t *)op)->sends;
    const left_t *left = at(sends, sends->first);
    *about = (wm_about_t){
        .is_message = true,
        .rank = left->rank,
        .tag = left->tag,
        .sized = true,
        .nbytes = left->nbytes,
        .peer = op->comm->peers[left->rank],
        .mark = sends->first,
    };
}

static void
free_sends(wm_op_t *op)
{
    free(((follower_t *)op)->sends);
}

static const wm_op_kind_t kind = {
    .step = pending_sends_step,
    .asks = wm_posted_asks,
    .about = pending_sends_about,
    .free = free_sends,
};

static wm_pending_sends_t *
pending_sends_begin(wm_comm_t *comm)
{
    wm_pending_sends_t *sends = malloc(sizeof *sends);
    follower_t *follower = sends != NULL
                               ? wm_op_new(&kind, sizeof *follower, comm)
                               : NULL;
    if (follower == NULL) {
        free(sends);
        return NULL;
    }
    sends->first = sends->end = 0;
    follower->sends = sends;
    wm_engine_add_lock_held(&follower->op);
    wm_op_release(&follower->op); // it ends by itself
    return comm->pending_sends = sends;
}

bool
wm_pending_sends_add(wm_comm_t *comm, const wm_envelope_t *envelope,
                     size_t nbytes, MPI_Request request, char *packet)
{
    wm_pending_sends_t *sends = comm->pending_sends;
    if (sends != NULL && sends->end % SWEPT_EVERY == 0)
        (void)sweep(comm, sends);
    if (sends == NULL && (sends = pending_sends_begin(comm)) == NULL)
        return false;
    if (sends->end - sends->first == PLACES)
        return false;
    *at(sends, sends->end++) = (left_t){
        .request = request,
        .packet = packet,
        .rank = envelope->rank,
        .tag = envelope->tag,
        .nbytes = nbytes,
    };
    return true;
}
