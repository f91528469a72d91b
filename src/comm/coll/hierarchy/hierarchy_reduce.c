// SPDX-License-Identifier: BSD-3-Clause
// Allreduce and Reduce: each host reduces and scatters shares, each rail
// reduces a share, and each host, or that of the root, gathers. Short vectors
// each host reduces whole, then the rails, or that of the root.
#include "comm/coll/hierarchy/hierarchy.h"
#include "comm/coll/run/coll_engines.h"

// Up to so many bytes of all hosts together, a rail gathers whole vectors, and
// each rank reduces them: one exchange in place of two, but (hosts - 1) times
// the bytes, not 2 * (hosts - 1) / hosts times. Of two hosts both are equal.
#define GATHERED_BYTES 262144

// Gathers the vectors of all hosts, and reduces them.
static void
reduce_gathered(wm_hierarchy_t *own, const wm_buffer_t *from,
                const wm_buffer_t *into, int to)
{
    size_t nbytes = from->nbytes, hosts = (size_t)own->hosts->count;
    bool receives = to < 0 || to == own->host;
    wm_coll_t task = wm_hierarchy_task(own, to < 0 ? WM_COLL_ALLGATHER
                                                   : WM_COLL_GATHER);
    task.send = from;
    task.receive = receives ? wm_hierarchy_take(own, hosts * nbytes) : NULL;
    task.root = to;
    wm_hierarchy_add_rail(own, &task,
                          to < 0            ? (hosts - 1) * nbytes
                          : to == own->host ? 0
                                            : nbytes);
    if (receives)
        wm_hierarchy_add_fold(own, task.receive, into);
}

// Each rank of the rail reduces a part; then they gather the parts.
static void
reduce_parts(wm_hierarchy_t *own, const wm_buffer_t *from,
             const wm_buffer_t *into, int to)
{
    int hosts = own->hosts->count;
    wm_span_t *parts = wm_hierarchy_spans(own),
              *received = wm_hierarchy_spans(own);
    size_t mine =
        wm_hierarchy_share(own, from->nbytes, hosts, own->host).nbytes;
    for (int host = 0; host < hosts; ++host) {
        parts[host] = wm_hierarchy_share(own, from->nbytes, hosts, host);
        received[host] = (wm_span_t){(size_t)host * mine, mine};
    }
    wm_coll_t task = wm_hierarchy_task(own, WM_COLL_ALLTOALLV);
    task.send = from;
    task.sends = parts;
    task.receive = wm_hierarchy_take(own, (size_t)hosts * mine);
    task.receives = received;
    wm_hierarchy_add_rail(own, &task, from->nbytes - mine);
    const wm_buffer_t *part = wm_hierarchy_part(own, into, parts[own->host].at,
                                                mine);
    wm_hierarchy_add_fold(own, task.receive, part);
    wm_coll_t gather = wm_hierarchy_task(own, to < 0 ? WM_COLL_ALLGATHERV
                                                     : WM_COLL_GATHERV);
    bool receives = to < 0 || to == own->host;
    gather.send = receives ? NULL : part; // in place
    gather.receive = receives ? into : NULL;
    gather.receives = parts;
    gather.root = to;
    wm_hierarchy_add_rail(own, &gather,
                          to < 0            ? (size_t)(hosts - 1) * mine
                          : to == own->host ? 0
                                            : mine);
}

// Returns true if an engine of the rail that is open, and not MPI, reduces
// such vectors.
static bool
rail_reduces(const wm_hierarchy_t *own, wm_coll_kind_t kind)
{
    const wm_participant_t *participant = &own->op->participant;
    const wm_coll_facts_t facts = {own->rail, kind, participant->type,
                                   participant->op};
    return !own->call->averages // which would divide by the ranks of the rail
           && wm_coll_engines_opened(own->rail, &facts) != 0;
}

// Returns the bytes that this rank gives to its rail if an engine reduces
// there: of two hosts whole vectors, of several in parts, which are gathered.
static size_t
rail_sent(const wm_hierarchy_t *own, size_t nbytes, int to)
{
    size_t hosts = (size_t)own->hosts->count;
    size_t others = (hosts - 1) * nbytes / hosts;
    return to < 0            ? 2 * others
           : to != own->host ? nbytes
           : hosts > 2       ? others
                             : 0;
}

