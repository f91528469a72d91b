// SPDX-License-Identifier: BSD-3-Clause
// Buffers with gaps. While the message is on its way contiguous memory stands
// in for one in end->buffer, so that nothing else knows of them: an exportable
// block of the same device where kernels can pack, else host memory, through
// which a datatype over GPU memory is staged whole. No-ops for other buffers.
#ifndef WM_COMM_MESSAGE_PACK_H
#define WM_COMM_MESSAGE_PACK_H

#include "comm/message/end.h"

// Sender, without the engine lock, after the producer has settled: packs what
// the host packs. May wait for the stream of GPU memory.
WM_MUST_CHECK int
wm_pack_prepare(wm_end_t *end, wm_error_t *err);

// The layout of a buffer with gaps that the kernels of device eager messages
// read or write in place; else NULL.
const wm_strided_t *
wm_pack_by_eager_ll(const wm_end_t *end);

// Sender: the block, with nothing in it yet.
WM_MUST_CHECK int
wm_pack_reserve(wm_end_t *end, wm_error_t *err);

// Sender: enqueues what packs into it, and makes that the producer.
WM_MUST_CHECK int
wm_pack_enqueue(wm_end_t *end, wm_error_t *err);

// Receiver, without the engine lock.
WM_MUST_CHECK int
wm_unpack_prepare(wm_end_t *end, wm_error_t *err);

// Receiver of a message that fits and has been matched: what it arrives in.
WM_MUST_CHECK int
wm_unpack_reserve(wm_end_t *end, wm_error_t *err);

// The same where a kernel may yet unpack from memory that is offered.
WM_MUST_CHECK int
wm_unpack_match(wm_end_t *end, wm_error_t *err);

// Whether a kernel is to unpack from the offered memory itself.
bool
wm_unpack_is_direct(const wm_end_t *end);

// Whether a user's stream can take the message, as far as this part goes.
bool
wm_unpack_on_stream(const wm_end_t *end);

// Enqueues what unpacks from contiguous memory, behind what has brought it.
WM_MUST_CHECK int
wm_unpack_enqueue(wm_end_t *end, const char *from, int device, CUstream stream,
                  wm_error_t *err);

// Whether what has arrived is to be unpacked still, by wm_unpack_step(): 1
// when that has ended, 0 when not yet.
bool
wm_unpack_is_left(const wm_end_t *end);

WM_MUST_CHECK int
wm_unpack_step(wm_end_t *end, wm_error_t *err);

// Frees what stood in. Idempotent; the engine lock is not needed.
void
wm_pack_drop(wm_end_t *end);

#endif
