// SPDX-License-Identifier: BSD-3-Clause
// Buffered sends. We send copies of our own, whose payloads count against the
// room that the user attached to the process or to a communicator. The user's
// memory itself is not used. Engine lock not held, GIL released.
#ifndef WM_COMM_MESSAGE_BUFFERED_H
#define WM_COMM_MESSAGE_BUFFERED_H

#include "comm/message/p2p.h"

// Attaches `size` bytes (SIZE_MAX: without limit) to the communicator, or to
// the process if NULL. WM_ERR_MPI, MPI_ERR_BUFFER, if some are attached.
WM_MUST_CHECK int
wm_room_attach(wm_comm_t *comm, size_t size, wm_error_t *err);

// Detaches them; messages under way go on, and count until they have ended.
// The same error if none are attached.
WM_MUST_CHECK int
wm_room_detach(wm_comm_t *comm, wm_error_t *err);

// Begins to wait until no copy of this communicator (NULL: of the process)
// counts any more, also copies of a room that is detached meanwhile.
WM_MUST_CHECK int
wm_room_flush_begin(wm_comm_t *comm, wm_op_t **op, wm_error_t *err);

// Copies a message's memory, to memory of the same kind, after all who write
// it have ended. The caller keeps `buffer`.
WM_MUST_CHECK int
wm_buffer_duplicate(const wm_buffer_t *buffer, const wm_envelope_t *envelope,
                    wm_buffer_t *copy, wm_error_t *err);

// Does as wm_send_begin(), by a copy: *op has ended on return.
WM_MUST_CHECK int
wm_buffered_begin(wm_comm_t *comm, wm_buffer_t *buffer,
                  const wm_envelope_t *envelope, wm_op_t **op,
                  wm_error_t *err);

#endif
