// SPDX-License-Identifier: BSD-3-Clause
// Pushes: the sender copies into the receiver's memory (rendezvous by put),
// because the receiver asks it to. Used for large offers if as much goes the
// other way (two copies that write hinder each other less than two that read).
// Also used between processes that take turns on a GPU: the one that copied
// last still has its turn. Only for a sender that waits in our code. Engine
// lock held.
#ifndef WM_COMM_PROTOCOL_PUSH_H
#define WM_COMM_PROTOCOL_PUSH_H

#include "comm/message/end.h"

// Sender: begins to push if it was asked. Returns 1 if its protocol is now
// `pushed`, 0 if not, or a negative code if the receiver must be told.
WM_MUST_CHECK int
wm_push_serve(wm_end_t *end, wm_error_t *err);

#endif
