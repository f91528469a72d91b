// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/direct/plan.h"

#define ALIGN 16 // alignment of parts, as far as elements allow
// From this size on, each rank reads from a different peer in each phase, with
// a barrier between phases: two ranks that read from one peer at once get half
// of its bandwidth.
#define APART_BYTES ((size_t)128 << 20)

static void
plan_begin(wm_plan_t *plan)
{
    plan->count = 0;
    plan->writes_peers = false;
}

// Return the send memory of ranks, and the receive memory.
static wm_transfer_range_t
sent_by(wm_ranks_t ranks)
{
    return (wm_transfer_range_t){ranks.first, ranks.count};
}

static wm_transfer_range_t
received_by(const wm_facts_t *facts, wm_ranks_t ranks)
{
    return (wm_transfer_range_t){facts->ranks + ranks.first, ranks.count};
}

static wm_transfer_range_t
received_here(const wm_facts_t *facts)
{
    return received_by(facts, (wm_ranks_t){facts->rank, 1});
}

static void
add(wm_plan_t *plan, const wm_transfer_t *move)
{
    if (move->nbytes > 0)
        plan->moves[plan->count++] = *move;
}

size_t
wm_plan_part(size_t nbytes, size_t element, int parts, int index)
{
    size_t unit = element % ALIGN == 0 ? element : element * ALIGN;
    size_t units = (nbytes + unit - 1) / unit;
    size_t each = (units + (size_t)parts - 1) / (size_t)parts * unit;
    size_t at = each * (size_t)index;
    return at < nbytes ? at : nbytes;
}

// Returns the reduction of the part of the vector that belongs to `rank`.
static wm_transfer_t
plan_part_of(const wm_facts_t *facts, int rank)
{
    int parts = facts->group.count, index = rank - facts->group.first;
    size_t at = wm_plan_part(facts->nbytes, facts->element, parts, index);
    size_t end = wm_plan_part(facts->nbytes, facts->element, parts, index + 1);
    return (wm_transfer_t){.sources = sent_by(facts->sources),
                           .targets = received_here(facts),
                           .from = at,
                           .into = at,
                           .nbytes = end - at};
}

// Two-shot with stores: each rank reduces its part and writes the result to
// all ranks of its group.
static void
reduce_and_write(const wm_facts_t *facts, wm_plan_t *plan)
{
    wm_transfer_t move = plan_part_of(facts, facts->rank);
    plan_begin(plan);
    move.targets = received_by(facts, facts->group);
    add(plan, &move);
    plan->writes_peers = true;
    plan->phases = 1;
}

// Two-shot with loads: each rank reduces its part, then reads the other parts
// from the ranks that reduced them. With two groups, both have as many phases
// as the smaller group.
static void
plan_reduce_parts(const wm_facts_t *facts, wm_plan_t *plan)
{
    wm_ranks_t group = facts->group;
    int others = facts->sources.count;
    int index = facts->rank - group.first;
    int least = group.count < others ? group.count : others;
    int apart = least < WM_PLAN_PHASES ? least : WM_PLAN_PHASES;
    int phases = least == 1 ? 1 : facts->nbytes >= APART_BYTES ? apart : 2;
    plan_begin(plan);
    for (int i = 0; i < group.count; ++i) {
        // Each rank begins with another source.
        int rank = group.first + (index + i) % group.count;
        wm_transfer_t move = plan_part_of(facts, rank);
        if (i > 0) {
            move.phase = 1 + (i - 1) * (phases - 1) / (group.count - 1);
            move.sources = received_by(facts, (wm_ranks_t){rank, 1});
        }
        add(plan, &move);
    }
    plan->phases = phases;
}

bool
wm_plan_allreduce(const wm_facts_t *facts, wm_plan_t *plan)
{
    int one = facts->sources.count, other = facts->group.count;
    size_t least = (size_t)(one < other ? one : other);
    size_t most = (size_t)(one < other ? other : one);
    // Its own vector is local.
    most -= facts->sources.first == facts->group.first;
    // Bytes that reach a rank over its links: one-shot, and two-shot. With two
    // groups: a rank of the smaller group.
    size_t once = most * facts->nbytes;
    size_t twice = (most + least - 1) * facts->nbytes / least;
    bool writable = facts->writable && least > 1;
    // With two ranks both are equal. But two-shot stores half of its bytes,
    // and a link carries loads and stores at the same time.
    bool writes_peers = writable
                        && (once > twice + facts->thresholds.barrier_cost
                            || facts->nbytes > facts->thresholds.barrier_cost);
    if (least > 2 && facts->readable && facts->nbytes >= APART_BYTES)
        plan_reduce_parts(facts, plan);
    else if (!facts->aliased && !writes_peers
             && (writable || !facts->readable
                 || once <= twice + facts->thresholds.phase))
        wm_plan_reduce(facts, facts->sources, 0, facts->nbytes, plan);
    else if (writable)
        reduce_and_write(facts, plan);
    else if (facts->readable)
        plan_reduce_parts(facts, plan);
    else
        return false;
    return true;
}

// Returns the number of ranks, except the root, that receive from the root.
// taker() numbers them, beginning after the root.
static int
count_takers(const wm_facts_t *facts)
{
    int before = facts->root - facts->takers.first;
    return facts->takers.count - (before >= 0 && before < facts->takers.count);
}

