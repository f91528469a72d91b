// SPDX-License-Identifier: BSD-3-Clause
// The report of what a program leaves behind at its end, if WARPMPI_CHECK is
// set: messages that were never received, requests that were never waited for,
// communicators that were never freed. Nothing is recorded otherwise.
#ifndef WM_COMM_DIAGNOSTICS_LEFTOVERS_H
#define WM_COMM_DIAGNOSTICS_LEFTOVERS_H

#include "comm/engine/op.h"

// Keeps the record for the report: the request's object is gone before the
// wait, and nobody can wait for it.
void
wm_leftovers_keep(const wm_op_t *op);

#endif
