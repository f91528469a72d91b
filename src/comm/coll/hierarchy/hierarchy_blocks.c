// SPDX-License-Identifier: BSD-3-Clause
// Calls of a block for each rank. The data of a host are the blocks of its
// ranks by place; they are cut for its carriers. A carrier exchanges its cut
// for those of its rail; the *carried* data of a carrier are the cuts of its
// rail, by host. The carried data of all carriers, one after the other, are
// all data, and copies bring them into the order of the ranks, or from it.
#include "comm/coll/hierarchy/hierarchy.h"

// Returns the place of a rank's block in the buffer of all blocks.
static wm_span_t
blocks_of_rank(const wm_hierarchy_t *own, int rank)
{
    return own->block > 0 || own->call->receives == NULL
               ? (wm_span_t){(size_t)rank * own->block, own->block}
               : own->call->receives[rank];
}

// Returns the bytes of the ranks of a host before a place.
static size_t
blocks_before(const wm_hierarchy_t *own, int host, int place)
{
    size_t nbytes = 0;
    for (int i = 0; i < place; ++i)
        nbytes +=
            blocks_of_rank(own, wm_hosts_rank(own->hosts, host, i)).nbytes;
    return nbytes;
}

static size_t
blocks_of_host(const wm_hierarchy_t *own, int host)
{
    return blocks_before(own, host, wm_hosts_ranks(own->hosts, host));
}

// Returns true if each rank of a host is a carrier: then its cut is its block.
static bool
all_carry(const wm_hierarchy_t *own, int host)
{
    return wm_hosts_ranks(own->hosts, host) == own->carriers;
}

// Returns the cut of a carrier in the data of its host.
static wm_span_t
cut_of(const wm_hierarchy_t *own, int host, int carrier)
{
    if (!all_carry(own, host))
        return wm_hierarchy_share(own, blocks_of_host(own, host),
                                  own->carriers, carrier);
    int rank = wm_hosts_rank(own->hosts, host, carrier);
    return (wm_span_t){blocks_before(own, host, carrier),
                       blocks_of_rank(own, rank).nbytes};
}

// Lays out the carried data of a carrier, by host; returns their length.
static size_t
lay_cuts(const wm_hierarchy_t *own, int carrier, wm_span_t *cuts)
{
    size_t at = 0;
    for (int host = 0; host < own->hosts->count; ++host) {
        size_t nbytes = cut_of(own, host, carrier).nbytes;
        if (cuts != NULL)
            cuts[host] = (wm_span_t){at, nbytes};
        at += nbytes;
    }
    return at;
}

// Lays out the carried data of all carriers; returns their length.
static size_t
lay_carried(const wm_hierarchy_t *own, wm_span_t *carried)
{
    size_t at = 0;
    for (int i = 0; i < own->carriers; ++i) {
        carried[i] = (wm_span_t){at, lay_cuts(own, i, NULL)};
        at += carried[i].nbytes;
    }
    return at;
}

// Copies a cut between its place in the carried data and the blocks.
static void
copy_cut(const wm_hierarchy_t *own, int host, wm_span_t cut, char *into,
         const char *from, bool gathers, wm_hierarchy_copies_t *copies)
{
    size_t begin = 0;
    for (int i = 0; i < wm_hosts_ranks(own->hosts, host); ++i) {
        wm_span_t block = blocks_of_rank(own,
                                         wm_hosts_rank(own->hosts, host, i));
        size_t end = begin + block.nbytes, cut_end = cut.at + cut.nbytes;
        size_t low = begin > cut.at ? begin : cut.at;
        size_t high = end < cut_end ? end : cut_end;
        if (low < high) {
            size_t there = block.at + low - begin, here = low - cut.at;
            wm_hierarchy_copy(copies, into + (gathers ? there : here),
                              from + (gathers ? here : there), high - low);
        }
        begin = end;
    }
}

static void
copy_blocks(const wm_hierarchy_t *own, char *into, const char *from,
            bool gathers, wm_hierarchy_copies_t *copies)
{
    size_t at = 0;
    for (int i = 0; i < own->carriers; ++i)
        for (int host = 0; host < own->hosts->count; ++host) {
            wm_span_t cut = cut_of(own, host, i);
            copy_cut(own, host, cut, into + (gathers ? 0 : at),
                     from + (gathers ? at : 0), gathers, copies);
            at += cut.nbytes;
        }
}

static void
lay_blocks(void *context, char *into, const char *from,
           wm_hierarchy_copies_t *copies)
{
    copy_blocks(context, into, from, true, copies);
}

