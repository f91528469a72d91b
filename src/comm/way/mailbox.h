// SPDX-License-Identifier: BSD-3-Clause
// Mailboxes: exportable device memory, made once a device, through which short
// messages are handed off by kernels (array/mail.h): out of memory that cannot
// be exported or has gaps, and those of users' streams. Engine lock held.
#ifndef WM_COMM_WAY_MAILBOX_H
#define WM_COMM_WAY_MAILBOX_H

#include "array/mail.h"
#include "cuda/memory.h"

typedef struct wm_mailbox wm_mailbox_t;

// A free mailbox with a new flag, or NULL where all are taken. Its memory is
// described in `memory`, its place in it is wm_mailbox_pointer().
WM_MUST_CHECK int
wm_mailbox_acquire(int device, wm_mailbox_t **box, wm_pointer_t *memory,
                   wm_error_t *err);

char *
wm_mailbox_pointer(const wm_mailbox_t *box);

uint32_t
wm_mailbox_flag(const wm_mailbox_t *box);

// When its message was taken, and no kernel comes to it any more.
void
wm_mailbox_release(wm_mailbox_t *box);

// At the end: gives the memory of all back.
void
wm_mailbox_free_all(void);

#endif