void
wm_hierarchy_reduce_rail(wm_hierarchy_t *own, const wm_buffer_t *from,
                         const wm_buffer_t *into, int to)
{
    size_t hosts = (size_t)own->hosts->count;
    wm_coll_t task = wm_hierarchy_task(own, to < 0 ? WM_COLL_ALLREDUCE
                                                   : WM_COLL_REDUCE);
    if (from->nbytes == 0)
        return;
    if (rail_reduces(own, task.kind)) {
        bool receives = to < 0 || to == own->host;
        task.send = from == into && receives ? NULL : from;
        task.receive = receives ? into : NULL;
        task.root = to;
        wm_hierarchy_add_rail(own, &task, rail_sent(own, from->nbytes, to));
    }
    else if (hosts == 2 || hosts * from->nbytes <= GATHERED_BYTES)
        reduce_gathered(own, from, into, to);
    else
        reduce_parts(own, from, into, to);
}

// Reduces vectors of a host with one rank.
static void
reduce_alone(wm_hierarchy_t *own, const wm_buffer_t *from, int to)
{
    const wm_buffer_t *receive = own->call->receive;
    bool receives = to < 0 || to == own->host;
    const wm_buffer_t *into = receives ? wm_hierarchy_part(own, receive, 0,
                                                           receive->nbytes)
                                       : wm_hierarchy_take(own, from->nbytes);
    bool in_place = receives && own->call->send == NULL;
    wm_hierarchy_reduce_rail(own, in_place ? into : from, into, to);
}

// Reduces short vectors of a host with several ranks.
static void
reduce_short(wm_hierarchy_t *own, const wm_buffer_t *from, int to)
{
    const wm_coll_t *call = own->call;
    bool carries = to < 0 || own->place == own->root_place;
    bool receives = carries && (to < 0 || to == own->host);
    const wm_buffer_t *sum = receives  ? wm_hierarchy_part(own, call->receive,
                                                           0, from->nbytes)
                             : carries ? wm_hierarchy_take(own, from->nbytes)
                                       : NULL;
    wm_coll_t task = wm_hierarchy_task(own, to < 0 ? WM_COLL_ALLREDUCE
                                                   : WM_COLL_REDUCE);
    task.root = own->root_place;
    task.send = call->send != NULL ? from : NULL;
    task.receive = sum;
    wm_hierarchy_add_local(own, &task);
    if (carries)
        wm_hierarchy_reduce_rail(own, sum, sum, to);
}

// Returns true if each rank that is to get the result is on a rail.
static bool
rails_reach(const wm_hierarchy_t *own, bool rooted)
{
    return rooted ? own->root_place < own->carriers
                  : own->hosts->largest == own->carriers;
}

void
wm_hierarchy_reduce(wm_hierarchy_t *own)
{
    const wm_coll_t *call = own->call;
    const wm_buffer_t *given = call->send != NULL ? call->send : call->receive;
    bool rooted = call->kind == WM_COLL_REDUCE;
    int to = rooted ? own->root_host : -1;
    const wm_buffer_t *from = wm_hierarchy_part(own, given, 0, given->nbytes);
    if (own->ranks == 1) {
        reduce_alone(own, from, to);
        return;
    }
    if (rails_reach(own, rooted) && wm_hierarchy_is_short(own, from->nbytes)) {
        reduce_short(own, from, to);
        return;
    }
    wm_span_t *shares = wm_hierarchy_spans(own);
    for (int i = 0; i < own->carriers; ++i)
        shares[i] = wm_hierarchy_share(own, from->nbytes, own->carriers, i);
    const wm_buffer_t *mine = wm_hierarchy_take(own,
                                                shares[own->place].nbytes);
    wm_coll_t scatter = wm_hierarchy_task(own, WM_COLL_REDUCE_SCATTER);
    scatter.send = from;
    scatter.receive = mine;
    scatter.receives = shares;
    wm_hierarchy_even_out(&scatter, shares, own->ranks);
    wm_hierarchy_add_local(own, &scatter);
    if (wm_hierarchy_carries(own))
        wm_hierarchy_reduce_rail(own, mine, mine, to);
    if (rooted && own->host != to)
        return;
    wm_coll_t gather = wm_hierarchy_task(own, rooted ? WM_COLL_GATHERV
                                                     : WM_COLL_ALLGATHERV);
    bool receives = !rooted || own->place == own->root_place;
    gather.send = mine;
    gather.receive = receives ? wm_hierarchy_part(own, call->receive, 0,
                                                  from->nbytes)
                              : NULL;
    gather.receives = shares;
    wm_hierarchy_even_out(&gather, shares, own->ranks);
    gather.root = own->root_place;
    wm_hierarchy_add_local(own, &gather);
}
