// SPDX-License-Identifier: BSD-3-Clause
// Put and Get of contiguous memory by a link that accesses the memory of the
// target (wm_link_access_t), in place of the target's engine. Ranks exchange
// the keys when they make a window; memory that is attached later has none.
// Engine lock held.
#ifndef WM_COMM_RMA_TARGET_ACCESS_H
#define WM_COMM_RMA_TARGET_ACCESS_H

#include "array/access.h"
#include "comm/link/link.h"
#include "comm/rma/target_state.h"

// One Put or Get that a link does.
typedef struct {
    wm_buffer_t buffer; // of the origin
    wm_access_t users;  // of that memory
    wm_flight_t flight;
    bool begun;     // the link has it
    bool moved;     // our memory is free
    bool failed;    // the link says so
    uint32_t flush; // number of the flush behind a put
    unsigned looks;
} wm_target_move_t;

// Exposes memory of this rank, if there is a link to some rank. Returns the
// bytes of its key; 0: there is none.
uint32_t
wm_target_expose_memory(wm_target_t *target, const wm_target_memory_t *memory);

// Writes the key.
void
wm_target_write_key(const wm_target_t *target, char *key);

// Keeps the key of a rank, if there is memory: else requests serve.
void
wm_target_keep_key(wm_target_t *target, int rank, const char *key,
                   uint32_t nbytes);

// Ends the exposure, before the memory is freed, when no rank accesses it any
// more. Returns false while one may still do so, as a rank that has died, or,
// with `failed`, any: call it again.
bool
wm_target_conceal(wm_target_t *target, bool failed);

// Frees the keys.
void
wm_target_forget_keys(wm_target_t *target);

// Returns true if a link does the operation, with this buffer.
bool
wm_target_takes_access(wm_target_t *target, const wm_target_op_t *what,
                       const wm_buffer_t *buffer);

// Begins a move, takes over the buffer, for whose producer the caller has
// waited (wm_await_producer). wm_target_move_step() starts it.
void
wm_target_move_begin(wm_target_move_t *move, wm_buffer_t *buffer, bool gets);

// Makes a step. Returns 1 when the data are in place, 2 when the link has
// failed; 0; or an error. Unless 0, nobody uses the buffer any more.
WM_MUST_CHECK int
wm_target_move_step(wm_target_move_t *move, wm_target_t *target, int rank,
                    const wm_target_request_t *request, wm_error_t *err);

// Returns a number that changes whenever a move makes progress.
uint64_t
wm_target_move_mark(const wm_target_move_t *move);

#endif
