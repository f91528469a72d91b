// SPDX-License-Identifier: BSD-3-Clause
#include "comm/comm/bootstrap.h"

#include <stdlib.h>
#include <string.h>

#include "comm/comm/failure.h"
#include "comm/comm/hosts.h"
#include "comm/engine/engine.h"
#include "comm/engine/hash.h"
#include "comm/engine/modules.h"
#include "comm/link/link.h"

// Tags of the first messages on the communicator.
#define TAG_OF_ENDPOINTS 0
#define TAG_OF_FACTS 1
#define TAG_OF_ADDRESSES 2
#define TAG_OF_CONNECTED 3

static uint64_t made; // communicators, failed ones too; engine lock

// Returns the id, the same on all ranks, as all know rank 0.
static uint64_t
identity(const wm_endpoint_t *first)
{
    uint64_t id = WM_HASH_OF_NOTHING + first->made;
    for (size_t i = 0; i < sizeof first->id; ++i)
        id = wm_hash(id, first->id[i]);
    return id;
}

// Sends to the rank that is `distance` ranks after this one, and receives as
// much from the rank as far before. The exchanges of a group are made of such
// messages (Bruck's algorithms), since the first collective on a communicator
// of several hosts makes Open MPI create others behind it. If a rank has died,
// MPI tells only its partners: they revoke the communicator, which tells the
// others.
static int
bootstrap_shift(wm_comm_t *comm, int tag, int distance, const void *send,
                void *receive, size_t nbytes, wm_error_t *err)
{
    int size = comm->size, rank = comm->rank, length = (int)nbytes;
    int code = wm_mpi_check(MPI_Sendrecv(send, length, MPI_BYTE,
                                         (rank + distance + size) % size, tag,
                                         receive, length, MPI_BYTE,
                                         (rank - distance + size) % size, tag,
                                         comm->match, MPI_STATUS_IGNORE),
                            "MPI_Sendrecv", err);
    if (code < 0)
        (void)!wm_failure_revoke(comm, NULL);
    return code;
}

// Gathers `nbytes` bytes of each rank into `all`, by rank; `all` has room for
// twice as many. Takes log2(size) steps.
static int
allgather(wm_comm_t *comm, bool inter, int tag, const void *mine,
          size_t nbytes, void *all, wm_error_t *err)
{
    int size = comm->size, rank = comm->rank, code = 0, length = (int)nbytes;
    if (inter)
        return wm_mpi_check(MPI_Allgather(mine, length, MPI_BYTE, all, length,
                                          MPI_BYTE, comm->match),
                            "MPI_Allgather", err);
    // Block i is that of rank + i.
    char *blocks = (char *)all + (size_t)size * nbytes;
    memcpy(blocks, mine, nbytes);
    for (int have = 1; have < size && code == 0; have *= 2) {
        int count = have < size - have ? have : size - have;
        code = bootstrap_shift(comm, tag, -have, blocks,
                               blocks + (size_t)have * nbytes,
                               (size_t)count * nbytes, err);
    }
    if (code < 0)
        return code;
    size_t before = (size_t)rank * nbytes;
    size_t rest = (size_t)size * nbytes - before;
    memcpy((char *)all + before, blocks, rest);
    memcpy(all, blocks + rest, before);
    return 0;
}

// Replaces the words for each rank by the words of each rank for this one, in
// log2(size) steps; `words` has room for twice as many.
static int
alltoall(wm_comm_t *comm, bool inter, uint32_t *words, wm_error_t *err)
{
    int size = comm->size, rank = comm->rank, code = 0;
    uint32_t *blocks = words + size;
    if (inter) {
        memcpy(blocks, words, (size_t)size * sizeof *words);
        return wm_mpi_check(MPI_Alltoall(blocks, sizeof *blocks, MPI_BYTE,
                                         words, sizeof *words, MPI_BYTE,
                                         comm->match),
                            "MPI_Alltoall", err);
    }
    // Block i has come from rank - i or has as far to go: to rank + i. Each
    // bit of i is one step, in which `words` has what is sent and what comes.
    for (int i = 0; i < size; ++i)
        blocks[i] = words[(rank + i) % size];
    for (int step = 1; step < size && code == 0; step *= 2) {
        int count = 0, taken = 0;
        for (int i = step; i < size; ++i)
            if ((i & step) != 0)
                words[count++] = blocks[i];
        code = bootstrap_shift(comm, TAG_OF_CONNECTED, step, words,
                               words + count, (size_t)count * sizeof *words,
                               err);
        for (int i = step; i < size; ++i)
            if ((i & step) != 0)
                blocks[i] = words[count + taken++];
    }
    for (int i = 0; i < size; ++i)
        words[(rank - i + size) % size] = blocks[i];
    return code;
}

// Facts that all ranks must know alike.
typedef struct {
    int code;    // below 0: a rank cannot go on
    int linked;  // 1: no pair of ranks has links to connect
    int barrier; // 1: each rank has a slot, and can read all others' slots
    uint32_t addresses; // bytes of the addresses of a rank's links, at most
} facts_t;

