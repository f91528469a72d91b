// SPDX-License-Identifier: BSD-3-Clause
// The thresholds between algorithms of collectives, which users know as switch
// points: in bytes, by GPU, link and number of ranks, as measured by `python
// -m warpmpi.tune`, else built in. All ranks of a call must use the same
// thresholds: those of rank 0, which publishes them. Any thread.
#ifndef WM_COMM_COLL_THRESHOLDS_H
#define WM_COMM_COLL_THRESHOLDS_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda/error.h"

// X(field, name that users know, built in with NVLink for two ranks, for
// several, and without). Lengths up to a threshold use the first algorithm;
// the last two are bytes that must be saved.
//   lines: on a stream, blocks go by LL
//   wide: longer ones by LL128, over NVLink: a block times the other ranks
//   wide_parts: a longer Allreduce, Bcast or Reduce goes by LL128 as well, in
//     parts that ranks reduce or pass on: a part times the other ranks. What
//     is longer still goes by Simple
//   parts: of a Bcast by Simple the root sends all to each rank, and of a
//     Reduce each rank sends all to the root. Of a longer one each of several
//     ranks has a part, which it passes on, or reduces and passes on
//   phase: bytes over the links that a second phase must save before it pays,
//     of a Bcast its length: it is one more launch, and all wait for all once
//     more, some 10 us
//   barrier_cost: bytes that an algorithm with one more barrier must save,
//     after which ranks write into each other's memory. A call that can go by
//     LL128 in parts must save as much for each barrier
// What `warpmpi.tune` measures each by is in its TRIALS; other calls have what
// these find.
#define WM_THRESHOLDS(X)                                                      \
    X(lines, "lines", 16384, 65536, 32768)                                    \
    X(wide, "wide", 4 << 20, 4 << 20, 0)                                      \
    X(wide_parts, "wide_parts", 12 << 20, 12 << 20, 0)                        \
    X(parts, "parts", 1 << 20, 1 << 19, 1 << 20)                              \
    X(phase, "phase", 3 << 20, 3 << 20, 3 << 20)                              \
    X(barrier_cost, "meeting", 2 << 20, 1 << 19, 2 << 20)

typedef struct {
#define X(field, name, two, several, other) size_t field;
    WM_THRESHOLDS(X)
#undef X
} wm_thresholds_t;

#define WM_THRESHOLDS_MANY 64 // and less, but more than 4

// The first row that fits is taken.
typedef struct {
    int major;   // of the compute capability; 0: any
    bool linked; // by NVLink, all to all
    int ranks;   // 2, up to 4, or WM_THRESHOLDS_MANY; 0: any
    wm_thresholds_t thresholds;
} wm_thresholds_row_t;

#define WM_THRESHOLDS_MEASURED 64

// Measured ones, before those that are built in, instead of the last.
// WM_ERR_VALUE where there are more than WM_THRESHOLDS_MEASURED.
WM_MUST_CHECK int
wm_thresholds_set(const wm_thresholds_row_t *rows, size_t count,
                  wm_error_t *err);

// `device` of one of the ranks; -1: none.
void
wm_thresholds_find(int device, bool linked, int ranks,
                   wm_thresholds_t *thresholds);

// Likewise; linked if `device` is so to all others that this process sees.
void
wm_thresholds_find_alone(int device, int ranks, wm_thresholds_t *thresholds);

#endif
