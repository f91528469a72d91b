// SPDX-License-Identifier: BSD-3-Clause
// Eager messages between devices in LL lines, as NCCL's: each line holds 8
// bytes and, twice, the message's flag. A line is written and read at once, so
// that a reader that sees the flag has the bytes, without a fence or a second
// load. Shared by C and CUDA. The kernels' own names, wm_mail and so on, are
// what traces show.
#ifndef WM_KERNELS_EAGER_LL_H
#define WM_KERNELS_EAGER_LL_H

#include <stdint.h>

#define WM_LINE_BYTES 16
#define WM_LINE_PAYLOAD 8

// So many messages share a kernel, a block each.
#define WM_EAGER_LL_MESSAGES 16

// Of long ones so many blocks take a part each (wm_mail_wide).
#define WM_EAGER_LL_WIDTH 8

#define WM_EAGER_LL_NDIM 3 // strided dimensions of the memory

#define WM_EAGER_LL_FOR_EVER UINT32_MAX // patience

// How fetching ended; failures are told by the host.
enum { WM_EAGER_LL_TAKEN = 1, WM_EAGER_LL_LATE = 2, WM_EAGER_LL_FAILED = 3 };

// The user's memory: runs, in strided dimensions around them of which the
// first is the slowest.
typedef struct {
    char *data;
    uint32_t unit;  // 8, 4, 2 or 1 bytes: divides address, run and strides
    uint32_t count; // units in all
    uint32_t run;   // units that follow each other
    uint32_t ndim;  // 0: there is one run
    uint32_t shape[WM_EAGER_LL_NDIM];
    int64_t strides[WM_EAGER_LL_NDIM]; // bytes
} wm_eager_ll_memory_t;

// A post: the kernel writes the bytes into the lines, then *ready.
typedef struct {
    char *lines;
    wm_eager_ll_memory_t src;
    uint32_t *ready; // page-locked host memory
    uint32_t ready_value;
    uint32_t flag;
} wm_eager_ll_post_t;

// A fetch: the kernel reads the lines, then writes *status (taken) and *taken.
// If the lines have not come in time, or *stop is not 0 before, it writes only
// *status (late).
typedef struct {
    wm_eager_ll_memory_t dst;
    const char *lines;
    uint32_t *taken;      // page-locked host memory
    uint32_t *status;     // likewise; may be null
    const uint32_t *stop; // likewise
    uint32_t taken_value;
    uint32_t flag;
} wm_eager_ll_fetch_t;

// wm_mail: at most WM_EAGER_LL_MESSAGES in all, those to post by the first
// blocks, so that none of them finds no room for those who wait.
typedef struct {
    uint32_t posts;
    uint32_t patience_us; // may be WM_EAGER_LL_FOR_EVER
    wm_eager_ll_post_t post[WM_EAGER_LL_MESSAGES];
    wm_eager_ll_fetch_t fetch[WM_EAGER_LL_MESSAGES];
} wm_eager_ll_params_t;

// wm_mail_pair, wm_mail_wide: one of each at most, the usual case, with little
// to hand over.
typedef struct {
    uint32_t posts;
    uint32_t patience_us;
    wm_eager_ll_post_t post[1];
    wm_eager_ll_fetch_t fetch[1];
} wm_eager_ll_pair_params_t;

#endif
