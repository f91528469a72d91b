// SPDX-License-Identifier: BSD-3-Clause
// Alltoall between hosts of equal numbers of ranks: each rank takes what its
// host has for the ranks of its rail, and exchanges that on the rail.
#include "comm/coll/hierarchy/hierarchy.h"

// Copies blocks by rank into blocks by place, and by host for each place.
static void
lay_by_place(void *context, char *into, const char *from,
             wm_hierarchy_copies_t *copies)
{
    const wm_hierarchy_t *own = context;
    for (int place = 0; place < own->ranks; ++place)
        for (int host = 0; host < own->hosts->count; ++host) {
            size_t rank = (size_t)wm_hosts_rank(own->hosts, host, place);
            wm_hierarchy_copy(copies, into, from + rank * own->block,
                              own->block);
            into += own->block;
        }
}

// Copies the blocks that came from each place, by host, into blocks by host.
static void
lay_by_host(void *context, char *into, const char *from,
            wm_hierarchy_copies_t *copies)
{
    const wm_hierarchy_t *own = context;
    size_t hosts = (size_t)own->hosts->count;
    for (size_t host = 0; host < hosts; ++host)
        for (size_t place = 0; place < (size_t)own->ranks; ++place) {
            wm_hierarchy_copy(copies, into,
                              from + (place * hosts + host) * own->block,
                              own->block);
            into += own->block;
        }
}

// Copies the blocks that came from each host, by place, into blocks by rank.
static void
lay_by_rank(void *context, char *into, const char *from,
            wm_hierarchy_copies_t *copies)
{
    const wm_hierarchy_t *own = context;
    for (int i = 0; i < own->op->participant.comm->size; ++i)
        wm_hierarchy_copy(copies,
                          into + (size_t)own->hosts->ranks[i] * own->block,
                          from + (size_t)i * own->block, own->block);
}

void
wm_hierarchy_alltoall(wm_hierarchy_t *own)
{
    const wm_coll_t *call = own->call;
    const wm_buffer_t *given = call->send != NULL ? call->send : call->receive;
    size_t nbytes = given->nbytes;
    const wm_buffer_t *one = wm_hierarchy_take(own, nbytes),
                      *other = wm_hierarchy_take(own, nbytes);
    wm_coll_t task = wm_hierarchy_task(own, WM_COLL_ALLTOALL);
    wm_hierarchy_add_copies(own, lay_by_place, one,
                            wm_hierarchy_part(own, given, 0, nbytes));
    task.send = one;
    task.receive = other;
    wm_hierarchy_add_local(own, &task);
    wm_hierarchy_add_copies(own, lay_by_host, one, other);
    wm_hierarchy_add_rail(own, &task,
                          nbytes - nbytes / (size_t)own->hosts->count);
    wm_hierarchy_add_copies(own, lay_by_rank,
                            wm_hierarchy_part(own, call->receive, 0, nbytes),
                            other);
}
