// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/stream/signature.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/coll/call/reducible.h"
#include "comm/coll/direct/preflight.h"
#include "comm/engine/hash.h"

// The mark of a call has 16 bits of its number, 8 of its kind, and 40 of a
// hash of the arguments of this call and those before it. The mark of a pair
// has 16 bits of the number, and 48 of a hash of all bytes given so far, or
// taken.
#define ASKED_BITS 40
#define KIND_BITS 8
#define MARK_BITS (ASKED_BITS + KIND_BITS)
#define FAILED 255   // a kind: the call has failed
#define RECOVERS 254 // a kind: the call waits until all recover
#define SIDES 2      // given, taken

// One word holds the arguments of a call: the root, from 0 on, and 16, 16 and
// 16 bits of the op, the element type and its size.
#define ROOT_SHIFT 48
#define OP_SHIFT 32
#define TYPE_SHIFT 16
#define PART_OF(asked, shift) ((uint16_t)((asked) >> (shift)))

static uint64_t
signature_number(uint32_t call)
{
    return (uint64_t)(call & 0xffff) << MARK_BITS;
}

static uint16_t
number_of(uint64_t mark)
{
    return (uint16_t)(mark >> MARK_BITS);
}

static int
signature_kind_of(uint64_t mark)
{
    return (int)(mark >> ASKED_BITS & ((1 << KIND_BITS) - 1));
}

static uint64_t
make_mark(uint32_t call, int kind, uint64_t asked)
{
    return signature_number(call) | (uint64_t)kind << ASKED_BITS
           | (asked & (((uint64_t)1 << ASKED_BITS) - 1));
}

// Returns the hashes of a call, by rank, for one side.
static uint64_t *
pairs_of(const wm_signatures_t *signatures, uint32_t call, int side)
{
    size_t row = call % WM_SIGNATURE_CALLS * SIDES + (size_t)side;
    return &signatures->pairs[row * (size_t)signatures->size];
}

static uint64_t
pair_mark(const wm_signatures_t *signatures, uint32_t call, int side, int rank)
{
    return signature_number(call)
           | pairs_of(signatures, call, side)[rank] >> (64 - MARK_BITS);
}

static wm_signature_area_t *
area_of(const wm_signatures_t *signatures, int rank)
{
    return wm_barrier_signatures(signatures->barrier, rank);
}

static wm_signature_area_t *
own_area(const wm_signatures_t *signatures)
{
    return area_of(signatures, signatures->rank);
}

// Returns the row in which a rank publishes a call. Calls that are a multiple
// of WM_SIGNATURE_CALLS apart share a row.
static wm_signature_row_t *
signature_row_of(const wm_signatures_t *signatures, int rank, uint32_t call)
{
    return &area_of(signatures, rank)->calls[call % WM_SIGNATURE_CALLS];
}

static wm_signature_pair_t *
pair_of(const wm_signatures_t *signatures, int rank, uint32_t call, int side,
        int other)
{
    return &area_of(signatures, rank)
                ->pairs[call % WM_SIGNATURE_PAIRS][side][other];
}

// Returns the mark that this rank published for a call.
static uint64_t
own_mark(const wm_signatures_t *signatures, uint32_t call)
{
    return atomic_load_explicit(
        &signature_row_of(signatures, signatures->rank, call)->mark,
        memory_order_relaxed);
}

