// SPDX-License-Identifier: BSD-3-Clause
// The cause of a long wait, as far as we can see it: the waits of the awaited
// ranks, and messages that the wait does not match. We ask peers on this host,
// which answer from their own waits. Of an operation that another thread has
// ended meanwhile nothing is said. Engine lock not held.
#ifndef WM_COMM_DIAGNOSTICS_CAUSE_H
#define WM_COMM_DIAGNOSTICS_CAUSE_H

#include "comm/diagnostics/hang.h"

// Returns how often this process was asked so far.
uint32_t
wm_cause_asked(void);

// Asks the ranks of an operation's communicator: those that it waits for may
// wait for others.
void
wm_cause_ask(const wm_op_t *op);

// Answers with the wait of this thread.
void
wm_cause_answer(const wm_hang_t *hang, const wm_op_t *op, int64_t now);

// Writes a line to stderr, with the answers since hang->asked. Receives still
// find all messages that it looks at.
void
wm_cause_report(const wm_hang_t *hang, const wm_op_t *op, int64_t now);

#endif
