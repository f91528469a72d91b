// SPDX-License-Identifier: BSD-3-Clause
#include "comm/diagnostics/report.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/message/element.h"
#include "comm/message/partitioned.h"

void
wm_words_add(wm_words_t *words, const char *format, ...)
{
    size_t room = sizeof words->text - words->length;
    va_list values;
    va_start(values, format);
    int length = vsnprintf(words->text + words->length, room, format, values);
    va_end(values);
    if (length > 0)
        words->length += (size_t)length < room ? (size_t)length : room - 1;
}

void
wm_words_print(wm_words_t *words)
{
    char line[sizeof words->text + 16];
    int length = snprintf(line, sizeof line, "warpmpi: %s\n", words->text);
    for (int at = 0; at < length;) {
        ssize_t written = write(STDERR_FILENO, line + at,
                                (size_t)(length - at));
        if (written <= 0)
            break;
        at += (int)written;
    }
}

void
wm_report_comm(wm_words_t *words, MPI_Comm comm)
{
    char name[MPI_MAX_OBJECT_NAME + 1] = "";
    int length = 0;
    if (comm == MPI_COMM_NULL
        || MPI_Comm_get_name(comm, name, &length) != MPI_SUCCESS)
        name[0] = '\0';
    wm_words_add(words, "%.64s", name[0] != '\0' ? name : "a communicator");
}

void
wm_report_rank(wm_words_t *words, const wm_comm_t *comm)
{
    MPI_Comm user = comm->owner->user;
    int world = 0, same = MPI_UNEQUAL;
    wm_words_add(words, "rank %d of ", comm->rank);
    wm_report_comm(words, user);
    wm_words_add(words, " (size %d", comm->size);
    if (user != MPI_COMM_NULL)
        MPI_Comm_compare(user, MPI_COMM_WORLD, &same);
    if (same != MPI_IDENT && same != MPI_CONGRUENT) {
        MPI_Comm_rank(MPI_COMM_WORLD, &world);
        wm_words_add(words, "; rank %d of MPI_COMM_WORLD", world);
    }
    wm_words_add(words, ")");
}

void
wm_report_size(wm_words_t *words, bool known, uint64_t nbytes,
               MPI_Datatype type)
{
    const char *name = wm_element_of(type);
    if (known)
        wm_words_add(words, " (%llu byte%s%s%s)", (unsigned long long)nbytes,
                     nbytes == 1 ? "" : "s", name != NULL ? ", " : "",
                     name != NULL ? name : "");
}

bool
wm_report_is_unmatched(wm_about_t about)
{
    return about.is_message && about.receives && !about.matched;
}

static void
add_rank(wm_words_t *words, const char *before, int rank)
{
    if (rank == MPI_ANY_SOURCE)
        wm_words_add(words, "%sany rank", before);
    else if (rank == MPI_PROC_NULL)
        wm_words_add(words, "%sMPI.PROC_NULL", before);
    else
        wm_words_add(words, "%srank %d", before, rank);
}

// Adds the tag. That of embedded arrays and partitioned messages is a number
// of ours.
static void
add_tag(wm_words_t *words, const wm_comm_t *comm, int tag)
{
    int first = wm_comm_last_number(comm) + 1;
    if (comm->owner == comm && tag == MPI_ANY_TAG)
        wm_words_add(words, " with any tag");
    else if (comm->owner == comm)
        wm_words_add(words, " with tag %d", tag);
    else if (tag >= first)
        wm_words_add(words, " with tag %d, partitioned",
                     (tag - first) / WM_PARTITIONED_NUMBERS);
    else
        wm_words_add(words, ", an array inside an object");
}

void
wm_report_rank_of(wm_words_t *words, const char *before, int rank, int tag)
{
    add_rank(words, before, rank);
    if (tag == MPI_ANY_TAG)
        wm_words_add(words, " with any tag");
    else
        wm_words_add(words, " with tag %d", tag);
}

void
wm_report_op(wm_words_t *words, const wm_op_t *op)
{
    const wm_op_t *message = wm_op_message(op);
    wm_about_t about = wm_op_about(op);
    if (!about.is_message) {
        wm_words_add(words, "%s",
                     about.performs != NULL ? about.performs
                                            : "a call that MPI does");
        if (about.performs != NULL)
            add_rank(words, " of a window on ", about.rank);
        return;
    }
    add_rank(words, about.receives ? "a receive from " : "a send to ",
             about.receives && about.matched ? message->result.source
                                             : about.rank);
    add_tag(words, message->comm, about.tag);
    wm_report_size(words, about.sized, about.nbytes, MPI_DATATYPE_NULL);
}

void
wm_report_awaited(wm_words_t *words, const wm_op_t *op, MPI_Datatype type)
{
    const wm_op_t *message = wm_op_message(op);
    wm_about_t about = wm_op_about(op);
    if (about.performs != NULL) {
        add_rank(words, "for ", about.rank);
        wm_words_add(words, " to perform %s of a window", about.performs);
        wm_report_size(words, about.sized, about.nbytes, type);
        return;
    }
    if (!about.is_message) {
        wm_words_add(words, "for MPI");
        return;
    }
    if (!about.receives)
        wm_words_add(words, "for rank %d to receive a message", about.rank);
    else if (about.matched)
        add_rank(words, "for the data of a message from ",
                 message->result.source);
    else
        add_rank(words, "for a message from ", about.rank);
    add_tag(words, message->comm, about.tag);
    wm_report_size(words, about.sized, about.nbytes, type);
}

void
wm_report_messages(wm_words_t *words, const wm_result_t *list, int count,
                   int most)
{
    int shown = count < most ? count : most;
    for (int i = 0; i < shown; ++i)
        wm_words_add(words, "%sfrom rank %d with tag %d (%llu byte%s)",
                     i > 0 ? ", " : "", list[i].source, list[i].tag,
                     (unsigned long long)list[i].nbytes,
                     list[i].nbytes == 1 ? "" : "s");
    if (count > shown)
        wm_words_add(words, " and %d more", count - shown);
}

bool
wm_report_end(wm_words_t *words, int rank, const wm_peer_t *peer)
{
    const wm_account_t *account = wm_node_account(peer);
    bool raised = atomic_load(&account->raised);
    bool leaving = wm_node_is_leaving(peer);
    bool ended = !leaving && !wm_node_may_receive(peer);
    if (raised)
        wm_words_add(words, "; rank %d raised %.*s, and %s", rank,
                     (int)sizeof account->exception - 1, account->exception,
                     ended     ? "its process has ended"
                     : leaving ? "is in MPI_Finalize"
                               : "is ending");
    else if (leaving)
        wm_words_add(words, "; rank %d is in MPI_Finalize", rank);
    else if (ended)
        wm_words_add(words, "; the process of rank %d has ended", rank);
    return raised || leaving || ended;
}
