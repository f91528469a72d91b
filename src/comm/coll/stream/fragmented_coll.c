// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/stream/fragmented_coll.h"

#include "comm/coll/direct/participant.h"

// Half of a rank's symmetric memory has two areas: data that the rank sends;
// and data that it has reduced, or taken, for others to read. The blocks for
// all ranks share the first area.
#define ALIGN 256
#define FRAGMENT_PHASES 2 // phases of a plan for one fragment, at most

typedef struct {
    const wm_coll_desc_t *desc;
    wm_symm_t *symm;
    size_t area;
    size_t room;  // bytes of a block in a fragment
    size_t index; // of the current fragment
} fragmented_t;

static fragmented_t
fragmented_open(wm_symm_t *symm, const wm_coll_desc_t *desc)
{
    size_t area = wm_symm_half(symm) / 2;
    size_t blocks = desc->shape->scatters ? (size_t)desc->comm->size : 1;
    return (fragmented_t){
        .desc = desc,
        .symm = symm,
        .area = area,
        .room = area / blocks / ALIGN * ALIGN,
    };
}

// Returns the part of a block that is in the current fragment.
static wm_span_t
cut(const fragmented_t *coll, wm_span_t block)
{
    size_t at = coll->index * coll->room;
    if (at >= block.nbytes)
        return (wm_span_t){block.at, 0};
    size_t left = block.nbytes - at;
    return (wm_span_t){block.at + at, left < coll->room ? left : coll->room};
}

static int
copy(const fragmented_t *coll, char *into, const char *from, size_t nbytes,
     wm_error_t *err)
{
    return nbytes == 0 || into == from
               ? 0
               : wm_memory_copy(coll->desc->device, into, from, nbytes,
                                coll->desc->stream, err);
}

static int
put(const fragmented_t *coll, wm_error_t *err)
{
    int code = 0,
        blocks = coll->desc->shape->scatters ? coll->desc->comm->size : 1;
    char *own = wm_symm_at(coll->symm, coll->desc->comm->rank, coll->index);
    for (int i = 0; i < blocks && code == 0 && coll->desc->source != NULL;
         ++i) {
        wm_span_t part = cut(coll, coll->desc->out[i]);
        code = copy(coll, own + (size_t)i * coll->room,
                    coll->desc->source + part.at, part.nbytes, err);
    }
    return code;
}

// Returns where symmetric memory of `from` has the block for `to`; the length
// is not set.
static wm_span_t
fragmented_has(const void *context, int from, int to)
{
    const fragmented_t *coll = context;
    (void)from;
    return (wm_span_t){
        coll->desc->shape->scatters ? (size_t)to * coll->room : 0, 0};
}

static wm_span_t
fragmented_wants(const void *context, int from, int to)
{
    const fragmented_t *coll = context;
    (void)to;
    if (coll->desc->target == NULL
        || (coll->desc->shape->rooted && coll->desc->shape->scatters
            && from != coll->desc->call->root))
        return (wm_span_t){0, 0};
    return cut(coll, coll->desc->into[coll->desc->shape->gathers ? from : 0]);
}

static void
make_plan(const fragmented_t *coll, wm_plan_t *plan)
{
    int rank = coll->desc->comm->rank;
    const wm_ranks_t all = {0, coll->desc->comm->size};
    bool out = coll->desc->call->kind == WM_COLL_BCAST
               && rank == coll->desc->call->root;
    wm_facts_t facts = {
        .rank = rank,
        .ranks = all.count,
        .sources = all,
        .group = all,
        .takers = all,
        .root = coll->desc->call->root,
        .nbytes =
            cut(coll, out ? coll->desc->out[0] : coll->desc->into[0]).nbytes,
        .element = coll->desc->shape->reduces ? coll->desc->call->size : 1,
        .readable = true,
        .thresholds = *wm_symm_thresholds(coll->symm),
    };
    (void)wm_coll_make_plan(coll->desc->call, &facts,
                            (size_t)rank * coll->room, fragmented_has,
                            fragmented_wants, coll,
                            plan); // never fails here
}

