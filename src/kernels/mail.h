// SPDX-License-Identifier: BSD-3-Clause
// Short messages between devices through a mailbox: memory made of lines that
// each hold 8 bytes and, twice, the message's flag. A line is written and read
// at once, so that whoever sees the flag has the bytes: no fence, no second
// look. Shared by C and CUDA.
#ifndef WM_KERNELS_MAIL_H
#define WM_KERNELS_MAIL_H

#include <stdint.h>

#define WM_LINE_BYTES 16
#define WM_LINE_PAYLOAD 8

// So many messages share a kernel, a block each.
#define WM_MAILS 16

#define WM_MAIL_FOR_EVER UINT32_MAX // patience

// How fetching ended; failures are told by the host.
enum { WM_MAIL_TAKEN = 1, WM_MAIL_LATE = 2, WM_MAIL_FAILED = 3 };

// To post: a block writes the bytes into the mailbox, then *ready.
typedef struct {
    char *box;
    const char *src;
    uint64_t nbytes;
    uint32_t *ready; // page-locked host memory
    uint32_t ready_value;
    uint32_t flag;
    uint32_t unit; // 8, 4 or 1: divides address and nbytes
} wm_mail_post_t;

// To fetch: a block takes them out, then writes *status (taken) and
// *taken; where they have not come in time, or *stop is not 0 before, only
// *status (late).
typedef struct {
    char *dst;
    const char *box;
    uint64_t nbytes;
    uint32_t *taken;      // page-locked host memory
    uint32_t *status;     // likewise; may be null
    const uint32_t *stop; // likewise
    uint32_t taken_value;
    uint32_t flag;
    uint32_t unit;
} wm_mail_fetch_t;

// wm_mail: at most WM_MAILS in all, those to post by the first blocks, so that
// none of them finds no room for those who wait.
typedef struct {
    wm_mail_post_t post[WM_MAILS];
    wm_mail_fetch_t fetch[WM_MAILS];
    uint32_t posts;
    uint32_t patience_us; // may be WM_MAIL_FOR_EVER
} wm_mail_params_t;

#endif
