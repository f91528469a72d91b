// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/run/persistent_coll.h"

#include <stdlib.h>

#include "comm/coll/run/nonblocking.h"
#include "comm/coll/direct/preflight.h"
#include "comm/coll/call/reducible.h"
#include "comm/engine/engine.h"
#include "comm/diagnostics/drain.h"

// Slots that persistent collectives leave to the program's communicators.
#define SLOTS_LEFT (WM_BARRIER_SLOTS / 4)

// A communicator that was closed while its last call was under way.
typedef struct closing {
    struct closing *next;
    wm_comm_t *own;
    MPI_Comm handle;
    wm_op_t *last; // that call; NULL: none
} closing_t;

static closing_t *all_closing; // engine lock

// Returns true if a call is under way. MPI's own calls are operations without
// a communicator; some MPIs fail if the communicator is freed before they have
// ended.
static bool
is_used(const closing_t *closing)
{
    return (closing->last != NULL && !atomic_load(&closing->last->done))
           || wm_drain_is_used(closing->own);
}

// Frees the handles whose calls have ended.
static void
free_ended(void)
{
    closing_t *ended = NULL;
    wm_engine_lock();
    for (closing_t **link = &all_closing, *closing;
         (closing = *link) != NULL;) {
        if (is_used(closing)) {
            link = &closing->next;
            continue;
        }
        *link = closing->next;
        closing->next = ended;
        ended = closing;
    }
    wm_engine_unlock();
    while (ended != NULL) {
        closing_t *next = ended->next;
        MPI_Comm_free(&ended->handle);
        if (ended->last != NULL)
            wm_op_release(ended->last);
        free(ended);
        ended = next;
    }
}

bool
wm_persistent_coll_is_able(wm_comm_t *comm, const wm_coll_t *call)
{
    wm_reduce_type_t type;
    wm_reduce_op_t op;
    wm_engine_lock();
    bool left = wm_barrier_slots_left() > SLOTS_LEFT;
    wm_engine_unlock();
    return left && call != NULL && call->on_device
           && wm_direct_is_reached(comm->whole)
           && (!wm_coll_shape(call->kind)->reduces
               || (call->send == NULL && call->receive == NULL)
               || wm_coll_reducible(call, &type, &op));
}

// Returns 0 if all ranks are able, 1 if some are not, or an error.
static int
persistent_coll_preflight(wm_comm_t *comm, wm_coll_kind_t kind, bool able,
                          int failed, wm_error_t *err)
{
    // Ranks that are not able stage, or have no GPU memory.
    wm_preflight_t preflight = {
        .call = kind,
        .code = failed,
        .stages = !able,
    };
    int code = wm_preflight_run(comm->whole, &preflight, err);
    return code < 0 ? code : preflight.stages;
}

int
wm_persistent_coll_open(wm_comm_t *comm, wm_coll_kind_t kind, bool able,
                        int failed, bool always, wm_comm_t **own,
                        MPI_Comm *handle, wm_error_t *err)
{
    MPI_Comm made = MPI_COMM_NULL;
    wm_neighbor_rule_t plain; // unused: `data` has each neighbor once
    free_ended();
    if (comm->whole->init_refused && !always) {
        comm->whole->init_refused = false;
        wm_coll_decline(comm->whole); // has the number of the refused call
        return 1;
    }
    int code = persistent_coll_preflight(comm, kind, able, failed, err);
    if (code == 0 || (code > 0 && always))
        code = wm_neighbor_clone(comm->data, comm->match, &made, &plain, err);
    if (made == MPI_COMM_NULL)
        return code;
    code = wm_comm_attach(made, own, err);
    if (code == 0)
        (*own)->neighbor_rule = comm->neighbor_rule;
    if (code == 0 && (*own)->whole->barrier != NULL)
        code = wm_nonblocking_make_persistent((*own)->whole, err);
    if (code == 0 && (always || (*own)->whole->barrier != NULL)) {
        *handle = made;
        return 0;
    }
    MPI_Comm_free(&made);
    return code < 0 ? code : 1;
}

void
wm_persistent_coll_refused(wm_comm_t *comm)
{
    comm->whole->init_refused = true;
    wm_coll_refused(comm->whole);
}

void
wm_persistent_coll_close(wm_comm_t *own, MPI_Comm handle, wm_op_t *last)
{
    closing_t *closing = malloc(sizeof *closing);
    if (closing == NULL)
        return; // it is never freed
    *closing = (closing_t){.own = own, .handle = handle, .last = last};
    wm_engine_lock();
    closing->next = all_closing;
    all_closing = closing;
    wm_engine_unlock();
    free_ended();
}
