// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/told.h"

#include <stdlib.h>

#include "comm/coll/agreement.h"

// What is told of a call: 16 bits of its number, 8 of its kind, and 40 of
// what was asked for in this one and those before it.
#define ASKED_BITS 40
#define KIND_BITS 8
#define FAILED 255 // kind

static uint64_t
tell(uint32_t call, int kind, uint64_t asked)
{
    return (uint64_t)(call & 0xffff) << (ASKED_BITS + KIND_BITS)
           | (uint64_t)kind << ASKED_BITS
           | (asked & (((uint64_t)1 << ASKED_BITS) - 1));
}

static uint16_t
number_of(uint64_t told)
{
    return (uint16_t)(told >> (ASKED_BITS + KIND_BITS));
}

static int
kind_of(uint64_t told)
{
    return (int)(told >> ASKED_BITS & ((1 << KIND_BITS) - 1));
}

static void
tell_all(wm_told_t *told, const wm_gates_t *gates, int kind, uint64_t asked)
{
    uint64_t mine = tell(told->calls, kind, asked);
    told->history[told->calls % WM_TOLD_CALLS] = mine;
    wm_gates_tell(gates, mine);
}

void
wm_told_begin(wm_told_t *told, const wm_gates_t *gates, int kind,
              uint64_t asked)
{
    uint64_t before = told->history[told->calls % WM_TOLD_CALLS];
    ++told->calls;
    tell_all(told, gates, kind == WM_CALL_UNKNOWN ? FAILED : kind,
             (before ^ asked) * 1099511628211ull >> 8);
}

void
wm_told_fail(wm_told_t *told, const wm_gates_t *gates)
{
    tell_all(told, gates, FAILED, 0);
}

// What is told of a pair: 16 bits of the number of such calls, the others of
// all that was given in them, or taken.
#define PAIR_BITS 48
#define SIDES 2 // given, taken

void
wm_told_open(wm_told_t *told, const wm_gates_t *gates)
{
    *told = (wm_told_t){.calls = 0};
    wm_gates_tell(gates, 0);
    for (int rank = 0; rank < wm_gates_size(gates); ++rank)
        for (int side = 0; side < SIDES; ++side)
            wm_gates_tell_pair(gates, side, rank, 0);
}

void
wm_told_close(wm_told_t *told)
{
    free(told->pairs);
}

static uint64_t *
pair_of(const wm_told_t *told, const wm_gates_t *gates, uint32_t call,
        int side, int rank)
{
    size_t row = call % WM_TOLD_PAIRED * SIDES + (size_t)side;
    return &told->pairs[row * (size_t)wm_gates_size(gates) + (size_t)rank];
}

static uint64_t
tell_pair(const wm_told_t *told, const wm_gates_t *gates, uint32_t call,
          int side, int rank)
{
    return (uint64_t)(call & 0xffff) << PAIR_BITS
           | *pair_of(told, gates, call, side, rank) >> (64 - PAIR_BITS);
}

int
wm_told_pair(wm_told_t *told, const wm_gates_t *gates, const size_t *gives,
             const size_t *takes, wm_error_t *err)
{
    const size_t *sides[SIDES] = {gives, takes};
    int size = wm_gates_size(gates);
    if (told->pairs == NULL)
        told->pairs = calloc(SIDES * WM_TOLD_PAIRED * (size_t)size,
                             sizeof *told->pairs);
    if (told->pairs == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    uint32_t call = ++told->paired;
    for (int side = 0; side < SIDES; ++side)
        for (int rank = 0; rank < size; ++rank) {
            uint64_t before = *pair_of(told, gates, call - 1, side, rank);
            *pair_of(told, gates, call, side, rank) =
                (before ^ (sides[side][rank] + 1)) * 1099511628211ull;
            wm_gates_tell_pair(gates, side, rank,
                               tell_pair(told, gates, call, side, rank));
        }
    return 0;
}

// Whether what `rank` has told of itself and us is what we have told.
static bool
is_alike(const wm_told_t *told, const wm_gates_t *gates, int side, int rank)
{
    uint64_t its = wm_gates_told_pair(gates, side, rank);
    int16_t back = (int16_t)(told->paired - (uint16_t)(its >> PAIR_BITS));
    uint32_t call = told->paired - (uint32_t)back;
    return its == 0 || back < 0 || (uint32_t)back >= told->paired
           || back >= WM_TOLD_PAIRED
           || its == tell_pair(told, gates, call, 1 - side, rank);
}

int
wm_told_compare_pairs(const wm_told_t *told, const wm_gates_t *gates,
                      wm_error_t *err)
{
    for (int rank = 0; rank < wm_gates_size(gates); ++rank)
        for (int side = 0; side < SIDES; ++side)
            if (rank != wm_gates_rank(gates)
                && !is_alike(told, gates, side, rank))
                return wm_error_set(
                    err, WM_ERR_VALUE, 0,
                    "the ranks' collectives on streams differ: of a call in "
                    "which counts vary, rank %d %s another number of bytes "
                    "than this rank %s: give the same counts on both; free "
                    "the communicator",
                    rank, side == 0 ? "gives" : "expects",
                    side == 0 ? "expects" : "gives");
    return 0;
}

int
wm_told_compare(const wm_told_t *told, const wm_gates_t *gates,
                wm_error_t *err)
{
    for (int rank = 0; rank < wm_gates_size(gates); ++rank) {
        uint64_t its = wm_gates_told(gates, rank);
        int16_t back = (int16_t)(told->calls - number_of(its));
        if (its == 0 || back < 0 || (uint32_t)back >= told->calls)
            continue;
        if (kind_of(its) == FAILED) // its last
            return wm_error_set(err, WM_ERR_STATE, 0,
                                "rank %d failed in a collective on a stream: "
                                "its error tells why; free the communicator",
                                rank);
        uint64_t here =
            told->history[(told->calls - (uint32_t)back) % WM_TOLD_CALLS];
        if (its == here || back >= WM_TOLD_CALLS)
            continue;
        const char *name = wm_call_name((wm_call_kind_t)kind_of(its));
        if (kind_of(its) != kind_of(here))
            return wm_error_set(
                err, WM_ERR_TYPE, 0,
                "the ranks' collectives on streams differ: where rank %d "
                "called %s, this one called %s: all must make the same calls "
                "in the same order; free the communicator",
                rank, name, wm_call_name((wm_call_kind_t)kind_of(here)));
        return wm_error_set(
            err, WM_ERR_VALUE, 0,
            "the ranks' collectives on streams differ: rank %d gave other "
            "counts, types, op or root than this one to a %s, or to a call "
            "before it: all must give the same; free the communicator",
            rank, name);
    }
    return 0;
}
