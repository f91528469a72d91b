// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/told.h"

#include <stdio.h>
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
#define FAILED 255   // kind
#define RECOVERS 254 // likewise: it waits for the others
#define SIDES 2      // given, taken

// One word holds the arguments of a call: the root, from 0 on, and 16, 16 and
// 16 bits of the op, the element type and its size.
#define ROOT_SHIFT 48
#define OP_SHIFT 32
#define TYPE_SHIFT 16
#define PART_OF(asked, shift) ((uint16_t)((asked) >> (shift)))

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
pairs_of(const wm_told_t *told, const wm_barrier_t *barrier, uint32_t call,
         int side)
{
    size_t row = call % WM_BARRIER_CALLS * SIDES + (size_t)side;
    return &told->pairs[row * (size_t)wm_barrier_size(barrier)];
}

static uint64_t
tell_pair(const wm_told_t *told, const wm_barrier_t *barrier, uint32_t call,
          int side, int rank)
{
    return number(call)
           | pairs_of(told, barrier, call, side)[rank] >> (64 - TOLD_BITS);
}

static wm_barrier_told_t *
mine(const wm_barrier_t *barrier)
{
    return wm_barrier_told(barrier, wm_barrier_rank(barrier));
}

// The row in which a rank publishes that call. Calls that are a multiple of
// WM_BARRIER_CALLS apart share a row.
static wm_barrier_call_t *
row_of(const wm_barrier_t *barrier, int rank, uint32_t call)
{
    return &wm_barrier_told(barrier, rank)->calls[call % WM_BARRIER_CALLS];
}

static wm_barrier_pair_t *
pair_of(const wm_barrier_t *barrier, int rank, uint32_t call, int side,
        int other)
{
    return &wm_barrier_told(barrier, rank)
                ->pairs[call % WM_BARRIER_PAIRS][side][other];
}

// The mark that this rank published for a call.
static uint64_t
told_here(const wm_barrier_t *barrier, uint32_t call)
{
    return atomic_load_explicit(
        &row_of(barrier, wm_barrier_rank(barrier), call)->mark,
        memory_order_relaxed);
}

void
wm_told_open(wm_told_t *told, const wm_barrier_t *barrier)
{
    wm_barrier_told_t *own = mine(barrier);
    free(told->pairs);
    memset(told, 0, sizeof *told);
    for (int i = 0; i < WM_BARRIER_CALLS; ++i)
        atomic_store(&own->calls[i].mark, 0);
    for (int i = 0; i < WM_BARRIER_PAIRS * SIDES * wm_barrier_size(barrier);
         ++i) {
        int row = i / SIDES;
        atomic_store(&own->pairs[row % WM_BARRIER_PAIRS][i % SIDES]
                                [row / WM_BARRIER_PAIRS]
                                    .mark,
                     0);
    }
    atomic_store(&own->last, 0);
    atomic_store(&own->current, 0);
    for (int i = 0; i < SIDES * wm_barrier_size(barrier); ++i)
        atomic_store(&own->current_pairs[i % SIDES][i / SIDES], 0);
    atomic_store(&own->failure, 0);
    atomic_store(&own->captures, 0);
}

void
wm_told_close(wm_told_t *told)
{
    free(told->pairs);
}

// In this call.
static void
add_pairs(const wm_told_t *told, const wm_barrier_t *barrier,
          const wm_laid_t *laid)
{
    size_t given[SIDES][WM_BARRIER_RANKS];
    wm_laid_pairs(laid, given[0], given[1]);
    for (int side = 0; side < SIDES; ++side)
        for (int rank = 0; rank < wm_barrier_size(barrier); ++rank) {
            uint64_t *pair = pairs_of(told, barrier, told->calls, side) + rank;
            wm_barrier_pair_t *own = pair_of(barrier, wm_barrier_rank(barrier),
                                             told->calls, side, rank);
            *pair = wm_hash(*pair, given[side][rank] + 1);
            atomic_store_explicit(&own->nbytes, given[side][rank],
                                  memory_order_relaxed);
            atomic_store_explicit(
                &own->mark, tell_pair(told, barrier, told->calls, side, rank),
                memory_order_release);
        }
    atomic_store(&mine(barrier)->last, told->calls);
}

