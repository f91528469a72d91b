// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/told.h"

#include <stdlib.h>
#include <string.h>

#include "comm/coll/agreement.h"
#include "comm/engine/hash.h"

// What is told of a call: 16 bits of its number, 8 of its kind, and 40 of
// what was asked for in this one and those before it; of a pair 16 bits of the
// number, and 48 of all that was given so far, or taken.
#define ASKED_BITS 40
#define KIND_BITS 8
#define TOLD_BITS (ASKED_BITS + KIND_BITS)
#define FAILED 255 // kind
#define SIDES 2    // given, taken

// Rows of a gate: the last call that was begun, and the one a stream is in.
enum { LAST, CURRENT, ROWS };

static uint64_t
number(uint32_t call)
{
    return (uint64_t)(call & 0xffff) << TOLD_BITS;
}

static uint16_t
number_of(uint64_t told)
{
    return (uint16_t)(told >> TOLD_BITS);
}

static int
kind_of(uint64_t told)
{
    return (int)(told >> ASKED_BITS & ((1 << KIND_BITS) - 1));
}

static uint64_t
tell(uint32_t call, int kind, uint64_t asked)
{
    return number(call) | (uint64_t)kind << ASKED_BITS
           | (asked & (((uint64_t)1 << ASKED_BITS) - 1));
}

// Of a call, for all ranks, one side.
static uint64_t *
pairs_of(const wm_told_t *told, const wm_gates_t *gates, uint32_t call,
         int side)
{
    size_t row = call % WM_TOLD_CALLS * SIDES + (size_t)side;
    return &told->pairs[row * (size_t)wm_gates_size(gates)];
}

static uint64_t
tell_pair(const wm_told_t *told, const wm_gates_t *gates, uint32_t call,
          int side, int rank)
{
    return number(call)
           | pairs_of(told, gates, call, side)[rank] >> (64 - TOLD_BITS);
}

static wm_gate_told_t *
mine(const wm_gates_t *gates, int row)
{
    return wm_gates_told(gates, wm_gates_rank(gates), row);
}

void
wm_told_open(wm_told_t *told, const wm_gates_t *gates)
{
    memset(told, 0, sizeof *told);
    for (int row = 0; row < ROWS; ++row) {
        atomic_store(&mine(gates, row)->call, 0);
        for (int rank = 0; rank < SIDES * wm_gates_size(gates); ++rank)
            atomic_store(&mine(gates, row)->pairs[rank % SIDES][rank / SIDES],
                         0);
    }
}

void
wm_told_close(wm_told_t *told)
{
    free(told->pairs);
}

// In this call.
static void
add_pairs(wm_told_t *told, const wm_gates_t *gates, const wm_laid_t *laid)
{
    size_t given[SIDES][WM_GATE_RANKS];
    wm_laid_pairs(laid, given[0], given[1]);
    for (int side = 0; side < SIDES; ++side)
        for (int rank = 0; rank < wm_gates_size(gates); ++rank) {
            uint64_t *pair = pairs_of(told, gates, told->calls, side) + rank;
            *pair = wm_hash(*pair, given[side][rank] + 1);
            atomic_store(&mine(gates, LAST)->pairs[side][rank],
                         tell_pair(told, gates, told->calls, side, rank));
        }
}