static int
taker(const wm_facts_t *facts, int index)
{
    wm_ranks_t all = facts->takers;
    return all.first + (facts->root + 1 + index) % all.count;
}

static bool
takes(const wm_facts_t *facts, int *index)
{
    int count = count_takers(facts);
    *index = 0;
    while (*index < count && taker(facts, *index) != facts->rank)
        ++*index;
    return *index < count;
}

// Returns the copy of the part of the root's data that belongs to a taker.
static wm_transfer_t
part_of_root(const wm_facts_t *facts, int index)
{
    int parts = count_takers(facts);
    size_t at = wm_plan_part(facts->nbytes, 1, parts, index);
    size_t end = wm_plan_part(facts->nbytes, 1, parts, index + 1);
    return (wm_transfer_t){.sources = {facts->root, 1},
                           .targets = received_here(facts),
                           .from = at,
                           .into = at,
                           .nbytes = end - at};
}

void
wm_plan_reduce_to_root(const wm_facts_t *facts, wm_plan_t *plan)
{
    int parts = count_takers(facts), own;
    bool gets = facts->rank == facts->root;
    size_t once = (size_t)parts * facts->nbytes;
    plan->writes_peers = facts->writable && parts > 1
                         && once > facts->nbytes
                                       + facts->thresholds.barrier_cost;
    if (!plan->writes_peers) {
        wm_plan_reduce(facts, gets ? facts->sources : (wm_ranks_t){0, 0}, 0,
                       facts->nbytes, plan);
        return;
    }
    plan->count = 0;
    plan->phases = 1;
    if (!takes(facts, &own))
        return;
    size_t at = wm_plan_part(facts->nbytes, facts->element, parts, own);
    size_t end = wm_plan_part(facts->nbytes, facts->element, parts, own + 1);
    const wm_ranks_t root = {facts->root, 1};
    add(plan, &(wm_transfer_t){.sources = sent_by(facts->takers),
                               .targets = received_by(facts, root),
                               .from = at,
                               .into = at,
                               .nbytes = end - at});
}

// Each taker copies a part from the root, then the other parts from the other
// takers. So a large payload leaves the root once.
static void
scatter_and_gather(const wm_facts_t *facts, int own, wm_plan_t *plan)
{
    int takers = count_takers(facts);
    for (int i = 0; i < takers; ++i) {
        int which = (own + i) % takers;
        wm_transfer_t move = part_of_root(facts, which);
        if (i > 0) {
            move.phase = 1;
            wm_ranks_t one = {taker(facts, which), 1};
            move.sources = received_by(facts, one);
        }
        add(plan, &move);
    }
}

// Each taker copies a part from the root and writes it to all takers.
static void
scatter_and_write(const wm_facts_t *facts, int own, wm_plan_t *plan)
{
    wm_transfer_t move = part_of_root(facts, own);
    move.targets = received_by(facts, facts->takers);
    add(plan, &move);
}

void
wm_plan_bcast(const wm_facts_t *facts, wm_plan_t *plan)
{
    int takers = count_takers(facts), own;
    bool writes_peers = takers > 1 && facts->writable
                        && (size_t)(takers - 1) * facts->nbytes
                               > facts->thresholds.barrier_cost;
    bool parts = takers > 1 && !writes_peers && facts->readable
                 && facts->nbytes > facts->thresholds.phase;
    bool gets = takes(facts, &own);
    plan_begin(plan);
    plan->writes_peers = writes_peers;
    if (gets && writes_peers)
        scatter_and_write(facts, own, plan);
    else if (gets && parts)
        scatter_and_gather(facts, own, plan);
    else if (gets)
        add(plan, &(wm_transfer_t){.sources = {facts->root, 1},
                                   .targets = received_here(facts),
                                   .nbytes = facts->nbytes});
    plan->phases = parts ? 2 : 1;
}

void
wm_plan_exchange(const wm_facts_t *facts, wm_spans_t has, wm_spans_t wants,
                 const void *context, bool keeps, wm_plan_t *plan)
{
    wm_ranks_t sources = facts->sources;
    int own = facts->rank - facts->group.first;
    plan_begin(plan);
    for (int i = keeps; i < sources.count; ++i) {
        // Each rank begins with another source.
        int rank = sources.first + (own + i) % sources.count;
        wm_span_t from = has(context, rank, facts->rank);
        wm_span_t into = wants(context, rank, facts->rank);
        add(plan, &(wm_transfer_t){.sources = {rank, 1},
                                   .targets = received_here(facts),
                                   .from = from.at,
                                   .into = into.at,
                                   .nbytes = into.nbytes});
    }
    plan->phases = 1;
}

void
wm_plan_reduce(const wm_facts_t *facts, wm_ranks_t ranks, size_t from,
               size_t nbytes, wm_plan_t *plan)
{
    plan_begin(plan);
    if (ranks.count > 0)
        add(plan, &(wm_transfer_t){.sources = sent_by(ranks),
                                   .targets = received_here(facts),
                                   .from = from,
                                   .nbytes = nbytes});
    plan->phases = 1;
}
