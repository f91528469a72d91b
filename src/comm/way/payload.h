// SPDX-License-Identifier: BSD-3-Clause
// Payloads that MPI carries: of host memory beyond the header's, and of device
// memory where no segment is shared, no slot is left, or the MPI is to carry
// it. Engine lock held.
#ifndef WM_COMM_WAY_PAYLOAD_H
#define WM_COMM_WAY_PAYLOAD_H

#include "comm/message/end.h"

// Sender: bytes of each chunk but the last.
uint32_t
wm_payload_chunk(const wm_end_t *end);

// One step, by either end: 1 when all is across, 0 when not yet.
int
wm_payload_send(wm_end_t *end, wm_error_t *err);

int
wm_payload_receive(wm_end_t *end, wm_error_t *err);

// Sender: tells the receiver that no more comes.
void
wm_payload_abandon(wm_end_t *end);

#endif
