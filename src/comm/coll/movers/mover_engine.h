// SPDX-License-Identifier: BSD-3-Clause
// The functions of the row of an engine (coll_engine.h) whose library moves
// (movers.h) between hosts: all kinds if each host has one rank, as on a rail
// of levels (comm/levels.h), else those that the hierarchy leaves, between all
// ranks. Its state of a communicator is a wm_mover_comm_t, which open() makes.
// Blocking and nonblocking calls are on a stream of ours, which waits for the
// program's work. Calls on the program's streams: mover_stream.h.
#ifndef WM_COMM_COLL_MOVERS_MOVER_ENGINE_H
#define WM_COMM_COLL_MOVERS_MOVER_ENGINE_H

#include "comm/coll/direct/coll_op.h"
#include "comm/coll/movers/mover_comm.h"

// Communicators of several hosts, but not those between groups.
bool
wm_mover_spans(const wm_comm_t *comm);

// Leaves its kinds to the hierarchy, also if that leaves a short call to MPI:
// so no communicator of the library has all ranks while nobody needs it.
bool
wm_mover_does(const wm_coll_facts_t *facts);

void
wm_mover_drop_comm(wm_comm_t *comm, void *state);

void
wm_mover_abort_calls(wm_comm_t *comm, void *state);

void
wm_mover_revoke(wm_comm_t *comm, void *state, const wm_error_t *why);

bool
wm_mover_serves(const wm_coll_op_t *op, const void *state);

// A rank that cannot take part breaks the communicator, as it has no data to
// go on with.
wm_coll_result_t
wm_mover_start(wm_coll_op_t *op, wm_error_t *err);

wm_coll_result_t
wm_mover_step(wm_coll_op_t *op, bool *waits, wm_error_t *err);

void
wm_mover_drop(wm_coll_op_t *op);

#endif
