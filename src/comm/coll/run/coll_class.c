// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/run/coll_class.h"

#include <stdlib.h>

#include "comm/coll/call/coll_wait.h"
#include "comm/coll/call/reducible.h"
#include "comm/engine/engine.h"
#include "comm/engine/stats.h"

#define LOOKS 50 // before a blocking call waits

struct wm_coll_class {
    struct wm_coll_class *next;
    uint64_t key;
    bool settled;
    unsigned engine;       // settled: the bit of its engine; 0: MPI
    unsigned told, answer; // of a question: by this rank, by all
    MPI_Request question;  // under way
    // These are for a kind whose lengths no rank knows. All ranks have the
    // same, but for `staged`.
    unsigned every, left; // calls for one question; and of them, to come
    unsigned watched;     // calls to come that each ask
    bool tried;           // they did so because ranks had GPU memory
    bool staged;          // this rank had, in a call that did not ask
};

// Returns true if lengths vary by rank, and all ranks know them.
static bool
class_lists_lengths(wm_coll_kind_t kind)
{
    return wm_coll_shape(kind)->uneven || kind == WM_COLL_ALLGATHERV;
}

// Returns true if no rank knows the lengths of the others, so that each call
// asks.
static bool
asks_each_time(wm_coll_kind_t kind)
{
    return wm_coll_shape(kind)->varies && !class_lists_lengths(kind);
}

bool
wm_coll_class_has_length(wm_comm_t *comm, const wm_coll_t *call)
{
    const wm_shape_t *shape = wm_coll_shape(call->kind);
    bool known = (!shape->reduces || wm_reducible_op(call->op) < WM_REDUCE_OPS)
                 && (!class_lists_lengths(call->kind)
                     || comm->size <= WM_BARRIER_RANKS);
    return comm->split == 0 && known && !asks_each_time(call->kind)
           && wm_coll_engines_do(comm, call->kind) != 0;
}

// Returns the bytes of a call, which all ranks know alike.
static size_t
bytes_of(const wm_participant_t *participant)
{
    const wm_coll_t *call = participant->call;
    size_t nbytes = 0;
    if (call->kind != WM_COLL_ALLGATHERV)
        return wm_coll_shape(call->kind)->uneven
                   ? (call->send != NULL ? call->send : call->receive)->nbytes
                   : wm_participant_block(participant);
    if (call->receives == NULL) // all of one length
        return call->receive->nbytes;
    for (int rank = 0; rank < participant->comm->size; ++rank)
        nbytes += call->receives[rank].nbytes;
    return nbytes;
}

static uint64_t
key_of_kind(wm_coll_kind_t kind)
{
    return WM_COLL_CLASS_SHORT + 1 + (uint64_t)kind;
}

uint64_t
wm_coll_class_key(const wm_participant_t *participant)
{
    const wm_coll_t *call = participant->call;
    uint64_t log = 0;
    if (wm_comm_is_one_host(participant->comm))
        return WM_COLL_CLASS_NONE;
    if (asks_each_time(call->kind))
        return key_of_kind(call->kind);
    if (!call->read || !wm_coll_class_has_length(participant->comm, call))
        return WM_COLL_CLASS_NONE;
    size_t nbytes = bytes_of(participant);
    if (nbytes < WM_COLL_CLASS_BYTES
        && !wm_coll_engines_take_short(participant->comm))
        return WM_COLL_CLASS_SHORT;
    if (!participant->reducible || nbytes == 0
        || (wm_coll_shape(call->kind)->uneven && call->receives == NULL))
        return WM_COLL_CLASS_NONE;
    while (nbytes >> log > 1)
        ++log;
    return key_of_kind(call->kind) + ((uint64_t)participant->type << 16)
           + ((uint64_t)participant->op << 32) + (log << 48);
}

static wm_coll_class_t *
class_of(const wm_comm_t *comm, uint64_t key)
{
    wm_coll_class_t *class = comm->colls.classes;
    while (class != NULL && class->key != key)
        class = class->next;
    return class;
}

bool
wm_coll_class_find(const wm_coll_op_t *op, unsigned *engines)
{
    const wm_participant_t *participant = &op->participant;
    wm_comm_t *comm = participant->comm;
    if (wm_coll_class_is_every(comm)) {
        *engines = comm->colls.classes->engine;
        return true;
    }
    *engines = 0;
    if (asks_each_time(participant->call->kind))
        return op->form != WM_COLL_FORM_BLOCKING || comm->split > 0
               || wm_coll_engines_do(comm, participant->call->kind) == 0;
    if (op->key <= WM_COLL_CLASS_SHORT)
        return true;
    const wm_coll_class_t *class = class_of(comm, op->key);
    if (class != NULL)
        *engines = class->engine;
    return class != NULL && class->settled;
}

bool
wm_coll_class_repeat(wm_comm_t *comm, wm_coll_kind_t kind, bool on_device)
{
    wm_coll_class_t *class = asks_each_time(kind)
                                     && !wm_coll_engines_take_short(comm)
                                 ? class_of(comm, key_of_kind(kind))
                                 : NULL;
    if (class == NULL || class->left == 0)
        return false;
    --class->left;
    class->staged |= on_device;
    return true;
}

