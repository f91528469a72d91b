// SPDX-License-Identifier: BSD-3-Clause
// Batches: messages whose kernels share a launch. Device eager sends that
// begin together and device eager receives that are ready together share one
// kernel; so do short copies that are ready together. For sends that begin
// together, we ask the driver about their streams once. A batch is launched
// when the next message does not fit, and at the latest when the engine has
// stepped all operations. Engine lock held.
#ifndef WM_COMM_PROTOCOL_BATCH_H
#define WM_COMM_PROTOCOL_BATCH_H

#include "array/eager_ll.h"
#include "array/pull.h"
#include "comm/message/end.h"

// The properties that messages of one launch share.
typedef struct {
    int device;
    CUstream stream;
    bool posts;           // a send writes lines; else a receive reads them
    uint32_t patience_us; // for receives
} wm_batch_t;

// Adds a message; *message is copied. launched() is called when the kernel is
// enqueued, with the error if that failed, else NULL. Until then the operation
// is not stepped, and so stays on the engine's list.
void
wm_batch_add(const wm_batch_t *batch, const wm_eager_ll_t *message,
             wm_end_t *end,
             void (*launched)(wm_end_t *end, const wm_error_t *failure));

// Adds a short copy on end->access.device that is ready. Copies whose buffers
// nobody uses any more share a kernel, on a stream of the pool
// (end->access.stream). alone() is called if there is no other copy, or if
// somebody may use the buffer; wm_fragments_launched() if the launch failed.
void
wm_batch_add_pull(const wm_pull_t *pull, wm_end_t *end,
                  void (*alone)(wm_end_t *end));

// Adds a send whose buffer may still be written by work that it has noted.
// announced() is called when that work has ended (after[0].event is gone), or
// after some microseconds if it has not. Until then end->batched is set, and
// the send must not be stepped.
void
wm_batch_add_announcement(wm_end_t *end, void (*announced)(wm_end_t *end));

// Holds a waiting send for some microseconds, as a receive of the same call
// may soon share its kernel on the same stream.
void
wm_batch_hold(void);

// Launches the sends that wait for this stream, held ones too.
void
wm_batch_flush_posts(int device, CUstream stream);

// Launches all waiting messages, held ones too. Called before an operation
// ends that may wait here.
void
wm_batch_flush(void);

#endif
