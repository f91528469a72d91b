// SPDX-License-Identifier: BSD-3-Clause
#include "comm/message/unexpected.h"

#include <stdlib.h>
#include <string.h>

#include "comm/engine/engine.h"
#include "comm/engine/modules.h"
#include "comm/message/p2p.h"

struct wm_unexpected {
    wm_unexpected_t *next;
    int source, tag;
    uint64_t number;       // grows in the order of arrival
    MPI_Request request;   // null: complete
    MPI_Count length;      // of header and payload
    const wm_end_t *taker; // a receive that waits for it
    char packet[WM_PACKET_BYTES];
};

static uint64_t numbers;
static wm_unexpected_t *spare; // for a look at MPI, which mostly finds nothing

static wm_unexpected_t *
unexpected_make(void)
{
    wm_unexpected_t *entry = spare != NULL ? spare : malloc(sizeof *entry);
    spare = NULL;
    if (entry == NULL)
        return NULL;
    entry->request = MPI_REQUEST_NULL;
    entry->taker = NULL;
    return entry;
}

static void
unexpected_put_at(wm_unexpected_t **link, wm_unexpected_t *entry)
{
    entry->next = *link;
    *link = entry;
}

static bool
matches(const wm_unexpected_t *entry, int rank, int tag)
{
    return (rank == MPI_ANY_SOURCE || rank == entry->source)
           && (tag == MPI_ANY_TAG || tag == entry->tag);
}

// Returns the link to the first message that matches and is not reserved for
// another receive; the link holds NULL if there is none.
static wm_unexpected_t **
unexpected_find(wm_comm_t *comm, int rank, int tag, const wm_end_t *taker)
{
    wm_unexpected_t **link = &comm->unexpected, *entry;
    for (; (entry = *link) != NULL; link = &entry->next)
        if (matches(entry, rank, tag)
            && (entry->taker == NULL || entry->taker == taker))
            break;
    return link;
}

// Returns 1 when the message is complete, 0 while it is still coming, or MPI's
// error, after which it never comes.
static int
unexpected_look(wm_unexpected_t **link, wm_error_t *err)
{
    wm_unexpected_t *entry = *link;
    int flag = 1;
    if (entry->request == MPI_REQUEST_NULL)
        return 1;
    int code = wm_mpi_check(
        MPI_Test(&entry->request, &flag, MPI_STATUS_IGNORE), "MPI_Test", err);
    if (code == 0)
        return flag;
    *link = entry->next;
    free(entry);
    return code;
}

