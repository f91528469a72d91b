// SPDX-License-Identifier: BSD-3-Clause
// Buffers with gaps. While the message is under way, contiguous memory stands
// in for the buffer in end->buffer, so that few other files know of gaps: an
// exportable block of the same device if kernels can pack, else host memory,
// through which a datatype over GPU memory is staged as a whole. Called for
// buffers with a pattern alone.
#ifndef WM_COMM_MESSAGE_PACK_H
#define WM_COMM_MESSAGE_PACK_H

#include "comm/message/end.h"

// Packs what the host packs. Called by the sender without the engine lock,
// after wm_await_producer(). May wait for the stream of GPU memory.
WM_MUST_CHECK int
wm_pack_prepare(wm_end_t *end, wm_error_t *err);

// Returns the layout of a buffer with gaps that the kernels of device eager
// messages read or write in place; else NULL.
const wm_strided_t *
wm_pack_by_eager_ll(const wm_end_t *end);

// Loads the kernels of a receiver, without the engine lock.
WM_MUST_CHECK int
wm_unpack_prepare(wm_end_t *end, wm_error_t *err);

// Takes host memory for a message that has matched and fits, and that MPI
// unpacks. Receiver.
WM_MUST_CHECK int
wm_unpack_match(wm_end_t *end, wm_error_t *err);

// Does the same, or takes device memory for a message that kernels unpack. Not
// if the row's own do (`unpacks`): this sets end->unpacks.
WM_MUST_CHECK int
wm_unpack_reserve(wm_end_t *end, bool unpacks, wm_error_t *err);

// Returns true if a user's stream can take the message, as far as gaps allow.
bool
wm_unpack_on_stream(const wm_end_t *end);

// Enqueues the unpacking from contiguous memory, after the work that brought
// the data.
WM_MUST_CHECK int
wm_unpack_enqueue(wm_end_t *end, const char *from, int device, CUstream stream,
                  wm_error_t *err);

// wm_unpack_is_left() returns true if arrived data must still be unpacked by
// wm_unpack_step(), which returns 1 when that has ended, 0 if not yet.
bool
wm_unpack_is_left(const wm_end_t *end);

WM_MUST_CHECK int
wm_unpack_step(wm_end_t *end, wm_error_t *err);

// Returns a number that changes when wm_unpack_step() makes progress.
uint64_t
wm_unpack_mark(const wm_end_t *end);

// Frees the memory that stood in. Idempotent; the engine lock is not needed.
void
wm_pack_drop(wm_end_t *end);

#endif
