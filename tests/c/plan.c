// SPDX-License-Identifier: BSD-3-Clause
// Plans that ranks make apart fit together: they have as many phases, also
// between groups of different size.
#include <assert.h>
#include <stdbool.h>

#include "comm/coll/direct/plan.h"

static int
phases_of(int rank, int split, int size, size_t nbytes, bool writable)
{
    static wm_plan_t plan;
    wm_ranks_t groups[] = {{0, split}, {split, size - split}};
    wm_facts_t facts = {
        .rank = rank,
        .ranks = size,
        .root = -1,
        .sources = groups[rank < split],
        .group = groups[rank >= split],
        .nbytes = nbytes,
        .element = 4,
        .readable = true,
        .writable = writable,
    };
    assert(wm_plan_allreduce(&facts, &plan));
    for (int i = 0; i < plan.count; ++i)
        assert(plan.moves[i].phase < plan.phases);
    return plan.phases;
}

int
main(void)
{
    for (int size = 2; size <= 16; ++size)
        for (int split = 1; split < size; ++split)
            for (int how = 0; how < 4; ++how) {
                size_t nbytes = (size_t)(how & 1 ? 256 : 1) << 20;
                int first = phases_of(0, split, size, nbytes, how & 2);
                for (int rank = 1; rank < size; ++rank)
                    assert(phases_of(rank, split, size, nbytes, how & 2)
                           == first);
            }
    return 0;
}
