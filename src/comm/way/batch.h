// SPDX-License-Identifier: BSD-3-Clause
// Messages whose kernels go out as one launch: those to mailboxes that are
// begun together, those out of mailboxes that are ready together, both kinds
// in one kernel; short copies that are ready together; and sends begun
// together, about whose streams the driver is asked once. What is added is
// launched when the next does not fit in, and at the latest when the engine
// has stepped all operations. Engine lock held.
#ifndef WM_COMM_WAY_BATCH_H
#define WM_COMM_WAY_BATCH_H

#include "array/mail.h"
#include "array/pull.h"
#include "comm/message/end.h"

// What messages of one launch have in common.
typedef struct {
    int device;
    CUstream stream;
    bool posts;           // into mailboxes, else out of them
    uint32_t patience_us; // of those out of mailboxes
} wm_batch_t;

// Adds a message; the mail is copied. launched() is told when its kernel is
// enqueued, or why that failed (else NULL): before the operation is stepped
// again, so that it stays on the engine's list until then.
void
wm_batch_add(const wm_batch_t *batch, const wm_mail_t *mail, wm_end_t *end,
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

// What waits now goes into a mailbox, and a receive of the same call may soon
// want one emptied on the same stream: it is held some microseconds for that.
void
wm_batch_hold(void);

// Launches what waits; all, or what is not held. Before an operation ends that
// may wait here, all.
void
wm_batch_flush(void);
void
wm_batch_flush_due(void);

#endif
