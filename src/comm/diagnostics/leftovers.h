// SPDX-License-Identifier: BSD-3-Clause
// The report of what a program leaves behind at its end, if WARPMPI_CHECK is
// set: messages that were never received, requests that were never waited for,
// communicators that were never freed. Nothing is recorded otherwise.
#ifndef WM_COMM_DIAGNOSTICS_LEFTOVERS_H
#define WM_COMM_DIAGNOSTICS_LEFTOVERS_H

#include "comm/engine/op.h"

// Records that an operation was given an MPI request. Engine lock held.
void
wm_leftovers_note(const wm_op_t *op);

// Removes the record when the request was waited for, tested, or freed. Any
// lock.
void
wm_leftovers_strike(const wm_op_t *op);

// Keeps the record for the report: the request's object is gone before the
// wait, and nobody can wait for it.
void
wm_leftovers_keep(const wm_op_t *op);

// Writes the report to stderr, in MPI_Finalize. Engine lock not held.
void
wm_leftovers_tell(void);

#endif
