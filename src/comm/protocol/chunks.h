// SPDX-License-Identifier: BSD-3-Clause
// Payloads that MPI carries: of host memory beyond the header's, and of device
// memory where no segment is shared, no slot is left, or the MPI is to carry
// it. Engine lock held.
#ifndef WM_COMM_PROTOCOL_CHUNKS_H
#define WM_COMM_PROTOCOL_CHUNKS_H

#include "comm/message/end.h"

// Sender: tells of them in the header.
void
wm_chunks_announce(wm_end_t *end);

// One step: 1 when all is across, 0 when not yet.
WM_MUST_CHECK int
wm_chunks_send(wm_end_t *end, wm_error_t *err);

// Tells the receiver that no more comes.
bool
wm_chunks_fail(wm_end_t *end);

// Whether MPI reads our memory no more.
bool
wm_chunks_are_sent(wm_end_t *end);

void
wm_chunks_drop(wm_end_t *end);

#endif
