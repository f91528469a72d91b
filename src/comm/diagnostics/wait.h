// SPDX-License-Identifier: BSD-3-Clause
// The wait of a caller for an operation. Engine lock not held, GIL released.
#ifndef WM_COMM_DIAGNOSTICS_WAIT_H
#define WM_COMM_DIAGNOSTICS_WAIT_H

#include "comm/engine/op.h"

// Waits for the end; returns the operation's own error. Returns WM_ERR_PYTHON
// if the wait was interrupted. Then a blocking receive is withdrawn, and a
// message that still comes is put back for the next receive; any other
// operation goes on by itself. A long wait is reported (hang.h).
WM_MUST_CHECK int
wm_op_wait(wm_op_t *op, bool (*interrupted)(wm_op_t *op), wm_error_t *err);

// Called around code that may interrupt a wait. A blocking receive without a
// message gets none meanwhile. wm_op_hold() returns false if the receive has a
// message, which an interruption would lose. It also returns false while
// another thread is in the engine, as no thread with the GIL may wait for it:
// ask again later.
bool
wm_op_hold(wm_op_t *op);
void
wm_op_let_go_on(wm_op_t *op);

#endif
