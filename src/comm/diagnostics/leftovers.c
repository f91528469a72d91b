// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "comm/diagnostics/leftovers.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/settings.h"
#include "comm/engine/engine.h"
#include "comm/engine/modules.h"
#include "comm/message/unexpected.h"
#include "comm/diagnostics/report.h"
#include "comm/node/local_peers.h"
#include "cuda/lock.h"

#define TOLD 10          // lines of each kind
#define LISTED 1000      // messages of a communicator, at most
#define PEERS_US 5000000 // for peers to reach their end
#define QUIET_US 50000   // for messages that MPI has not looked at

typedef struct request {
    struct request *next;
    const wm_op_t *op; // NULL: nobody can wait for it any more
    char text[200];
} request_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static request_t *requests, **end = &requests;

// Records that an operation was given an MPI request. Engine lock held.
static void
leftovers_note(const wm_op_t *op)
{
    if (op->comm != NULL && op->comm == op->comm->owner->object_comm)
        return; // an embedded array: only we wait for it
    request_t *request = calloc(1, sizeof *request);
    wm_words_t words = {.length = 0};
    if (request == NULL)
        return;
    if (op->comm != NULL) {
        wm_report_rank(&words, op->comm->owner);
        wm_words_add(&words, ": ");
    }
    wm_words_add(&words, "a request was never waited for: ");
    wm_report_op(&words, op);
    memcpy(request->text, words.text, sizeof request->text - 1);
    request->op = op;
    wm_lock(&lock);
    *end = request;
    end = &request->next;
    pthread_mutex_unlock(&lock);
}

// Returns the link to the record of an operation; it holds NULL if there is
// none.
static request_t **
find_lock_held(const wm_op_t *op)
{
    request_t **link = &requests;
    while (*link != NULL && (*link)->op != op)
        link = &(*link)->next;
    return link;
}

// Removes the record when the request was waited for, tested, or freed. Any
// lock.
static void
leftovers_strike(const wm_op_t *op)
{
    wm_lock(&lock);
    request_t **link = find_lock_held(op), *request = *link;
    if (request != NULL) {
        *link = request->next;
        if (end == &request->next)
            end = link;
    }
    pthread_mutex_unlock(&lock);
    free(request);
}

void
wm_leftovers_keep(const wm_op_t *op)
{
    if (!wm_setting_is_on(WM_SETTING_CHECK))
        return;
    wm_lock(&lock);
    request_t *request = *find_lock_held(op);
    if (request != NULL)
        request->op = NULL;
    pthread_mutex_unlock(&lock);
}

static void
tell_of_more(int count, const char *what)
{
    wm_words_t words = {.length = 0};
    if (count <= TOLD)
        return;
    wm_words_add(&words, "and %d more %s", count - TOLD, what);
    wm_words_print(&words);
}

static void
tell_of_requests(void)
{
    int count = 0;
    wm_lock(&lock);
    for (request_t *request = requests; request != NULL;
         request = request->next) {
        wm_words_t words = {.length = 0};
        wm_words_add(&words, "%s", request->text);
        if (++count <= TOLD)
            wm_words_print(&words);
    }
    pthread_mutex_unlock(&lock);
    tell_of_more(count, "requests were never waited for");
}

// Messages of a communicator that nobody received.
static wm_result_t list[LISTED];

static void
tell_of_messages(void)
{
    int count = 0;
    for (wm_comm_t *comm = wm_comm_all(); comm != NULL; comm = comm->next) {
        int come = wm_unexpected_list(comm, list, LISTED);
        for (int i = 0; i < come && i < LISTED && count + i < TOLD; ++i) {
            wm_words_t words = {.length = 0};
            wm_report_rank(&words, comm);
            wm_words_add(&words, ": a message was never received: ");
            wm_report_messages(&words, &list[i], 1, 1);
            wm_words_print(&words);
        }
        count += come;
    }
    tell_of_more(count, "messages were never received");
}

// Returns what the program made, or NULL for a constant of MPI and our own.
static const char *
made_as(const wm_comm_t *comm)
{
    MPI_Comm parent = MPI_COMM_NULL;
    char name[MPI_MAX_OBJECT_NAME + 1] = "";
    const char window[] = "a window"; // so _windows.py names its communicator
    int length = 0;
    MPI_Comm_get_parent(&parent);
    MPI_Comm_get_name(comm->user, name, &length);
    if (comm->user == MPI_COMM_WORLD || comm->user == MPI_COMM_SELF
        || comm->user == parent || strcmp(name, "warpmpi") == 0)
        return NULL;
    return strncmp(name, window, sizeof window - 1) == 0 ? "window"
                                                         : "communicator";
}

static void
tell_of_communicators(void)
{
    int count = 0;
    for (wm_comm_t *comm = wm_comm_all(); comm != NULL; comm = comm->next) {
        wm_words_t words = {.length = 0};
        const char *made = made_as(comm);
        if (made == NULL || ++count > TOLD)
            continue;
        wm_report_rank(&words, comm);
        wm_words_add(&words, ": the %s was never freed", made);
        wm_words_print(&words);
    }
    tell_of_more(count, "communicators or windows were never freed");
}

static bool
are_peers_at_end(void)
{
    bool ended = true;
    for (wm_peer_t *peer = wm_node_peers(); peer != NULL;
         peer = wm_local_peers_next(peer))
        ended &= peer->self || !wm_node_may_receive(peer);
    return ended;
}

// Returns how many messages have come. MPI moves none unless it is asked.
static int
count_messages(void)
{
    int count = 0;
    for (wm_comm_t *comm = wm_comm_all(); comm != NULL; comm = comm->next)
        count += wm_unexpected_list(comm, list, LISTED);
    return count;
}

// Waits until nobody sends any more: all peers are at their end, and nothing
// has come since.
static void
wait_for_peers(void)
{
    int64_t now = wm_engine_now(), until = now + PEERS_US, since = now;
    for (int count = -1; now < until && now < since + QUIET_US;) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        wm_engine_poll();
        now = wm_engine_now();
        wm_engine_lock();
        int before = count;
        count = count_messages();
        if (!are_peers_at_end() || count != before)
            since = now;
        wm_engine_unlock();
    }
}

// Writes the report to stderr, in MPI_Finalize. Engine lock not held.
static void
leftovers_tell(void)
{
    if (!wm_setting_is_on(WM_SETTING_CHECK))
        return;
    wait_for_peers();
    wm_engine_lock();
    tell_of_messages();
    tell_of_requests();
    tell_of_communicators();
    wm_engine_unlock();
}

const wm_module_t wm_leftovers_module = {
    .requested = leftovers_note,
    .request_freed = leftovers_strike,
    .end = leftovers_tell,
};
