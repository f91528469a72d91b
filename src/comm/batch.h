// SPDX-License-Identifier: BSD-3-Clause
// Messages whose kernels go out as one launch: those to mailboxes that are
// begun together, those out of mailboxes that are ready together. What is
// added is launched when the next does not fit in, and at the latest when the
// engine has stepped all operations. Engine lock held.
#ifndef WM_COMM_BATCH_H
#define WM_COMM_BATCH_H

#include "array/mail.h"
#include "comm/op.h"

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
wm_batch_add(const wm_batch_t *batch, const wm_mail_t *mail, wm_op_t *op,
             void (*launched)(wm_op_t *op, const wm_error_t *failure));

// Launches what waits.
void
wm_batch_flush(void);

#endif