int
wm_told_begin(wm_told_t *told, const wm_gates_t *gates, const wm_laid_t *laid,
              wm_error_t *err)
{
    uint64_t before = told->history[told->calls % WM_TOLD_CALLS];
    size_t each = SIDES * (size_t)wm_gates_size(gates);
    bool varies = laid != NULL && laid->shape->varies;
    uint32_t call = ++told->calls;
    uint64_t asked = laid != NULL ? wm_laid_number(laid) : 0;
    uint64_t *last = &told->history[call % WM_TOLD_CALLS];
    *last = tell(call, laid != NULL ? (int)laid->call->kind : FAILED,
                 wm_hash(before, asked) >> 8);
    atomic_store(&mine(gates, LAST)->call, *last);
    if (told->pairs != NULL)
        memcpy(pairs_of(told, gates, call, 0),
               pairs_of(told, gates, call - 1, 0), each * sizeof *told->pairs);
    else if (varies)
        told->pairs = calloc(WM_TOLD_CALLS * each, sizeof *told->pairs);
    if (varies && told->pairs == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    if (varies)
        add_pairs(told, gates, laid);
    return 0;
}

static void
fail(const wm_gates_t *gates, uint32_t call)
{
    atomic_store(&mine(gates, LAST)->call, tell(call, FAILED, 0));
}

void
wm_told_fail(const wm_told_t *told, const wm_gates_t *gates)
{
    fail(gates, told->calls);
}

// Whether it was begun here as well, and which.
static bool
is_begun(const wm_told_t *told, uint64_t its, uint32_t *call)
{
    int16_t back = (int16_t)(told->calls - number_of(its));
    *call = told->calls - (uint32_t)back;
    return its != 0 && back >= 0 && (uint32_t)back < told->calls;
}

// Likewise, and what was asked for.
static bool
is_known(const wm_told_t *told, uint64_t its, uint32_t *call)
{
    return is_begun(told, its, call) && told->calls - *call < WM_TOLD_CALLS;
}

static uint64_t
last_of(const wm_gates_t *gates, int rank)
{
    return atomic_load(&wm_gates_told(gates, rank, LAST)->call);
}

static int
find_failed(const wm_told_t *told, const wm_gates_t *gates, wm_error_t *err)
{
    uint32_t call;
    for (int rank = 0; rank < wm_gates_size(gates); ++rank) {
        uint64_t its = last_of(gates, rank);
        if (kind_of(its) == FAILED && is_begun(told, its, &call))
            return wm_error_set(err, WM_ERR_STATE, 0,
                                "rank %d failed in a collective on a stream: "
                                "its error tells why; free the communicator",
                                rank);
    }
    return 0;
}

static int
compare_calls(const wm_told_t *told, const wm_gates_t *gates, wm_error_t *err)
{
    uint32_t call;
    for (int rank = 0; rank < wm_gates_size(gates); ++rank) {
        uint64_t its = last_of(gates, rank);
        if (kind_of(its) == FAILED || !is_known(told, its, &call))
            continue;
        uint64_t here = told->history[call % WM_TOLD_CALLS];
        if (its == here)
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

// What another gives is what we take of it, and so the other way round.
static bool
is_alike(const wm_told_t *told, const wm_gates_t *gates, int rank, int side,
         uint32_t *call)
{
    int own = wm_gates_rank(gates);
    uint64_t its = atomic_load(
        &wm_gates_told(gates, rank, LAST)->pairs[side][own]);
    return rank == own || told->pairs == NULL || !is_known(told, its, call)
           || its == tell_pair(told, gates, *call, 1 - side, rank);
}

// The others do not see it, and hear that we have failed.
static int
compare_pairs(const wm_told_t *told, const wm_gates_t *gates, wm_error_t *err)
{
    uint32_t call;
    for (int i = 0; i < SIDES * wm_gates_size(gates); ++i) {
        int rank = i / SIDES, side = i % SIDES;
        if (is_alike(told, gates, rank, side, &call))
            continue;
        fail(gates, call);
        return wm_error_set(
            err, WM_ERR_VALUE, 0,
            "the ranks' collectives on streams differ: of a call in which "
            "counts vary, rank %d %s another number of bytes than this rank "
            "%s: give the same counts on both; free the communicator",
            rank, side == 0 ? "gives" : "expects",
            side == 0 ? "expects" : "gives");
    }
    return 0;
}

int
wm_told_compare(const wm_told_t *told, const wm_gates_t *gates,
                wm_error_t *err)
{
    int code = compare_calls(told, gates, err);
    if (code < 0)
        return code;
    code = compare_pairs(told, gates, err);
    return code < 0 ? code : find_failed(told, gates, err);
}

// What is told of the call that a stream is in, which may be told long before
// others come there: all of its number, and 32 bits of the rest.
static uint64_t
tell_current(uint32_t call, uint64_t what)
{
    return (uint64_t)call << 32 | what >> 32;
}

// Ours, and whether the other's is of the same call and differs.
static bool
differs(const wm_told_t *told, const wm_gates_t *gates, uint32_t call,
        int rank, int side)
{
    int own = wm_gates_rank(gates);
    uint64_t gives = pairs_of(told, gates, call, side)[rank];
    uint64_t takes = pairs_of(told, gates, call, 1 - side)[rank];
    wm_gate_told_t *its = wm_gates_told(gates, rank, CURRENT);
    atomic_store(&mine(gates, CURRENT)->pairs[side][rank],
                 tell_current(call, gives));
    uint64_t there = atomic_load(&its->pairs[side][own]);
    return rank != own && there >> 32 == call
           && there != tell_current(call, takes);
}

bool
wm_told_is_amiss(const wm_told_t *told, const wm_gates_t *gates, uint32_t call)
{
    if (told->calls - call >= WM_TOLD_CALLS)
        return false;
    bool amiss = false, alike = true; // all calls; what two have
    uint64_t what = wm_hash(0, told->history[call % WM_TOLD_CALLS]);
    uint64_t here = tell_current(call, what);
    atomic_store(&mine(gates, CURRENT)->call, here);
    for (int rank = 0; rank < wm_gates_size(gates); ++rank) {
        uint64_t there = atomic_load(
            &wm_gates_told(gates, rank, CURRENT)->call);
        amiss |= there >> 32 == call && there != here;
        for (int side = 0; side < SIDES && told->pairs != NULL; ++side)
            alike &= !differs(told, gates, call, rank, side);
    }
    if (!alike) // which the others do not see
        fail(gates, call);
    return amiss || !alike;
}
