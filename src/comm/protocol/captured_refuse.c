// SPDX-License-Identifier: BSD-3-Clause
// Messages of CUDA graphs that a rank refuses when they are captured: its
// graph lacks them, and the other rank's may wait for them. The rank tells the
// other one, under the tag of headers. A refusal takes no partner: a call that
// is captured again is the message, and its header withdraws the refusal. A
// receive has no header, and its answer may come before the refusal: the rank
// tells that the refusal is withdrawn. Only a graph that has waited for long
// ends by one (captured_close.c).
#include <stdlib.h>

#include "comm/engine/engine.h"
#include "comm/protocol/captured_end.h"

static wm_captured_refused_t *
refused_find(const wm_comm_t *comm, bool heard, bool receives, int rank,
             int tag)
{
    wm_captured_refused_t *one = comm->captured->refused;
    while (one != NULL
           && (one->heard != heard || one->rank != rank
               || (one->what.receives != 0) != receives
               || one->what.tag != tag))
        one = one->next;
    return one;
}

// Returns the entry, which is made if need be; NULL: out of memory.
static wm_captured_refused_t *
refused_get(wm_comm_t *comm, bool heard, bool receives, int rank, int tag)
{
    wm_captured_refused_t *one = refused_find(comm, heard, receives, rank,
                                              tag);
    if (one != NULL || (one = calloc(1, sizeof *one)) == NULL)
        return one;
    one->heard = heard;
    one->rank = rank;
    one->what = (captured_refusal_t){
        .magic = CAPTURED_REFUSAL_MAGIC,
        .receives = receives,
        .tag = tag,
    };
    one->withdrawn = one->what;
    one->next = comm->captured->refused;
    comm->captured->refused = one;
    return one;
}

// Sends what the entry keeps, and never changes: MPI may still be sending it.
static void
refused_send(wm_comm_t *comm, int rank, const captured_refusal_t *what)
{
    MPI_Request request;
    if (MPI_Isend(what, sizeof *what, MPI_BYTE, rank,
                  wm_captured_header_tag(comm), comm->data, &request)
        == MPI_SUCCESS)
        wm_posted_leave(comm, &request);
}

static void
refused_tell(wm_comm_t *comm, wm_captured_refused_t *one, const char *text)
{
    if (one->what.text[0] == 0)
        wm_error_cut(text, sizeof one->what.text, one->what.text);
    one->open = true;
    refused_send(comm, one->rank, &one->what);
}

static void
refused_withdraw(wm_comm_t *comm, wm_captured_refused_t *one)
{
    if (one->open && !one->heard && one->what.receives)
        refused_send(comm, one->rank, &one->withdrawn);
    one->open = false;
}

void
wm_captured_refuse(wm_comm_t *comm, const wm_envelope_t *envelope,
                   bool receives, const char *text)
{
    int rank = envelope->rank, tag = envelope->tag;
    if (rank < 0 || wm_comm_check(comm, "rank", rank, tag, receives, NULL) < 0)
        return; // nobody waits for this rank, or nobody knows who
    wm_engine_lock();
    wm_captured_refused_t *one = wm_captured_ends(comm) != NULL ? refused_get(
                                     comm, false, receives, rank, tag)
                                                                : NULL;
    if (one != NULL && !one->open)
        refused_tell(comm, one, text);
    wm_engine_unlock();
    wm_engine_notify();
}

void
wm_captured_withdraw_refusal(wm_comm_t *comm, bool heard, bool receives,
                             int rank, int tag)
{
    wm_captured_refused_t *one = comm->captured->refused;
    for (; one != NULL; one = one->next)
        if (one->heard == heard && one->rank == rank
            && (one->what.receives != 0) == receives
            && (one->what.tag == tag || one->what.tag == MPI_ANY_TAG))
            refused_withdraw(comm, one);
}

void
wm_captured_hear_refusal(wm_comm_t *comm, int rank,
                         const captured_refusal_t *what)
{
    wm_captured_refused_t *one = refused_get(comm, true, what->receives != 0,
                                             rank, what->tag);
    if (one == NULL)
        return; // the wait is reported
    one->what = *what;
    one->what.text[sizeof what->text - 1] = 0;
    one->open = one->what.text[0] != 0;
}

const char *
wm_captured_find_refusal(const wm_captured_t *end, int *rank)
{
    const wm_captured_refused_t *one = end->comm->captured->refused;
    for (; one != NULL; one = one->next)
        if (one->heard && one->open
            && (one->what.receives != 0) == !end->receives
            && (end->rank == one->rank || end->rank == MPI_ANY_SOURCE)
            && (end->tag == one->what.tag || end->tag == MPI_ANY_TAG
                || one->what.tag == MPI_ANY_TAG)) {
            *rank = one->rank;
            return one->what.text;
        }
    return NULL;
}

void
wm_captured_drop_refusals(struct wm_captured_ends *ends)
{
    while (ends->refused != NULL) {
        wm_captured_refused_t *next = ends->refused->next;
        free(ends->refused);
        ends->refused = next;
    }
}
