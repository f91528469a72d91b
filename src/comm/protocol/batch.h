// SPDX-License-Identifier: BSD-3-Clause
// Messages whose kernels go out as one launch: device eager sends that are
// begun together and device eager receives that are ready together, both kinds
// in one kernel; short copies that are ready together; and sends begun
// together, about whose streams the driver is asked once. A batch is launched
// when the next message does not fit in, and at the latest when the engine has
// stepped all operations. Engine lock held.
#ifndef WM_COMM_PROTOCOL_BATCH_H
#define WM_COMM_PROTOCOL_BATCH_H

#include "array/eager_ll.h"
#include "array/pull.h"
#include "comm/message/end.h"

// What messages of one launch have in common.
typedef struct {
    int device;
    CUstream stream;
    bool posts;           // a send writes lines; else a receive reads them
    uint32_t patience_us; // of receives
} wm_batch_t;

// Adds a message; *message is copied. launched() is called when the kernel is
// enqueued, with the error if that failed (else NULL): before the operation is
// stepped again, so that it stays on the engine's list until then.
void
wm_batch_add(const wm_batch_t *batch, const wm_eager_ll_t *message,
             wm_end_t *end,
             void (*launched)(wm_end_t *end, const wm_error_t *failure));

// Likewise a short copy on end->access.device that is ready: those whose
// buffers nobody uses any more share a kernel, on a stream of the pool
// (end->access.stream). alone() is told where none is to share with, or
// somebody may use the buffer.
void
wm_batch_add_pull(const wm_pull_t *pull, wm_end_t *end,
                  void (*launched)(wm_end_t *end, const wm_error_t *failure),
                  void (*alone)(wm_end_t *end));

// A send whose buffer may still be written, by work that it has taken note of:
// announced() when that has ended (after[0].event is gone), or has not for
// some microseconds. Until then end->batched is set, and it is not to be
// stepped.
void
wm_batch_add_announcement(wm_end_t *end, void (*announced)(wm_end_t *end));

// Holds a send that waits here for some microseconds: a receive of the same
// call may soon share its kernel on the same stream.
void
wm_batch_hold(void);

// Launches what waits; all, or what is not held. Before an operation ends that
// may wait here, all.
void
wm_batch_flush(void);
void
wm_batch_flush_due(void);

#endif
