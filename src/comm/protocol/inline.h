// SPDX-License-Identifier: BSD-3-Clause
// Short messages of host memory, whose payload goes with their header. The
// buffer stays the caller's and is not needed after the call.
#ifndef WM_COMM_PROTOCOL_INLINE_H
#define WM_COMM_PROTOCOL_INLINE_H

#include "comm/message/protocol.h"

// Returns true if a message can be sent without an end.
bool
wm_inline_fits(const wm_comm_t *comm, const wm_buffer_t *buffer,
               const wm_envelope_t *envelope);

// Sends such a message. *op is wm_op_ended() or, if MPI has no room now, an
// operation that ends when MPI has taken the message. Errors are MPI's. Engine
// lock not held.
WM_MUST_CHECK int
wm_inline_send(wm_comm_t *comm, const wm_buffer_t *buffer,
               const wm_envelope_t *envelope, wm_op_t **op, wm_error_t *err);

#endif
