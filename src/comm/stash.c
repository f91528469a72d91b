// SPDX-License-Identifier: BSD-3-Clause
#include "comm/stash.h"

#include <stdlib.h>
#include <string.h>

struct wm_stashed {
    wm_stashed_t *next;
    int source, tag;
    char packet[WM_PACKET_BYTES];
};

bool
wm_stash_put(wm_op_t *op, bool first)
{
    wm_stashed_t *entry = malloc(sizeof *entry);
    if (entry == NULL)
        return false;
    entry->source = op->result.source;
    entry->tag = op->result.tag;
    memcpy(entry->packet, op->packet, sizeof entry->packet);
    wm_stashed_t **link = &op->comm->stash;
    while (!first && *link != NULL)
        link = &(*link)->next;
    entry->next = *link;
    *link = entry;
    return true;
}

bool
wm_stash_take(wm_op_t *op)
{
    wm_stashed_t **link = &op->comm->stash, *entry;
    for (; (entry = *link) != NULL; link = &entry->next)
        if ((op->rank == MPI_ANY_SOURCE || op->rank == entry->source)
            && (op->tag == MPI_ANY_TAG || op->tag == entry->tag))
            break;
    if (entry == NULL)
        return false;
    op->result.source = entry->source;
    op->result.tag = entry->tag;
    memcpy(op->packet, entry->packet, sizeof entry->packet);
    *link = entry->next;
    free(entry);
    return true;
}

void
wm_stash_free(wm_comm_t *comm)
{
    while (comm->stash != NULL) {
        wm_stashed_t *next = comm->stash->next;
        free(comm->stash);
        comm->stash = next;
    }
}
