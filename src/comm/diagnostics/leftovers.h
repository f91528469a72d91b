// SPDX-License-Identifier: BSD-3-Clause
// Reports what a program leaves behind at its end if WARPMPI_CHECK is set:
// messages that were never received, requests that were never waited for,
// communicators that were never freed. Nothing is kept otherwise.
#ifndef WM_COMM_DIAGNOSTICS_LEFTOVERS_H
#define WM_COMM_DIAGNOSTICS_LEFTOVERS_H

#include "comm/engine/op.h"

// An operation was given an MPI request. Engine lock held.
void
wm_leftovers_note(const wm_op_t *op);

// That was let go: waited for, tested, or freed. Any lock.
void
wm_leftovers_strike(const wm_op_t *op);

// Before: its object is no more, and nobody can wait for it.
void
wm_leftovers_keep(const wm_op_t *op);

// Writes to stderr what is left, in MPI_Finalize. Engine lock not held.
void
wm_leftovers_tell(void);

#endif
