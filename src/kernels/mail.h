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

// Of long ones so many blocks take a part each (wm_mail_wide).
#define WM_MAIL_WIDTH 8

#define WM_MAIL_NDIM 3 // strided dimensions of the memory

#define WM_MAIL_FOR_EVER UINT32_MAX // patience

// How fetching ended; failures are told by the host.
enum { WM_MAIL_TAKEN = 1, WM_MAIL_LATE = 2, WM_MAIL_FAILED = 3 };

// The user's memory: runs, in strided dimensions around them of which the
// first is the slowest.
typedef struct {
    char *data;
    uint32_t unit;  // 8, 4, 2 or 1 bytes: divides address, run and strides
    uint32_t count; // units in all
    uint32_t run;   // units that follow each other
    uint32_t ndim;  // 0: there is one run
    uint32_t shape[WM_MAIL_NDIM];
    int64_t strides[WM_MAIL_NDIM]; // bytes
} wm_mail_memory_t;

// To post: the bytes are written into the mailbox, then *ready.
typedef struct {
    char *box;
    wm_mail_memory_t src;
    uint32_t *ready; // page-locked host memory
    uint32_t ready_value;
    uint32_t flag;
} wm_mail_post_t;

// To fetch: they are taken out, then *status (taken) and *taken are written;
// where they have not come in time, or *stop is not 0 before, only *status
// (late).
typedef struct {
    wm_mail_memory_t dst;
    const char *box;
    uint32_t *taken;      // page-locked host memory
    uint32_t *status;     // likewise; may be null
    const uint32_t *stop; // likewise
    uint32_t taken_value;
    uint32_t flag;
} wm_mail_fetch_t;

// wm_mail: at most WM_MAILS in all, those to post by the first blocks, so that
// none of them finds no room for those who wait.
typedef struct {
    uint32_t posts;
    uint32_t patience_us; // may be WM_MAIL_FOR_EVER
    wm_mail_post_t post[WM_MAILS];
    wm_mail_fetch_t fetch[WM_MAILS];
} wm_mail_params_t;

// wm_mail_pair, wm_mail_wide: one of each at most, the usual case, with little
// to hand over.
typedef struct {
    uint32_t posts;
    uint32_t patience_us;
    wm_mail_post_t post[1];
    wm_mail_fetch_t fetch[1];
} wm_mail_pair_params_t;

#endif