// Joins the facts of all ranks; `scratch` has room for two of each rank. An
// intercommunicator takes two rounds: the first tells of the other group, the
// second of this one.
static int
join_facts(wm_comm_t *comm, bool inter, facts_t *facts, facts_t *scratch,
           wm_error_t *err)
{
    int code = 0;
    for (int time = 0; time < (inter ? 2 : 1) && code == 0; ++time) {
        code = allgather(comm, inter, TAG_OF_FACTS, facts, sizeof *facts,
                         scratch, err);
        for (int rank = 0; rank < comm->size && code == 0; ++rank) {
            const facts_t *others = &scratch[rank];
            facts->code = others->code < 0 ? others->code : facts->code;
            facts->linked &= others->linked;
            facts->barrier &= others->barrier;
            if (others->addresses > facts->addresses)
                facts->addresses = others->addresses;
        }
    }
    return code;
}

// Raises the failure of another rank, if there is one.
static int
raise_of_others(const facts_t *facts, wm_error_t *err)
{
    return facts->code == 0
               ? 0
               : wm_error_set(err, WM_ERR_STATE, 0,
                              "another rank could not attach to this "
                              "communicator: its error tells why");
}

static void
drop_barrier(wm_comm_t *comm)
{
    free(comm->barrier);
    comm->barrier = NULL;
    for (int bank = 0; bank < WM_BARRIER_ASIDE; ++bank) {
        free(comm->aside[bank]);
        comm->aside[bank] = NULL;
    }
}

// Makes the barrier. Returns false if this rank cannot read the slots of all.
static bool
find_barrier(wm_comm_t *comm, const wm_endpoint_t *all)
{
    wm_barrier_t *banks[WM_BARRIER_BANKS] = {NULL};
    bool known = comm->size <= WM_BARRIER_RANKS;
    for (int rank = 0; rank < comm->size && known; ++rank)
        known = wm_node_shares(comm->peers[rank])
                && all[rank].barrier_row.index >= 0
                && all[rank].barrier_row.index < WM_BARRIER_ROWS;
    for (int bank = 0; bank < WM_BARRIER_BANKS && known; ++bank) {
        banks[bank] = wm_barrier_new(comm->rank, comm->size, bank);
        known = banks[bank] != NULL;
        for (int rank = 0; rank < comm->size && known; ++rank)
            wm_barrier_set(banks[bank], rank, comm->peers[rank],
                           &all[rank].barrier_row);
    }
    comm->barrier = banks[0];
    memcpy(comm->aside, banks + 1, sizeof comm->aside);
    if (!known)
        drop_barrier(comm);
    return known;
}

// Fills the endpoint that this rank sends to all others.
static void
describe(const wm_comm_t *comm, bool inter, wm_endpoint_t *mine)
{
    wm_error_t setting;
    wm_engine_lock();
    wm_node_describe(mine);
    mine->made = made++;
    mine->barrier_row.index = -1;
    if (!mine->failed && !inter && comm->size <= WM_BARRIER_RANKS)
        mine->barrier_row = wm_barrier_row_acquire();
    if (wm_modules_configure(&setting) < 0) {
        mine->failed = 1;
        wm_error_cut(setting.text, sizeof mine->text, mine->text);
    }
    wm_settings_tell(&mine->settings);
    mine->addresses = (uint32_t)wm_link_addresses(NULL, 0);
    wm_engine_unlock();
}

// Finds the peer of each endpoint, if all endpoints fit together.
static int
find_peers(wm_comm_t *comm, const wm_endpoint_t *mine,
           const wm_endpoint_t *all, wm_error_t *err)
{
    int code = 0;
    wm_engine_lock();
    for (int rank = 0; rank < comm->size && code == 0; ++rank) {
        const wm_endpoint_t *endpoint = &all[rank];
        if (endpoint->wire_version != WM_WIRE_VERSION
            || strncmp(endpoint->version, mine->version, sizeof mine->version)
                   != 0)
            code = wm_error_set(
                err, WM_ERR_STATE, 0,
                "rank %d runs warpmpi %.15s and rank %d warpmpi %.15s: "
                "install the same version for all ranks",
                rank, endpoint->version, comm->rank, mine->version);
        else if (endpoint->failed)
            code = wm_error_set(
                err, WM_ERR_STATE, 0,
                "rank %d cannot attach to this communicator: %.175s", rank,
                endpoint->text);
        else
            code = wm_settings_compare(&mine->settings, comm->rank,
                                       &endpoint->settings, rank, err);
        if (code == 0 && (comm->peers[rank] = wm_node_peer(endpoint)) == NULL)
            code = wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    }
    wm_engine_unlock();
    return code;
}

