// SPDX-License-Identifier: BSD-3-Clause
// Buffered sends: of copies of our own, whose payloads count against the
// room that the user attached to the process or to a communicator. His
// memory itself stays unused. Engine lock not held, GIL released.
#ifndef WM_COMM_MESSAGE_BUFFERED_H
#define WM_COMM_MESSAGE_BUFFERED_H

#include "comm/message/p2p.h"

// Attaches `size` bytes (SIZE_MAX: without limit) to the communicator, NULL
// for the process. WM_ERR_MPI, MPI_ERR_BUFFER, where some are attached.
WM_MUST_CHECK int
wm_room_attach(wm_comm_t *comm, size_t size, wm_error_t *err);

// Takes them away; what is on its way goes on. Likewise where none are.
WM_MUST_CHECK int
wm_room_detach(wm_comm_t *comm, wm_error_t *err);

// Begins to wait until no copy is left in what is attached now.
WM_MUST_CHECK int
wm_room_flush_begin(wm_comm_t *comm, wm_op_t **op, wm_error_t *err);

// When a communicator goes.
void
wm_room_drop(wm_room_t *room);

// A copy of a message's memory, of the same kind, when all who write it have
// ended. `buffer` stays the caller's.
WM_MUST_CHECK int
wm_buffer_duplicate(const wm_buffer_t *buffer, const wm_envelope_t *envelope,
                    wm_buffer_t *copy, wm_error_t *err);

// wm_send_begin() of a copy: *op has ended when this returns.
WM_MUST_CHECK int
wm_buffered_begin(wm_comm_t *comm, wm_buffer_t *buffer,
                  const wm_envelope_t *envelope, wm_op_t **op,
                  wm_error_t *err);

#endif