void
wm_signatures_open(wm_signatures_t *signatures, const wm_barrier_t *barrier)
{
    free(signatures->pairs);
    *signatures = (wm_signatures_t){
        .barrier = barrier,
        .rank = wm_barrier_rank(barrier),
        .size = wm_barrier_size(barrier),
    };
    wm_signature_area_t *own = own_area(signatures);
    for (int i = 0; i < WM_SIGNATURE_CALLS; ++i)
        atomic_store(&own->calls[i].mark, 0);
    for (int i = 0; i < WM_SIGNATURE_PAIRS * SIDES * signatures->size; ++i) {
        int row = i / SIDES;
        atomic_store(&own->pairs[row % WM_SIGNATURE_PAIRS][i % SIDES]
                                [row / WM_SIGNATURE_PAIRS]
                                    .mark,
                     0);
    }
    atomic_store(&own->last, 0);
    atomic_store(&own->current, 0);
    for (int i = 0; i < SIDES * signatures->size; ++i)
        atomic_store(&own->current_pairs[i % SIDES][i / SIDES], 0);
    atomic_store(&own->failure, 0);
    atomic_store(&own->captures, 0);
}

void
wm_signatures_close(wm_signatures_t *signatures)
{
    free(signatures->pairs);
}

// Adds the bytes of this call to the hashes, and publishes both.
static void
add_pairs(const wm_signatures_t *signatures, const wm_coll_desc_t *desc)
{
    size_t given[SIDES][WM_BARRIER_RANKS];
    wm_coll_desc_pairs(desc, given[0], given[1]);
    for (int side = 0; side < SIDES; ++side)
        for (int rank = 0; rank < signatures->size; ++rank) {
            uint64_t *pair = pairs_of(signatures, signatures->calls, side)
                             + rank;
            wm_signature_pair_t *own = pair_of(signatures, signatures->rank,
                                               signatures->calls, side, rank);
            *pair = wm_hash(*pair, given[side][rank] + 1);
            atomic_store_explicit(&own->nbytes, given[side][rank],
                                  memory_order_relaxed);
            atomic_store_explicit(
                &own->mark,
                pair_mark(signatures, signatures->calls, side, rank),
                memory_order_release);
        }
    atomic_store(&own_area(signatures)->last, signatures->calls);
}

void
wm_signatures_fail(const wm_signatures_t *signatures, uint32_t call,
                   wm_signatures_why_t why)
{
    uint64_t none = 0; // the first failure stays
    (void)atomic_compare_exchange_strong(&own_area(signatures)->failure, &none,
                                         make_mark(call, FAILED, why));
}

// Publishes the arguments that all ranks must give alike, for error texts.
static void
add_words(wm_signature_row_t *row, const wm_coll_desc_t *desc)
{
    const wm_coll_t *call = desc->call;
    bool reduces = desc->shape->reduces;
    uint64_t asked = (uint64_t)(uint16_t)call->root << ROOT_SHIFT
                     | (uint64_t)(uint16_t)call->size;
    if (reduces)
        asked |=
            (uint64_t)(uint16_t)desc->op << OP_SHIFT
            | (uint64_t)(desc->refused ? UINT16_MAX : (uint16_t)desc->type)
                  << TYPE_SHIFT;
    atomic_store_explicit(&row->block, wm_coll_desc_block(desc),
                          memory_order_relaxed);
    atomic_store_explicit(&row->asked, asked, memory_order_relaxed);
}

// Publishes a signature. Each rank publishes before it looks at the others, so
// the later of two ranks sees the earlier one.
static void
signature_publish(wm_signatures_t *signatures, int kind,
                  const wm_coll_desc_t *desc)
{
    uint64_t before = own_mark(signatures, signatures->calls - 1);
    uint64_t asked = desc != NULL ? wm_coll_desc_hash(desc) : 0;
    wm_signature_row_t *row = signature_row_of(signatures, signatures->rank,
                                               signatures->calls);
    if (desc != NULL)
        add_words(row, desc);
    atomic_store(&row->mark, make_mark(signatures->calls, kind,
                                       wm_hash(before, asked) >> 8));
    atomic_thread_fence(memory_order_seq_cst);
}