// Returns the facts of this rank; `code` is its error so far, or 0.
static facts_t
bootstrap_look(wm_comm_t *comm, bool inter, const wm_endpoint_t *all, int code)
{
    facts_t facts = {.code = code, .linked = code == 0};
    for (int rank = 0; rank < comm->size; ++rank)
        if (all[rank].addresses > facts.addresses)
            facts.addresses = all[rank].addresses;
    wm_engine_lock();
    for (int rank = 0; rank < comm->size && code == 0; ++rank)
        facts.linked &= comm->peers[rank]->linked;
    facts.barrier = facts.linked && !inter && find_barrier(comm, all);
    wm_engine_unlock();
    return facts;
}

// Gathers the addresses of all ranks' links, of `most` bytes at most, into
// `room`, and connects the links. Then tells each rank which links this one
// could connect: two ranks use a link only if both could. Two processes do
// this once.
static int
connect_links(wm_comm_t *comm, bool inter, const wm_endpoint_t *all,
              uint32_t most, char *room, wm_error_t *err)
{
    size_t size = (size_t)comm->size;
    char *mine = room + 2 * size * most;
    uint32_t *connected = (uint32_t *)room; // when the addresses were read
    wm_engine_lock();
    (void)wm_link_addresses(mine, most);
    wm_engine_unlock();
    int code = allgather(comm, inter, TAG_OF_ADDRESSES, mine, most, room, err);
    if (code < 0)
        return code;
    wm_engine_lock();
    for (size_t i = 0; i < size; ++i)
        wm_link_connect(comm->peers[i], room + i * most,
                        all[i].addresses < most ? all[i].addresses : most);
    for (size_t i = 0; i < size; ++i)
        connected[i] = comm->peers[i]->connected;
    wm_engine_unlock();
    code = alltoall(comm, inter, connected, err);
    wm_engine_lock();
    for (size_t i = 0; i < size && code == 0; ++i)
        wm_link_confirm(comm->peers[i], connected[i]);
    wm_engine_unlock();
    return code;
}

// Lets ranks that meet for the first time connect their links. All ranks come
// here, and know first whether each has the memory.
static int
confirm_links(wm_comm_t *comm, bool inter, const wm_endpoint_t *all,
              facts_t *facts, facts_t *scratch, wm_error_t *err)
{
    size_t size = (size_t)comm->size, most = facts->addresses;
    size_t bytes = most > sizeof(uint32_t) ? most : sizeof(uint32_t);
    char *room = calloc(2 * size + 1, bytes);
    facts->code = room == NULL ? wm_error_set(err, WM_ERR_MEMORY, 0,
                                              "out of host memory")
                               : 0;
    int code = facts->code;
    int joined = join_facts(comm, inter, facts, scratch,
                            code < 0 ? NULL : err);
    if (code == 0 && joined == 0)
        code = raise_of_others(facts, err);
    if (code == 0 && joined == 0)
        code = connect_links(comm, inter, all, (uint32_t)most, room, err);
    free(room);
    return code < 0 ? code : joined;
}

int
wm_bootstrap(wm_comm_t *comm, bool inter, wm_error_t *err)
{
    size_t size = (size_t)comm->size;
    wm_endpoint_t mine;
    wm_endpoint_t *all = calloc(2 * size, sizeof *all);
    wm_error_t lost; // unused: this rank's own error says more
    describe(comm, inter, &mine);
    comm->peers = calloc(size, sizeof *comm->peers);
    comm->sequences = calloc(size, sizeof *comm->sequences);
    comm->orders = calloc(size, sizeof *comm->orders);
    if (all == NULL || comm->peers == NULL || comm->sequences == NULL
        || comm->orders == NULL) {
        free(all); // a barrier slot stays taken
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    }
    int code = allgather(comm, inter, TAG_OF_ENDPOINTS, &mine, sizeof mine,
                         all, err);
    facts_t *scratch = (facts_t *)(all + size);
    if (code == 0)
        code = find_peers(comm, &mine, all, err);
    if (code == 0 && !inter) // their `whole` has the ranks of both groups
        code = wm_hosts_make(comm, &comm->hosts, err);
    comm->id = identity(&all[0]);
    facts_t facts = bootstrap_look(comm, inter, all, code);
    int joined = join_facts(comm, inter, &facts, scratch,
                            code < 0 ? &lost : err);
    if (code == 0 && joined == 0)
        code = raise_of_others(&facts, err);
    code = code < 0 ? code : joined;
    if (code == 0 && !facts.linked) {
        drop_barrier(comm);
        code = confirm_links(comm, inter, all, &facts, scratch, err);
        facts = bootstrap_look(comm, inter, all, code);
        if (code == 0)
            code = join_facts(comm, inter, &facts, scratch, err);
    }
    if (code < 0 || !facts.barrier)
        drop_barrier(comm);
    comm->one_host = comm->barrier != NULL;
    free(all);
    if (comm->barrier == NULL && mine.barrier_row.index >= 0) {
        wm_engine_lock();
        wm_barrier_row_release(mine.barrier_row.index);
        wm_engine_unlock();
    }
    return code;
}
