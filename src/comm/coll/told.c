// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/told.h"

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
