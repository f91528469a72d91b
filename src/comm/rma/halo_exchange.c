// SPDX-License-Identifier: BSD-3-Clause
#include "comm/rma/halo_exchange.h"

#include <stdlib.h>
#include <string.h>

#include "comm/coll/direct/preflight.h"
#include "comm/engine/stats.h"
#include "comm/rma/halo_state.h"
#include "cuda/lock.h"
#include "cuda/settings.h"
#include "cuda/word.h"

#define KEY_BITS 16   // of the numbers of a halo and a set
#define MOST_LOOSE 16 // sets that no plan and no graph has

void
wm_halo_key_of(const wm_halo_field_t *field, wm_halo_key_t *key)
{
    const wm_array_t *array = field->array;
    bool fits = array->ndim <= WM_HALO_DIMS + WM_HALO_INNER;
    memset(key, 0, sizeof *key);
    key->data = array->data;
    key->buffer_id = field->memory->buffer_id;
    key->on_device = wm_memory_on_device(field->memory);
    key->dtype = array->dtype;
    key->ndim = array->ndim;
    for (int d = 0; d < array->ndim && fits; ++d) {
        key->shape[d] = array->shape[d];
        key->strides[d] = array->strides[d];
    }
}

// Messages serve an array of the same shape wherever it is.
static bool
is_same(const wm_halo_key_t *key, const wm_halo_field_t *field, bool anywhere)
{
    const wm_array_t *array = field->array;
    bool same = key->dtype == array->dtype && key->ndim == array->ndim;
    if (anywhere)
        same = same && key->on_device == wm_memory_on_device(field->memory);
    else
        same = same && key->data == array->data
               && key->buffer_id == field->memory->buffer_id;
    for (int d = 0; same && d < key->ndim; ++d)
        same = key->shape[d] == array->shape[d]
               && (anywhere || key->strides[d] == array->strides[d]);
    return same;
}

static bool
has_fields(const wm_halo_set_t *set, const wm_halo_field_t *fields, int count)
{
    bool same = set->count == count;
    for (int i = 0; same && i < count; ++i)
        same = is_same(&set->keys[i], &fields[i], set->by_messages);
    return same;
}

// Finds the set of these fields that all ranks find; NULL: there is none.
static wm_halo_set_t *
find_set(const wm_halo_t *halo, const wm_halo_call_t *call)
{
    wm_halo_set_t *set = halo->sets;
    while (set != NULL
           && (set->replaced || set->op != call->op
               || !has_fields(set, call->fields, call->count)))
        set = set->next;
    return set;
}

// Finds the set with this number if the fields are its fields.
static wm_halo_set_t *
find_by_id(const wm_halo_t *halo, const wm_halo_call_t *call, uint32_t id)
{
    wm_halo_set_t *set = halo->sets;
    while (set != NULL && set->id != id)
        set = set->next;
    return set != NULL && has_fields(set, call->fields, call->count) ? set
                                                                     : NULL;
}

void
wm_halo_add_set(wm_halo_t *halo, wm_halo_set_t *set)
{
    int loose = 0;
    bool waited = false, ended = false;
    for (wm_halo_set_t **link = &halo->sets, *one; (one = *link) != NULL;) {
        loose += !one->kept;
        bool needed = one->kept || (loose < MOST_LOOSE && !one->replaced);
        if (!needed && !waited) {
            wm_halo_wait(halo);
            ended = wm_halo_has_ended(halo);
            waited = true;
        }
        if (needed || !ended) {
            link = &one->next;
            continue;
        }
        *link = one->next;
        wm_halo_set_free(one);
    }
    set->id = ++halo->made;
    set->next = halo->sets;
    halo->sets = set;
}

// --- the stream of a call -------------------------------------------------

typedef struct {
    bool named; // by the program
    bool alone; // it produces all fields
    bool found; // one of both, or it is captured; else ours serves
    CUstream stream;
    uint64_t capture; // 0: none
} side_t;

// Asks for the capture of a stream. A default stream that is ordered with one
// counts as captured.
static int
side_ask(side_t *side, int device, CUstream stream, wm_error_t *err)
{
    side->stream = stream;
    int code = wm_stream_capture(device, stream, &side->capture, err);
    if (code == WM_ERR_STATE)
        side->capture = WM_STREAM_CAPTURE_FAILED;
    side->found = side->alone || side->named || side->capture != 0;
    return code;
}

