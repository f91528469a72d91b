// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE // strdup
#include "comm/coll/run/coll_engines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/coll/call/stream_calls.h"
#include "comm/coll/run/coll_class.h"
#include "comm/coll/run/moved_coll.h"
#include "comm/comm/require.h"
#include "comm/engine/engine.h"
#include "comm/engine/modules.h"
#include "comm/engine/route.h"
#include "cuda/event.h"
#include "cuda/settings.h"

static const wm_coll_engine_t *const engines[] = {
#define X(name) &wm_##name##_engine,
    WM_COLL_ENGINE_ROWS(X)
#undef X
};

// Without MPI, which has no bit.
#define ENGINES ((int)(sizeof engines / sizeof *engines) - 1)

_Static_assert(ENGINES <= WM_COLL_ENGINES, "there is room");

static _Atomic int64_t started[ENGINES + 1]; // calls
static unsigned ruled_out;                   // bits; engine lock

const wm_coll_engine_t *
wm_coll_engines_at(int number)
{
    return number <= ENGINES ? engines[number] : NULL;
}

int64_t
wm_coll_engines_started(int number)
{
    return atomic_load(&started[number]);
}

bool
wm_coll_engines_take_short(const wm_comm_t *comm)
{
    return (ruled_out & 1u << ENGINES) != 0 || wm_require_is_on(comm);
}

static int
engine_number(const wm_coll_engine_t *engine)
{
    int number = 0;
    while (engines[number] != engine)
        ++number;
    return number;
}

void
wm_coll_engines_count(const wm_coll_engine_t *engine)
{
    atomic_fetch_add_explicit(&started[engine_number(engine)], 1,
                              memory_order_relaxed);
}

unsigned
wm_coll_engines_span(wm_comm_t *comm)
{
    wm_comm_colls_t *colls = &comm->colls;
    for (int i = 0; i < ENGINES && !colls->known; ++i)
        if ((ruled_out & 1u << i) == 0 && engines[i]->spans(comm))
            colls->span |= 1u << i;
    colls->known = true;
    return colls->span & ~colls->closed;
}

static bool
is_open(const wm_comm_t *comm, int engine)
{
    return engines[engine]->open == NULL
           || (comm->colls.opened & 1u << engine) != 0;
}

// Makes the communicator of calls that MPI begins in turn. Between hosts such
// a call may wait for an answer (coll_class.h), while MPI's calls that are not
// ours begin on `data`. Levels ask nobody.
static int
open_ordered(wm_comm_t *comm, wm_error_t *err)
{
    wm_comm_colls_t *colls = &comm->colls;
    if (wm_comm_is_one_host(comm) || comm->parent != NULL
        || colls->ordered != NULL)
        return 0;
    MPI_Comm *made = malloc(sizeof *made);
    MPI_Comm unused;
    wm_neighbor_rule_t plain; // unused: `data` has each neighbor once
    int code = wm_neighbor_clone(comm->data, comm->match,
                                 made != NULL ? made : &unused, &plain, err);
    if (made != NULL && code == 0)
        colls->ordered = made;
    else
        free(made);
    return code == 0 && made == NULL
               ? wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory")
               : code;
}

// Notes if an engine is open, and else why not, which the progress thread and
// wm_coll_tell() read.
static void
engine_note(wm_comm_colls_t *colls, int engine, int device, bool opened,
            const wm_error_t *why)
{
    char *text = why != NULL ? strdup(why->text) : NULL;
    wm_engine_lock();
    char *former = colls->why[engine];
    colls->why[engine] = text;
    if (!opened) {
        colls->closed |= 1u << engine;
    }
    else {
        if (colls->opened == 0)
            colls->device = device;
        colls->opened |= 1u << engine;
        colls->closed &= ~(1u << engine);
    }
    wm_engine_unlock();
    free(former);
}

