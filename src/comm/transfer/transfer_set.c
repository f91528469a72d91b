// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transfer/transfer_set.h"

#include <string.h>

#include "array/pull.h"
#include "comm/transfer/fuse.h"

void
wm_transfer_set_init(wm_transfer_set_t *set)
{
    memset(set, 0, offsetof(wm_transfer_set_t, failure));
    set->failure.code = 0;
}

// --- regions -----------------------------------------------------------

// Returns true if a transfer leaves out a region among its targets.
static bool
is_left_out(const wm_transfer_set_t *set, const wm_transfer_t *transfer,
            int target)
{
    return transfer->targets.count > 1 && transfer->sources.count == 1
           && set->regions[target].peer
                  == set->regions[transfer->sources.first].peer;
}

int
wm_transfer_set_find_damaged(const wm_transfer_set_t *set)
{
    int damaged = -1;
    for (int i = 0; i < set->count; ++i) {
        const wm_transfer_t *one = &set->transfers[i];
        for (int k = 0; k < one->sources.count; ++k) {
            int source = one->sources.first + k;
            if (!wm_transfer_region_holds(&set->regions[source], one->from,
                                          one->nbytes))
                damaged = source;
        }
        for (int k = 0; k < one->targets.count; ++k) {
            int target = one->targets.first + k;
            if (!is_left_out(set, one, target)
                && !wm_transfer_region_holds(&set->regions[target], one->into,
                                             one->nbytes))
                damaged = target;
        }
    }
    return damaged;
}

int
wm_transfer_set_map(wm_transfer_set_t *set, wm_error_t *err)
{
    int code = 0;
    for (int i = 0; i < set->count; ++i) {
        const wm_transfer_t *one = &set->transfers[i];
        for (int k = 0; k < one->sources.count && code == 0; ++k)
            code = wm_transfer_region_map(
                &set->regions[one->sources.first + k], set->device, err);
        for (int k = 0; k < one->targets.count && code == 0; ++k)
            if (!is_left_out(set, one, one->targets.first + k))
                code = wm_transfer_region_map(
                    &set->regions[one->targets.first + k], set->device, err);
    }
    return code;
}

void
wm_transfer_set_rest(wm_transfer_set_t *set)
{
    for (int i = 0; i < set->region_count; ++i)
        if (set->regions[i].mapping != NULL)
            wm_mapping_rest(set->regions[i].mapping);
    set->rests = true;
}

bool
wm_transfer_set_resume(wm_transfer_set_t *set)
{
    for (int i = 0; i < set->region_count; ++i)
        if (set->regions[i].mapping != NULL
            && !wm_mapping_is_there(set->regions[i].mapping))
            return false;
    for (int i = 0; i < set->region_count; ++i)
        if (set->regions[i].mapping != NULL)
            wm_mapping_resume(set->regions[i].mapping);
    set->rests = false;
    return true;
}

void
wm_transfer_set_drop(wm_transfer_set_t *set)
{
    for (int i = 0; i < set->region_count; ++i) {
        wm_mapping_t *mapping = set->regions[i].mapping;
        if (mapping != NULL && set->rests)
            wm_mapping_forget(mapping);
        else if (mapping != NULL)
            wm_mapping_release(mapping);
        set->regions[i].mapping = NULL;
    }
}

// --- a phase -------------------------------------------------------------

// Returns true if the transfer is one copy, which may step over gaps.
static bool
is_copy(const wm_transfer_t *transfer)
{
    return transfer->sources.count == 1 && transfer->targets.count == 1;
}

static bool
are_all_dense(const wm_transfer_set_t *set, const wm_transfer_range_t *range)
{
    bool dense = true;
    for (int k = 0; k < range->count && dense; ++k) {
        const wm_transfer_region_t *one = &set->regions[range->first + k];
        dense = wm_transfer_region_are_dense(one, one);
    }
    return dense;
}

bool
wm_transfer_set_can_copy(const wm_transfer_set_t *set)
{
    bool can = true;
    for (int i = 0; i < set->count; ++i) {
        const wm_transfer_t *one = &set->transfers[i];
        if (is_copy(one))
            can &= wm_transfer_region_can_copy(
                &set->regions[one->targets.first], one->into,
                &set->regions[one->sources.first], one->from, one->nbytes);
        else
            can &= are_all_dense(set, &one->sources)
                   && are_all_dense(set, &one->targets);
    }
    return can;
}

