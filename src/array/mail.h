// SPDX-License-Identifier: BSD-3-Clause
// Short messages between devices that two kernels pass on through a mailbox
// (kernels/mail.h), memory both devices see: the second may be launched first,
// and takes what comes as soon as it is there. Any thread; no GIL.
#ifndef WM_ARRAY_MAIL_H
#define WM_ARRAY_MAIL_H

#include <stdatomic.h>

#include "cuda/device.h"

#define WM_MAIL_BYTES 65536      // longest message
#define WM_MAIL_BOX_BYTES 131072 // of a mailbox, zeroed before its first use

enum { WM_MAIL_TAKEN = 1, WM_MAIL_LATE = 2 };

// What a kernel writes at its end, in page-locked host memory.
typedef struct {
    _Atomic uint32_t *word;
    uint32_t value;
    _Atomic uint32_t *status; // of a fetch; may be NULL
    _Atomic uint32_t *stop;   // of a fetch: not 0 once nothing comes; or NULL
} wm_mail_words_t;

#define WM_MAIL_FOR_EVER UINT32_MAX

// Loads the kernels, which may wait for the device, so that nothing is loaded
// behind work that waits. Idempotent.
WM_MUST_CHECK int
wm_mail_prepare(int device, wm_error_t *err);

// Enqueues the zeroing of mailboxes.
WM_MUST_CHECK int
wm_mail_clear(int device, void *boxes, size_t size, CUstream stream,
              wm_error_t *err);

// Enqueues the kernel that writes the bytes into the mailbox, under a flag
// that no earlier message in it had and that is not 0, then the word.
WM_MUST_CHECK int
wm_mail_post(int device, void *box, uint32_t flag, const void *src,
             size_t nbytes, const wm_mail_words_t *words, CUstream stream,
             wm_error_t *err);

// Enqueues the kernel that takes them out: status becomes WM_MAIL_TAKEN and
// the word is written, or, when they have not come within the time, or `stop`
// is set, status becomes WM_MAIL_LATE and dst may hold some of them.
WM_MUST_CHECK int
wm_mail_fetch(int device, void *dst, const void *box, uint32_t flag,
              size_t nbytes, const wm_mail_words_t *words,
              uint32_t patience_us, CUstream stream, wm_error_t *err);

#endif