// Opens an engine on all ranks, or on none: then `why` tells the reason.
static int
engine_open(wm_comm_t *comm, wm_coll_kind_t kind, int engine, int device,
            wm_error_t *why, wm_error_t *err)
{
    wm_comm_colls_t *colls = &comm->colls;
    const wm_coll_engine_t *row = engines[engine];
    void **state = &colls->state[engine];
    wm_error_t later;
    int code = open_ordered(comm, why);
    if (code == 0 && !wm_comm_is_one_host(comm))
        code = wm_stream_calls_make(comm, why);
    int opened = row->open(comm, device, state, code < 0 ? &later : why);
    code = code < 0 ? code : opened;
    wm_preflight_t preflight = {.call = kind, .all = code == 0};
    int exchanged = wm_preflight_run(comm, &preflight, err);
    bool by_all = exchanged == 0 && preflight.all != 0;
    engine_note(colls, engine, device, by_all, code < 0 ? why : NULL);
    if (by_all)
        return 0;
    if (exchanged < 0)
        return exchanged;
    if (opened == 0 && row->comm_drop != NULL)
        row->comm_drop(comm, *state);
    *state = NULL;
    if (code < 0)
        return 0;
    (void)wm_error_set(why, WM_ERR_STATE, 0,
                       "another rank could not open the engine \"%s\" of "
                       "collectives: its error tells why",
                       row->name);
    return 0;
}

unsigned
wm_coll_engines_first(unsigned among)
{
    return among & (0 - among);
}

bool
wm_coll_engines_first_is_open(const wm_comm_t *comm, unsigned among)
{
    return among == 0 || is_open(comm, __builtin_ctz(among));
}

int
wm_coll_engines_open(wm_comm_t *comm, wm_coll_kind_t kind, int device,
                     unsigned *among, wm_error_t *err)
{
    int code = 0;
    wm_error_t unused; // all ranks go on without the engine
    while (code == 0 && !wm_coll_engines_first_is_open(comm, *among)) {
        code = engine_open(comm, kind, __builtin_ctz(*among), device, &unused,
                           err);
        *among &= wm_coll_engines_span(comm);
    }
    return code;
}

static bool
engine_does(const wm_coll_engine_t *engine, const wm_coll_facts_t *facts)
{
    return engine->does == NULL || engine->does(facts);
}

// Returns the bit of the first engine of these bits that does a call.
static unsigned
first_that_does(unsigned among, const wm_coll_facts_t *facts)
{
    while (among != 0 && !engine_does(engines[__builtin_ctz(among)], facts))
        among &= among - 1;
    return wm_coll_engines_first(among);
}

// Returns the bits of those of `among` that are first for some call of a kind.
static unsigned
firsts_of(const wm_comm_t *comm, wm_coll_kind_t kind, unsigned among)
{
    wm_coll_facts_t facts = {.comm = comm, .kind = kind};
    unsigned found = 0;
    if (!wm_coll_shape(kind)->reduces)
        return first_that_does(among, &facts);
    for (int type = 0; type < WM_REDUCE_TYPES; ++type)
        for (int op = 0; op < WM_REDUCE_OPS && found != among; ++op) {
            facts.type = (wm_reduce_type_t)type;
            facts.op = (wm_reduce_op_t)op;
            if (wm_reduce_takes(facts.type, facts.op))
                found |= first_that_does(among, &facts);
        }
    return found;
}

bool
wm_coll_engines_may_do(const wm_comm_t *comm, wm_coll_kind_t kind, int number)
{
    return firsts_of(comm, kind, 1u << number) != 0;
}

unsigned
wm_coll_engines_do(wm_comm_t *comm, wm_coll_kind_t kind)
{
    unsigned found = 0, span = wm_coll_engines_span(comm);
    for (int i = 0; i < ENGINES; ++i)
        if ((span & 1u << i) != 0 && wm_coll_engines_may_do(comm, kind, i))
            found |= 1u << i;
    return found;
}