// Takes the first message of `rank` (or of any rank) from MPI, with any tag,
// and appends it. Returns 1 if there was one, 0, or an error.
static int
unexpected_pull(wm_comm_t *comm, int rank, wm_error_t *err)
{
    MPI_Message message;
    MPI_Status status;
    int flag = 0;
    wm_unexpected_t *entry = unexpected_make(), **last = &comm->unexpected;
    if (entry == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    int code = wm_mpi_check(
        MPI_Improbe(rank, MPI_ANY_TAG, comm->match, &flag, &message, &status),
        "MPI_Improbe", err);
    // The payload may have to wait for the sender.
    if (code == 0 && flag)
        code = wm_mpi_check(MPI_Imrecv(entry->packet,
                                       (int)sizeof entry->packet, MPI_BYTE,
                                       &message, &entry->request),
                            "MPI_Imrecv", err);
    if (code < 0 || !flag) {
        spare = entry;
        return code;
    }
    entry->source = status.MPI_SOURCE;
    entry->tag = status.MPI_TAG;
    entry->number = ++numbers;
    MPI_Get_elements_x(&status, MPI_BYTE, &entry->length);
    while (*last != NULL)
        last = &(*last)->next;
    unexpected_put_at(last, entry);
    return 1;
}

static uint32_t
order_of(const char *packet)
{
    wm_header_t header;
    wm_header_read(&header, packet);
    return header.order;
}

// Inserts the entry in the order of its sender.
static void
put_in_turn(wm_comm_t *comm, wm_unexpected_t *entry)
{
    wm_unexpected_t **link = &comm->unexpected;
    uint32_t order = order_of(entry->packet);
    for (; *link != NULL; link = &(*link)->next) {
        wm_unexpected_t *other = *link;
        if (other->source != entry->source)
            continue;
        (void)!wm_mpi_check(MPI_Wait(&other->request, MPI_STATUS_IGNORE),
                            "MPI_Wait", NULL);
        if ((int32_t)(order_of(other->packet) - order) > 0)
            break;
    }
    entry->number = *link != NULL ? (*link)->number : ++numbers;
    unexpected_put_at(link, entry);
}

// Takes a receive back from MPI. Returns true if it now waits for this queue,
// or has received the message that came before it could be taken back.
static bool
unexpected_take_back(wm_end_t *end)
{
    MPI_Status status;
    int flag = 0, cancelled = 0;
    if (MPI_Test(&end->matching, &flag, &status) != MPI_SUCCESS)
        return false;
    bool asked = flag; // only its owner can have cancelled it
    if (!flag) {
        MPI_Cancel(&end->matching);
        if (MPI_Wait(&end->matching, &status) != MPI_SUCCESS)
            return false;
    }
    MPI_Test_cancelled(&status, &cancelled);
    end->withdrawn |= asked && cancelled;
    end->was_unexpected = !cancelled;
    if (end->was_unexpected) {
        end->op.result.source = status.MPI_SOURCE;
        end->op.result.tag = status.MPI_TAG;
    }
    return !end->withdrawn;
}

// Exchanges the entry with the message of the receive, if that was sent later.
static bool
unexpected_swap(wm_end_t *end, wm_unexpected_t *entry)
{
    char packet[WM_PACKET_BYTES];
    if (end->op.result.source != entry->source
        || entry->request != MPI_REQUEST_NULL
        || (int32_t)(order_of(end->packet) - order_of(entry->packet)) < 0)
        return false;
    wm_unexpected_remove(end->op.comm, entry);
    memcpy(packet, end->packet, sizeof packet);
    memcpy(end->packet, entry->packet, sizeof packet);
    memcpy(entry->packet, packet, sizeof packet);
    int tag = end->op.result.tag;
    end->op.result.tag = entry->tag;
    entry->tag = tag;
    put_in_turn(end->op.comm, entry);
    return true;
}

// Returns true if `one` is in the queue before `other`.
static bool
comes_before(const wm_comm_t *comm, const wm_unexpected_t *one,
             const wm_unexpected_t *other)
{
    const wm_unexpected_t *entry = comm->unexpected;
    while (entry != one && entry != other)
        entry = entry->next;
    return entry == one;
}

static wm_unexpected_t *
taken_by(wm_comm_t *comm, const wm_end_t *end)
{
    wm_unexpected_t *entry = comm->unexpected;
    while (entry != NULL && entry->taker != end)
        entry = entry->next;
    return entry;
}

// Reserves a message for the first posted receive that matches. MPI would
// never give the receive this message, so the receive is taken back from MPI.
// The message that it leaves goes to the next receive.
static void
unexpected_offer(wm_comm_t *comm, wm_unexpected_t *entry)
{
    for (wm_op_t *op = wm_engine_first(); op != NULL; op = op->next) {
        wm_end_t *end = (wm_end_t *)op;
        if (op->comm != comm || !wm_end_is_receive(op)
            || end->header.magic != 0 || end->was_unexpected || end->withdrawn
            || !matches(entry, end->rank, end->tag))
            continue;
        if (end->matching != MPI_REQUEST_NULL && !unexpected_take_back(end))
            continue;
        if (end->was_unexpected) {
            (void)unexpected_swap(end, entry);
            continue;
        }
        wm_unexpected_t *other = taken_by(comm, end);
        if (other != NULL && comes_before(comm, other, entry))
            continue;
        entry->taker = end;
        if (other == NULL)
            return;
        other->taker = NULL;
        entry = other;
    }
}

bool
wm_unexpected_put(wm_end_t *end)
{
    wm_unexpected_t *entry = unexpected_make();
    if (entry == NULL)
        return false;
    entry->source = end->op.result.source;
    entry->tag = end->op.result.tag;
    memcpy(entry->packet, end->packet, sizeof entry->packet);
    // MPI may still hold earlier messages with other tags.
    while (unexpected_pull(end->op.comm, entry->source, NULL) > 0)
        ;
    put_in_turn(end->op.comm, entry);
    unexpected_offer(end->op.comm, entry);
    return true;
}

void
wm_unexpected_look_again(wm_end_t *end)
{
    wm_unexpected_t *entry = *unexpected_find(end->op.comm, end->rank,
                                              end->tag, NULL);
    if (entry != NULL)
        unexpected_offer(end->op.comm, entry);
}

int
wm_unexpected_match(wm_end_t *end, wm_error_t *err)
{
    wm_unexpected_t **link = unexpected_find(end->op.comm, end->rank, end->tag,
                                             end);
    wm_unexpected_t *entry = *link;
    if (entry == NULL)
        return WM_UNEXPECTED_NONE;
    int code = unexpected_look(link, err);
    if (code < 0)
        return code;
    entry->taker = end;
    if (code == 0)
        return WM_UNEXPECTED_ARRIVING;
    *link = entry->next;
    wm_unexpected_open(end, entry);
    return WM_UNEXPECTED_TAKEN;
}

void
wm_unexpected_let_go(const wm_end_t *end)
{
    wm_unexpected_t *entry = taken_by(end->op.comm, end);
    if (entry == NULL)
        return;
    entry->taker = NULL;
    unexpected_offer(end->op.comm, entry);
}

void
wm_unexpected_remove(wm_comm_t *comm, wm_unexpected_t *entry)
{
    wm_unexpected_t **link = &comm->unexpected;
    while (*link != entry)
        link = &(*link)->next;
    *link = entry->next;
}

void
wm_unexpected_open(wm_end_t *end, wm_unexpected_t *entry)
{
    end->op.result.source = entry->source;
    end->op.result.tag = entry->tag;
    memcpy(end->packet, entry->packet, sizeof entry->packet);
    free(entry);
}

// Returns the bytes of the payload. A message that is still coming is no
// offer.
static uint64_t
nbytes_of(const wm_unexpected_t *entry)
{
    wm_header_t header;
    if (entry->request != MPI_REQUEST_NULL)
        return (uint64_t)entry->length - WM_HEADER_SHORT;
    wm_header_read(&header, entry->packet);
    return header.nbytes;
}

static wm_result_t
result_of(const wm_unexpected_t *entry)
{
    return (wm_result_t){
        .received = true,
        .source = entry->source,
        .tag = entry->tag,
        .nbytes = nbytes_of(entry),
    };
}

int
wm_unexpected_probe(wm_comm_t *comm, int rank, int tag,
                    wm_unexpected_t **found, wm_result_t *result,
                    wm_error_t *err)
{
    wm_unexpected_t **link;
    int code = 1;
    *found = NULL;
    // Takes all earlier messages from MPI as well.
    while (*(link = unexpected_find(comm, rank, tag, NULL)) == NULL
           && code > 0)
        code = unexpected_pull(comm, rank, err);
    if (*link != NULL)
        code = unexpected_look(link, err);
    if (code <= 0)
        return code;
    *found = *link;
    *result = result_of(*link);
    return 0;
}

int
wm_unexpected_list(wm_comm_t *comm, wm_result_t *list, int most)
{
    int count = 0;
    wm_unexpected_t **link = &comm->unexpected;
    while (
        *link != NULL
        || (count < most && unexpected_pull(comm, MPI_ANY_SOURCE, NULL) > 0)) {
        if ((*link)->taker == NULL && unexpected_look(link, NULL) < 0)
            continue; // the message was removed
        if (count < most)
            list[count] = result_of(*link);
        ++count;
        link = &(*link)->next;
    }
    return count;
}

// Frees a communicator's queue. A message that is still coming leaks.
static void
unexpected_free(wm_comm_t *comm)
{
    while (comm->unexpected != NULL) {
        wm_unexpected_t *entry = comm->unexpected;
        comm->unexpected = entry->next;
        if (unexpected_look(&entry, NULL) > 0) // else MPI may still write it
            free(entry);
    }
}

void
wm_matched_return(wm_comm_t *comm, wm_unexpected_t *matched)
{
    wm_engine_lock();
    wm_unexpected_t **link = &comm->unexpected;
    while (*link != NULL && (*link)->number < matched->number)
        link = &(*link)->next;
    unexpected_put_at(link, matched);
    unexpected_offer(comm, matched);
    wm_engine_unlock();
}

static void
unexpected_drop(wm_comm_t *comm)
{
    unexpected_free(comm);
    if (comm->object_comm != NULL)
        unexpected_free(comm->object_comm);
}

const wm_module_t wm_unexpected_module = {.drop = unexpected_drop};
