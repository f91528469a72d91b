// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/plan.h"

#define ALIGN 16 // of where a rank's part begins, as far as elements allow

static void
begin(wm_plan_t *plan)
{
    plan->count = 0;
    plan->spreads = false;
}

static void
add(wm_plan_t *plan, const wm_move_t *move)
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

bool
wm_move_reaches(const wm_move_t *move, int rank)
{
    return move->count > 1 || rank != move->first;
}

// All of it out of all.
static void
reduce_all(const wm_facts_t *facts, wm_plan_t *plan)
{
    add(plan, &(wm_move_t){.count = facts->size, .nbytes = facts->nbytes});
    plan->phases = 1;
}

// Each its part out of all, and to all.
static void
reduce_and_spread(const wm_facts_t *facts, wm_plan_t *plan)
{
    size_t at = wm_plan_part(facts->nbytes, facts->element, facts->size,
                             facts->rank);
    size_t end = wm_plan_part(facts->nbytes, facts->element, facts->size,
                              facts->rank + 1);
    add(plan, &(wm_move_t){.count = facts->size,
                           .spread = true,
                           .from = at,
                           .into = at,
                           .nbytes = end - at});
    plan->spreads = true;
    plan->phases = 1;
}

// Each its part out of all, then the others' parts out of their results.
static void
reduce_parts(const wm_facts_t *facts, wm_plan_t *plan)
{
    for (int i = 0; i < facts->size; ++i) {
        int rank = (facts->rank + i) % facts->size; // not all from one
        size_t at = wm_plan_part(facts->nbytes, facts->element, facts->size,
                                 rank);
        size_t end = wm_plan_part(facts->nbytes, facts->element, facts->size,
                                  rank + 1);
        wm_move_t move = {.from = at, .into = at, .nbytes = end - at};
        if (i == 0)
            move.count = facts->size;
        else {
            move.phase = 1;
            move.first = rank;
            move.count = 1;
            move.result = true;
        }
        add(plan, &move);
    }
    plan->phases = facts->size > 1 ? 2 : 1;
}

bool
wm_plan_allreduce(const wm_facts_t *facts, wm_plan_t *plan)
{
    size_t size = (size_t)facts->size;
    size_t once = (size - 1) * facts->nbytes; // that come over the links
    size_t twice = size > 1 ? 2 * once / size : 0;
    bool writable = facts->writable && size > 1;
    // Of two ranks as much comes, but half of it is written, not read, and a
    // link does both at once.
    bool spreads = writable
                   && (once > twice + facts->points.meeting
                       || facts->nbytes > facts->points.meeting);
    begin(plan);
    if (!facts->aliased && !spreads
        && (writable || !facts->readable
            || once <= twice + facts->points.phase))
        reduce_all(facts, plan);
    else if (writable)
        reduce_and_spread(facts, plan);
    else if (facts->readable)
        reduce_parts(facts, plan);
    else
        return false;
    return true;
}

// Large ones leave the root once: each of the others takes a part, and the
// other parts of those who have them.
static void
scatter_and_gather(const wm_facts_t *facts, wm_plan_t *plan)
{
    int takers = facts->size - 1;
    int own = (facts->rank - facts->root - 1 + facts->size) % facts->size;
    for (int i = 0; i < takers; ++i) {
        int which = (own + i) % takers;
        size_t at = wm_plan_part(facts->nbytes, 1, takers, which);
        size_t end = wm_plan_part(facts->nbytes, 1, takers, which + 1);
        add(plan, &(wm_move_t){
                      .phase = i > 0,
                      .first = i > 0 ? (facts->root + 1 + which) % facts->size
                                     : facts->root,
                      .count = 1,
                      .result = i > 0,
                      .from = at,
                      .into = at,
                      .nbytes = end - at,
                  });
    }
}

// Likewise, each writing its part to all of them.
static void
scatter_and_spread(const wm_facts_t *facts, wm_plan_t *plan)
{
    int takers = facts->size - 1;
    int own = (facts->rank - facts->root - 1 + facts->size) % facts->size;
    size_t at = wm_plan_part(facts->nbytes, 1, takers, own);
    size_t end = wm_plan_part(facts->nbytes, 1, takers, own + 1);
    add(plan, &(wm_move_t){.first = facts->root,
                           .count = 1,
                           .spread = true,
                           .from = at,
                           .into = at,
                           .nbytes = end - at});
}

void
wm_plan_bcast(const wm_facts_t *facts, wm_plan_t *plan)
{
    size_t takers = (size_t)facts->size - 1;
    bool spreads = takers > 1 && facts->writable
                   && (takers - 1) * facts->nbytes > facts->points.meeting;
    bool parts = takers > 1 && !spreads && facts->readable
                 && facts->nbytes > facts->points.phase;
    begin(plan);
    plan->spreads = spreads;
    if (facts->rank != facts->root && spreads)
        scatter_and_spread(facts, plan);
    else if (facts->rank != facts->root && parts)
        scatter_and_gather(facts, plan);
    else if (facts->rank != facts->root)
        add(plan, &(wm_move_t){.first = facts->root,
                               .count = 1,
                               .nbytes = facts->nbytes});
    plan->phases = parts ? 2 : 1;
}

void
wm_plan_exchange(const wm_facts_t *facts, wm_spans_t has, wm_spans_t wants,
                 const void *context, bool keeps, wm_plan_t *plan)
{
    begin(plan);
    for (int i = keeps; i < facts->size; ++i) {
        int rank = (facts->rank + i) % facts->size; // not all from one
        wm_span_t from = has(context, rank, facts->rank);
        wm_span_t into = wants(context, rank, facts->rank);
        add(plan, &(wm_move_t){.first = rank,
                               .count = 1,
                               .from = from.at,
                               .into = into.at,
                               .nbytes = into.nbytes});
    }
    plan->phases = 1;
}

void
wm_plan_reduce(int count, size_t from, size_t nbytes, wm_plan_t *plan)
{
    begin(plan);
    if (count > 0)
        add(plan,
            &(wm_move_t){.count = count, .from = from, .nbytes = nbytes});
    plan->phases = 1;
}
