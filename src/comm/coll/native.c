// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/native.h"

#include <stdio.h>
#include <string.h>

#include "comm/coll/agree.h"
#include "comm/coll/await.h"
#include "comm/engine/engine.h"
#include "comm/engine/stats.h"
#include "comm/message/element.h"
#include "comm/node/mapping.h"
#include "comm/way/transport.h"

#define STAND_IN_BYTES ((size_t)32 << 20) // longest
#define LOOKS 200                         // at a stream, each of LOOK_TRIES
#define LOOK_TRIES 4

enum { MAPPED = 1, MOVED }; // steps; each phase is one

bool
wm_native_is_reached(const wm_comm_t *comm)
{
    const wm_transport_t *forced = wm_transport_forced();
    if (comm->gates == NULL || (forced != NULL && forced != &wm_transport_ipc))
        return false;
    for (int rank = 0; rank < comm->size; ++rank)
        if (comm->peers[rank]->ipc_refused)
            return false;
    return true;
}

// Whether it is a GPU's, without gaps; nothing is anybody's.
static bool
is_taken(const wm_buffer_t *buffer, int *device)
{
    if (buffer == NULL)
        return true;
    if (!wm_buffer_on_device(buffer) || buffer->memory.device < 0
        || buffer->pattern != NULL
        || (*device >= 0 && *device != buffer->memory.device))
        return false;
    *device = buffer->memory.device;
    return true;
}

static int
look_at_stream(void *context, wm_error_t *err)
{
    return wm_access_look(context, LOOK_TRIES, err);
}

static int
await_stream(const wm_native_t *native, wm_access_t *access, wm_error_t *err)
{
    return wm_coll_await(native->comm, look_at_stream, access, LOOKS, err);
}

static bool
stands_in(const wm_buffer_t *source, bool copied)
{
    return copied || !source->memory.exportable;
}

// What others read is there when we meet them.
static int
settle(wm_native_t *native, const wm_buffer_t *source, bool copied,
       wm_error_t *err)
{
    wm_access_t *from = &native->from;
    bool idle = false;
    wm_pointer_t memory = source->memory;
    native->source = source->data;
    int code = 0;
    if (stands_in(source, copied)) {
        code = wm_block_alloc(native->device, source->nbytes,
                              &native->stand_in, err);
        if (code < 0)
            return code;
        native->source = wm_block_pointer(native->stand_in);
        wm_block_describe(native->stand_in, &memory);
        code = wm_access_open(from, err);
        if (code == 0)
            code = wm_memory_copy(native->device, native->source, source->data,
                                  source->nbytes, from->stream, err);
        if (code == 0)
            wm_stat_add(WM_STAT_handed_off_bytes, (int64_t)source->nbytes);
    }
    else {
        code = wm_producer_idle(&source->producer, from->to_write, &idle, err);
        if (code == 0 && !idle)
            code = wm_access_open(from, err);
    }
    if (code == 0 && from->opened)
        code = await_stream(native, from, err);
    if (code < 0)
        return code;
    wm_engine_lock();
    native->capable = wm_place_export(native->source, &memory,
                                      &native->said.sends, NULL)
                      == 0; // else the host serves
    wm_engine_unlock();
    return 0;
}

static int
open_target(wm_native_t *native, const wm_buffer_t *target, wm_error_t *err)
{
    native->target = target->data;
    int code = wm_access_open(&native->into, err);
    if (code < 0 || !target->memory.exportable)
        return code;
    wm_engine_lock();
    native->said.readable = wm_place_export(target->data, &target->memory,
                                            &native->said.receives, NULL)
                            == 0;
    wm_engine_unlock();
    return 0;
}

int
wm_native_begin(wm_native_t *native, wm_comm_t *comm, const wm_given_t *given,
                wm_error_t *err)
{
    const wm_buffer_t *receive = given->receive;
    bool in_place = given->in_place;
    const wm_buffer_t *source = in_place ? receive : given->send;
    memset(native, 0, sizeof *native);
    native->comm = comm;
    native->device = -1;
    native->capable = wm_native_is_reached(comm)
                      && is_taken(source, &native->device)
                      && is_taken(receive, &native->device)
                      && (source == NULL || !stands_in(source, given->copied)
                          || source->nbytes <= STAND_IN_BYTES);
    if (!native->capable)
        return 0;
    wm_said_t *said = &native->said;
    said->aliased = in_place && !stands_in(source, given->copied);
    said->readable = receive == NULL || receive->nbytes == 0;
    int code = 0;
    if (source != NULL) {
        wm_access_begin(&native->from, &source->producer, in_place,
                        native->device);
        code = wm_producer_refuse_capture(&source->producer, err);
        if (code == 0 && source->nbytes > 0)
            code = settle(native, source, given->copied, err);
    }
    if (receive != NULL && code == 0 && native->capable) {
        wm_access_begin(&native->into, &receive->producer, true,
                        native->device);
        code = wm_producer_refuse_capture(&receive->producer, err);
        if (code == 0 && receive->nbytes > 0)
            code = open_target(native, receive, err);
    }
    return code;
}

