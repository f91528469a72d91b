// SPDX-License-Identifier: BSD-3-Clause
// The thresholds between algorithms of collectives, in bytes; users know them
// as switch points. They depend on GPU, link and number of ranks. A user's
// file may give rows; else built-in ones are used. All ranks of a call must
// use the same thresholds: those of rank 0, which publishes them. Any thread.
#ifndef WM_COMM_COLL_DIRECT_THRESHOLDS_H
#define WM_COMM_COLL_DIRECT_THRESHOLDS_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda/error.h"

// X(field, name that users know, built-in value with NVLink for two ranks,
// with NVLink for more, and without NVLink). Calls up to a threshold use the
// first algorithm, except that a call in parts which saves enough
// (`barrier_cost`) goes by LL128 in parts at any length up to `wide_parts`.
// `phase` and `barrier_cost` are bytes that an algorithm must save.
//   lines: on a stream, blocks use LL
//   wide: longer blocks use LL128, over NVLink: bytes of a block times the
//     other ranks
//   wide_parts: a longer Allreduce, Bcast or Reduce uses LL128 in parts, which
//     ranks reduce or pass on: bytes of a part times the other ranks. Longer
//     calls use Simple
//   parts: in a Bcast by Simple the root sends all to each rank, and in a
//     Reduce each rank sends all to the root. In a longer one each of several
//     ranks has a part, which it passes on, or reduces and passes on
//   phase: bytes over the links that a second phase must save before we choose
//     it; for a Bcast its length. A phase costs one more launch and one more
//     barrier, some 10 us
//   barrier_cost: bytes that an algorithm must save per extra barrier, if
//     ranks then write into each other's memory. A call by LL128 in parts must
//     save as much for each hop
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

#define WM_THRESHOLDS_MANY 64 // more than 4 ranks; a key of users' files

// A row of the table. The first row that fits is used.
typedef struct {
    int major;   // of the compute capability; 0: any
    bool linked; // NVLink from all to all
    int ranks;   // 2, 4 (3 or 4), or WM_THRESHOLDS_MANY; 0: any
    wm_thresholds_t thresholds;
} wm_thresholds_row_t;

#define WM_THRESHOLDS_GIVEN 64

// Replaces the given rows, which come before the built-in ones. WM_ERR_VALUE
// if there are more than WM_THRESHOLDS_GIVEN.
WM_MUST_CHECK int
wm_thresholds_set(const wm_thresholds_row_t *rows, size_t count,
                  wm_error_t *err);

// Fills the thresholds. `device` is that of one of the ranks; -1: none.
void
wm_thresholds_find(int device, bool linked, int ranks,
                   wm_thresholds_t *thresholds);

// Fills the thresholds likewise; linked means that `device` is linked to all
// other devices that this process sees.
void
wm_thresholds_find_alone(int device, int ranks, wm_thresholds_t *thresholds);

#endif