unsigned
wm_coll_engines_on_stream(wm_comm_t *comm, wm_coll_kind_t kind)
{
    unsigned found = 0;
    (void)wm_coll_engines_span(comm);
    for (int i = 0; i < ENGINES; ++i)
        if ((comm->colls.span & 1u << i) != 0 && engines[i]->on_stream != NULL
            && wm_coll_engines_may_do(comm, kind, i))
            found |= 1u << i;
    return found;
}

// Returns the bits of the engines that may serve GPU memory of a communicator,
// on streams if `on_stream`.
static unsigned
spanning_gpus(wm_comm_t *comm, bool on_stream)
{
    unsigned found = wm_coll_engines_span(comm);
    for (int i = 0; i < ENGINES; ++i)
        if ((engines[i]->takes & WM_COLL_TAKES_DEVICE) == 0
            || (on_stream && engines[i]->on_stream == NULL))
            found &= ~(1u << i);
    return found;
}

// Returns the bits of the engines that are to do calls of these kinds, and are
// not open.
static unsigned
missing_for(wm_comm_t *comm, uint32_t kinds, bool streams)
{
    unsigned found = 0;
    for (int kind = 0; kind < WM_COLL_KINDS; ++kind)
        for (int on_stream = streams; on_stream < 2; ++on_stream)
            if ((kinds & 1u << kind) != 0)
                found |= firsts_of(comm, (wm_coll_kind_t)kind,
                                   spanning_gpus(comm, on_stream));
    for (int i = 0; i < ENGINES; ++i)
        if (is_open(comm, i))
            found &= ~(1u << i);
    return found;
}

int
wm_coll_engines_open_each(wm_comm_t *comm, uint32_t kinds, bool streams,
                          int device, wm_error_t *err)
{
    int code = 0;
    unsigned missing;
    wm_error_t unused; // all ranks go on without the engine
    while (code == 0 && (missing = missing_for(comm, kinds, streams)) != 0)
        code = engine_open(comm, (wm_coll_kind_t)__builtin_ctz(kinds),
                           __builtin_ctz(missing), device, &unused, err);
    return code;
}

uint32_t
wm_coll_engines_lack_streams(wm_comm_t *comm, uint32_t kinds)
{
    unsigned among = comm->colls.opened & spanning_gpus(comm, true);
    for (int kind = 0; kind < WM_COLL_KINDS; ++kind)
        if (firsts_of(comm, (wm_coll_kind_t)kind, among) != 0)
            kinds &= ~(1u << kind);
    return kinds;
}

bool
wm_coll_engines_several_on_stream(wm_comm_t *comm)
{
    int count = 0;
    for (unsigned left = wm_coll_engines_span(comm); left != 0;
         left &= left - 1)
        count += engines[__builtin_ctz(left)]->on_stream != NULL;
    return count > 1;
}

// Returns the bit of the last engine of these bits.
static unsigned
last_of(unsigned among)
{
    return among == 0 ? 0 : 1u << (31 - __builtin_clz(among));
}

const wm_coll_engine_t *
wm_coll_engines_first_on_stream(const wm_comm_t *comm, unsigned among,
                                const wm_coll_t *call)
{
    wm_coll_facts_t facts = {.comm = comm, .kind = call->kind};
    unsigned first = wm_coll_engines_first(among);
    if (!wm_coll_shape(call->kind)->reduces
        || wm_coll_reducible(call, &facts.type, &facts.op))
        first = first_that_does(among, &facts); // else the first refuses it
    return first != 0 ? engines[__builtin_ctz(first)] : NULL;
}

// Returns the bits of those of `among` that are not open.
static unsigned
shut_on_stream(const wm_comm_t *comm, unsigned among)
{
    unsigned shut = 0;
    for (int i = 0; i < ENGINES; ++i)
        if ((among & 1u << i) != 0 && !is_open(comm, i))
            shut |= 1u << i;
    return shut;
}

// Returns the bits of those of `among` that a capture may use.
static unsigned
captured_on_stream(const wm_comm_t *comm, unsigned among)
{
    unsigned shut = shut_on_stream(comm, among);
    for (int i = 0; i < ENGINES; ++i)
        if ((shut & 1u << i) != 0 && engines[i]->on_stream->unopened)
            shut &= ~(1u << i);
    return among & ~shut;
}

