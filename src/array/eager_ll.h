// SPDX-License-Identifier: BSD-3-Clause
// Short messages that two kernels pass from device to device through an eager
// LL buffer (kernels/eager_ll.h), memory that both devices see: the receiving
// kernel may be launched first, and reads lines as they come. Any thread; no
// GIL.
#ifndef WM_ARRAY_EAGER_LL_H
#define WM_ARRAY_EAGER_LL_H

#include <stdatomic.h>

#include "array/strided.h"
#include "kernels/eager_ll.h"

#define WM_EAGER_LL_BYTES 65536 // longest message
#define WM_EAGER_LL_BUFFER_BYTES                                              \
    131072 // a buffer, zeroed before its first use

// One message: its bytes in the user's memory, its eager LL buffer, and the
// words in page-locked host memory that the kernel writes when it ends.
typedef struct {
    void *lines;
    char *user;                  // the bytes, contiguous, if `strided` is NULL
    const wm_strided_t *strided; // the bytes, if they have gaps, else NULL
    size_t nbytes;
    uint32_t flag;            // new in this buffer, and not 0
    uint32_t value;           // the value that *word gets
    _Atomic uint32_t *word;   // tells that the message was posted, or taken
    _Atomic uint32_t *status; // result of a fetch; may be NULL
    _Atomic uint32_t *stop;   // not 0: no message comes (fetch); may be NULL
} wm_eager_ll_t;

// Returns true if the kernels can read and write this layout.
bool
wm_eager_ll_takes(const wm_strided_t *strided);

// Loads the kernels, which may wait for the device, so that nothing is loaded
// behind work that waits. Idempotent.
WM_MUST_CHECK int
wm_eager_ll_prepare(int device, wm_error_t *err);

// Enqueues one kernel for up to WM_EAGER_LL_MESSAGES messages in all. It
// writes the bytes of each post into the post's lines, under its flag, then
// its word. It reads the lines of each fetch: the status becomes
// WM_EAGER_LL_TAKEN and the word is written, or, if the bytes have not come in
// time or `stop` is set, the status becomes WM_EAGER_LL_LATE and the user's
// memory may hold some of them.
WM_MUST_CHECK int
wm_eager_ll_launch(int device, const wm_eager_ll_t *posts, int post_count,
                   const wm_eager_ll_t *fetches, int fetch_count,
                   uint32_t patience_us, CUstream stream, wm_error_t *err);

#endif