// Counts the calls that this answer serves. Programs may give arrays of GPUs
// in some calls of a kind alone.
static void
class_count(wm_coll_class_t *class, bool on_device)
{
    bool serves = class->engine != 0;
    bool tries = !serves && on_device && !class->tried;
    class->tried = !serves && (class->tried || on_device);
    if (serves || tries)
        class->watched = WM_COLL_CLASS_REPEATS;
    if (class->watched > 0) {
        --class->watched;
        class->every = 1;
    }
    else if (class->every < WM_COLL_CLASS_REPEATS)
        class->every *= 2;
    class->left = class->every - 1;
    class->staged = false;
}

bool
wm_coll_class_is_every(const wm_comm_t *comm)
{
    const wm_coll_class_t *class = comm->colls.classes;
    return class != NULL && class->key == WM_COLL_CLASS_EVERY;
}

int
wm_coll_class_keep(wm_comm_t *comm, uint64_t key, unsigned engines,
                   wm_error_t *err)
{
    wm_coll_class_t *class = malloc(sizeof *class);
    if (class == NULL)
        return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
    *class = (wm_coll_class_t){
        .next = comm->colls.classes,
        .key = key,
        .settled = true,
        .engine = wm_coll_engines_first(engines),
        .every = 1,
        .question = MPI_REQUEST_NULL,
    };
    comm->colls.classes = class;
    return 0;
}

// Frees the last class that was kept.
static void
class_forget(wm_comm_t *comm)
{
    wm_coll_class_t *class = comm->colls.classes;
    comm->colls.classes = class->next;
    // After an error MPI may yet write the answer.
    if (class->question == MPI_REQUEST_NULL)
        free(class);
}

int
wm_coll_class_begin(const wm_coll_op_t *op, wm_coll_class_t **class,
                    wm_error_t *err)
{
    wm_comm_t *comm = op->participant.comm;
    *class = class_of(comm, op->key);
    if (*class != NULL)
        return 0;
    int code = wm_coll_class_keep(comm, op->key, 0, err);
    if (code < 0)
        return code;
    wm_coll_class_t *asked = *class = comm->colls.classes;
    asked->settled = false;
    asked->told = wm_coll_op_serving(op);
    wm_stat_add(WM_STAT_asked_collectives, 1);
    code = wm_mpi_check(MPI_Iallreduce(&asked->told, &asked->answer, 1,
                                       MPI_UNSIGNED, MPI_BAND, comm->match,
                                       &asked->question),
                        "MPI_Iallreduce", err);
    if (code < 0)
        class_forget(comm);
    return code;
}

int
wm_coll_class_look(wm_coll_class_t *class, unsigned *engines, wm_error_t *err)
{
    int flag = 1;
    int code = 0;
    if (class->question != MPI_REQUEST_NULL)
        code = wm_mpi_check(
            MPI_Test(&class->question, &flag, MPI_STATUS_IGNORE), "MPI_Test",
            err);
    if (code < 0)
        class->answer = 0; // for the next calls, which will fail as well
    if (code < 0 || !flag)
        return code;
    *engines = class->answer;
    return 1;
}

static int
look_for_answer(void *context, wm_error_t *err)
{
    unsigned unused;
    wm_engine_lock();
    int answered = wm_coll_class_look(context, &unused, err);
    wm_engine_unlock();
    return answered;
}

// Waits for the answer to the question of a nonblocking call, opens the engine
// and settles the class.
static int
class_settle(wm_comm_t *comm, const wm_coll_t *call, wm_coll_class_t *class,
             wm_error_t *err)
{
    int code = wm_coll_wait(comm, look_for_answer, class, LOOKS, err);
    unsigned engines = class->answer;
    if (code == 0)
        code = wm_coll_engines_open(comm, call->kind, comm->colls.device,
                                    &engines, err);
    if (code < 0)
        return code;
    class->engine = wm_coll_engines_first(engines);
    class->settled = true;
    return 0;
}

int
wm_coll_class_ask(const wm_coll_op_t *op, unsigned *engines, wm_error_t *err)
{
    wm_comm_t *comm = op->participant.comm;
    const wm_coll_t *call = op->participant.call;
    bool again = asks_each_time(call->kind);
    wm_coll_class_t *class = class_of(comm, op->key);
    wm_error_t why;
    if (comm->colls.opened == 0)
        comm->colls.device = wm_coll_device(call);
    if (class != NULL && !again) {
        int settled = class_settle(comm, call, class, err);
        *engines = class->engine;
        return settled;
    }
    bool first = class == NULL;
    int code = first ? wm_coll_class_keep(comm, op->key, 0, &why) : 0;
    class = first ? comm->colls.classes : class;
    wm_preflight_t preflight = {
        .call = call->kind,
        .code = code,
        .on_device = call->on_device || (!first && class->staged),
    };
    if (code < 0)
        *err = why;
    int asked;
    unsigned closed;
    do { // again if an engine could not be opened: another may serve
        closed = comm->colls.closed;
        preflight.all = wm_coll_op_serving(op);
        wm_stat_add(WM_STAT_asked_collectives, 1);
        asked = wm_preflight_run(comm, &preflight, err);
        if (asked == 0)
            asked = wm_coll_engines_open(comm, call->kind, comm->colls.device,
                                         &preflight.all, err);
    } while (asked == 0 && preflight.all == 0 && comm->colls.closed != closed);
    if (asked < 0) {
        if (first && code == 0) // the next call asks again
            class_forget(comm);
        return asked;
    }
    *engines = class->engine = wm_coll_engines_first(preflight.all);
    if (again)
        class_count(class, preflight.on_device);
    return 0;
}

void
wm_coll_class_drop(wm_comm_t *comm)
{
    while (comm->colls.classes != NULL)
        class_forget(comm);
}
