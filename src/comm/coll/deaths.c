// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "comm/coll/deaths.h"

#include <time.h>

#include "comm/coll/symm.h"
#include "comm/comm/failure.h"
#include "comm/engine/engine.h"

#define AGAIN_US 100000
#define LED_ON_US 500
#define LOOKS_LEFT 20 // of these, where no graph passed an epoch
#define NAP_NS 100000
#define NAPS 50000 // at the end, for ranks that have come to it, too

static _Atomic int64_t rest; // until the next look; 0: no symmetric memory
static int left;             // looks of those; engine lock

// Of graphs nobody here knows whether they are running.
static bool
may_wait(const wm_comm_t *comm)
{
    return comm->graph_symm != NULL
           || (comm->symm != NULL && !wm_barrier_have_kept(comm->barrier));
}

static bool
bury_all(wm_comm_t *comm)
{
    bool moved = comm->revoked && wm_barrier_bury(comm->barrier, comm->size);
    for (int rank = 0; rank < comm->size; ++rank)
        if (comm->peers[rank]->dead)
            moved |= wm_barrier_bury(comm->barrier, rank);
    if (comm->symm != NULL)
        wm_symm_give_up(comm->symm);
    return moved;
}

void
wm_deaths_watch(void)
{
    atomic_store(&rest, AGAIN_US);
}

bool
wm_deaths_look(wm_comm_t *comm)
{
    if (comm->symm == NULL && comm->graph_symm == NULL)
        return false;
    if (may_wait(comm) && wm_failure_is_told())
        (void)!wm_failure_look_at_all(comm, NULL);
    return bury_all(comm);
}

static void
look(wm_comm_t *comm)
{
    if (comm->symm == NULL && comm->graph_symm == NULL)
        return;
    if (wm_deaths_look(comm))
        left = LOOKS_LEFT;
    atomic_store(&rest, left > 0 ? LED_ON_US : AGAIN_US);
}

void
wm_deaths_serve(void)
{
    static _Atomic int64_t looked;
    int64_t now = wm_engine_now(), due = atomic_load(&rest);
    if (due == 0 || now - looked < due || !wm_engine_try_lock())
        return;
    looked = now;
    atomic_store(&rest, 0);
    left -= left > 0;
    wm_comm_each(look);
    wm_engine_unlock();
}

int64_t
wm_deaths_rest(void)
{
    return atomic_load(&rest);
}

static bool waiting, hopeful; // streams of ours, for who may come; engine lock

static void
leave(wm_comm_t *comm)
{
    if (comm->symm == NULL || wm_symm_leave(comm->symm))
        return;
    (void)wm_deaths_look(comm);
    waiting = true;
    for (int rank = 0; rank < comm->size; ++rank)
        hopeful |= rank != comm->rank
                   && wm_node_may_receive(comm->peers[rank]);
}

void
wm_deaths_leave(void)
{
    for (int naps = 0; naps < NAPS; ++naps) {
        wm_engine_lock();
        waiting = hopeful = false;
        wm_comm_each(leave);
        naps = hopeful ? 0 : naps;
        bool ended = !waiting;
        wm_engine_unlock();
        if (ended)
            return;
        wm_engine_poll();
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
}