static void
lay_packed(void *context, char *into, const char *from,
           wm_hierarchy_copies_t *copies)
{
    copy_blocks(context, into, from, false, copies);
}

// Copies this rank's block out of the data of its host.
static void
lay_own(void *context, char *into, const char *from,
        wm_hierarchy_copies_t *copies)
{
    const wm_hierarchy_t *own = context;
    int rank = own->op->participant.comm->rank;
    wm_hierarchy_copy(copies, into,
                      from + blocks_before(own, own->host, own->place),
                      blocks_of_rank(own, rank).nbytes);
}

// Returns this rank's cut, once its ranks have gathered the data of the host.
static const wm_buffer_t *
gather_cut(wm_hierarchy_t *own, const wm_buffer_t *block)
{
    if (all_carry(own, own->host))
        return block;
    wm_span_t *blocks = wm_hierarchy_spans(own);
    for (int i = 0, host = own->host; i < own->ranks; ++i) {
        int rank = wm_hosts_rank(own->hosts, host, i);
        blocks[i] = (wm_span_t){blocks_before(own, host, i),
                                blocks_of_rank(own, rank).nbytes};
    }
    wm_coll_t task = wm_hierarchy_task(own, WM_COLL_ALLGATHERV);
    task.send = block;
    task.receive = wm_hierarchy_take(own, blocks_of_host(own, own->host));
    task.receives = blocks;
    wm_hierarchy_add_local(own, &task);
    if (!wm_hierarchy_carries(own))
        return task.receive;
    wm_span_t cut = cut_of(own, own->host, own->place);
    return wm_hierarchy_part(own, task.receive, cut.at, cut.nbytes);
}

// Gathers the cuts of the rail; returns what this rank carries.
static const wm_buffer_t *
gather_rail(wm_hierarchy_t *own, const wm_buffer_t *cut, bool rooted,
            bool receives)
{
    if (!wm_hierarchy_carries(own))
        return wm_hierarchy_take(own, 0);
    wm_span_t *cuts = wm_hierarchy_spans(own);
    size_t nbytes = lay_cuts(own, own->place, cuts);
    size_t others = rooted ? !receives : (size_t)(own->hosts->count - 1);
    wm_coll_t task = wm_hierarchy_task(own, rooted ? WM_COLL_GATHERV
                                                   : WM_COLL_ALLGATHERV);
    task.send = cut;
    task.receive = receives ? wm_hierarchy_take(own, nbytes) : NULL;
    task.receives = cuts;
    wm_hierarchy_even_out(&task, cuts, own->hosts->count);
    task.root = own->root_host;
    if (nbytes > 0)
        wm_hierarchy_add_rail(own, &task, others * cut->nbytes);
    return task.receive;
}

void
wm_hierarchy_gather(wm_hierarchy_t *own)
{
    const wm_coll_t *call = own->call;
    bool rooted = wm_coll_shape(call->kind)->rooted;
    bool here = !rooted || own->host == own->root_host;
    bool receives = here && (!rooted || own->place == own->root_place);
    wm_span_t block = blocks_of_rank(own, own->op->participant.comm->rank);
    const wm_buffer_t *given =
        call->send != NULL
            ? wm_hierarchy_part(own, call->send, 0, block.nbytes)
            : wm_hierarchy_part(own, call->receive, block.at, block.nbytes);
    const wm_buffer_t *cut = gather_cut(own, given);
    const wm_buffer_t *all = gather_rail(own, cut, rooted, here);
    if (!here)
        return;
    if (own->ranks > 1) {
        wm_span_t *carried = wm_hierarchy_spans(own);
        size_t nbytes = lay_carried(own, carried);
        wm_coll_t task = wm_hierarchy_task(own, rooted ? WM_COLL_GATHERV
                                                       : WM_COLL_ALLGATHERV);
        task.send = all;
        task.receive = receives ? wm_hierarchy_take(own, nbytes) : NULL;
        task.receives = carried;
        wm_hierarchy_even_out(&task, carried, own->ranks);
        task.root = own->root_place;
        wm_hierarchy_add_local(own, &task);
        all = task.receive;
    }
    if (receives)
        wm_hierarchy_add_copies(
            own, lay_blocks,
            wm_hierarchy_part(own, call->receive, 0, call->receive->nbytes),
            all);
}

