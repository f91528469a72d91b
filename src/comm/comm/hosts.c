// SPDX-License-Identifier: BSD-3-Clause
#include "comm/comm/hosts.h"

#include <stdlib.h>
#include <string.h>

#include "comm/comm/comm.h"
#include "comm/engine/hash.h"

wm_hosts_t
wm_hosts_find(const wm_comm_t *comm)
{
    return comm->hosts;
}

void
wm_hosts_free(wm_hosts_t *hosts)
{
    free((void *)hosts->host_of); // the first of one block
    hosts->host_of = NULL;
}

// Returns the place of a rank's host in an open-addressed table, which has the
// lowest rank of each host + 1; 0: free.
static size_t
table_find(const wm_comm_t *comm, const int *table, size_t length, int rank)
{
    const uint8_t *host = comm->peers[rank]->host;
    uint64_t hash = WM_HASH_OF_NOTHING;
    for (int i = 0; i < WM_HOST_BYTES; ++i)
        hash = wm_hash(hash, host[i]);
    size_t at = (size_t)(hash % length);
    while (table[at] != 0
           && memcmp(comm->peers[table[at] - 1]->host, host, WM_HOST_BYTES)
                  != 0)
        at = (at + 1) % length;
    return at;
}

// Numbers the hosts, and the ranks of each. counts[host]: its ranks.
static void
hosts_number(const wm_comm_t *comm, wm_hosts_t *hosts, int *host_of,
             int *place_of, int *counts, int *table, size_t length)
{
    for (int rank = 0; rank < comm->size; ++rank) {
        size_t at = table_find(comm, table, length, rank);
        if (table[at] == 0) {
            table[at] = rank + 1;
            host_of[rank] = hosts->count++;
        }
        else
            host_of[rank] = host_of[table[at] - 1];
        place_of[rank] = counts[host_of[rank]]++;
    }
}

// Sorts the ranks by host and place.
static void
hosts_sort(const wm_comm_t *comm, wm_hosts_t *hosts, int *ranks, int *begin)
{
    hosts->smallest = comm->size;
    for (int host = 0, end = 0; host <= hosts->count; ++host) {
        int count = host < hosts->count ? begin[host] : 0;
        begin[host] = end;
        end += count;
        if (host == hosts->count)
            break;
        hosts->smallest = count < hosts->smallest ? count : hosts->smallest;
        hosts->largest = count > hosts->largest ? count : hosts->largest;
    }
    for (int rank = 0; rank < comm->size; ++rank)
        ranks[begin[hosts->host_of[rank]] + hosts->place_of[rank]] = rank;
}

int
wm_hosts_make(const wm_comm_t *comm, wm_hosts_t *hosts, wm_error_t *err)
{
    size_t size = (size_t)comm->size, length = 2 * size;
    int *all = calloc(4 * size + 1, sizeof *all);
    int *table = calloc(length, sizeof *table);
    *hosts = (wm_hosts_t){.host_of = all};
    if (all == NULL || table == NULL) {
        free(table);
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    }
    hosts->place_of = all + size;
    hosts->ranks = all + 2 * size;
    hosts->begin = all + 3 * size;
    hosts_number(comm, hosts, all, all + size, all + 3 * size, table, length);
    hosts_sort(comm, hosts, all + 2 * size, all + 3 * size);
    free(table);
    hosts->place = hosts->place_of[comm->rank];
    hosts->first = wm_hosts_rank(hosts, hosts->host_of[comm->rank], 0);
    return 0;
}
