// SPDX-License-Identifier: BSD-3-Clause
// Blocking sends of GPU memory that do not wait for their receiver: up to the
// eager limit (MPI's standard mode), and for embedded arrays, whose receiver
// must first unpickle the object. The sender offers its buffer in place. If
// nobody has claimed the offer after some microseconds, the sender copies the
// buffer, and moves the offer to the copy. Claim and move race for one word of
// the slot. If the device has no memory for the copy, the copy is page-locked,
// and the message goes through the host. If the host has none either, the
// sender tries again, but for an embedded array, whose send fails. A message
// without a slot is copied to the host as a whole (chunks.c). Engine lock
// held.
#ifndef WM_COMM_PROTOCOL_EAGER_H
#define WM_COMM_PROTOCOL_EAGER_H

#include "comm/message/end.h"

// Returns true if a blocking send must not wait for its receiver. Where
// staging is refused (require.h) each waits, as the receiver may refuse the
// message.
bool
wm_eager_applies(const wm_end_t *end);

// Returns true if a send on a stream of the program must not wait for its
// receiver, under the same conditions, also if it is nonblocking. The stream
// itself copies the message (pack.c), as later work on it may change the
// buffer.
bool
wm_eager_copies(const wm_end_t *end);

// Sender, while its offer waits: reports the end to the caller when the buffer
// is no longer needed. Returns an error if it never will be.
WM_MUST_CHECK int
wm_eager_step(wm_end_t *end, wm_error_t *err);

// Sender: lets the caller go on, as the buffer is no longer needed.
void
wm_eager_report(wm_end_t *end);

// The report_early of rows that offer the buffer in place (wm_sending_t): by a
// copy, which wm_eager_drop() frees. It is the first state of these rows.
int
wm_eager_report_copied(wm_end_t *end, wm_error_t *err);
void
wm_eager_drop(wm_end_t *end);

// Receiver, before it accesses the memory: claims the offer as it is, or
// writes the place of the copy to end->header.
void
wm_eager_claim(wm_end_t *end);

#endif
