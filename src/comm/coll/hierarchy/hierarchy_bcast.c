// SPDX-License-Identifier: BSD-3-Clause
// Bcast: the root's host scatters shares, each rail broadcasts its share, and
// each host gathers. Of short data the root's rail broadcasts all, then each
// host.
#include "comm/coll/hierarchy/hierarchy.h"

static void
bcast_rail(wm_hierarchy_t *own, const wm_buffer_t *share)
{
    bool sends = own->host == own->root_host;
    size_t others = (size_t)(own->hosts->count - 1);
    wm_coll_t task = wm_hierarchy_task(own, WM_COLL_BCAST);
    if (share->nbytes == 0)
        return;
    task.root = own->root_host;
    task.send = sends ? share : NULL;
    task.receive = sends ? NULL : share;
    wm_hierarchy_add_rail(own, &task, sends ? others * share->nbytes : 0);
}

static void
bcast_short(wm_hierarchy_t *own, const wm_buffer_t *all)
{
    bool carries = own->place == own->root_place;
    wm_coll_t task = wm_hierarchy_task(own, WM_COLL_BCAST);
    if (carries)
        bcast_rail(own, all);
    if (own->ranks == 1)
        return;
    task.root = own->root_place;
    task.send = carries ? all : NULL;
    task.receive = carries ? NULL : all;
    wm_hierarchy_add_local(own, &task);
}

void
wm_hierarchy_bcast(wm_hierarchy_t *own)
{
    const wm_coll_t *call = own->call;
    const wm_buffer_t *given = call->send != NULL ? call->send : call->receive;
    const wm_buffer_t *all = wm_hierarchy_part(own, given, 0, given->nbytes);
    if (own->root_place < own->carriers
        && wm_hierarchy_is_short(own, all->nbytes)) {
        bcast_short(own, all);
        return;
    }
    wm_span_t *shares = wm_hierarchy_spans(own);
    for (int i = 0; i < own->carriers; ++i)
        shares[i] = wm_hierarchy_share(own, all->nbytes, own->carriers, i);
    const wm_buffer_t *share = wm_hierarchy_part(
        own, given, shares[own->place].at, shares[own->place].nbytes);
    if (own->host == own->root_host && own->ranks > 1) {
        bool root = own->place == own->root_place;
        wm_coll_t scatter = wm_hierarchy_task(own, WM_COLL_SCATTERV);
        scatter.root = own->root_place;
        scatter.send = root ? all : NULL;
        scatter.sends = root ? shares : NULL;
        scatter.receive = root ? NULL : share; // in place
        wm_hierarchy_even_out(&scatter, shares, own->ranks);
        wm_hierarchy_add_local(own, &scatter);
    }
    if (wm_hierarchy_carries(own))
        bcast_rail(own, share);
    if (own->ranks == 1)
        return;
    wm_coll_t gather = wm_hierarchy_task(own, WM_COLL_ALLGATHERV);
    gather.receive = all;
    gather.receives = shares;
    wm_hierarchy_even_out(&gather, shares, own->ranks);
    wm_hierarchy_add_local(own, &gather);
}