// An engine may make memory and communicators to open, which CUDA forbids
// while a stream is captured.
static int
refuse_to_open(unsigned among, wm_error_t *err)
{
    return wm_error_set(err, WM_ERR_STATE, 0,
                        "the first collective of a communicator on a stream "
                        "between hosts opens the engine \"%s\", which a "
                        "capture cannot: make one such call, of the same "
                        "collective, before the capture",
                        engines[__builtin_ctz(among)]->name);
}

// Returns the error of this rank's arguments, for the engine that will do the
// call.
static int
check_on_stream(wm_comm_t *comm, unsigned among, const wm_coll_t *call,
                const wm_coll_stream_t *on, wm_error_t *err)
{
    if (call == NULL)
        return err->code;
    const wm_coll_engine_t *engine = wm_coll_engines_first_on_stream(
        comm, among, call);
    return engine == NULL || engine->on_stream->check == NULL
               ? 0
               : engine->on_stream->check(comm, call, on, err);
}

int
wm_coll_engines_open_on_stream(wm_comm_t *comm, wm_coll_kind_t kind,
                               const wm_coll_t *call,
                               const wm_coll_stream_t *on, unsigned *among,
                               wm_error_t *err)
{
    wm_error_t why;
    bool captured = on->capture != 0;
    unsigned all = wm_coll_engines_on_stream(comm, kind);
    *among = all & wm_coll_engines_span(comm);
    if (*among == 0) // MPI does no such calls
        *among = last_of(all);
    unsigned usable = captured ? captured_on_stream(comm, *among) : *among;
    unsigned shut = captured ? 0 : shut_on_stream(comm, *among);
    if (shut == 0 && (usable != 0 || *among == 0)) {
        *among = usable;
        return 0;
    }
    int code = check_on_stream(comm, *among, call, on, err);
    if (code == 0 && captured)
        code = refuse_to_open(*among, err);
    code = wm_preflight_tell(
        comm, captured ? WM_COLL_CAPTURED : WM_COLL_ON_STREAM, code, err);
    for (; code == 0 && shut != 0; shut &= shut - 1)
        code = engine_open(comm, WM_COLL_ON_STREAM, __builtin_ctz(shut),
                           on->device, &why, err);
    *among &= ~comm->colls.closed;
    if (code < 0 || *among != 0)
        return code;
    *err = why;
    return err->code;
}

void *
wm_coll_engines_state(const wm_comm_t *comm, const wm_coll_engine_t *engine)
{
    return comm->colls.state[engine_number(engine)];
}

void
wm_coll_engines_abort(wm_comm_t *comm, const wm_coll_engine_t *engine)
{
    if (engine->abort != NULL)
        engine->abort(comm, wm_coll_engines_state(comm, engine));
}

void
wm_coll_engines_revoke(wm_comm_t *comm, const wm_error_t *why)
{
    for (int i = 0; i < ENGINES; ++i)
        if ((comm->colls.opened & 1u << i) != 0 && engines[i]->revoke != NULL)
            engines[i]->revoke(comm, comm->colls.state[i], why);
}

static void
coll_engines_drop(wm_comm_t *comm)
{
    for (int i = 0; i < ENGINES; ++i)
        if (engines[i]->comm_drop != NULL && (comm->colls.span & 1u << i) != 0)
            engines[i]->comm_drop(comm, comm->colls.state[i]);
    for (int i = 0; i < ENGINES; ++i)
        free(comm->colls.why[i]);
    wm_coll_class_drop(comm);
    wm_stream_calls_drop(comm);
    for (int i = 0; i < 2; ++i)
        if (comm->colls.last[i].end != NULL)
            wm_event_destroy(comm->colls.last[i].device,
                             comm->colls.last[i].end);
    if (comm->colls.ordered != NULL)
        MPI_Comm_free(comm->colls.ordered);
    free(comm->colls.ordered);
}

