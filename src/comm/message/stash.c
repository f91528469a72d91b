// SPDX-License-Identifier: BSD-3-Clause
#include "comm/message/stash.h"

#include <stdlib.h>
#include <string.h>

#include "comm/engine/engine.h"
#include "comm/message/p2p.h"

struct wm_stashed {
    wm_stashed_t *next;
    int source, tag;
    uint64_t number;       // grows in the order in which they came
    MPI_Request request;   // null: it is all here
    MPI_Count length;      // of header and payload
    const wm_end_t *taker; // a receive that waits for it
    char packet[WM_PACKET_BYTES];
};

static uint64_t numbers;
static wm_stashed_t *spare; // looking takes one, and finds nothing as a rule

static wm_stashed_t *
make(void)
{
    wm_stashed_t *entry = spare != NULL ? spare : malloc(sizeof *entry);
    spare = NULL;
    if (entry == NULL)
        return NULL;
    entry->request = MPI_REQUEST_NULL;
    entry->taker = NULL;
    return entry;
}

static void
put_at(wm_stashed_t **link, wm_stashed_t *entry)
{
    entry->next = *link;
    *link = entry;
}

static bool
matches(const wm_stashed_t *entry, int rank, int tag)
{
    return (rank == MPI_ANY_SOURCE || rank == entry->source)
           && (tag == MPI_ANY_TAG || tag == entry->tag);
}

// The place of the first that matches and is no other receive's; it holds NULL
// where there is none.
static wm_stashed_t **
find(wm_comm_t *comm, int rank, int tag, const wm_end_t *taker)
{
    wm_stashed_t **link = &comm->stash, *entry;
    for (; (entry = *link) != NULL; link = &entry->next)
        if (matches(entry, rank, tag)
            && (entry->taker == NULL || entry->taker == taker))
            break;
    return link;
}

