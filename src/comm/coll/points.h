// SPDX-License-Identifier: BSD-3-Clause
// The sizes at which collectives change their way, in bytes, by GPU, link and
// number of ranks: as measured by `python -m warpmpi.tune`, else built in. All
// ranks of a call must use the same: those of rank 0, who tells them. Any
// thread.
#ifndef WM_COMM_COLL_POINTS_H
#define WM_COMM_COLL_POINTS_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda/error.h"

// X(name, built in with NVLink for two ranks, for several, and without); up to
// each the first way.
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
//   meeting: bytes that an algorithm with one more barrier must save, after
//     which ranks write into each other's memory. A call that can go by LL128
//     in parts must save as much for each barrier; longer ones then go so
// What `warpmpi.tune` measures each by is in its TRIALS; other calls have what
// these find.
#define WM_POINTS(X)                                                          \
    X(lines, 16384, 65536, 32768)                                             \
    X(wide, 4 << 20, 4 << 20, 0)                                              \
    X(wide_parts, 12 << 20, 12 << 20, 0)                                      \
    X(parts, 1 << 20, 1 << 19, 1 << 20)                                       \
    X(phase, 3 << 20, 3 << 20, 3 << 20)                                       \
    X(meeting, 2 << 20, 1 << 19, 2 << 20)

typedef struct {
#define X(name, two, several, other) size_t name;
    WM_POINTS(X)
#undef X
} wm_points_t;

#define WM_POINTS_MANY 64 // and less, but more than 4

// The first row that fits is taken.
typedef struct {
    int major;   // of the compute capability; 0: any
    bool linked; // by NVLink, all to all
    int ranks;   // 2, up to 4, or WM_POINTS_MANY; 0: any
    wm_points_t points;
} wm_points_row_t;

#define WM_POINTS_MEASURED 64

// Measured ones, before those that are built in, instead of the last.
// WM_ERR_VALUE where there are more than WM_POINTS_MEASURED.
WM_MUST_CHECK int
wm_points_set(const wm_points_row_t *rows, size_t count, wm_error_t *err);

// `device` of one of the ranks; -1: none.
void
wm_points_find(int device, bool linked, int ranks, wm_points_t *points);

// Likewise; linked if `device` is so to all others that this process sees.
void
wm_points_find_alone(int device, int ranks, wm_points_t *points);

#endif
