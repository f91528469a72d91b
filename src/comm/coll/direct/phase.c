// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/direct/phase.h"

#include "array/pull.h"
#include "comm/coll/call/preflight_values.h"
#include "comm/coll/direct/fuse.h"

// Returns the copy that a move makes.
static wm_strided_desc_move_t
move_of(const wm_direct_run_t *run, const wm_move_t *move)
{
    const wm_direct_t *direct = run->direct;
    const wm_comm_t *comm = direct->comm;
    const wm_published_t *published = wm_preflight_data(direct->barrier,
                                                        move->first);
    int index = comm->rank - wm_comm_group(comm, comm->rank).first;
    return (wm_strided_desc_move_t){
        .gaps = run->gapped ? wm_published_gaps(published, index) : NULL,
        .origin = run->places[move->result][move->first],
        .from = move->from,
        .pattern = direct->landing == NULL ? direct->gaps : NULL,
        .target = direct->target,
        .into = move->into,
        .nbytes = move->nbytes,
    };
}

bool
wm_phase_can_move(const wm_direct_run_t *run)
{
    bool can = true;
    for (int i = 0; i < run->plan->count; ++i) {
        wm_strided_desc_move_t move = move_of(run, &run->plan->moves[i]);
        can &= wm_strided_desc_can_move(&move);
    }
    return can;
}

// The moves of a phase, sorted.
typedef struct {
    wm_pull_params_t pulls; // moves that share a kernel
    int others;             // number of other moves
    bool kernel;            // the last of these is a kernel
    const wm_move_t *alone[WM_BARRIER_RANKS];
} phase_t;

static bool
is_pulled(const wm_direct_run_t *run, const wm_move_t *move, wm_pull_t *pull)
{
    wm_strided_desc_move_t one = move_of(run, move);
    if (move->count > 1 || move->to.count > 0
        || !wm_strided_desc_is_dense(&one))
        return false;
    *pull = (wm_pull_t){
        .dst = one.target + one.into,
        .src = one.origin + one.from,
        .nbytes = one.nbytes,
    };
    return wm_pull_serves(pull);
}

static void
sort(const wm_direct_run_t *run, phase_t *phase)
{
    phase->pulls.count = 0;
    phase->pulls.signal.word = NULL;
    phase->others = 0;
    const wm_move_t *pulled = NULL;
    for (int i = 0; i < run->plan->count; ++i) {
        const wm_move_t *move = &run->plan->moves[i];
        wm_pull_t *pull = &phase->pulls.pulls[phase->pulls.count];
        if (move->phase != run->phase)
            continue;
        if (!is_pulled(run, move, pull)) {
            phase->kernel = move->count > 1 || move->to.count > 0;
            phase->alone[phase->others++] = move;
        }
        else if (pull->dst != pull->src) {
            pulled = move;
            ++phase->pulls.count;
        }
    }
    if (phase->pulls.count != 1)
        return;
    phase->pulls.count = 0; // a copy engine is better for a single one
    phase->kernel = false;
    phase->alone[phase->others++] = pulled;
}

// Writes the addresses for the result of a move; returns how many. Writes into
// peers begin with our own memory, then that of the ranks after us, so that
// not all ranks write to one peer at a time.
static int
targets_of(const wm_direct_run_t *run, const wm_move_t *move, void **targets)
{
    const wm_comm_t *comm = run->direct->comm;
    int count = 0;
    if (move->to.count == 0) {
        targets[0] = run->direct->target + move->into;
        return 1;
    }
    for (int i = 0; i < comm->size; ++i) {
        int rank = (comm->rank + i) % comm->size;
        if (wm_move_reaches(move, rank))
            targets[count++] = run->places[true][rank] + move->into;
    }
    return count;
}

// The arguments of wm_reduce_enqueue() for a move.
typedef struct {
    const void *sources[WM_REDUCE_SOURCES];
    void *targets[WM_REDUCE_TARGETS];
    wm_reduction_t reduction;
} computed_t;

static void
compute(const wm_direct_run_t *run, const wm_move_t *move,
        const wm_signal_t *signal, computed_t *computed)
{
    bool copies = move->count == 1;
    wm_reduce_type_t type = copies ? WM_REDUCE_UINT8 : run->type;
    for (int k = 0; k < move->count; ++k)
        computed->sources[k] = run->places[move->result][move->first + k]
                               + move->from;
    computed->reduction = (wm_reduction_t){
        .type = type,
        .op = copies ? WM_REDUCE_NO_OP : run->op,
        .dst = computed->targets,
        .targets = targets_of(run, move, computed->targets),
        .src = computed->sources,
        .n = move->count,
        .count = move->nbytes / wm_reduce_size(type),
        .signal = *signal,
    };
}

