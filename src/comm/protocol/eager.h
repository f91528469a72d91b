// SPDX-License-Identifier: BSD-3-Clause
// Blocking sends of GPU memory that do not wait for their receiver, up to the
// eager limit (MPI's standard mode), and of the parts of objects, whose
// receiver has yet to unpickle them. The sender offers its buffer in place; if
// nobody has claimed that after some microseconds it copies it, and points the
// offer at the copy. Claiming and pointing elsewhere race for one word of the
// slot. Where no memory is left for a copy the sender waits. Engine lock held.
#ifndef WM_COMM_PROTOCOL_EAGER_H
#define WM_COMM_PROTOCOL_EAGER_H

#include "comm/message/end.h"

// Reads WARPMPI_EAGER_LIMIT (bytes, 0: always wait), when a communicator is
// made. WM_ERR_VALUE for what is no number of bytes.
WM_MUST_CHECK int
wm_eager_configure(wm_error_t *err);

// Sender, while its offer waits: tells the caller the end where the buffer is
// no longer needed.
void
wm_eager_step(wm_end_t *end);

// How protocols do that (wm_sending_t): by a copy, and of what is one already.
void
wm_eager_let_go(wm_end_t *end);
void
wm_eager_let_go_of_handed_off(wm_end_t *end);

// Receiver, before it reaches for the memory: takes the offer as it is, or the
// place of the copy into end->header.
void
wm_eager_claim(wm_end_t *end);

// Lets go of the copy.
void
wm_eager_drop(wm_end_t *end);

#endif