// Returns true if the transfer is a short copy without gaps, and fills *pull.
static bool
is_pulled(const wm_transfer_set_t *set, const wm_transfer_t *transfer,
          wm_pull_t *pull)
{
    const wm_transfer_region_t *from = &set->regions[transfer->sources.first];
    const wm_transfer_region_t *into = &set->regions[transfer->targets.first];
    if (!is_copy(transfer) || !wm_transfer_region_are_dense(into, from))
        return false;
    *pull = (wm_pull_t){
        .dst = into->memory + transfer->into,
        .src = from->memory + transfer->from,
        .nbytes = transfer->nbytes,
    };
    return wm_pull_serves(pull);
}

// The transfers of a phase, sorted.
typedef struct {
    int number;
    int pulls;                 // copies that share a kernel
    int others;                // number of other transfers
    bool kernel;               // the last of these is a kernel
    const wm_transfer_t *last; // the last of these
    const wm_transfer_t
        *single; // a short copy that has no other to share with
} phase_t;

static void
sort(const wm_transfer_set_t *set, int number, phase_t *phase)
{
    wm_pull_t pull;
    *phase = (phase_t){.number = number};
    for (int i = 0; i < set->count; ++i) {
        const wm_transfer_t *one = &set->transfers[i];
        if (one->phase != number)
            continue;
        if (!is_pulled(set, one, &pull)) {
            phase->kernel = !is_copy(one);
            phase->last = one;
            ++phase->others;
        }
        else if (pull.dst != pull.src) {
            phase->single = one;
            ++phase->pulls;
        }
    }
    if (phase->pulls != 1) {
        phase->single = NULL;
        return;
    }
    phase->pulls = 0; // a copy engine is better for a single one
    phase->kernel = false;
    ++phase->others;
}

// Writes the addresses for the result of a transfer; returns how many. Writes
// begin with our own memory, then go to the regions after it, so that not all
// ranks write to one peer at a time.
static int
targets_of(const wm_transfer_set_t *set, const wm_transfer_t *transfer,
           void **targets)
{
    const wm_transfer_range_t *all = &transfer->targets;
    int count = 0, own = 0;
    while (own < all->count && set->regions[all->first + own].peer != NULL)
        ++own;
    for (int i = 0; i < all->count; ++i) {
        int target = all->first + (own + i) % all->count;
        if (!is_left_out(set, transfer, target))
            targets[count++] = set->regions[target].memory + transfer->into;
    }
    return count;
}

// The arguments of wm_reduce_enqueue() for a transfer.
typedef struct {
    const void *sources[WM_REDUCE_SOURCES];
    void *targets[WM_REDUCE_TARGETS];
    wm_reduction_t reduction;
} computed_t;

static void
compute(const wm_transfer_set_t *set, const wm_transfer_t *transfer,
        const wm_signal_t *signal, computed_t *computed)
{
    int count = transfer->sources.count;
    wm_reduce_type_t type = count == 1 ? WM_REDUCE_UINT8 : set->type;
    for (int k = 0; k < count; ++k)
        computed->sources[k] = set->regions[transfer->sources.first + k].memory
                               + transfer->from;
    computed->reduction = (wm_reduction_t){
        .type = type,
        .op = count == 1 ? WM_REDUCE_NO_OP : set->op,
        .dst = computed->targets,
        .targets = targets_of(set, transfer, computed->targets),
        .src = computed->sources,
        .n = count,
        .count = transfer->nbytes / wm_reduce_size(type),
        .signal = *signal,
    };
}

static int
enqueue_one(const wm_transfer_set_t *set, const wm_transfer_t *transfer,
            const wm_signal_t *signal, wm_error_t *err)
{
    computed_t computed;
    if (is_copy(transfer))
        return wm_transfer_region_copy(
            &set->regions[transfer->targets.first], transfer->into,
            &set->regions[transfer->sources.first], transfer->from,
            transfer->nbytes, set->device, set->access->stream, err);
    compute(set, transfer, signal, &computed);
    return wm_reduce_enqueue(set->device, &computed.reduction,
                             set->access->stream, err);
}