void
wm_told_fail(const wm_barrier_t *barrier, uint32_t call, wm_told_why_t why)
{
    uint64_t none = 0; // the first stays
    (void)atomic_compare_exchange_strong(&mine(barrier)->failure, &none,
                                         tell(call, FAILED, why));
}

// In words: what all must give alike.
static void
add_words(wm_barrier_call_t *row, const wm_laid_t *laid)
{
    const wm_coll_t *call = laid->call;
    bool reduces = laid->shape->reduces;
    uint64_t asked = (uint64_t)(uint16_t)call->root << ROOT_SHIFT
                     | (uint64_t)(uint16_t)call->size;
    if (reduces)
        asked |=
            (uint64_t)(uint16_t)laid->op << OP_SHIFT
            | (uint64_t)(laid->refused ? UINT16_MAX : (uint16_t)laid->type)
                  << TYPE_SHIFT;
    atomic_store_explicit(&row->block, wm_laid_block(laid),
                          memory_order_relaxed);
    atomic_store_explicit(&row->asked, asked, memory_order_relaxed);
}

// Each rank publishes before it looks at the others, so the later of two ranks
// sees the earlier one.
static void
publish(wm_told_t *told, const wm_barrier_t *barrier, int kind,
        const wm_laid_t *laid)
{
    uint64_t before = told_here(barrier, told->calls - 1);
    uint64_t asked = laid != NULL ? wm_laid_number(laid) : 0;
    wm_barrier_call_t *row = row_of(barrier, wm_barrier_rank(barrier),
                                    told->calls);
    if (laid != NULL)
        add_words(row, laid);
    atomic_store(&row->mark,
                 tell(told->calls, kind, wm_hash(before, asked) >> 8));
    atomic_thread_fence(memory_order_seq_cst);
}

