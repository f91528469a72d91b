// SPDX-License-Identifier: BSD-3-Clause
// The halos of this process whose kernels may wait for other ranks' kernels:
// after a rank has died, or the communicator is revoked, an abort flag in
// page-locked memory ends the waits. The list has a lock, which nobody holds
// while they wait, so that those who must not wait for a halo's kernels can
// ask.
#include "comm/comm/failure.h"
#include "comm/diagnostics/hang.h"
#include "comm/diagnostics/report.h"
#include "comm/engine/engine.h"
#include "comm/engine/modules.h"
#include "comm/node/mapping.h"
#include "comm/rma/halo_state.h"
#include "cuda/lock.h"

#define LOOK_US 100000

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static wm_halo_t *list;   // list_lock
static _Atomic int halos; // in the list

void
wm_halo_list_add(wm_halo_t *halo)
{
    wm_lock(&list_lock);
    halo->next = list;
    list = halo;
    atomic_fetch_add(&halos, 1);
    pthread_mutex_unlock(&list_lock);
}

void
wm_halo_list_remove(wm_halo_t *halo)
{
    wm_lock(&list_lock);
    wm_halo_t **link = &list;
    while (*link != NULL && *link != halo)
        link = &(*link)->next;
    if (*link != NULL) {
        *link = halo->next;
        atomic_fetch_sub(&halos, 1);
    }
    pthread_mutex_unlock(&list_lock);
}

// Returns true if a kernel of a halo may be waiting for another rank.
static bool
halo_list_waits(void)
{
    bool waits = false;
    if (atomic_load(&halos) == 0)
        return false;
    wm_lock(&list_lock);
    for (wm_halo_t *halo = list; halo != NULL && !waits; halo = halo->next)
        waits = !wm_halo_has_ended(halo);
    pthread_mutex_unlock(&list_lock);
    return waits;
}

// Reports, once, an exchange that has not ended for long: no thread may be
// waiting for it that would say so.
static void
halo_list_report(wm_halo_t *halo, int64_t now)
{
    int64_t limit = wm_hang_limit();
    uint64_t ticket = atomic_load(&halo->tickets);
    wm_words_t words = {.length = 0};
    if (limit == 0 || !wm_halo_is_busy(halo) || ticket != halo->seen) {
        halo->seen = ticket;
        halo->since = now;
        return;
    }
    if (now - halo->since < limit || halo->reported == ticket
        || wm_halo_has_ended(halo))
        return;
    halo->reported = ticket;
    wm_words_add(&words,
                 "%s: an exchange of a wm.Halo has not ended for %d s: its "
                 "stream has other work before it, or the stream of a "
                 "neighbour has not come to this exchange; all ranks make "
                 "the same exchanges, and replay plans and graphs equally "
                 "often",
                 wm_hang_who(), (int)((now - halo->since) / 1000000));
    wm_words_print(&words);
}

static void
halo_list_look(wm_halo_t *halo, int64_t now)
{
    wm_comm_t *comm = halo->comm;
    halo_list_report(halo, now);
    if (atomic_load(&halo->orphaned) || atomic_load(halo->abort) != 0)
        return;
    if (wm_failure_is_told())
        (void)!wm_failure_look_at_all(comm, NULL);
    if (comm->revoked)
        atomic_store(halo->abort, (uint32_t)comm->size + 1);
    for (int rank = 0; rank < comm->size; ++rank)
        if (comm->peers[rank]->dead)
            atomic_store(halo->abort, (uint32_t)rank + 1);
}

static void
halo_list_serve(bool waited)
{
    (void)waited;
    static _Atomic int64_t looked;
    int64_t now = wm_engine_now();
    if (atomic_load(&halos) == 0 || now - looked < LOOK_US
        || !wm_engine_try_lock())
        return;
    looked = now;
    wm_lock(&list_lock);
    for (wm_halo_t *halo = list; halo != NULL; halo = halo->next)
        halo_list_look(halo, now);
    pthread_mutex_unlock(&list_lock);
    wm_engine_unlock();
}

static int64_t
halo_list_rest(void)
{
    return atomic_load(&halos) > 0 ? LOOK_US : 0;
}

// The user has freed a communicator: its halos stay, without calls.
static void
halo_list_freed(wm_comm_t *comm)
{
    wm_lock(&list_lock);
    for (wm_halo_t *halo = list; halo != NULL; halo = halo->next)
        if (halo->comm == comm)
            atomic_store(&halo->orphaned, true);
    pthread_mutex_unlock(&list_lock);
}

static void
halo_list_begin(void)
{
    wm_mapping_add_waits(halo_list_waits);
}

const wm_module_t wm_halo_list_module = {
    .begin = halo_list_begin,
    .serve = halo_list_serve,
    .rest = halo_list_rest,
    .freed = halo_list_freed,
};