// Scatters what the carriers of this host carry, or reduces and scatters it;
// returns what this rank carries. `all`: of a rank that has it.
static const wm_buffer_t *
scatter_local(wm_hierarchy_t *own, const wm_buffer_t *all, bool reduces)
{
    wm_span_t *carried = wm_hierarchy_spans(own);
    (void)lay_carried(own, carried);
    if (own->ranks == 1)
        return all;
    wm_coll_t task = wm_hierarchy_task(own, reduces ? WM_COLL_REDUCE_SCATTER
                                                    : WM_COLL_SCATTERV);
    task.root = own->root_place;
    task.send = all;
    task.receive = wm_hierarchy_take(own, carried[own->place].nbytes);
    if (reduces)
        task.receives = carried;
    else
        task.sends = all != NULL ? carried : NULL;
    wm_hierarchy_even_out(&task, carried, own->ranks);
    wm_hierarchy_add_local(own, &task);
    return task.receive;
}

// Exchanges the cuts of the rail into `cut`.
static void
scatter_rail(wm_hierarchy_t *own, const wm_buffer_t *carried,
             const wm_buffer_t *cut, bool reduces)
{
    wm_span_t *cuts = wm_hierarchy_spans(own);
    size_t nbytes = lay_cuts(own, own->place, cuts);
    bool sends = reduces || own->host == own->root_host;
    wm_coll_t task = wm_hierarchy_task(own, reduces ? WM_COLL_ALLTOALLV
                                                    : WM_COLL_SCATTERV);
    if (nbytes == 0)
        return;
    task.root = own->root_host;
    task.send = sends ? carried : NULL;
    task.sends = sends ? cuts : NULL;
    task.receive = cut;
    if (reduces) {
        wm_span_t *received = wm_hierarchy_spans(own);
        size_t hosts = (size_t)own->hosts->count;
        for (size_t host = 0; host < hosts; ++host)
            received[host] = (wm_span_t){host * cut->nbytes, cut->nbytes};
        task.receive = wm_hierarchy_take(own, hosts * cut->nbytes);
        task.receives = received;
    }
    wm_hierarchy_add_rail(own, &task, sends ? nbytes - cut->nbytes : 0);
    if (reduces)
        wm_hierarchy_add_fold(own, task.receive, cut);
}

// Adds what follows on a host whose cuts are no blocks: its ranks gather the
// data of the host.
static void
scatter_cuts(wm_hierarchy_t *own, const wm_buffer_t *data,
             const wm_buffer_t *into)
{
    wm_span_t *cuts = wm_hierarchy_spans(own);
    wm_coll_t task = wm_hierarchy_task(own, WM_COLL_ALLGATHERV);
    for (int i = 0; i < own->carriers; ++i)
        cuts[i] = cut_of(own, own->host, i);
    task.receive = data;
    task.receives = cuts;
    wm_hierarchy_add_local(own, &task);
    if (into != NULL)
        wm_hierarchy_add_copies(own, lay_own, into, data);
}

void
wm_hierarchy_scatter(wm_hierarchy_t *own)
{
    const wm_coll_t *call = own->call;
    int rank = own->op->participant.comm->rank;
    bool reduces = wm_coll_shape(call->kind)->reduces;
    bool here = reduces || own->host == own->root_host;
    bool sends = here && (reduces || own->place == own->root_place);
    const wm_buffer_t *given = call->send != NULL ? call->send : call->receive;
    const wm_buffer_t *all = NULL, *into = NULL, *data = NULL;
    if (call->receive != NULL) // NULL: the root's block stays where it is
        into = wm_hierarchy_part(own, call->receive, 0,
                                 blocks_of_rank(own, rank).nbytes);
    if (sends) {
        all = wm_hierarchy_take(own, given->nbytes);
        wm_hierarchy_add_copies(
            own, lay_packed, all,
            wm_hierarchy_part(own, given, 0, given->nbytes));
    }
    if (here)
        all = scatter_local(own, all, reduces);
    const wm_buffer_t *cut = into;
    bool whole = all_carry(own, own->host);
    if (whole && into == NULL)
        cut = wm_hierarchy_take(own, blocks_of_rank(own, rank).nbytes);
    if (!whole)
        data = wm_hierarchy_take(own, blocks_of_host(own, own->host));
    if (!whole && wm_hierarchy_carries(own)) {
        wm_span_t span = cut_of(own, own->host, own->place);
        cut = wm_hierarchy_part(own, data, span.at, span.nbytes);
    }
    if (wm_hierarchy_carries(own))
        scatter_rail(own, all, cut, reduces);
    if (!whole)
        scatter_cuts(own, data, into);
}