int
wm_told_begin(wm_told_t *told, const wm_barrier_t *barrier,
              const wm_laid_t *laid, wm_error_t *err)
{
    size_t each = SIDES * (size_t)wm_barrier_size(barrier);
    bool varies = laid != NULL && laid->shape->varies;
    uint32_t call = ++told->calls;
    if (told->pairs != NULL)
        memcpy(pairs_of(told, barrier, call, 0),
               pairs_of(told, barrier, call - 1, 0),
               each * sizeof *told->pairs);
    else if (varies)
        told->pairs = calloc(WM_BARRIER_CALLS * each, sizeof *told->pairs);
    if (varies && told->pairs != NULL)
        add_pairs(told, barrier, laid);
    if (laid == NULL)
        wm_told_fail(barrier, call, WM_TOLD_REFUSED);
    publish(told, barrier, laid != NULL ? (int)laid->call->kind : FAILED,
            laid);
    if (varies && told->pairs == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    return 0;
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
    return is_begun(told, its, call) && told->calls - *call < WM_BARRIER_CALLS;
}

typedef struct {
    char text[64];
} amount_t;

static amount_t
amount_of(uint64_t nbytes, uint64_t size)
{
    amount_t amount;
    if (size > 0)
        snprintf(amount.text, sizeof amount.text, "%llu (%llu bytes)",
                 (unsigned long long)(nbytes / size),
                 (unsigned long long)nbytes);
    else
        snprintf(amount.text, sizeof amount.text, "%llu bytes",
                 (unsigned long long)nbytes);
    return amount;
}

// Says in which argument two ranks differ, if both rows still hold that call.
static int
add_difference(const wm_barrier_t *barrier, int rank, uint32_t call, int code,
               const char *name, wm_error_t *err)
{
    wm_barrier_call_t *its = row_of(barrier, rank, call);
    wm_barrier_call_t *own = row_of(barrier, wm_barrier_rank(barrier), call);
    uint64_t there = atomic_load(&its->asked), here = atomic_load(&own->asked);
    uint64_t block = atomic_load(&its->block), mine = atomic_load(&own->block);
    char text[256] = "in its other counts, or in an earlier call";
    if (PART_OF(there, ROOT_SHIFT) != PART_OF(here, ROOT_SHIFT))
        snprintf(text, sizeof text, "root %d there, %d here",
                 (int16_t)PART_OF(there, ROOT_SHIFT),
                 (int16_t)PART_OF(here, ROOT_SHIFT));
    else if (block != mine)
        snprintf(text, sizeof text, "a count of %s there, %s here",
                 amount_of(block, PART_OF(there, 0)).text,
                 amount_of(mine, PART_OF(here, 0)).text);
    else if (PART_OF(there, OP_SHIFT) != PART_OF(here, OP_SHIFT))
        snprintf(text, sizeof text, "another op");
    else if (PART_OF(there, TYPE_SHIFT) != PART_OF(here, TYPE_SHIFT)
             || PART_OF(there, 0) != PART_OF(here, 0))
        snprintf(text, sizeof text, "another element type");
    return wm_error_set(
        err, code, 0,
        "the ranks' collectives on streams differ: rank %d gave other counts, "
        "types, op or root than this one to %s: %s; all must give the same",
        rank, name, text);
}

// By what all have told of a call, or of those that have its place now; the
// one in which they differ.
static int
compare_calls(const wm_told_t *told, const wm_barrier_t *barrier,
              uint32_t call, uint32_t *differs, wm_error_t *err)
{
    uint32_t which;
    for (int rank = 0; rank < wm_barrier_size(barrier); ++rank) {
        uint64_t its = atomic_load(&row_of(barrier, rank, call)->mark);
        if (rank == wm_barrier_rank(barrier) || !is_known(told, its, &which))
            continue;
        uint64_t here = told_here(barrier, which);
        int there = kind_of(its), own = kind_of(here);
        if (its == here || there >= RECOVERS || own >= RECOVERS)
            continue;
        const char *name = wm_call_name((wm_call_kind_t)there);
        *differs = which;
        if (there != own)
            return wm_error_set(
                err, WM_ERR_TYPE, 0,
                "the ranks' collectives on streams differ: where rank %d "
                "called %s, this one called %s: all must make the same calls "
                "in the same order",
                rank, name, wm_call_name((wm_call_kind_t)own));
        return add_difference(barrier, rank, which, WM_ERR_VALUE, name, err);
    }
    return 0;
}

// What another gives is what we take of it, and so the other way round.
static int
compare_pair(const wm_told_t *told, const wm_barrier_t *barrier, uint32_t call,
             int rank, int side, uint32_t *differs, wm_error_t *err)
{
    uint32_t which;
    int own = wm_barrier_rank(barrier);
    uint32_t last = atomic_load(&wm_barrier_told(barrier, rank)->last);
    if ((int32_t)(last - call) < 0) // of this one it tells nothing yet
        call = last;
    wm_barrier_pair_t *pair = pair_of(barrier, rank, call, side, own);
    wm_barrier_pair_t *here = pair_of(barrier, own, call, 1 - side, rank);
    uint64_t its = atomic_load(&pair->mark);
    if (!is_known(told, its, &which)
        || its == tell_pair(told, barrier, which, 1 - side, rank))
        return 0;
    *differs = which;
    uint64_t there = atomic_load(&pair->nbytes);
    uint64_t mine = atomic_load(&here->nbytes);
    bool same = atomic_load(&here->mark) >> TOLD_BITS == its >> TOLD_BITS
                && there != mine;
    char text[96] = "another number of bytes in a call before it";
    if (same)
        snprintf(text, sizeof text, "%llu bytes, this rank %s %llu",
                 (unsigned long long)there, side == 0 ? "expects" : "gives",
                 (unsigned long long)mine);
    return wm_error_set(
        err, WM_ERR_VALUE, 0,
        "the ranks' collectives on streams differ: of a call "
        "in which counts vary, rank %d %s %s (%s): give the "
        "same counts on both",
        rank, side == 0 ? "gives" : "expects", text,
        wm_call_name((wm_call_kind_t)kind_of(told_here(barrier, which))));
}

static int
compare_pairs(const wm_told_t *told, const wm_barrier_t *barrier,
              uint32_t call, uint32_t *differs, wm_error_t *err)
{
    int code = 0, count = told->pairs != NULL ? wm_barrier_size(barrier) : 0;
    for (int i = 0; i < SIDES * count && code == 0; ++i)
        if (i / SIDES != wm_barrier_rank(barrier))
            code = compare_pair(told, barrier, call, i / SIDES, i % SIDES,
                                differs, err);
    return code;
}

static int
compare(const wm_told_t *told, const wm_barrier_t *barrier, uint32_t call,
        uint32_t *differs, wm_error_t *err)
{
    int code = compare_calls(told, barrier, call, differs, err);
    return code < 0 ? code : compare_pairs(told, barrier, call, differs, err);
}

// Why a rank has failed in a call of ours, as it told.
static int
tell_failed(const wm_told_t *told, const wm_barrier_t *barrier, int rank,
            uint64_t failed, uint32_t call, wm_error_t *err)
{
    const char *name = "a call that was refused here as well";
    wm_told_why_t why = (wm_told_why_t)(failed & 0xff);
    if (told->calls - call < WM_BARRIER_CALLS
        && kind_of(told_here(barrier, call)) < RECOVERS)
        name = wm_call_name((wm_call_kind_t)kind_of(told_here(barrier, call)));
    if (why == WM_TOLD_CAPTURES)
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "rank %d captured into a graph what this rank "
                            "made without a capture (%s): all must do the "
                            "same",
                            rank, name);
    if (why == WM_TOLD_DIFFERS)
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "rank %d failed in a collective on a stream (%s), "
                            "as the ranks' collectives on streams differ: its "
                            "error tells how",
                            rank, name);
    return wm_error_set(err, WM_ERR_STATE, 0,
                        "rank %d failed in a collective on a stream (%s): its "
                        "error tells why",
                        rank, name);
}