int
wm_signatures_begin(wm_signatures_t *signatures, const wm_coll_desc_t *desc,
                    wm_error_t *err)
{
    size_t each = SIDES * (size_t)signatures->size;
    bool varies = desc != NULL && desc->shape->varies;
    uint32_t call = ++signatures->calls;
    if (signatures->pairs != NULL)
        memcpy(pairs_of(signatures, call, 0),
               pairs_of(signatures, call - 1, 0),
               each * sizeof *signatures->pairs);
    else if (varies)
        signatures->pairs = calloc(WM_SIGNATURE_CALLS * each,
                                   sizeof *signatures->pairs);
    if (varies && signatures->pairs != NULL)
        add_pairs(signatures, desc);
    if (desc == NULL)
        wm_signatures_fail(signatures, call, WM_SIGNATURES_REFUSED);
    signature_publish(signatures,
                      desc != NULL ? (int)desc->call->kind : FAILED, desc);
    if (varies && signatures->pairs == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    return 0;
}

// Returns true if this rank has begun the call of a mark as well; *call is its
// number.
static bool
is_begun(const wm_signatures_t *signatures, uint64_t its, uint32_t *call)
{
    int16_t back = (int16_t)(signatures->calls - number_of(its));
    *call = signatures->calls - (uint32_t)back;
    return its != 0 && back >= 0 && (uint32_t)back < signatures->calls;
}

// Returns true if, moreover, our row of that call is still there.
static bool
is_known(const wm_signatures_t *signatures, uint64_t its, uint32_t *call)
{
    return is_begun(signatures, its, call)
           && signatures->calls - *call < WM_SIGNATURE_CALLS;
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

// Raises. The text says in which argument two ranks differ, if both rows still
// hold that call.
static int
add_difference(const wm_signatures_t *signatures, int rank, uint32_t call,
               const char *name, wm_error_t *err)
{
    wm_signature_row_t *its = signature_row_of(signatures, rank, call);
    wm_signature_row_t *own = signature_row_of(signatures, signatures->rank,
                                               call);
    uint64_t there = atomic_load(&its->asked), here = atomic_load(&own->asked);
    uint64_t block = atomic_load(&its->block), mine = atomic_load(&own->block);
    char text[256] = "other counts differ, or an earlier call";
    if (PART_OF(there, ROOT_SHIFT) != PART_OF(here, ROOT_SHIFT))
        snprintf(text, sizeof text, "its root is %d, this rank's %d",
                 (int16_t)PART_OF(there, ROOT_SHIFT),
                 (int16_t)PART_OF(here, ROOT_SHIFT));
    else if (PART_OF(there, TYPE_SHIFT) != PART_OF(here, TYPE_SHIFT))
        snprintf(text, sizeof text, "its element type is %s, this rank's %s",
                 wm_reducible_type_name(PART_OF(there, TYPE_SHIFT)),
                 wm_reducible_type_name(PART_OF(here, TYPE_SHIFT)));
    else if (block != mine)
        snprintf(text, sizeof text, "its count is %s, this rank's %s",
                 amount_of(block, PART_OF(there, 0)).text,
                 amount_of(mine, PART_OF(here, 0)).text);
    else if (PART_OF(there, OP_SHIFT) != PART_OF(here, OP_SHIFT))
        snprintf(text, sizeof text, "the ops differ");
    else if (PART_OF(there, 0) != PART_OF(here, 0))
        snprintf(text, sizeof text,
                 "its elements have %u bytes, this rank's %u",
                 (unsigned)PART_OF(there, 0), (unsigned)PART_OF(here, 0));
    return wm_error_set(
        err, WM_ERR_VALUE, 0,
        "the ranks' collectives on streams differ: rank %d gave other counts, "
        "types, op or root than this rank to %s: %s; all must give the same",
        rank, name, text);
}

// Compares our marks with those in the same row of all ranks; the row has
// `call`, or an earlier or later one. Raises if two differ, in call *differs.
static int
compare_calls(const wm_signatures_t *signatures, uint32_t call,
              uint32_t *differs, wm_error_t *err)
{
    uint32_t which;
    for (int rank = 0; rank < signatures->size; ++rank) {
        uint64_t its = atomic_load(
            &signature_row_of(signatures, rank, call)->mark);
        if (rank == signatures->rank || !is_known(signatures, its, &which))
            continue;
        uint64_t here = own_mark(signatures, which);
        int there = signature_kind_of(its), own = signature_kind_of(here);
        if (its == here || there >= RECOVERS || own >= RECOVERS)
            continue;
        const char *name = wm_call_name((wm_coll_kind_t)there);
        *differs = which;
        if (there != own)
            return wm_error_set(
                err, WM_ERR_TYPE, 0,
                "the ranks' collectives on streams differ: where rank %d "
                "called %s, this rank called %s: all must make the same calls "
                "in the same order",
                rank, name, wm_call_name((wm_coll_kind_t)own));
        return add_difference(signatures, rank, which, name, err);
    }
    return 0;
}

// Compares one pair: the bytes that another rank gives are those that we take
// from it, and vice versa.
static int
compare_pair(const wm_signatures_t *signatures, uint32_t call, int rank,
             int side, uint32_t *differs, wm_error_t *err)
{
    uint32_t which;
    int own = signatures->rank;
    uint32_t last = atomic_load(&area_of(signatures, rank)->last);
    if ((int32_t)(last - call) < 0) // it has not published this pair yet
        call = last;
    wm_signature_pair_t *pair = pair_of(signatures, rank, call, side, own);
    wm_signature_pair_t *here = pair_of(signatures, own, call, 1 - side, rank);
    uint64_t its = atomic_load(&pair->mark);
    if (!is_known(signatures, its, &which)
        || its == pair_mark(signatures, which, 1 - side, rank))
        return 0;
    *differs = which;
    uint64_t there = atomic_load(&pair->nbytes);
    uint64_t mine = atomic_load(&here->nbytes);
    bool same = atomic_load(&here->mark) >> MARK_BITS == its >> MARK_BITS
                && there != mine;
    char text[96] = "another number of bytes in an earlier call";
    if (same)
        snprintf(text, sizeof text, "%llu bytes, and this rank %s %llu",
                 (unsigned long long)there, side == 0 ? "expects" : "gives",
                 (unsigned long long)mine);
    return wm_error_set(err, WM_ERR_VALUE, 0,
                        "the ranks' collectives on streams differ: in %s rank "
                        "%d %s %s: give the same counts on both ranks",
                        wm_call_name((wm_coll_kind_t)signature_kind_of(
                            own_mark(signatures, which))),
                        rank, side == 0 ? "gives" : "expects", text);
}

static int
compare_pairs(const wm_signatures_t *signatures, uint32_t call,
              uint32_t *differs, wm_error_t *err)
{
    int code = 0, count = signatures->pairs != NULL ? signatures->size : 0;
    for (int i = 0; i < SIDES * count && code == 0; ++i)
        if (i / SIDES != signatures->rank)
            code = compare_pair(signatures, call, i / SIDES, i % SIDES,
                                differs, err);
    return code;
}

static int
signature_compare(const wm_signatures_t *signatures, uint32_t call,
                  uint32_t *differs, wm_error_t *err)
{
    int code = compare_calls(signatures, call, differs, err);
    return code < 0 ? code : compare_pairs(signatures, call, differs, err);
}

// Raises the published reason why a rank has failed in a call.
static int
raise_failure(const wm_signatures_t *signatures, int rank, uint64_t failed,
              uint32_t call, wm_error_t *err)
{
    const char *name = "a call that was refused here as well";
    wm_signatures_why_t why = (wm_signatures_why_t)(failed & 0xff);
    if (signatures->calls - call < WM_SIGNATURE_CALLS
        && signature_kind_of(own_mark(signatures, call)) < RECOVERS)
        name = wm_call_name(
            (wm_coll_kind_t)signature_kind_of(own_mark(signatures, call)));
    if (why == WM_SIGNATURES_CAPTURES)
        return wm_error_set(
            err, WM_ERR_STATE, 0,
            "rank %d captured %s into a graph, and this rank made the call "
            "without a capture: all must do the same",
            rank, name);
    if (why == WM_SIGNATURES_DIFFERS)
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

// Finds the first failure. If ranks differ, the first call in which they
// differ is not known.
static int
find_failure(const wm_signatures_t *signatures, uint32_t *first,
             wm_error_t *err)
{
    int which = -1, code = 0;
    bool differ = false;
    uint64_t failed = 0;
    uint32_t call, differs;
    for (int rank = 0; rank < signatures->size; ++rank) {
        uint64_t its = atomic_load(&area_of(signatures, rank)->failure);
        if (!is_begun(signatures, its, &call))
            continue;
        differ |= (its & 0xff) == WM_SIGNATURES_DIFFERS;
        if (which >= 0 && call >= *first)
            continue;
        which = rank;
        failed = its;
        *first = call;
    }
    if (which < 0)
        return 0;
    call = *first;
    if (signatures->calls - call < WM_SIGNATURE_CALLS)
        code = signature_compare(signatures, call, &differs, err);
    if (differ || code < 0)
        *first = 0;
    return code < 0 ? code
                    : raise_failure(signatures, which, failed, call, err);
}

int
wm_signatures_compare(const wm_signatures_t *signatures, uint32_t *first,
                      wm_error_t *err)
{
    uint32_t differs;
    *first = 0;
    int code = signature_compare(signatures, signatures->calls, &differs, err);
    if (code < 0)
        wm_signatures_fail(signatures, differs, WM_SIGNATURES_DIFFERS);
    return code < 0 ? code : find_failure(signatures, first, err);
}

int
wm_signatures_find_failure(const wm_signatures_t *signatures, uint32_t *first,
                           wm_error_t *err)
{
    int code = find_failure(signatures, first, err);
    if (code < 0)
        return code;
    uint32_t differs;
    *first = 0;
    code = compare_pairs(signatures, signatures->calls, &differs, err);
    if (code < 0)
        wm_signatures_fail(signatures, differs, WM_SIGNATURES_DIFFERS);
    return code;
}

bool
wm_signatures_may_fail(const wm_signatures_t *signatures)
{
    bool failed = signatures->pairs != NULL;
    for (int rank = 0; rank < signatures->size; ++rank)
        failed |= atomic_load(&area_of(signatures, rank)->failure) != 0;
    return failed;
}

// Returns the mark of the call that a stream is in. Other ranks may come there
// much later, so it has the whole number of the call, and 32 bits of the hash.
static uint64_t
current_mark(uint32_t call, uint64_t what)
{
    return (uint64_t)call << 32 | what >> 32;
}

// Publishes our pair. Returns true if the other rank is in the same call and
// its pair differs.
static bool
differs(const wm_signatures_t *signatures, uint32_t call, int rank, int side)
{
    int own = signatures->rank;
    uint64_t gives = pairs_of(signatures, call, side)[rank];
    uint64_t takes = pairs_of(signatures, call, 1 - side)[rank];
    wm_signature_area_t *its = area_of(signatures, rank);
    atomic_store(&own_area(signatures)->current_pairs[side][rank],
                 current_mark(call, gives));
    uint64_t there = atomic_load(&its->current_pairs[side][own]);
    return rank != own && there >> 32 == call
           && there != current_mark(call, takes);
}

bool
wm_signatures_differ(const wm_signatures_t *signatures, uint32_t call)
{
    if (signatures->calls - call >= WM_SIGNATURE_CALLS)
        return false;
    bool amiss = false, alike = true; // calls differ; pairs agree
    uint64_t what = wm_hash(0, own_mark(signatures, call));
    uint64_t here = current_mark(call, what);
    atomic_store(&own_area(signatures)->current, here);
    for (int rank = 0; rank < signatures->size; ++rank) {
        uint64_t there = atomic_load(&area_of(signatures, rank)->current);
        amiss |= there >> 32 == call && there != here;
        for (int side = 0; side < SIDES && signatures->pairs != NULL; ++side)
            alike &= !differs(signatures, call, rank, side);
    }
    if (!alike) // only two ranks see this
        wm_signatures_fail(signatures, call, WM_SIGNATURES_DIFFERS);
    return amiss || !alike;
}

// Returns how many calls a rank is ahead of our last call, by its mark:
// negative if the rank has not come there.
static int
ahead(const wm_signatures_t *signatures, uint64_t its)
{
    return its == 0 ? -1
                    : (int16_t)(number_of(its) - (uint16_t)signatures->calls);
}

void
wm_signatures_recover(wm_signatures_t *signatures)
{
    ++signatures->calls;
    signature_publish(signatures, RECOVERS, NULL);
}

int
wm_signatures_all_recover(const wm_signatures_t *signatures, wm_error_t *err)
{
    bool all = true;
    for (int rank = 0; rank < signatures->size; ++rank) {
        uint64_t its = atomic_load(
            &signature_row_of(signatures, rank, signatures->calls)->mark);
        int its_ahead = ahead(signatures, its);
        all &= its_ahead == 0;
        if (its_ahead > 0
            || (its_ahead == 0 && signature_kind_of(its) != RECOVERS))
            return wm_error_set(
                err, WM_ERR_STATE, 0,
                "no rank has made this collective on a stream, which follows "
                "a failed one: rank %d called it before that rank knew of the "
                "failure, or gave arguments that were refused; go on with the "
                "next call",
                rank);
    }
    return all;
}

// The published word: number of captures, and a bit that is 1 if the last was
// refused.
#define CAPTURES(count, refused) ((count) << 1 | (refused))

void
wm_signatures_capture(wm_signatures_t *signatures)
{
    atomic_store(&own_area(signatures)->captures,
                 CAPTURES(++signatures->captures, 0u));
}

void
wm_signatures_refuse_capture(wm_signatures_t *signatures, bool mixed)
{
    signatures->captures -= mixed;
    atomic_store(&own_area(signatures)->captures,
                 CAPTURES(signatures->captures, (uint32_t)!mixed));
}

// Returns a rank that has made a call without a capture before this rank has;
// -1: none. *kind is the kind of that call.
static int
find_ahead(const wm_signatures_t *signatures, int *kind)
{
    for (int rank = 0; rank < signatures->size; ++rank) {
        uint64_t next = atomic_load(
            &signature_row_of(signatures, rank, signatures->calls + 1)->mark);
        *kind = signature_kind_of(next);
        if (ahead(signatures, next) > 0)
            return rank;
    }
    return -1;
}

int
wm_signatures_all_capture(const wm_signatures_t *signatures, const char *name,
                          bool *mixed, wm_error_t *err)
{
    bool all = true;
    int refused = -1, kind;
    for (int rank = 0; rank < signatures->size; ++rank) {
        uint32_t its = atomic_load(&area_of(signatures, rank)->captures);
        uint32_t last = CAPTURES(signatures->captures, 0u);
        all &= its == last;
        refused = (int32_t)(its - last) > 0 ? rank : refused;
    }
    int other = find_ahead(signatures, &kind);
    *mixed = other >= 0;
    if (*mixed)
        return wm_error_set(
            err, WM_ERR_STATE, 0,
            "this rank captures a collective on a stream into a graph (%s), "
            "and rank %d calls %s without a capture: all must do the same",
            name, other,
            kind < RECOVERS ? wm_call_name((wm_coll_kind_t)kind)
                            : "another collective");
    if (refused >= 0)
        return wm_error_set(
            err, WM_ERR_STATE, 0,
            "rank %d failed in the collective on a stream that this rank "
            "captures into a graph (%s): its error tells why",
            refused, name);
    return all;
}
