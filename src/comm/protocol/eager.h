// SPDX-License-Identifier: BSD-3-Clause
// Blocking sends of GPU memory that do not wait for their receiver: up to the
// eager limit (MPI's standard mode), and for embedded arrays, whose receiver
// must first unpickle the object. The sender offers its buffer in place. If
// nobody has claimed the offer after some microseconds, the sender copies the
// buffer, and moves the offer to the copy. Claim and move race for one word of
// the slot. If there is no memory for a copy, the sender waits. Engine lock
// held.
#ifndef WM_COMM_PROTOCOL_EAGER_H
#define WM_COMM_PROTOCOL_EAGER_H

#include "comm/message/end.h"

// Reads WARPMPI_EAGER_LIMIT (bytes, 0: always wait) for a new communicator.
// WM_ERR_VALUE if it is no number of bytes.
WM_MUST_CHECK int
wm_eager_configure(wm_error_t *err);

// Sender, while its offer waits: reports the end to the caller when the buffer
// is no longer needed.
void
wm_eager_step(wm_end_t *end);

// The report_early of protocols (wm_sending_t): by a copy; and for handed-off
// data, which are a copy already.
void
wm_eager_report_copied(wm_end_t *end);
void
wm_eager_report_handed_off(wm_end_t *end);

// Receiver, before it accesses the memory: claims the offer as it is, or
// writes the place of the copy to end->header.
void
wm_eager_claim(wm_end_t *end);

// Frees the copy.
void
wm_eager_drop(wm_end_t *end);

#endif
