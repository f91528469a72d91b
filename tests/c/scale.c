// SPDX-License-Identifier: BSD-3-Clause
// What the simulation of many hosts asks of the core
// (benchmarks/simulate_hosts.py): `scale plan KIND RANKS BYTES` prints the
// transfers that the planner gives to each rank of one host, and `scale sizes`
// the bytes of what a rank keeps of others.
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/coll/direct/plan.h"
#include "comm/node/segment.h"
#include "comm/rma/halo_making.h"
#include "comm/rma/target_state.h"
#include "comm/rma/window.h"

#define ELEMENT 4

typedef struct {
    int ranks;
    size_t nbytes;
} vector_t;

// Returns the share of a rank: the vector is cut as a hierarchy cuts it.
static wm_span_t
share(const vector_t *vector, int rank)
{
    size_t count = vector->nbytes / ELEMENT, ranks = (size_t)vector->ranks;
    size_t each = (count + ranks - 1) / ranks * ELEMENT;
    size_t at = each * (size_t)rank;
    at = at < vector->nbytes ? at : vector->nbytes;
    size_t left = vector->nbytes - at;
    return (wm_span_t){at, left < each ? left : each};
}

static wm_span_t
share_itself(const void *context, int from, int to)
{
    (void)to;
    return (wm_span_t){0, share(context, from).nbytes};
}

static wm_span_t
share_in_vector(const void *context, int from, int to)
{
    (void)to;
    return share(context, from);
}

static wm_span_t
share_of_taker(const void *context, int from, int to)
{
    return from == 0 ? share(context, to) : (wm_span_t){0, 0};
}

static wm_span_t
share_from_root(const void *context, int from, int to)
{
    return (wm_span_t){0, from == 0 ? share(context, to).nbytes : 0};
}

// Every block has the bytes of the vector.
static wm_span_t
block_for(const void *context, int from, int to)
{
    const vector_t *vector = context;
    (void)from;
    return (wm_span_t){(size_t)to * vector->nbytes, vector->nbytes};
}

static wm_span_t
block_of(const void *context, int from, int to)
{
    const vector_t *vector = context;
    (void)to;
    return (wm_span_t){(size_t)from * vector->nbytes, vector->nbytes};
}

static wm_span_t
whole(const void *context, int from, int to)
{
    const vector_t *vector = context;
    (void)from, (void)to;
    return (wm_span_t){0, vector->nbytes};
}

static void
plan_of(const char *kind, const vector_t *vector, int rank, wm_plan_t *plan)
{
    wm_ranks_t all = {0, vector->ranks};
    wm_facts_t facts = {.rank = rank,
                        .ranks = vector->ranks,
                        .sources = all,
                        .group = all,
                        .takers = all,
                        .nbytes = vector->nbytes,
                        .element = ELEMENT,
                        .readable = true,
                        .writable = true,
#define X(field, name, two, several, other) .thresholds.field = several,
                        WM_THRESHOLDS(X)
#undef X
    };
    wm_span_t own = share(vector, rank);
    if (strcmp(kind, "reduce_scatter") == 0)
        wm_plan_reduce(&facts, all, own.at, own.nbytes, plan);
    else if (strcmp(kind, "allgather_shares") == 0)
        wm_plan_exchange(&facts, share_itself, share_in_vector, vector, false,
                         plan);
    else if (strcmp(kind, "scatter") == 0)
        wm_plan_exchange(&facts, share_of_taker, share_from_root, vector,
                         false, plan);
    else if (strcmp(kind, "allgather") == 0)
        wm_plan_exchange(&facts, whole, block_of, vector, false, plan);
    else if (strcmp(kind, "alltoall") == 0)
        wm_plan_exchange(&facts, block_for, block_of, vector, false, plan);
    else if (strcmp(kind, "bcast") == 0)
        wm_plan_bcast(&facts, plan);
    else if (strcmp(kind, "allreduce") == 0)
        assert(wm_plan_allreduce(&facts, plan));
    else
        abort();
}

static void
print_plans(const char *kind, const vector_t *vector)
{
    static wm_plan_t plan;
    for (int rank = 0; rank < vector->ranks; ++rank) {
        plan_of(kind, vector, rank, &plan);
        for (int i = 0; i < plan.count; ++i) {
            const wm_transfer_t *move = &plan.moves[i];
            printf("%d %d %d %d %d %d %zu %zu %zu\n", rank, move->phase,
                   move->sources.first, move->sources.count,
                   move->targets.first, move->targets.count, move->from,
                   move->into, move->nbytes);
        }
    }
}

static void
print_sizes(void)
{
    printf("endpoint %zu\n", sizeof(wm_endpoint_t));
    printf("peer %zu\n", sizeof(wm_peer_t));
    printf("by_rank %zu\n",
           sizeof(wm_peer_t *) + sizeof(uint32_t) + sizeof(_Atomic uint32_t));
    printf("parent_rank %zu\n", sizeof(int));
    printf("window %zu\n",
           sizeof(wm_window_part_t) + sizeof(wm_target_rank_t));
    printf("halo %zu\n",
           sizeof(wm_halo_head_t)
               + (WM_HALO_FIELDS + 1) * sizeof(wm_halo_record_t));
    printf("control %zu\n", WM_CONTROL_BYTES);
}

int
main(int count, char **words)
{
    if (count == 2 && strcmp(words[1], "sizes") == 0)
        print_sizes();
    else if (count == 5 && strcmp(words[1], "plan") == 0)
        print_plans(words[2],
                    &(vector_t){atoi(words[3]), (size_t)atoll(words[4])});
    else
        return 2;
    return 0;
}