// Returns the bit of the engine that `length` letters name; MPI's has the one
// behind the others'; 0: there is none.
static unsigned
engine_named(const char *name, size_t length)
{
    for (int i = 0; i <= ENGINES; ++i)
        if (strlen(engines[i]->name) == length
            && strncmp(engines[i]->name, name, length) == 0)
            return 1u << i;
    return 0;
}

static int
coll_engines_configure(wm_error_t *err)
{
    const char *at = wm_setting_text(WM_SETTING_ENGINES);
    unsigned named = at == NULL ? ~0u : 0;
    while (at != NULL) {
        size_t length = strcspn(at, ",");
        unsigned bit = engine_named(at, length);
        if (bit == 0)
            return wm_setting_refuse(WM_SETTING_ENGINES, err);
        named |= bit;
        at = at[length] == ',' ? at + length + 1 : NULL;
    }
    ruled_out = ~named;
    return 0;
}

const wm_module_t wm_coll_engines_module = {
    .configure = coll_engines_configure,
    .drop = coll_engines_drop,
};

// Returns true if an engine takes the memory of this rank; of a rank without
// buffers any.
static bool
engine_takes(const wm_coll_engine_t *engine, const wm_coll_t *call)
{
    bool gaps = (call->send != NULL && call->send->pattern != NULL)
                || (call->receive != NULL && call->receive->pattern != NULL);
    unsigned of_gpu = gaps ? WM_COLL_TAKES_GAPS : WM_COLL_TAKES_DEVICE;
    return (call->on_device && (engine->takes & of_gpu) != 0)
           || (call->on_host && (engine->takes & WM_COLL_TAKES_HOST) != 0);
}

static bool
does_call(const wm_coll_engine_t *engine, const wm_coll_op_t *op)
{
    const wm_participant_t *participant = &op->participant;
    wm_coll_facts_t facts = {participant->comm, participant->call->kind,
                             participant->type, participant->op};
    return engine_does(engine, &facts);
}

static bool
engine_serves(const wm_coll_engine_t *engine, const wm_coll_op_t *op)
{
    return engine_takes(engine, op->participant.call) && does_call(engine, op)
           && engine->serves(
               op, wm_coll_engines_state(op->participant.comm, engine));
}

// Returns the bits of the open engines.
static unsigned
opened_of(wm_comm_t *comm)
{
    unsigned found = 0, span = wm_coll_engines_span(comm);
    for (int i = 0; i < ENGINES; ++i)
        if ((span & 1u << i) != 0 && is_open(comm, i))
            found |= 1u << i;
    return found;
}

// Returns those of the bits whose engines serve this rank.
static unsigned
serving_of(const wm_coll_op_t *op, unsigned among)
{
    unsigned found = 0;
    if (op->key == WM_COLL_CLASS_SHORT)
        return 0;
    for (int i = 0; i < ENGINES && op->participant.reducible; ++i)
        if ((among & 1u << i) != 0 && engine_serves(engines[i], op))
            found |= 1u << i;
    return found;
}

unsigned
wm_coll_op_serving(const wm_coll_op_t *op)
{
    return serving_of(op, wm_coll_engines_span(op->participant.comm));
}

unsigned
wm_coll_engines_opened(wm_comm_t *comm, const wm_coll_facts_t *facts)
{
    unsigned found = opened_of(comm);
    for (int i = 0; i < ENGINES; ++i)
        if ((found & 1u << i) != 0 && !engine_does(engines[i], facts))
            found &= ~(1u << i);
    return found;
}

unsigned
wm_coll_op_usable(const wm_coll_op_t *op)
{
    const wm_participant_t *participant = &op->participant;
    const wm_coll_facts_t facts = {participant->comm, participant->call->kind,
                                   participant->type, participant->op};
    return wm_coll_engines_opened(participant->comm, &facts);
}

