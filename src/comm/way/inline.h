// SPDX-License-Identifier: BSD-3-Clause
// Short messages from host memory, whose payload rides behind the header. MPI
// takes most of them at once: then nothing is left to do, and there is no
// operation but one that all of them share. Engine lock not held; any thread,
// without the GIL.
#ifndef WM_COMM_WAY_INLINE_H
#define WM_COMM_WAY_INLINE_H

#include "comm/message/p2p.h"

// Whether the message can go so.
bool
wm_inline_fits(const wm_comm_t *comm, const wm_buffer_t *buffer,
               const wm_envelope_t *envelope);

// Sends it. The buffer stays the caller's, in every case, and is not needed
// any longer. *op is wm_op_ended() or, where MPI has no room now, an operation
// that ends when it has. Errors are MPI's.
WM_MUST_CHECK int
wm_inline_send(wm_comm_t *comm, const wm_buffer_t *buffer,
               const wm_envelope_t *envelope, wm_op_t **op, wm_error_t *err);

#endif