// Refuses a capture that the fields, whose stream nobody names, would be
// exchanged beside: that of a stream with which the default stream is ordered.
// CUDA does not tell of others.
static int
side_refuse_unknown(side_t *side, const wm_halo_call_t *call, wm_error_t *err)
{
    const wm_pointer_t *memory = call->fields[0].memory;
    int code = wm_memory_on_device(memory) && call->step != WM_HALO_FINISH
                   ? side_ask(side, memory->device, CU_STREAM_LEGACY, err)
                   : 0;
    return code != WM_ERR_STATE
               ? code
               : wm_error_set(err, WM_ERR_STATE, 0,
                              "a stream of the GPU is being captured into a "
                              "graph, and no stream of the fields is known: "
                              "give stream=");
}

// Finds the stream that the program has named, the only one that produces the
// fields, or a captured one that produces some.
static int
find_side(const wm_halo_t *halo, const wm_halo_call_t *call, side_t *side,
          wm_error_t *err)
{
    *side = (side_t){.named = call->device >= 0};
    if (side->named)
        return side_ask(side, call->device, call->stream, err);
    if (call->count == 0) // their reader has failed
        return 0;
    const wm_producer_t *first = call->fields[0].producer;
    side->alone = first->kind == WM_PRODUCER_STREAM
                  && (halo->device < 0 || first->device == halo->device);
    for (int i = 1; i < call->count; ++i)
        side->alone = side->alone
                      && wm_producer_is_same(first, call->fields[i].producer);
    int code = 0;
    bool known = false;
    for (int i = 0; i < call->count && !side->found; ++i) {
        const wm_producer_t *producer = call->fields[i].producer;
        if (producer->kind != WM_PRODUCER_STREAM)
            continue;
        code = side_ask(side, producer->device, producer->stream, err);
        known = true;
    }
    if (code == 0 && !side->found && halo->branched)
        code = side_ask(side, halo->device, halo->own, err);
    return code < 0 || side->found || known
               ? code
               : side_refuse_unknown(side, call, err);
}

// --- the meeting of all ranks ---------------------------------------------

// Sets *same to true if all ranks have found this set of this halo, for a plan
// or for an exchange; NULL: this rank has found none. Bits that all ranks have
// tell it: those of a key, and those that the key does not have.
static int
compare_sets(const wm_halo_t *halo, const wm_halo_set_t *set,
             const wm_halo_call_t *call, bool *same, wm_error_t *err)
{
    const unsigned most = (1u << KEY_BITS) - 1;
    unsigned plans = call->step == WM_HALO_PREPARE, key = 0;
    if (set != NULL)
        key = 1 + (halo->number * 997u + 2 * set->id + plans) % most;
    wm_preflight_t preflight = {
        .call = WM_COLL_HALO,
        .all = key | (~key & most) << KEY_BITS,
    };
    unsigned own = preflight.all;
    int code = wm_preflight_run(halo->comm, &preflight, err);
    *same = code == 0 && set != NULL && preflight.all == own;
    return code;
}

// Refuses a stream of another device than that of the fields.
static int
check_stream(const wm_halo_call_t *call, wm_error_t *err)
{
    for (int i = 0; i < call->count && call->device >= 0; ++i) {
        const wm_pointer_t *memory = call->fields[i].memory;
        if (!wm_memory_on_device(memory))
            return wm_error_set(err, WM_ERR_VALUE, 0,
                                "stream: fields[%d] is host memory, which no "
                                "stream orders: leave out the stream",
                                i);
        if (memory->device != call->device)
            return wm_error_set(err, WM_ERR_VALUE, 0,
                                "stream: it is a stream of cuda:%d, and "
                                "fields[%d] is on cuda:%d",
                                call->device, i, memory->device);
    }
    return 0;
}