void
wm_native_facts(const wm_native_t *native, wm_facts_t *facts)
{
    facts->rank = native->comm->rank;
    facts->size = native->comm->size;
    facts->aliased = false;
    facts->readable = true;
    for (int rank = 0; rank < facts->size; ++rank) {
        const wm_said_t *said = wm_agree_said(native->comm, rank);
        facts->aliased |= said->aliased;
        facts->readable &= said->readable;
    }
}

// The memory of all ranks as this one sees it.
typedef struct {
    wm_native_t *native;
    wm_mapping_t *mappings[2][WM_GATE_RANKS]; // of what is sent, received
    char *places[2][WM_GATE_RANKS];
} run_t;

static int
map(run_t *run, bool result, int rank, wm_error_t *err)
{
    wm_native_t *native = run->native;
    const wm_said_t *said = wm_agree_said(native->comm, rank);
    const wm_place_t *place = result ? &said->receives : &said->sends;
    wm_peer_t *peer = native->comm->peers[rank];
    char **found = &run->places[result][rank];
    if (rank == native->comm->rank)
        *found = result ? native->target : native->source;
    if (*found != NULL)
        return 0;
    wm_mapping_t **mapping = &run->mappings[result][rank];
    int code = wm_mapping_reach(peer, place, native->device, mapping, err);
    if (code == 0)
        *found = wm_mapping_at(*mapping, place);
    return code;
}

static int
map_all(run_t *run, const wm_plan_t *plan, wm_error_t *err)
{
    int code = 0;
    wm_engine_lock();
    for (int i = 0; i < plan->count; ++i) {
        const wm_move_t *move = &plan->moves[i];
        for (int k = 0; k < move->count && code == 0; ++k)
            code = map(run, move->result, move->first + k, err);
    }
    wm_engine_unlock();
    return code;
}

static void
unmap_all(run_t *run)
{
    wm_engine_lock();
    for (int i = 0; i < 2; ++i)
        for (int rank = 0; rank < run->native->comm->size; ++rank)
            if (run->mappings[i][rank] != NULL)
                wm_mapping_release(run->mappings[i][rank]);
    wm_engine_unlock();
}

static int
enqueue(const run_t *run, const wm_move_t *move, wm_reduce_type_t type,
        wm_reduce_op_t op, wm_error_t *err)
{
    const wm_native_t *native = run->native;
    const void *sources[WM_REDUCE_SOURCES];
    char *into = native->target + move->into;
    for (int k = 0; k < move->count; ++k)
        sources[k] = run->places[move->result][move->first + k] + move->from;
    if (move->count > 1)
        return wm_reduce_launch(
            native->device, type, op, into, sources, move->count,
            move->nbytes / wm_reduce_size(type), native->into.stream, err);
    return into == sources[0]
               ? 0
               : wm_memory_copy(native->device, into, sources[0], move->nbytes,
                                native->into.stream, err);
}

static int
follow(const run_t *run, const wm_plan_t *plan, int phase,
       wm_reduce_type_t type, wm_reduce_op_t op, wm_error_t *err)
{
    wm_native_t *native = run->native;
    int code = 0;
    bool any = false;
    for (int i = 0; i < plan->count && code == 0; ++i)
        if (plan->moves[i].phase == phase) {
            code = enqueue(run, &plan->moves[i], type, op, err);
            any = true;
        }
    if (!any)
        return code;
    // After an error as well: nothing of ours may be on its way.
    int ended = await_stream(native, &native->into, code < 0 ? NULL : err);
    return code < 0 ? code : ended;
}

// Says how it goes, and hears of all: 0 where all go on, 1 where a rank has
// failed by now, on all ranks alike.
static int
tell(wm_native_t *native, int step, int code, bool mapped,
     const wm_error_t *why, wm_error_t *err)
{
    wm_comm_t *comm = native->comm;
    wm_said_t *mine = wm_agree_mine(comm);
    if (code < 0 && mine->failed == 0) {
        mine->unmapped = !mapped;
        mine->code = code;
        mine->detail = why->detail;
        snprintf(mine->text, sizeof mine->text, "%s", why->text);
        mine->failed = (uint8_t)step;
    }
    wm_gates_reach(comm->gates, step);
    code = wm_coll_await_all(comm, step, err);
    for (int rank = 0; rank < comm->size && code == 0; ++rank) {
        const wm_said_t *said = wm_agree_said(comm, rank);
        code = said->failed != 0 && said->failed <= step;
    }
    return code;
}

