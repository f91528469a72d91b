// SPDX-License-Identifier: BSD-3-Clause
// Collectives of communicators that refuse to stage GPU memory (require.h).
// The ranks must agree before MPI does a blocking call, as all of them raise
// if one has GPU memory. They exchange this until the memory of all was the
// host's: from then on calls of this kind are those of host memory, and no
// rank asks. A rank that then gives GPU memory, and each nonblocking call,
// makes MPI's call for the other ranks, and raises at its end. GIL released by
// the caller, engine lock not held.
#ifndef WM_COMM_COLL_RUN_COLL_REQUIRE_H
#define WM_COMM_COLL_RUN_COLL_REQUIRE_H

#include "comm/coll/call/call.h"
#include "comm/coll/direct/preflight.h"

// Sets or takes back the setting, for all communicators of this process if
// `everywhere`; collective. `code`: this rank has failed before, with its
// error in *err. Raises on all ranks if they differ.
WM_MUST_CHECK int
wm_coll_require_change(wm_comm_t *comm, bool everywhere, bool on, int code,
                       wm_error_t *err);

// Returns true if the ranks exchange what memory they have, before MPI does a
// blocking call of this kind. All ranks alike.
bool
wm_coll_require_asks(const wm_comm_t *comm, wm_coll_kind_t kind);

// Returns the error of a call of GPU memory that no engine besides MPI does.
int
wm_coll_require_refuse(wm_comm_t *comm, const wm_coll_t *call,
                       wm_error_t *err);

// Judges an exchange after which MPI is to do the call: 0, or the error that
// all ranks raise, as a rank has GPU memory.
WM_MUST_CHECK int
wm_coll_require_judge(wm_comm_t *comm, const wm_coll_t *call,
                      const wm_preflight_t *preflight, wm_error_t *err);

// Exchanges for a call that no engine does, by call->any_device; its arguments
// need not be read. On one host a rank that declines ends the exchange: then
// returns 0.
WM_MUST_CHECK int
wm_coll_require_ask(wm_comm_t *comm, const wm_coll_t *call, wm_error_t *err);

#endif