static int
phase_enqueue(const wm_direct_run_t *run, const wm_move_t *move,
              const wm_signal_t *signal, wm_error_t *err)
{
    const wm_direct_t *direct = run->direct;
    computed_t computed;
    wm_strided_desc_move_t one = move_of(run, move);
    if (move->count == 1 && move->to.count == 0)
        return wm_strided_desc_move(&one, direct->device, direct->into.stream,
                                    err);
    compute(run, move, signal, &computed);
    return wm_reduce_enqueue(direct->device, &computed.reduction,
                             direct->into.stream, err);
}

// Adds the phase to a shared kernel. Returns false if the phase is not just
// one reduction, or it cannot be shared.
static bool
is_fused(wm_direct_run_t *run, const phase_t *phase)
{
    computed_t computed;
    const wm_signal_t none = {.word = NULL};
    if (!run->fuses || phase->pulls.count > 0 || phase->others != 1
        || !phase->kernel || run->direct->into.opened)
        return false;
    compute(run, phase->alone[0], &none, &computed);
    return wm_fuse_add(run, &computed.reduction);
}

// Returns the offset of the first written byte of the receive memory at or
// after `at`; SIZE_MAX: none. *end is the first byte after it that is not
// written.
static size_t
find_written(const wm_plan_t *plan, size_t at, size_t *end)
{
    size_t begin = SIZE_MAX, before;
    for (int i = 0; i < plan->count; ++i)
        if (plan->moves[i].into >= at && plan->moves[i].into < begin)
            begin = plan->moves[i].into;
    *end = begin;
    do {
        before = *end;
        for (int i = 0; i < plan->count; ++i) {
            const wm_move_t *move = &plan->moves[i];
            if (move->into <= *end && move->into + move->nbytes > *end)
                *end = move->into + move->nbytes;
        }
    } while (*end > before);
    return begin;
}

// Unpacks the received bytes only; bytes between them are not written.
static int
unpack(const wm_direct_run_t *run, wm_error_t *err)
{
    const wm_direct_t *direct = run->direct;
    int code = 0;
    for (size_t at = 0, end; code == 0; at = end) {
        at = find_written(run->plan, at, &end);
        if (at == SIZE_MAX)
            break;
        code = wm_pattern_copy_part(direct->gaps, at, direct->target + at,
                                    end - at, false, direct->device,
                                    direct->into.stream, err);
    }
    return code;
}

// Returns the signal for the only kernel of a phase. Its word is NULL if the
// phase is more than one kernel, or if no word is free.
static wm_signal_t
telling(wm_direct_t *direct, const phase_t *phase, bool unpacks)
{
    bool one = phase->pulls.count > 0 ? phase->others == 0
                                      : phase->others == 1 && phase->kernel;
    if (!one || unpacks
        || (direct->signal.word == NULL
            && !wm_signal_acquire(&direct->signal)))
        return (wm_signal_t){.word = NULL};
    wm_signal_renew(&direct->signal);
    return direct->signal;
}

int
wm_phase_enqueue(wm_direct_run_t *run, wm_error_t *err)
{
    wm_direct_t *direct = run->direct;
    phase_t phase; // a few KiB
    sort(run, &phase);
    bool unpacks = run->phase == run->plan->phases - 1
                   && direct->landing != NULL && run->plan->count > 0;
    if (phase.pulls.count == 0 && phase.others == 0 && !unpacks)
        return 0;
    if (!unpacks && is_fused(run, &phase)) {
        run->busy = run->signals = direct->written = true;
        direct->into.idle = false;
        return 0;
    }
    int code = wm_access_open(&direct->into, err);
    if (code < 0)
        return code;
    wm_signal_t signal = run->signal = telling(direct, &phase, unpacks);
    // Also after an error, as work may be under way.
    run->busy = direct->written = true;
    run->signals = signal.word != NULL;
    direct->into.idle = false;
    if (phase.pulls.count > 0) {
        phase.pulls.signal = signal;
        code = wm_pull_launch(direct->device, &phase.pulls,
                              direct->into.stream, err);
    }
    for (int i = 0; i < phase.others && code == 0; ++i)
        code = phase_enqueue(run, phase.alone[i], &signal, err);
    run->signals &= code == 0; // after an error there may be no kernel
    return code == 0 && unpacks ? unpack(run, err) : code;
}
