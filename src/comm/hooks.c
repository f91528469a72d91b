// SPDX-License-Identifier: BSD-3-Clause
// This file fills the table of functions of upper modules that lower modules
// call. No other file knows all modules.
#include "comm/engine/hooks.h"

#include "comm/coll/stream/stream_failure.h"
#include "comm/coll/direct/fuse.h"
#include "comm/coll/run/nonblocking.h"
#include "comm/coll/stream/symm.h"
#include "comm/comm/host_only.h"
#include "comm/engine/engine.h"
#include "comm/message/partitioned.h"
#include "comm/message/unexpected.h"
#include "comm/node/mapping.h"
#include "comm/diagnostics/drain.h"
#include "comm/diagnostics/fault.h"
#include "comm/diagnostics/hang.h"
#include "comm/diagnostics/leftovers.h"
#include "comm/diagnostics/watchdog.h"
#include "comm/node/stream_words.h"
#include "comm/protocol/batch.h"
#include "comm/protocol/eager.h"
#include "comm/protocol/device_eager.h"
#include "comm/protocol/transport.h"

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
begin(void)
{
    wm_memory_set_reclaim(wm_mapping_reclaim);
    wm_memory_set_waits(would_wait, wait_a_turn);
    wm_fault_watch();
}

static void
end(void)
{
    wm_engine_lock();
    wm_node_leave();
    wm_engine_unlock();
    wm_stream_failure_leave();
    if (wm_drain_all())
        wm_device_eager_free_all();
    wm_leftovers_tell();
    (void)wm_fault_end();
}

static int
configure(wm_error_t *err)
{
    int code = wm_transport_configure(err);
    if (code == 0)
        code = wm_eager_configure(err);
    if (code == 0)
        code = wm_hang_configure(err);
    if (code == 0)
        code = wm_host_only_configure(err);
    return code;
}

static void
serve(bool waited)
{
    wm_hang_serve(waited);
    wm_stream_failure_serve();
}

static void *
wait_begin(MPI_Comm user)
{
    wm_engine_lock();
    // Configure() reports an error to all ranks.
    (void)!wm_hang_configure(NULL);
    wm_engine_unlock();
    return wm_watchdog_begin(user, "wm.Comm",
                             "do all ranks make this wm.Comm?");
}

static void
wait_end(void *watchdog)
{
    wm_watchdog_end(watchdog);
}

static void
flush(void)
{
    wm_batch_flush_due();
    wm_fuse_flush();
}

static void
drop(wm_comm_t *comm)
{
    wm_unexpected_free(comm);
    wm_partitioned_drop(comm->partitioned);
    wm_nonblocking_free(comm->nonblocking);
    bool symm = comm->symm != NULL || comm->graph_symm != NULL;
    bool lost = symm && wm_stream_words_dead(comm->barrier) >= 0;
    if (comm->graph_symm != NULL)
        (void)!wm_symm_free(comm->graph_symm);
    if (comm->symm != NULL && !wm_symm_free(comm->symm))
        lost = true;
    if (lost) // other ranks may still write to it
        comm->barrier = NULL;
    if (comm->object_comm != NULL)
        wm_unexpected_free(comm->object_comm);
}

const wm_hooks_t wm_hooks = {
    .begin = begin,
    .local_ranks = wm_node_local_peers,
    .round = flush,
    .serve = serve,
    .rest = wm_stream_failure_rest,
    .end = end,
    .requested = wm_leftovers_note,
    .request_freed = wm_leftovers_strike,
    .configure = configure,
    .wait_begin = wait_begin,
    .wait_end = wait_end,
    .freed = wm_drain_sends,
    .is_used = wm_drain_is_used,
    .drop = drop,
};
