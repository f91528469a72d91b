// SPDX-License-Identifier: BSD-3-Clause
#include "comm/stash.h"

#include <stdlib.h>
#include <string.h>

#include "comm/p2p.h"
#include "comm/progress.h"

struct wm_stashed {
    wm_stashed_t *next;
    int source, tag;
    char packet[WM_PACKET_BYTES];
};

static void
append(wm_comm_t *comm, wm_stashed_t *entry, bool first)
{
    wm_stashed_t **link = &comm->stash;
    while (!first && *link != NULL)
        link = &(*link)->next;
    entry->next = *link;
    *link = entry;
}

// The place of the first that matches; it holds NULL where there is none.
static wm_stashed_t **
find(wm_comm_t *comm, int rank, int tag)
{
    wm_stashed_t **link = &comm->stash, *entry;
    for (; (entry = *link) != NULL; link = &entry->next)
        if ((rank == MPI_ANY_SOURCE || rank == entry->source)
            && (tag == MPI_ANY_TAG || tag == entry->tag))
            break;
    return link;
}

bool
wm_stash_put(wm_op_t *op, bool first)
{
    wm_stashed_t *entry = malloc(sizeof *entry);
    if (entry == NULL)
        return false;
    entry->source = op->result.source;
    entry->tag = op->result.tag;
    memcpy(entry->packet, op->packet, sizeof entry->packet);
    append(op->comm, entry, first);
    return true;
}

bool
wm_stash_take(wm_op_t *op)
{
    wm_stashed_t **link = find(op->comm, op->rank, op->tag), *entry = *link;
    if (entry == NULL)
        return false;
    *link = entry->next;
    wm_stash_open(op, entry);
    return true;
}

void
wm_stash_remove(wm_comm_t *comm, wm_stashed_t *entry)
{
    wm_stashed_t **link = &comm->stash;
    while (*link != entry)
        link = &(*link)->next;
    *link = entry->next;
}

void
wm_stash_return(wm_comm_t *comm, wm_stashed_t *entry)
{
    append(comm, entry, true);
}

void
wm_stash_open(wm_op_t *op, wm_stashed_t *entry)
{
    op->result.source = entry->source;
    op->result.tag = entry->tag;
    memcpy(op->packet, entry->packet, sizeof entry->packet);
    free(entry);
}

// Asks MPI; *entry is the message that has come, or NULL.
static int
receive_header(wm_comm_t *comm, int rank, int tag, wm_stashed_t **entry,
               wm_error_t *err)
{
    MPI_Message message;
    MPI_Status status;
    int flag = 0;
    *entry = NULL;
    int code = wm_mpi_check(
        MPI_Improbe(rank, tag, comm->match, &flag, &message, &status),
        "MPI_Improbe", err);
    if (code < 0 || !flag)
        return code;
    wm_stashed_t *made = malloc(sizeof *made);
    if (made == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    made->source = status.MPI_SOURCE;
    made->tag = status.MPI_TAG;
    code = wm_mpi_check(MPI_Mrecv(made->packet, (int)sizeof made->packet,
                                  MPI_BYTE, &message, MPI_STATUS_IGNORE),
                        "MPI_Mrecv", err);
    if (code < 0)
        free(made);
    else
        *entry = made;
    return code;
}

int
wm_stash_probe(wm_comm_t *comm, int rank, int tag, wm_stashed_t **found,
               wm_result_t *result, wm_error_t *err)
{
    wm_stashed_t *entry = *find(comm, rank, tag);
    int code = 0;
    if (entry == NULL) {
        code = receive_header(comm, rank, tag, &entry, err);
        if (entry != NULL)
            append(comm, entry, false);
    }
    *found = entry;
    if (entry == NULL)
        return code;
    wm_header_t header;
    wm_header_read(&header, entry->packet);
    *result = (wm_result_t){
        .source = entry->source,
        .tag = entry->tag,
        .nbytes = header.nbytes,
    };
    return 0;
}

int
wm_stash_list(wm_comm_t *comm, wm_result_t *list, int most)
{
    int count = 0;
    wm_stashed_t *entry = comm->stash;
    for (;; entry = entry->next) {
        if (entry == NULL) {
            if (count >= most
                || receive_header(comm, MPI_ANY_SOURCE, MPI_ANY_TAG, &entry,
                                  NULL)
                       < 0
                || entry == NULL)
                return count;
            append(comm, entry, false);
        }
        wm_header_t header;
        wm_header_read(&header, entry->packet);
        if (count < most)
            list[count] = (wm_result_t){
                .source = entry->source,
                .tag = entry->tag,
                .nbytes = header.nbytes,
            };
        ++count;
    }
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

void
wm_matched_return(wm_comm_t *comm, wm_stashed_t *matched)
{
    wm_engine_lock();
    wm_stash_return(comm, matched);
    wm_engine_unlock();
}
