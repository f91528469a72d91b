// SPDX-License-Identifier: BSD-3-Clause
// Eager messages between devices in LL lines, as NCCL's: each line holds 8
// bytes of data and the message's flag twice. A line is written and read at
// once, so a reader that sees the flag has the bytes, without a fence or a
// second load. Shared by C and CUDA. Traces show the names of the kernels,
// wm_mail and so on.
#ifndef WM_KERNELS_EAGER_LL_H
#define WM_KERNELS_EAGER_LL_H

#include <stdint.h>

#define WM_LINE_BYTES 16
#define WM_LINE_PAYLOAD 8

// At most this many messages share a kernel; each has a block.
#define WM_EAGER_LL_MESSAGES 16

// A long message is divided among this many blocks (wm_mail_wide).
#define WM_EAGER_LL_WIDTH 8

#define WM_EAGER_LL_NDIM 3 // strided dimensions of the memory

#define WM_EAGER_LL_FOR_EVER UINT32_MAX // no limit of patience

// Results of a fetch; the host reports failures.
enum { WM_EAGER_LL_TAKEN = 1, WM_EAGER_LL_LATE = 2, WM_EAGER_LL_FAILED = 3 };

// The user's memory: runs, in strided dimensions around them. The first
// dimension is the slowest.
typedef struct {
    char *data;
    uint32_t unit;  // 8, 4, 2 or 1 bytes: divides address, run and strides
    uint32_t count; // units in all
    uint32_t run;   // contiguous units
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
// If the lines do not come in time, or *stop becomes nonzero first, the kernel
// writes only *status (late).
typedef struct {
    wm_eager_ll_memory_t dst;
    const char *lines;
    uint32_t *taken;      // page-locked host memory
    uint32_t *status;     // page-locked host memory; may be null
    const uint32_t *stop; // page-locked host memory; may be null
    uint32_t taken_value;
    uint32_t flag;
} wm_eager_ll_fetch_t;

// Parameters of wm_mail: at most WM_EAGER_LL_MESSAGES in all. The first blocks
// post, so that every post has room beside the fetches, which wait.
typedef struct {
    uint32_t posts;
    uint32_t patience_us; // may be WM_EAGER_LL_FOR_EVER
    wm_eager_ll_post_t post[WM_EAGER_LL_MESSAGES];
    wm_eager_ll_fetch_t fetch[WM_EAGER_LL_MESSAGES];
} wm_eager_ll_params_t;

// Parameters of wm_mail_pair and wm_mail_wide: at most one post and one fetch,
// the usual case, with few bytes to pass.
typedef struct {
    uint32_t posts;
    uint32_t patience_us;
    wm_eager_ll_post_t post[1];
    wm_eager_ll_fetch_t fetch[1];
} wm_eager_ll_pair_params_t;

#endif
