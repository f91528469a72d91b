// SPDX-License-Identifier: BSD-3-Clause
// The cause of a long wait, as far as it can be seen: what the awaited ranks
// do themselves, and what has come that the wait does not match. Peers of this
// host are asked, and answer out of their own waits. Engine lock not held.
#ifndef WM_COMM_DIAGNOSTICS_CAUSE_H
#define WM_COMM_DIAGNOSTICS_CAUSE_H

#include "comm/diagnostics/hang.h"

// How often this process was asked, ever.
uint32_t
wm_cause_asked(void);

// Asks the ranks that an operation waits for.
void
wm_cause_ask(const wm_op_t *op);

// Answers: what this thread waits for.
void
wm_cause_answer(const wm_hang_t *hang, const wm_op_t *op, int64_t now);

// Writes a line to stderr, with what was answered since hang->asked. Nothing
// is received that any receive does not find again.
void
wm_cause_report(const wm_hang_t *hang, const wm_op_t *op, int64_t now);

#endif
