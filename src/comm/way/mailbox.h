// SPDX-License-Identifier: BSD-3-Clause
// Mailboxes: exportable device memory, made once a device, through which short
// messages are handed off by kernels (array/mail.h): out of memory that cannot
// be exported or has gaps, and those of users' streams. Engine lock held.
#ifndef WM_COMM_WAY_MAILBOX_H
#define WM_COMM_WAY_MAILBOX_H

#include "comm/message/end.h"

// Sender: one for the offer, where the message is short and one is free; then
// its place in `into`, and its memory, else NULL.
WM_MUST_CHECK int
wm_mailbox_offer(wm_end_t *end, char **into, wm_pointer_t *memory,
                 wm_error_t *err);

void
wm_mailbox_take_back_offer(wm_end_t *end);

// What has been posted, and is to go through the host after all, comes out on
// the operation's stream, then `ready`: its buffer is the user's again, or has
// gaps.
WM_MUST_CHECK int
wm_mailbox_copy_out(wm_end_t *end, char *into, uint32_t ready,
                    wm_error_t *err);

// The offer goes through the host: the mailbox is given back, unless it has
// what the buffer has no longer, or not in one piece.
void
wm_mailbox_give_way(wm_end_t *end);

// Gives it back; not where a kernel may still come to it.
void
wm_mailbox_drop(wm_end_t *end, bool quiet);

// Receiver: whether the data come through one. What is staged does not.
bool
wm_mailbox_is_used(const wm_end_t *end);

// Has the user's stream fetch the message, behind no limit of time;
// launched() is told.
WM_MUST_CHECK int
wm_mailbox_fetch_on_stream(wm_end_t *end,
                           void (*launched)(wm_end_t *end,
                                            const wm_error_t *failure),
                           wm_error_t *err);

// At the end: gives the memory of all back.
void
wm_mailbox_free_all(void);

#endif