// Finds the set with the other ranks, or makes it. In a capture no rank
// waits for another, as one may capture alone.
static int
find_together(wm_halo_t *halo, const wm_halo_call_t *call, const side_t *side,
              int code, wm_halo_set_t **set, wm_error_t *err)
{
    wm_halo_set_t *found = code < 0 ? NULL : find_set(halo, call);
    wm_error_t unusable;
    bool same = found != NULL, captured = side->capture != 0;
    if (wm_waiter_check(&halo->waiter, &unusable) < 0) {
        *err = code < 0 ? *err : unusable;
        return err->code;
    }
    if (captured && (code < 0 || !same))
        return code < 0
                   ? code
                   : wm_error_set(err, WM_ERR_STATE, 0,
                                  "fields: they are new, and in a capture no "
                                  "rank asks the others: make this call with "
                                  "them once before the capture, or "
                                  "halo.plan(), on all ranks");
    if (halo->comm->size > 1 && !captured) {
        int met = compare_sets(halo, code < 0 ? NULL : found, call, &same,
                               &unusable);
        if (met < 0) {
            *err = unusable;
            return met;
        }
    }
    *set = found;
    return same ? code : wm_halo_register(halo, call, code, set, err);
}

// --- exchanges ------------------------------------------------------------

// Orders the stream behind the last exchange, which may be on another one. The
// program orders graphs.
static int
follow_last(wm_halo_t *halo, CUstream stream, wm_error_t *err)
{
    uint64_t id = wm_stream_id(halo->device, stream), last = halo->last;
    halo->last = id;
    if (halo->tickets == 0 || (last != 0 && last == id))
        return 0;
    return wm_halo_await_ticket(halo, stream, err);
}

// Marks the end of an exchange. The kernel with counters marks it itself,
// unless phases follow.
static int
note_end(wm_halo_t *halo, const wm_halo_set_t *set, CUstream stream,
         wm_error_t *err)
{
    int code = 0;
    if (wm_halo_has_tickets(halo)) {
        uint64_t ticket = atomic_fetch_add(&halo->tickets, 1) + 1;
        return set->phases > 0
                   ? wm_word_write_long(halo->device, stream,
                                        wm_halo_ticket_word(halo), ticket, err)
                   : 0;
    }
    wm_lock(&halo->end_lock);
    if (halo->ended == NULL)
        code = wm_event_acquire(halo->device, &halo->ended, err);
    if (code == 0)
        code = wm_event_record(halo->device, halo->ended, stream, err);
    halo->noted = atomic_fetch_add(&halo->tickets, 1) + 1;
    pthread_mutex_unlock(&halo->end_lock);
    return code;
}

// Launches the tasks of a list; all but the first have nobody to wait for.
static int
launch_list(const wm_halo_t *halo, const wm_halo_set_t *set, int list,
            bool captured, CUstream stream, wm_error_t *err)
{
    wm_halo_params_t params = set->params;
    uint32_t begin = set->begins != NULL ? set->begins[list] : 0;
    uint32_t end = set->begins != NULL ? set->begins[list + 1] : 0;
    params.tasks += begin;
    params.task_count = end - begin;
    params.abort = (const uint32_t *)halo->abort;
    params.ticket = captured || set->phases > 0 ? 0 : halo->tickets + 1;
    if (list > 0)
        params.peer_count = 0;
    return params.task_count == 0 && params.peer_count == 0
               ? 0
               : wm_halo_launch(halo->device, &params, set->most,
                                set->task_lines, stream, err);
}

// Reduces the memory that the first list has filled into the edges.
static int
launch_phase(const wm_halo_t *halo, const wm_halo_set_t *set, int phase,
             CUstream stream, wm_error_t *err)
{
    char *memory = set->memory != NULL ? wm_block_pointer(set->memory) : NULL;
    int code = launch_list(halo, set, 1 + 2 * phase, true, stream, err);
    for (int i = 0; i < set->count && code == 0; ++i) {
        const wm_halo_sum_t *sum = &set->sums[phase * set->count + i];
        char *own = memory + set->half + sum->at;
        const void *sources[] = {own, memory + sum->at};
        if (sum->count > 0)
            code = wm_reduce_launch(halo->device, sum->type,
                                    (wm_reduce_op_t)set->op, own, sources, 2,
                                    sum->count, stream, err);
    }
    return code < 0 ? code
                    : launch_list(halo, set, 2 + 2 * phase, true, stream, err);
}

static void
count_exchange(const wm_halo_t *halo, const wm_halo_set_t *set)
{
    wm_stat_add(WM_STAT_halo_exchanges, 1);
    wm_stat_add(WM_STAT_halo_bytes, (int64_t)set->nbytes);
    for (int i = 0; i < halo->peer_count; ++i) {
        int rank = halo->peers[i];
        wm_peer_stats_t *stats = &halo->comm->peers[rank]->stats;
        wm_peer_stat_add(stats, WM_PEER_STAT_halo_exchanges, 1);
        wm_peer_stat_add(stats, WM_PEER_STAT_halo_bytes,
                         (int64_t)set->peer_bytes[i]);
    }
}

