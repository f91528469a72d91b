// SPDX-License-Identifier: BSD-3-Clause
// Device memory that CUDA IPC does not export goes through an exportable copy.
// For a long message the copy is a ring, which the sender fills fragment by
// fragment while the receiver empties it. Staging rings are filled here, too.
// Engine lock held.
#ifndef WM_COMM_PROTOCOL_HANDOFF_H
#define WM_COMM_PROTOCOL_HANDOFF_H

#include "comm/message/end.h"

// Makes one step of filling a ring or a staging ring.
WM_MUST_CHECK int
wm_handoff_feed(wm_end_t *end, wm_error_t *err);

#endif