// The end, where a rank has failed: all raise, unless the host can serve.
static int
explain(const wm_native_t *native, int code, const wm_error_t *why,
        wm_error_t *err)
{
    int failed = -1;
    for (int rank = 0; rank < native->comm->size; ++rank) {
        const wm_said_t *said = wm_agree_said(native->comm, rank);
        if (said->failed != 0 && !said->unmapped)
            failed = rank;
    }
    if (failed < 0)
        return 1;
    const wm_said_t *said = wm_agree_said(native->comm, failed);
    if (code == 0 || failed != native->comm->rank)
        return wm_error_set(err, said->code, said->detail,
                            "rank %d failed in this collective: %.150s",
                            failed, said->text);
    if (err != NULL)
        *err = *why;
    return code;
}

int
wm_native_run(wm_native_t *native, const wm_plan_t *plan,
              wm_reduce_type_t type, wm_reduce_op_t op,
              const wm_error_t *wrong, wm_error_t *err)
{
    run_t run = {.native = native};
    wm_error_t why = *wrong;
    int code = wrong->code, told = 0;
    bool mapped = code < 0 || (code = map_all(&run, plan, &why)) == 0;
    // Nothing is written before all can go on: but what is written once can
    // be written again.
    if (plan->phases > 1)
        told = tell(native, MAPPED, code, mapped, &why, err);
    for (int phase = 0; phase < plan->phases && told == 0; ++phase) {
        if (code == 0)
            code = follow(&run, plan, phase, type, op, &why);
        told = tell(native, MOVED + phase, code, mapped, &why, err);
    }
    unmap_all(&run);
    if (told == 0)
        wm_stat_add(WM_STAT_ipc_collectives, 1);
    return told > 0 ? explain(native, code, &why, err) : told;
}

void
wm_native_end(wm_native_t *native)
{
    wm_access_t *sides[] = {&native->from, &native->into};
    for (int i = 0; i < 2; ++i) {
        if (!sides[i]->idle) // an error
            (void)!wm_access_synchronize(sides[i], NULL);
        wm_access_close(sides[i]);
    }
    if (native->stand_in != NULL)
        wm_block_free(native->stand_in, 0, NULL, NULL);
}

// The numbers of what MPI calls those of array/dtype.h, and its pairs.
static const int64_t *
known_numbers(void)
{
    static _Atomic bool made;
    static int64_t numbers[WM_REDUCE_TYPES];
    const MPI_Datatype types[WM_REDUCE_TYPES] = {
#define X(NAME, name, typestr, bytes, code, format, type)                     \
    [WM_REDUCE_##NAME] = type,
        WM_DTYPE_ROWS(X)
#undef X
            [WM_REDUCE_FLOAT_INT] = MPI_FLOAT_INT,
        [WM_REDUCE_DOUBLE_INT] = MPI_DOUBLE_INT,
        [WM_REDUCE_LONG_INT] = MPI_LONG_INT,
        [WM_REDUCE_INT_INT] = MPI_2INT,
        [WM_REDUCE_SHORT_INT] = MPI_SHORT_INT,
    };
    for (int i = 0; i < WM_REDUCE_TYPES && !made; ++i)
        numbers[i] = types[i] != MPI_DATATYPE_NULL
                         ? wm_element_number(types[i])
                         : 0;
    made = true;
    return numbers;
}

bool
wm_native_reduces(MPI_Datatype type, MPI_Op op, wm_reduce_type_t *kind,
                  wm_reduce_op_t *by)
{
    const MPI_Op ops[WM_REDUCE_OPS] = {
        [WM_REDUCE_SUM] = MPI_SUM,         [WM_REDUCE_PROD] = MPI_PROD,
        [WM_REDUCE_MIN] = MPI_MIN,         [WM_REDUCE_MAX] = MPI_MAX,
        [WM_REDUCE_LAND] = MPI_LAND,       [WM_REDUCE_LOR] = MPI_LOR,
        [WM_REDUCE_LXOR] = MPI_LXOR,       [WM_REDUCE_BAND] = MPI_BAND,
        [WM_REDUCE_BOR] = MPI_BOR,         [WM_REDUCE_BXOR] = MPI_BXOR,
        [WM_REDUCE_MINLOC] = MPI_MINLOC,   [WM_REDUCE_MAXLOC] = MPI_MAXLOC,
        [WM_REDUCE_REPLACE] = MPI_REPLACE, [WM_REDUCE_NO_OP] = MPI_NO_OP,
    };
    int at = 0, of = 0;
    const int64_t *numbers = known_numbers();
    while (at < WM_REDUCE_OPS && ops[at] != op)
        ++at;
    if (at == WM_REDUCE_OPS || type == MPI_DATATYPE_NULL)
        return false;
    int64_t number = wm_element_number(type == MPI_BYTE ? MPI_UINT8_T : type);
    while (of < WM_REDUCE_TYPES && numbers[of] != number)
        ++of;
    *kind = (wm_reduce_type_t)of;
    *by = (wm_reduce_op_t)at;
    return of < WM_REDUCE_TYPES && wm_reduce_takes(*kind, *by);
}