static int
launch(wm_halo_t *halo, const wm_halo_set_t *set, CUstream stream,
       bool captured, wm_error_t *err)
{
    int device = halo->device;
    int code = wm_waiter_check(&halo->waiter, err);
    if (code == 0 && halo->epochs != NULL)
        code = wm_epochs_enqueue(halo->epochs,
                                 WM_EPOCHS_POST | WM_EPOCHS_START, device,
                                 stream, err);
    if (code == 0)
        code = launch_list(halo, set, 0, captured, stream, err);
    if (code == 0 && halo->epochs != NULL)
        code = wm_epochs_enqueue(halo->epochs,
                                 WM_EPOCHS_COMPLETE | WM_EPOCHS_WAIT, device,
                                 stream, err);
    for (int i = 0; i < set->phases && code == 0; ++i)
        code = launch_phase(halo, set, i, stream, err);
    if (code == 0)
        count_exchange(halo, set);
    return code;
}

// Orders the named stream, or ours, behind the producers of the fields.
static int
order_before(const wm_halo_t *halo, const wm_halo_call_t *call,
             CUstream stream, bool captured, wm_error_t *err)
{
    int code = 0;
    for (int i = 0; i < call->count && code == 0; ++i)
        code = wm_producer_before_on(call->fields[i].producer, true,
                                     halo->device, stream, captured, err);
    return code;
}

// Orders later uses of the fields behind the exchange: those that the library
// knows of and, unless the program has named the stream, those of others.
static int
order_after(const wm_halo_t *halo, const wm_halo_call_t *call, CUstream stream,
            bool named, bool captured, wm_error_t *err)
{
    int code = 0;
    for (int i = 0; i < call->count && code == 0; ++i) {
        const wm_producer_t *producer = call->fields[i].producer;
        if (!named || producer->kind == WM_PRODUCER_ORDER)
            code = wm_producer_after_on(producer, true, halo->device, stream,
                                        captured, err);
    }
    return code;
}

// Enqueues the exchange on a stream that is ordered behind the fields' users.
static int
enqueue_ordered(wm_halo_t *halo, wm_halo_set_t *set, CUstream stream,
                uint64_t capture, wm_error_t *err)
{
    bool captured = capture != 0;
    set->kept |= captured;
    int code = captured ? wm_waiter_keep(&halo->waiter, halo->device, stream,
                                         capture, err)
                        : follow_last(halo, stream, err);
    if (code == 0)
        code = launch(halo, set, stream, captured, err);
    return code < 0 || captured ? code : note_end(halo, set, stream, err);
}

// After an error that the neighbours cannot know: their kernels wait for ours.
static void
release_neighbors(wm_halo_t *halo, wm_halo_set_t *set)
{
    wm_error_t unused;
    if (wm_halo_open_own(halo, &unused) == 0)
        (void)!enqueue_ordered(halo, set, halo->own, 0, &unused);
}

static int
enqueue(wm_halo_t *halo, wm_halo_set_t *set, const wm_halo_call_t *call,
        const side_t *side, wm_error_t *err)
{
    bool captured = side->capture != 0;
    int code = side->found ? 0 : wm_halo_open_own(halo, err);
    CUstream stream = side->found ? side->stream : halo->own;
    if (code == 0 && !side->alone)
        code = order_before(halo, call, stream, captured, err);
    if (code == 0)
        code = enqueue_ordered(halo, set, stream, side->capture, err);
    else if (!captured)
        release_neighbors(halo, set);
    return code < 0 || side->alone
               ? code
               : order_after(halo, call, stream, side->named, captured, err);
}

static int
start(wm_halo_t *halo, wm_halo_set_t *set, const wm_halo_call_t *call,
      const side_t *side, wm_error_t *err)
{
    bool captured = side->capture != 0;
    int code = wm_halo_open_own(halo, err);
    if (code == 0 && !side->alone)
        code = order_before(halo, call, side->found ? side->stream : halo->own,
                            captured, err);
    if (code == 0 && side->found)
        code = wm_stream_follow(halo->device, halo->own, halo->device,
                                side->stream, err);
    halo->branched |= captured && code == 0;
    if (code == 0)
        code = enqueue_ordered(halo, set, halo->own, side->capture, err);
    else if (!captured)
        release_neighbors(halo, set);
    return code < 0 ? code
                    : order_after(halo, call, halo->own, true, captured, err);
}