// The first that has. Of ranks that differ nothing tells in which call they
// began to.
static int
find_failed(const wm_told_t *told, const wm_barrier_t *barrier,
            uint32_t *first, wm_error_t *err)
{
    int which = -1, code = 0;
    bool differ = false;
    uint64_t failed = 0;
    uint32_t call, differs;
    for (int rank = 0; rank < wm_barrier_size(barrier); ++rank) {
        uint64_t its = atomic_load(&wm_barrier_told(barrier, rank)->failure);
        if (!is_begun(told, its, &call))
            continue;
        differ |= (its & 0xff) == WM_TOLD_DIFFERS;
        if (which >= 0 && call >= *first)
            continue;
        which = rank;
        failed = its;
        *first = call;
    }
    if (which < 0)
        return 0;
    call = *first;
    if (told->calls - call < WM_BARRIER_CALLS)
        code = compare(told, barrier, call, &differs, err);
    if (differ || code < 0)
        *first = 0;
    return code < 0 ? code
                    : tell_failed(told, barrier, which, failed, call, err);
}

int
wm_told_compare(const wm_told_t *told, const wm_barrier_t *barrier,
                uint32_t *first, wm_error_t *err)
{
    uint32_t differs;
    *first = 0;
    int code = compare(told, barrier, told->calls, &differs, err);
    if (code < 0)
        wm_told_fail(barrier, differs, WM_TOLD_DIFFERS);
    return code < 0 ? code : find_failed(told, barrier, first, err);
}

int
wm_told_hear(const wm_told_t *told, const wm_barrier_t *barrier,
             uint32_t *first, wm_error_t *err)
{
    int code = find_failed(told, barrier, first, err);
    if (code < 0)
        return code;
    uint32_t differs;
    *first = 0;
    code = compare_pairs(told, barrier, told->calls, &differs, err);
    if (code < 0)
        wm_told_fail(barrier, differs, WM_TOLD_DIFFERS);
    return code;
}