// Whether it is here: 1, 0 when it is still coming, or MPI's error, and then
// it never will.
static int
look(wm_stashed_t **link, wm_error_t *err)
{
    wm_stashed_t *entry = *link;
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

// Asks MPI for the first message of `rank` (or of anybody), whatever its tag,
// and appends it. 1 where there was one.
static int
pull(wm_comm_t *comm, int rank, wm_error_t *err)
{
    MPI_Message message;
    MPI_Status status;
    int flag = 0;
    wm_stashed_t *entry = make(), **last = &comm->stash;
    if (entry == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    int code = wm_mpi_check(
        MPI_Improbe(rank, MPI_ANY_TAG, comm->match, &flag, &message, &status),
        "MPI_Improbe", err);
    // Its payload may have to wait for the sender.
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
    put_at(last, entry);
    return 1;
}

static uint32_t
order_of(const char *packet)
{
    wm_header_t header;
    wm_header_read(&header, packet);
    return header.order;
}

// By its sender's count.
static void
put_in_turn(wm_comm_t *comm, wm_stashed_t *entry)
{
    wm_stashed_t **link = &comm->stash;
    uint32_t order = order_of(entry->packet);
    for (; *link != NULL; link = &(*link)->next) {
        wm_stashed_t *other = *link;
        if (other->source != entry->source)
            continue;
        (void)!wm_mpi_check(MPI_Wait(&other->request, MPI_STATUS_IGNORE),
                            "MPI_Wait", NULL);
        if ((int32_t)(order_of(other->packet) - order) > 0)
            break;
    }
    entry->number = *link != NULL ? (*link)->number : ++numbers;
    put_at(link, entry);
}

// Whether a receive that waits in MPI no longer does: it waits for the stash,
// or has what came before it could be taken back.
static bool
take_back(wm_end_t *end)
{
    MPI_Status status;
    int flag = 0, cancelled = 0;
    if (MPI_Test(&end->matching, &flag, &status) != MPI_SUCCESS)
        return false;
    bool asked = flag; // nobody but its owner can have cancelled it
    if (!flag) {
        MPI_Cancel(&end->matching);
        if (MPI_Wait(&end->matching, &status) != MPI_SUCCESS)
            return false;
    }
    MPI_Test_cancelled(&status, &cancelled);
    end->withdrawn |= asked && cancelled;
    end->stashed = !cancelled;
    if (end->stashed) {
        end->op.result.source = status.MPI_SOURCE;
        end->op.result.tag = status.MPI_TAG;
    }
    return !end->withdrawn;
}

// The receive has what was sent after the entry, and gets that instead.
static bool
swap(wm_end_t *end, wm_stashed_t *entry)
{
    char packet[WM_PACKET_BYTES];
    if (end->op.result.source != entry->source
        || entry->request != MPI_REQUEST_NULL
        || (int32_t)(order_of(end->packet) - order_of(entry->packet)) < 0)
        return false;
    wm_stash_remove(end->op.comm, entry);
    memcpy(packet, end->packet, sizeof packet);
    memcpy(end->packet, entry->packet, sizeof packet);
    memcpy(entry->packet, packet, sizeof packet);
    int tag = end->op.result.tag;
    end->op.result.tag = entry->tag;
    entry->tag = tag;
    put_in_turn(end->op.comm, entry);
    return true;
}

// Whether one receive's message is in the stash before another.
static bool
comes_before(const wm_comm_t *comm, const wm_stashed_t *one,
             const wm_stashed_t *other)
{
    const wm_stashed_t *entry = comm->stash;
    while (entry != one && entry != other)
        entry = entry->next;
    return entry == one;
}

static wm_stashed_t *
taken_by(wm_comm_t *comm, const wm_end_t *end)
{
    wm_stashed_t *entry = comm->stash;
    while (entry != NULL && entry->taker != end)
        entry = entry->next;
    return entry;
}

// What is nobody's any more is the first receive's that waits for it, and MPI
// would never give it that: the receive, and what it leaves to others, come
// back from there.
static void
offer(wm_comm_t *comm, wm_stashed_t *entry)
{
    for (wm_op_t *op = wm_engine_first(); op != NULL; op = op->next) {
        wm_end_t *end = (wm_end_t *)op;
        if (op->comm != comm || !wm_end_is_receive(op)
            || end->header.magic != 0 || end->stashed || end->withdrawn
            || !matches(entry, end->rank, end->tag))
            continue;
        if (end->matching != MPI_REQUEST_NULL && !take_back(end))
            continue;
        if (end->stashed) {
            (void)swap(end, entry);
            continue;
        }
        wm_stashed_t *other = taken_by(comm, end);
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
wm_stash_put(wm_end_t *end)
{
    wm_stashed_t *entry = make();
    if (entry == NULL)
        return false;
    entry->source = end->op.result.source;
    entry->tag = end->op.result.tag;
    memcpy(entry->packet, end->packet, sizeof entry->packet);
    // MPI may still hold earlier ones with other tags.
    while (pull(end->op.comm, entry->source, NULL) > 0)
        ;
    put_in_turn(end->op.comm, entry);
    offer(end->op.comm, entry);
    return true;
}

void
wm_stash_look_again(wm_end_t *end)
{
    wm_stashed_t *entry = *find(end->op.comm, end->rank, end->tag, NULL);
    if (entry != NULL)
        offer(end->op.comm, entry);
}

int
wm_stash_take(wm_end_t *end, wm_error_t *err)
{
    wm_stashed_t **link = find(end->op.comm, end->rank, end->tag, end);
    wm_stashed_t *entry = *link;
    if (entry == NULL)
        return WM_STASH_NONE;
    int code = look(link, err);
    if (code < 0)
        return code;
    entry->taker = end;
    if (code == 0)
        return WM_STASH_COMES;
    *link = entry->next;
    wm_stash_open(end, entry);
    return WM_STASH_TAKEN;
}

void
wm_stash_let_go(const wm_end_t *end)
{
    wm_stashed_t *entry = taken_by(end->op.comm, end);
    if (entry == NULL)
        return;
    entry->taker = NULL;
    offer(end->op.comm, entry);
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
wm_stash_open(wm_end_t *end, wm_stashed_t *entry)
{
    end->op.result.source = entry->source;
    end->op.result.tag = entry->tag;
    memcpy(end->packet, entry->packet, sizeof entry->packet);
    free(entry);
}

// Bytes of the payload: of what is still coming it can be no offer's.
static uint64_t
nbytes_of(const wm_stashed_t *entry)
{
    wm_header_t header;
    if (entry->request != MPI_REQUEST_NULL)
        return (uint64_t)entry->length - WM_HEADER_SHORT;
    wm_header_read(&header, entry->packet);
    return header.nbytes;
}

static wm_result_t
result_of(const wm_stashed_t *entry)
{
    return (wm_result_t){
        .received = true,
        .source = entry->source,
        .tag = entry->tag,
        .nbytes = nbytes_of(entry),
    };
}

int
wm_stash_probe(wm_comm_t *comm, int rank, int tag, wm_stashed_t **found,
               wm_result_t *result, wm_error_t *err)
{
    wm_stashed_t **link;
    int code = 1;
    *found = NULL;
    // All that came before it comes here, too, and so do the next receives.
    while (*(link = find(comm, rank, tag, NULL)) == NULL && code > 0)
        code = pull(comm, rank, err);
    if (*link != NULL)
        code = look(link, err);
    if (code <= 0)
        return code;
    *found = *link;
    *result = result_of(*link);
    return 0;
}

int
wm_stash_list(wm_comm_t *comm, wm_result_t *list, int most)
{
    int count = 0;
    wm_stashed_t **link = &comm->stash;
    while (*link != NULL
           || (count < most && pull(comm, MPI_ANY_SOURCE, NULL) > 0)) {
        if ((*link)->taker == NULL && look(link, NULL) < 0)
            continue; // it has gone
        if (count < most)
            list[count] = result_of(*link);
        ++count;
        link = &(*link)->next;
    }
    return count;
}

void
wm_stash_free(wm_comm_t *comm)
{
    while (comm->stash != NULL) {
        wm_stashed_t *entry = comm->stash;
        comm->stash = entry->next;
        if (look(&entry, NULL) > 0) // else MPI may still write it
            free(entry);
    }
}

void
wm_matched_return(wm_comm_t *comm, wm_stashed_t *matched)
{
    wm_engine_lock();
    wm_stashed_t **link = &comm->stash;
    while (*link != NULL && (*link)->number < matched->number)
        link = &(*link)->next;
    put_at(link, matched);
    offer(comm, matched);
    wm_engine_unlock();
}