static int
finish(const wm_halo_t *halo, const wm_halo_call_t *call, const side_t *side,
       wm_error_t *err)
{
    int code = side->found ? wm_stream_follow(halo->device, side->stream,
                                              halo->device, halo->own, err)
                           : 0;
    return code < 0 || side->alone || side->named
               ? code
               : order_after(halo, call, halo->own, false, side->capture != 0,
                             err);
}

// Does what a call is for with its set.
static int
take_step(wm_halo_t *halo, wm_halo_set_t *set, const wm_halo_call_t *call,
          const side_t *side, wm_halo_found_t *found, wm_error_t *err)
{
    *found = (wm_halo_found_t){.by_messages = set->by_messages, .id = set->id};
    if (call->step == WM_HALO_PREPARE) {
        set->kept = true;
        return 0;
    }
    if (set->by_messages)
        return 0;
    return call->step == WM_HALO_ENQUEUE ? enqueue(halo, set, call, side, err)
           : call->step == WM_HALO_START ? start(halo, set, call, side, err)
                                         : finish(halo, call, side, err);
}

int
wm_halo_run(wm_halo_t *halo, const wm_halo_call_t *call, int code,
            wm_halo_found_t *found, wm_error_t *err)
{
    wm_halo_set_t *set;
    wm_error_t unused;
    side_t side = {.capture = 0};
    wm_lock(&halo->lock);
    wm_device_stay();
    if (call->step != WM_HALO_PREPARE) {
        int asked = find_side(halo, call, &side, code < 0 ? &unused : err);
        code = code < 0 ? code : asked;
    }
    code = code < 0 ? code : check_stream(call, err);
    code = find_together(halo, call, &side, code, &set, err);
    if (code == 0)
        code = take_step(halo, set, call, &side, found, err);
    wm_device_go();
    pthread_mutex_unlock(&halo->lock);
    return code;
}

// With WARPMPI_CHECK finds ranks that make other calls than a plan's, which
// does not ask the others. A rank that has failed calls it, too. Not in a
// capture.
static int
check_set(const wm_halo_t *halo, const wm_halo_set_t *set,
          const wm_halo_call_t *call, const side_t *side, int code,
          wm_error_t *err)
{
    bool same = true;
    wm_error_t other;
    if (!wm_setting_is_on(WM_SETTING_CHECK) || halo->comm->size == 1
        || call->step != WM_HALO_ENQUEUE || side->capture != 0)
        return code;
    int compared = compare_sets(halo, code < 0 ? NULL : set, call, &same,
                                &other);
    if (code < 0)
        return code;
    if (compared < 0)
        *err = other;
    else if (!same)
        compared = wm_error_set(err, WM_ERR_STATE, 0,
                                "a rank calls the plan of other fields, or of "
                                "another halo, or its fields have moved: all "
                                "ranks make the same exchanges in the same "
                                "order");
    return compared;
}

int
wm_halo_repeat(wm_halo_t *halo, const wm_halo_call_t *call, uint32_t id,
               wm_halo_found_t *found, wm_error_t *err)
{
    side_t side;
    wm_lock(&halo->lock);
    wm_device_stay();
    wm_halo_set_t *set = id == 0 ? find_set(halo, call)
                                 : find_by_id(halo, call, id);
    int code = find_side(halo, call, &side, err);
    if (code < 0 && side.capture == 0 && set != NULL && !set->by_messages
        && call->step == WM_HALO_ENQUEUE)
        release_neighbors(halo, set);
    code = code < 0 ? code : check_stream(call, err);
    if (code == 0 && set == NULL)
        code = wm_error_set(err, WM_ERR_STATE, 0,
                            "fields: an array has other memory, or another "
                            "shape, than when the plan was made, or the "
                            "exchange began: make a new one");
    code = check_set(halo, set, call, &side, code, err);
    if (code == 0)
        code = take_step(halo, set, call, &side, found, err);
    wm_device_go();
    pthread_mutex_unlock(&halo->lock);
    return code;
}