bool
wm_coll_engines_first_takes_all(unsigned among)
{
    return among != 0
           && engines[__builtin_ctz(among)]->takes == WM_COLL_TAKES_ALL;
}

void
wm_coll_op_init(wm_coll_op_t *op, wm_comm_t *comm, wm_barrier_t *barrier,
                const wm_coll_t *call, wm_coll_form_t form)
{
    op->form = form;
    op->engine = NULL;
    op->started = op->begun = op->alone = op->refused = false;
    op->asks = WM_ASKS_NOTHING;
    op->moved = NULL;
    op->wrong.code = 0;
    wm_participant_init(&op->participant, comm, barrier, call);
    op->key = wm_coll_class_key(&op->participant);
    bool opens = form == WM_COLL_FORM_BLOCKING
                 || form == WM_COLL_FORM_PERSISTENT;
    op->engines = serving_of(op, opens ? wm_coll_engines_span(comm)
                                       : opened_of(comm));
}

bool
wm_coll_op_may_queue(const wm_coll_op_t *op)
{
    return wm_mpi_engine.serves(op, NULL);
}

int
wm_coll_op_prepare(wm_coll_op_t *op, wm_error_t *err)
{
    wm_participant_t *participant = &op->participant;
    bool orders = op->form
                  == WM_COLL_FORM_BLOCKING; // MPI's call does so itself
    int code = 0;
    for (int i = 0; i < ENGINES && code == 0; ++i)
        if ((op->engines & 1u << i) != 0 && engines[i]->prepare != NULL)
            code = engines[i]->prepare(op, 1u << i, err);
    if (op->engines == 0 || participant->direct.capable)
        return code; // what follows is done
    for (int i = 0; i < ENGINES; ++i)
        orders &= (op->engines & 1u << i) == 0 || engines[i]->orders;
    if (wm_comm_is_one_host(participant->comm)) // others may be too many
        wm_participant_publish(participant);
    if (code == 0 && !orders && participant->call->on_device)
        code = wm_participant_order(participant, err);
    return code;
}

int
wm_coll_op_is_ready(wm_coll_op_t *op, wm_error_t *err)
{
    int ready = 1;
    for (int i = 0; i < ENGINES && ready > 0; ++i)
        if ((op->engines & 1u << i) != 0 && engines[i]->is_ready != NULL)
            ready = engines[i]->is_ready(op, err);
    return ready;
}

wm_preflight_t
wm_coll_op_preflight(const wm_coll_op_t *op, int code)
{
    return (wm_preflight_t){
        .call = op->participant.call->kind,
        .code = code,
        .on_device = op->participant.call->on_device,
        .all = op->engines,
        .data = &op->participant.direct.published,
        .nbytes = wm_participant_nbytes(&op->participant),
    };
}

const char *
wm_coll_engines_why_not(wm_comm_t *comm, int number)
{
    const wm_comm_colls_t *colls = &comm->colls;
    unsigned bit = 1u << number;
    (void)wm_coll_engines_span(comm);
    return (ruled_out & bit) != 0       ? "ruled out by WARPMPI_ENGINES"
           : (colls->span & bit) == 0   ? "not for this communicator"
           : (colls->closed & bit) == 0 ? NULL
           : colls->why[number] != NULL ? colls->why[number]
                                        : "not open on some rank";
}

// Returns why an engine does not do the call. `among` serve all ranks.
static const char *
reason_of(const wm_coll_op_t *op, int engine, unsigned among)
{
    const char *none = wm_coll_engines_why_not(op->participant.comm, engine);
    unsigned bit = 1u << engine;
    return op->engine == engines[engine] ? "left the call to MPI"
           : none != NULL                ? none
           : (op->engines & bit) == 0    ? "does not serve this rank"
           : (among & bit) == 0          ? "does not serve another rank"
                                         : "not reached";
}