static int
enqueue_pulls(const wm_transfer_set_t *set, const phase_t *phase,
              const wm_signal_t *signal, wm_error_t *err)
{
    wm_pull_params_t params; // a few KiB
    int code = 0;
    params.count = 0;
    params.signal = *signal;
    for (int i = 0; i < set->count && code == 0; ++i) {
        wm_pull_t *pull = &params.pulls[params.count];
        if (set->transfers[i].phase != phase->number
            || !is_pulled(set, &set->transfers[i], pull)
            || pull->dst == pull->src || ++params.count < WM_PULLS)
            continue;
        code = wm_pull_launch(set->device, &params, set->access->stream, err);
        params.count = 0;
    }
    return code < 0 || params.count == 0
               ? code
               : wm_pull_launch(set->device, &params, set->access->stream,
                                err);
}

static int
enqueue_others(const wm_transfer_set_t *set, const phase_t *phase,
               const wm_signal_t *signal, wm_error_t *err)
{
    wm_pull_t pull;
    int code = 0;
    for (int i = 0; i < set->count && code == 0; ++i)
        if (set->transfers[i].phase == phase->number
            && !is_pulled(set, &set->transfers[i], &pull))
            code = enqueue_one(set, &set->transfers[i], signal, err);
    return code < 0 || phase->single == NULL
               ? code
               : enqueue_one(set, phase->single, signal, err);
}

// Adds the phase to a shared kernel. Returns false if the phase is not just
// one reduction, or it cannot be shared.
static bool
is_fused(wm_transfer_set_t *set, const phase_t *phase)
{
    computed_t computed;
    const wm_signal_t none = {.word = NULL};
    if (!set->shares || phase->pulls > 0 || phase->others != 1
        || !phase->kernel || set->access->opened)
        return false;
    compute(set, phase->last, &none, &computed);
    return wm_fuse_add(set, &computed.reduction);
}

// Returns the signal for the only kernel of a phase. Its word is NULL if the
// phase is more than one kernel, or if no word is free.
static wm_signal_t
telling(const wm_transfer_set_t *set, const phase_t *phase, bool more)
{
    wm_signal_t *signal = set->signal;
    bool one = phase->pulls > 0
                   ? phase->others == 0 && phase->pulls <= WM_PULLS
                   : phase->others == 1 && phase->kernel;
    if (!one || more || signal == NULL
        || (signal->word == NULL && !wm_signal_acquire(signal)))
        return (wm_signal_t){.word = NULL};
    wm_signal_renew(signal);
    return *signal;
}

int
wm_transfer_set_enqueue(wm_transfer_set_t *set, int number, bool more,
                        bool *begun, wm_error_t *err)
{
    phase_t phase;
    // A shared kernel is not launched yet at the next look: the idle stream
    // would tell nothing.
    set->looks = 0;
    sort(set, number, &phase);
    if (phase.pulls == 0 && phase.others == 0 && !more)
        return 0;
    if (!more && is_fused(set, &phase)) {
        set->signals = *begun = true;
        set->access->idle = false;
        return 0;
    }
    int code = wm_access_open(set->access, err);
    if (code < 0)
        return code;
    wm_signal_t signal = set->awaited = telling(set, &phase, more);
    // Also after an error, as work may be under way.
    *begun = true;
    set->access->idle = false;
    if (phase.pulls > 0)
        code = enqueue_pulls(set, &phase, &signal, err);
    if (code == 0 && phase.others > 0)
        code = enqueue_others(set, &phase, &signal, err);
    // After an error there may be no kernel.
    set->signals = signal.word != NULL && code == 0;
    return code;
}

int
wm_transfer_set_look(wm_transfer_set_t *set, int tries, wm_error_t *err)
{
    int code = 0;
    if (set->signals && wm_signal_is_set(&set->awaited)) {
        set->access->idle = true; // the kernel has signalled its end
        code = 1;
    }
    else if (!set->signals || ++set->looks % WM_SIGNAL_LOOKS == 0)
        code = wm_access_look(set->access, tries, err);
    if (code > 0 && set->failure.code < 0) {
        *err = set->failure;
        code = err->code;
        set->failure.code = 0;
    }
    if (code != 0)
        set->signals = false;
    return code;
}
