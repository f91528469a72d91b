// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/run/persistent_coll.h"

#include <stdlib.h>

#include "comm/coll/call/coll_refused.h"
#include "comm/coll/run/coll_class.h"
#include "comm/coll/run/nonblocking.h"
#include "comm/coll/run/coll_engines.h"
#include "comm/coll/run/coll_require.h"
#include "comm/comm/require.h"
#include "comm/engine/engine.h"
#include "comm/diagnostics/drain.h"

// Slots that persistent collectives leave to the program's communicators.
#define SLOTS_LEFT (WM_BARRIER_ROWS / 4)

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

unsigned
wm_persistent_coll_engines(wm_comm_t *comm, const wm_coll_t *call)
{
    wm_coll_op_t op;
    wm_engine_lock();
    bool left = !wm_comm_is_one_host(comm->whole)
                || wm_barrier_rows_left() > SLOTS_LEFT;
    wm_engine_unlock();
    if (!left || call == NULL)
        return 0;
    wm_coll_op_init(&op, comm->whole, NULL, call, WM_COLL_FORM_PERSISTENT);
    return op.engines;
}

// Makes the call's own communicator, with a state for its starts, for which
// the first of these engines is opened. `asked` is NULL if only mpi4py can
// read the arguments.
static int
persistent_coll_make_own(wm_comm_t *comm, wm_coll_kind_t kind,
                         const wm_coll_t *asked, unsigned engines,
                         wm_comm_t **own, MPI_Comm *made, wm_error_t *err)
{
    wm_neighbor_rule_t plain; // unused: `data` has each neighbor once
    const wm_coll_t unread = {.kind = kind};
    int code = wm_neighbor_clone(comm->data, comm->match, made, &plain, err);
    if (code == 0)
        code = wm_comm_attach(*made, own, err);
    if (code == 0) {
        (*own)->neighbor_rule = comm->neighbor_rule;
        wm_require_set(*own, wm_require_is_on(comm));
    }
    if (code == 0 && wm_comm_is_one_host((*own)->whole))
        code = wm_nonblocking_make_persistent((*own)->whole, err);
    if (code == 0)
        code = wm_coll_engines_open(
            (*own)->whole, kind,
            wm_coll_device(asked != NULL ? asked : &unread), &engines, err);
    if (code == 0 && engines != 0 && !wm_comm_is_one_host((*own)->whole))
        code = wm_coll_class_keep((*own)->whole, WM_COLL_CLASS_EVERY, engines,
                                  err);
    return code;
}

wm_coll_result_t
wm_persistent_coll_open(wm_comm_t *comm, wm_coll_kind_t kind,
                        const wm_coll_t *asked, unsigned engines, int failed,
                        bool any_device, bool always, wm_comm_t **own,
                        MPI_Comm *handle, wm_error_t *err)
{
    MPI_Comm made = MPI_COMM_NULL;
    const wm_coll_t unread = {.kind = kind};
    wm_preflight_t preflight = {
        .call = kind,
        .code = failed,
        .on_device = any_device,
        .all = engines,
    };
    free_ended();
    if (!always && wm_coll_was_refused(comm->whole, WM_COLL_FORM_PERSISTENT)) {
        wm_coll_decline(comm->whole); // has the number of the refused call
        return WM_COLL_BY_MPI;
    }
    int code = wm_preflight_run(comm->whole, &preflight, err);
    if (code < 0)
        return (wm_coll_result_t)code;
    if (preflight.all == 0 && preflight.on_device && wm_require_is_on(comm))
        return (wm_coll_result_t)wm_coll_require_refuse(
            comm->whole, asked != NULL ? asked : &unread, err);
    if (preflight.all == 0 && !always)
        return WM_COLL_BY_MPI;
    code = persistent_coll_make_own(comm, kind, asked, preflight.all, own,
                                    &made, err);
    if (code == 0 && (always || wm_nonblocking_is_ours((*own)->whole))) {
        *handle = made;
        return WM_COLL_DONE;
    }
    if (made != MPI_COMM_NULL)
        MPI_Comm_free(&made);
    return code < 0 ? (wm_coll_result_t)code : WM_COLL_BY_MPI;
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