// Tells which engine does the call, and why those before it do not.
static void
engine_tell(const wm_coll_op_t *op, unsigned among, int chosen)
{
    const wm_participant_t *participant = &op->participant;
    const wm_coll_t *call = participant->call;
    const wm_buffer_t *buffer = call->send != NULL ? call->send
                                                   : call->receive;
    wm_route_t route;
    if (!wm_route_is_wanted())
        return;
    wm_route_begin(&route);
    for (int i = 0; i < (chosen < 0 ? ENGINES : chosen); ++i)
        wm_route_decline(&route, engines[i]->name, reason_of(op, i, among));
    wm_route_coll(&route, wm_call_name(call->kind), participant->comm->rank,
                  participant->comm->size, buffer != NULL ? buffer->nbytes : 0,
                  chosen < 0 ? wm_mpi_engine.name : engines[chosen]->name);
}

int
wm_coll_op_choose(wm_coll_op_t *op, unsigned among, wm_error_t *err)
{
    wm_comm_t *comm = op->participant.comm;
    int chosen = among == 0 ? -1 : __builtin_ctz(among);
    engine_tell(op, among, chosen);
    op->engine = chosen < 0 ? &wm_mpi_engine : engines[chosen];
    op->own = chosen < 0 ? NULL : comm->colls.state[chosen];
    return chosen < 0 || !wm_comm_is_one_host(comm)
               ? 0
               : wm_participant_compare(&op->participant, err);
}

// Makes the data ready for the chosen engine, unless it cannot take them: then
// *takes is false.
static int
prepare_chosen(wm_coll_op_t *op, unsigned bit, bool *takes, wm_error_t *err)
{
    wm_participant_t *participant = &op->participant;
    *takes = bit == 0 ? engine_takes(op->engine, participant->call)
                      : engine_serves(op->engine, op);
    op->engines = *takes ? bit : 0;
    if (*takes && bit == 0 && participant->call->on_device)
        return wm_participant_order(participant, err);
    int code = wm_coll_op_prepare(op, err);
    *takes &= op->engines == bit;
    return code;
}

int
wm_coll_op_begin_chosen(wm_coll_op_t *op, unsigned bit, wm_error_t *err)
{
    wm_error_t wrong;
    bool takes;
    int code = wm_coll_op_choose(op, bit, err);
    if (code < 0)
        return code;
    code = prepare_chosen(op, bit, &takes, &wrong);
    if (!takes && code == 0)
        code = wm_moved_coll_begin(op, bit, &wrong);
    op->engines = bit;
    if (code < 0)
        wm_coll_op_fail(op, &wrong); // the engine tells the others
    return 0;
}

void
wm_coll_op_choose_mpi(wm_coll_op_t *op)
{
    wm_coll_op_leave(op);
    engine_tell(op, 0, -1);
    op->engine = &wm_mpi_engine;
}

bool
wm_coll_op_is_mpis(const wm_coll_op_t *op)
{
    return op->engine == &wm_mpi_engine;
}

wm_coll_result_t
wm_coll_op_start(wm_coll_op_t *op, wm_error_t *err)
{
    op->started = true;
    if (op->moved != NULL)
        return op->result = WM_COLL_UNDER_WAY;
    wm_coll_engines_count(op->engine);
    op->result = op->engine->start(op, err);
    return op->result;
}

wm_coll_result_t
wm_coll_op_step(wm_coll_op_t *op, bool *waits, wm_error_t *err)
{
    op->result = op->moved != NULL ? wm_moved_coll_step(op, waits, err)
                                   : op->engine->step(op, waits, err);
    if (op->result == WM_COLL_DONE && op->wrong.code < 0) {
        *err = op->wrong;
        op->result = (wm_coll_result_t)err->code;
    }
    return op->result;
}

void
wm_coll_op_leave(wm_coll_op_t *op)
{
    if (op->moved != NULL)
        wm_moved_coll_drop(op);
    else if (op->started && op->engine->drop != NULL)
        op->engine->drop(op);
    op->started = false;
}

void
wm_coll_op_drop(wm_coll_op_t *op)
{
    wm_coll_op_leave(op);
    wm_direct_drop(&op->participant.direct);
}
