// SPDX-License-Identifier: BSD-3-Clause
// Memory of the device that other ranks have to do with: the lower layer asks
// here if it may free memory, and for memory that is kept.
#include "comm/engine/engine.h"
#include "comm/engine/modules.h"
#include "comm/node/mapping.h"
#include "cuda/memory.h"

// Returns true if freeing memory would wait for another rank. The progress
// thread also keeps memory if it is not urgent, as it does not know what the
// program is about to do.
static bool
would_wait(bool urgent)
{
    return wm_mapping_would_wait() || (!urgent && wm_engine_is_background());
}

static bool
wait_a_turn(unsigned turn)
{
    bool may = wm_engine_may_wait();
    if (may)
        wm_engine_turn(turn);
    return may;
}

static void
reclaim_begin(void)
{
    wm_memory_set_reclaim(wm_mapping_reclaim);
    wm_memory_set_waits(would_wait, wait_a_turn);
}

const wm_module_t wm_reclaim_module = {.begin = reclaim_begin};