// Returns the area of a plan's region.
static const char *
at_region(const fragmented_t *coll, int region)
{
    int size = coll->desc->comm->size;
    return wm_symm_at(coll->symm, region % size, coll->index)
           + (region < size ? 0 : coll->area);
}

// Makes a move: in the last phase into the user's memory, before that into the
// area that others read.
static int
fragmented_move(const fragmented_t *coll, const wm_transfer_t *move, bool last,
                wm_error_t *err)
{
    const void *sources[WM_REDUCE_SOURCES];
    char *own = wm_symm_at(coll->symm, coll->desc->comm->rank, coll->index)
                + coll->area;
    // In an exchange, `into` includes the offset of the block.
    bool absolute = !coll->desc->shape->reduces
                    && coll->desc->call->kind != WM_COLL_BCAST;
    char *into = (last ? coll->desc->target
                             + (absolute ? 0
                                         : cut(coll, coll->desc->into[0]).at)
                       : own)
                 + move->into;
    for (int k = 0; k < move->sources.count; ++k)
        sources[k] = at_region(coll, move->sources.first + k) + move->from;
    if (move->sources.count == 1)
        return copy(coll, into, sources[0], move->nbytes, err);
    return wm_reduce_launch(coll->desc->device, coll->desc->type,
                            coll->desc->op, into, sources, move->sources.count,
                            move->nbytes / wm_reduce_size(coll->desc->type),
                            coll->desc->stream, err);
}

// Copies results of earlier phases, which were left for others, into the
// user's memory.
static int
take_own(const fragmented_t *coll, const wm_plan_t *plan, wm_error_t *err)
{
    int code = 0;
    for (int i = 0; i < plan->count && code == 0; ++i) {
        const wm_transfer_t *made = &plan->moves[i];
        wm_transfer_t own = {
            .sources = {coll->desc->comm->size + coll->desc->comm->rank, 1},
            .from = made->into,
            .into = made->into,
            .nbytes = made->nbytes,
        };
        if (made->phase < plan->phases - 1)
            code = fragmented_move(coll, &own, true, err);
    }
    return code;
}

static int
fragmented_follow(const fragmented_t *coll, wm_error_t *err)
{
    wm_plan_t plan;
    make_plan(coll, &plan);
    if (plan.phases > FRAGMENT_PHASES)
        return wm_error_set(err, WM_ERR_STATE, 0,
                            "a plan of %d phases has too many for a "
                            "collective in fragments: please report this",
                            plan.phases);
    uint32_t steps = (uint32_t)coll->index * FRAGMENT_PHASES;
    int code = put(coll, err);
    for (int phase = 0; phase < plan.phases && code == 0; ++phase) {
        bool last = phase == plan.phases - 1;
        code = wm_symm_step(coll->symm, steps + (uint32_t)phase, err);
        if (code == 0 && last && phase > 0)
            code = take_own(coll, &plan, err);
        for (int i = 0; i < plan.count && code == 0; ++i)
            if (plan.moves[i].phase == phase)
                code = fragmented_move(coll, &plan.moves[i], last, err);
    }
    return code;
}

int
wm_fragmented_coll_count(wm_symm_t *symm, const wm_coll_desc_t *desc,
                         size_t *fragments, wm_error_t *err)
{
    size_t most = wm_coll_desc_longest(desc);
    size_t room = fragmented_open(symm, desc).room;
    *fragments = most == 0 ? 1 : (most + room - 1) / room;
    if (*fragments * FRAGMENT_PHASES > WM_SYMM_STEPS)
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "%zu bytes for a rank are too many for one "
                            "collective on a stream: make several calls",
                            most);
    return 0;
}

int
wm_fragmented_coll_enqueue(wm_symm_t *symm, const wm_coll_desc_t *desc,
                           size_t fragments, wm_error_t *err)
{
    fragmented_t coll = fragmented_open(symm, desc);
    int code = wm_symm_begin_turn(symm, err);
    for (; coll.index < fragments && code == 0; ++coll.index)
        code = fragmented_follow(&coll, err);
    return code < 0 ? code
                    : wm_symm_leave_turn(symm, desc->shape->varies, err);
}
