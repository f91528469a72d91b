// SPDX-License-Identifier: BSD-3-Clause
// Barriers, and blocking collectives. The first engine that serves all ranks
// does the call (coll_engines.h). On one host a rank that only MPI can serve,
// as it has host memory, declines and does not wait; between hosts it asks,
// whatever its memory. A call cannot be interrupted once it has begun. If one
// rank fails, or is in another collective, all raise. GIL released by the
// caller, engine lock not held. The caller keeps the buffers and releases
// them.
#ifndef WM_COMM_COLL_RUN_COLL_H
#define WM_COMM_COLL_RUN_COLL_H

#include "comm/coll/call/coll_engine.h"

// Waits for all ranks. Also closes mappings of memory that other ranks have
// freed.
WM_MUST_CHECK int
wm_coll_barrier(wm_comm_t *comm, wm_error_t *err);

// Returns true if an engine besides MPI may do a call: then each rank gives
// its blocking calls to wm_coll_call(), or declines them. Else MPI does them
// all.
bool
wm_coll_is_numbered(wm_comm_t *comm);

// Does a collective. WM_COLL_BY_MPI, or WM_COLL_UNNUMBERED between hosts,
// where nobody was asked: the caller makes MPI's call, whose refusal it
// reports by wm_coll_refused(). Called by all ranks of a communicator for
// which wm_coll_is_numbered() is true; for an intercommunicator, on its
// `whole`. If that is false, a rank may call it, and MPI does the call.
WM_MUST_CHECK wm_coll_result_t
wm_coll_call(wm_comm_t *comm, const wm_coll_t *call, wm_error_t *err);

// Replaces wm_coll_call() if it returns true: between hosts MPI does the call,
// as all ranks know without asking. This rank has plain host memory.
bool
wm_coll_is_mpis(wm_comm_t *comm, wm_coll_kind_t kind);

// Replaces wm_coll_call() on a rank that needs MPI: then MPI does the call for
// all ranks. Does not wait. No-op between hosts, where the others know it, and
// if wm_coll_is_numbered() is false.
void
wm_coll_decline(wm_comm_t *comm);

// Called after a call of this form that MPI was to do, and has refused on this
// rank: it has not happened, and MPI does this rank's next call of this form
// in its place. No-op where ranks need not agree.
void
wm_coll_refused(wm_comm_t *comm, wm_coll_form_t form);

#endif
