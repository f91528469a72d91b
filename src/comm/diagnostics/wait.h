// SPDX-License-Identifier: BSD-3-Clause
// How a caller waits for an operation. Engine lock not held, GIL released.
#ifndef WM_COMM_DIAGNOSTICS_WAIT_H
#define WM_COMM_DIAGNOSTICS_WAIT_H

#include "comm/engine/op.h"

// Waits for the end; the operation's own error. WM_ERR_PYTHON where it was
// interrupted: a blocking receive is then taken back, and a message that comes
// meanwhile is put back for the next; whatever else goes on by itself. A wait
// that is long is reported (hang.h).
WM_MUST_CHECK int
wm_op_wait(wm_op_t *op, bool (*interrupted)(wm_op_t *op), wm_error_t *err);

// What may interrupt a wait is to ask between these: a blocking receive that
// has no message yet gets none meanwhile, one that has must not be interrupted
// (false), since its message would be lost. False also while another thread is
// in the engine, for which nobody who has the GIL waits: it is asked again.
bool
wm_op_hold(wm_op_t *op);
void
wm_op_let_go_on(wm_op_t *op);

#endif
