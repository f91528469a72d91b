// SPDX-License-Identifier: BSD-3-Clause
// Short messages between devices that two kernels pass on through a mailbox
// (kernels/mail.h), memory both devices see: the second may be launched first,
// and takes what comes as soon as it is there. Any thread; no GIL.
#ifndef WM_ARRAY_MAIL_H
#define WM_ARRAY_MAIL_H

#include <stdatomic.h>

#include "array/strided.h"
#include "kernels/mail.h"

#define WM_MAIL_BYTES 65536      // longest message
#define WM_MAIL_BOX_BYTES 131072 // of a mailbox, zeroed before its first use

// One message: its bytes in the user's memory, its mailbox, and the words that
// the kernel writes at its end, in page-locked host memory.
typedef struct {
    void *box;
    char *user;                  // from here on, or
    const wm_strided_t *strided; // where it lies in strides; NULL: it does not
    size_t nbytes;
    uint32_t flag;            // that no earlier message in it had; not 0
    uint32_t value;           // what *word becomes
    _Atomic uint32_t *word;   // posted, or taken
    _Atomic uint32_t *status; // of a fetch; may be NULL
    _Atomic uint32_t *stop;   // of a fetch: not 0 once nothing comes; or NULL
} wm_mail_t;

// Whether the kernels find their way in it.
bool
wm_mail_takes(const wm_strided_t *strided);

// Loads the kernels, which may wait for the device, so that nothing is loaded
// behind work that waits. Idempotent.
WM_MUST_CHECK int
wm_mail_prepare(int device, wm_error_t *err);

// Enqueues the zeroing of mailboxes.
WM_MUST_CHECK int
wm_mail_clear(int device, void *boxes, size_t size, CUstream stream,
              wm_error_t *err);

// Enqueues one kernel for up to WM_MAILS messages in all. It writes the bytes
// of those to post into their mailboxes, each under its flag, then its word.
// Those to fetch it takes out: a status becomes WM_MAIL_TAKEN and its word is
// written, or, when the bytes have not come within the time, or `stop` is set,
// it becomes WM_MAIL_LATE and the user's memory may hold some of them.
WM_MUST_CHECK int
wm_mail_launch(int device, const wm_mail_t *posts, int post_count,
               const wm_mail_t *fetches, int fetch_count, uint32_t patience_us,
               CUstream stream, wm_error_t *err);

#endif