bool
wm_told_is_news(const wm_told_t *told, const wm_barrier_t *barrier)
{
    bool failed = told->pairs != NULL;
    for (int rank = 0; rank < wm_barrier_size(barrier); ++rank)
        failed |= atomic_load(&wm_barrier_told(barrier, rank)->failure) != 0;
    return failed;
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
differs(const wm_told_t *told, const wm_barrier_t *barrier, uint32_t call,
        int rank, int side)
{
    int own = wm_barrier_rank(barrier);
    uint64_t gives = pairs_of(told, barrier, call, side)[rank];
    uint64_t takes = pairs_of(told, barrier, call, 1 - side)[rank];
    wm_barrier_told_t *its = wm_barrier_told(barrier, rank);
    atomic_store(&mine(barrier)->current_pairs[side][rank],
                 tell_current(call, gives));
    uint64_t there = atomic_load(&its->current_pairs[side][own]);
    return rank != own && there >> 32 == call
           && there != tell_current(call, takes);
}

bool
wm_told_is_amiss(const wm_told_t *told, const wm_barrier_t *barrier,
                 uint32_t call)
{
    if (told->calls - call >= WM_BARRIER_CALLS)
        return false;
    bool amiss = false, alike = true; // all calls; what two have
    uint64_t what = wm_hash(0, told_here(barrier, call));
    uint64_t here = tell_current(call, what);
    atomic_store(&mine(barrier)->current, here);
    for (int rank = 0; rank < wm_barrier_size(barrier); ++rank) {
        uint64_t there = atomic_load(&wm_barrier_told(barrier, rank)->current);
        amiss |= there >> 32 == call && there != here;
        for (int side = 0; side < SIDES && told->pairs != NULL; ++side)
            alike &= !differs(told, barrier, call, rank, side);
    }
    if (!alike) // which the others do not see
        wm_told_fail(barrier, call, WM_TOLD_DIFFERS);
    return amiss || !alike;
}

// How many calls a rank is ahead of this one's last, as its place in the row
// tells: negative where it has not come there.
static int
ahead(const wm_told_t *told, uint64_t its)
{
    return its == 0 ? -1 : (int16_t)(number_of(its) - (uint16_t)told->calls);
}

void
wm_told_recover(wm_told_t *told, const wm_barrier_t *barrier)
{
    ++told->calls;
    publish(told, barrier, RECOVERS, NULL);
}

int
wm_told_all_recover(const wm_told_t *told, const wm_barrier_t *barrier,
                    wm_error_t *err)
{
    bool all = true;
    for (int rank = 0; rank < wm_barrier_size(barrier); ++rank) {
        uint64_t its = atomic_load(&row_of(barrier, rank, told->calls)->mark);
        int its_ahead = ahead(told, its);
        all &= its_ahead == 0;
        if (its_ahead > 0 || (its_ahead == 0 && kind_of(its) != RECOVERS))
            return wm_error_set(err, WM_ERR_STATE, 0,
                                "an earlier collective on a stream failed, as "
                                "an error told, and rank %d made this call "
                                "before it had heard of that, or was refused "
                                "it: no rank's has been made; go on with the "
                                "next",
                                rank);
    }
    return all;
}

// Captures so far, and below that whether the last was refused.
#define CAPTURES(count, refused) ((count) << 1 | (refused))

void
wm_told_capture(wm_told_t *told, const wm_barrier_t *barrier)
{
    atomic_store(&mine(barrier)->captures, CAPTURES(++told->captures, 0u));
}

void
wm_told_refuse_capture(wm_told_t *told, const wm_barrier_t *barrier,
                       bool mixed)
{
    told->captures -= mixed;
    atomic_store(&mine(barrier)->captures,
                 CAPTURES(told->captures, (uint32_t)!mixed));
}

// A rank that makes a call without a capture that this one has not made.
static int
find_ahead(const wm_told_t *told, const wm_barrier_t *barrier, int *kind)
{
    for (int rank = 0; rank < wm_barrier_size(barrier); ++rank) {
        uint64_t next = atomic_load(
            &row_of(barrier, rank, told->calls + 1)->mark);
        *kind = kind_of(next);
        if (ahead(told, next) > 0)
            return rank;
    }
    return -1;
}

int
wm_told_all_capture(const wm_told_t *told, const wm_barrier_t *barrier,
                    const char *name, bool *mixed, wm_error_t *err)
{
    bool all = true;
    int refused = -1, kind;
    for (int rank = 0; rank < wm_barrier_size(barrier); ++rank) {
        uint32_t its = atomic_load(&wm_barrier_told(barrier, rank)->captures);
        uint32_t last = CAPTURES(told->captures, 0u);
        all &= its == last;
        refused = (int32_t)(its - last) > 0 ? rank : refused;
    }
    int other = find_ahead(told, barrier, &kind);
    *mixed = other >= 0;
    if (*mixed)
        return wm_error_set(
            err, WM_ERR_STATE, 0,
            "this rank captures a collective on a stream into a graph (%s), "
            "and rank %d calls %s without a capture: all must do the same",
            name, other,
            kind < RECOVERS ? wm_call_name((wm_call_kind_t)kind)
                            : "another collective");
    if (refused >= 0)
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "rank %d was refused the collective on a stream "
                            "that this rank captures into a graph (%s): its "
                            "error tells why",
                            refused, name);
    return all;
}
