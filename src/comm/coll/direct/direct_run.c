// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/direct/direct_run.h"

#include <string.h>

#include "comm/coll/call/preflight_values.h"
#include "comm/coll/call/coll_wait.h"
#include "comm/coll/direct/phase.h"
#include "comm/engine/engine.h"
#include "comm/engine/stats.h"

// A stream whose kernel signals its end is looked at only now and then: the
// signal is missing only if the stream has failed.
#define LOOKS_A_STREAM 128
#define LOOKS_AT_ENDS 6400 // calls of look() before the engine waits
#define LOOKS_AT_ONCE 100  // looks at the signal in each of these calls

#define MOVED 2 // the step at the end of the first phase

_Static_assert(MOVED + WM_PLAN_PHASES == WM_DIRECT_STEPS, "and the others");

static const wm_place_t *
run_place(const wm_direct_run_t *run, bool result, int rank)
{
    const wm_published_t *published = wm_preflight_data(run->direct->barrier,
                                                        rank);
    return result ? &published->receives : &published->sends;
}

// Returns true if the memory that a rank has published holds these bytes.
static bool
run_has_published(const wm_direct_run_t *run, bool result, int rank, size_t at,
                  size_t nbytes)
{
    const wm_comm_t *comm = run->direct->comm;
    const wm_published_t *published = wm_preflight_data(run->direct->barrier,
                                                        rank);
    const wm_place_t *place = run_place(run, result, rank);
    int index = comm->rank - wm_comm_group(comm, comm->rank).first;
    const wm_strided_desc_t *gaps = run->gapped
                                        ? wm_published_gaps(published, index)
                                        : NULL;
    size_t end, before = place->address - place->base;
    if (rank == comm->rank && gaps == NULL)
        return true; // a rank trusts its own numbers
    if (__builtin_add_overflow(at, nbytes, &end)
        || published->gaps > WM_PUBLISHED_GAPS_EACH
        || !wm_place_holds(place, gaps != NULL ? 0 : end))
        return false;
    return gaps == NULL
           || (wm_strided_desc_is_within(gaps, before, place->size - before)
               && end <= wm_strided_desc_nbytes(gaps));
}

// Refuses published numbers if a move would leave the memory of a rank. Called
// before any memory is mapped.
static int
run_check_published(wm_direct_run_t *run)
{
    int damaged = -1;
    for (int i = 0; i < run->plan->count; ++i) {
        const wm_move_t *move = &run->plan->moves[i];
        for (int k = 0; k < move->count; ++k)
            if (!run_has_published(run, move->result, move->first + k,
                                   move->from, move->nbytes))
                damaged = move->first + k;
        for (int rank = 0; rank < run->direct->comm->size; ++rank)
            if (wm_move_reaches(move, rank)
                && !run_has_published(run, true, rank, move->into,
                                      move->nbytes))
                damaged = rank;
    }
    return damaged < 0
               ? 0
               : wm_comm_damaged(run->direct->comm, damaged, &run->why);
}

static int
map(wm_direct_run_t *run, bool result, int rank)
{
    wm_direct_t *direct = run->direct;
    const wm_place_t *place = run_place(run, result, rank);
    wm_peer_t *peer = direct->comm->peers[rank];
    char **found = &run->places[result][rank];
    if (rank == direct->comm->rank)
        *found = result ? direct->target : direct->source;
    if (*found != NULL)
        return 0;
    wm_mapping_t **mapping = &run->mappings[result][rank];
    int code = wm_mapping_reach(peer, place, direct->device, mapping,
                                &run->why);
    if (code == 0)
        *found = wm_mapping_at(*mapping, place);
    return code;
}

static int
map_all(wm_direct_run_t *run)
{
    int code = 0;
    for (int i = 0; i < run->plan->count; ++i) {
        const wm_move_t *move = &run->plan->moves[i];
        for (int k = 0; k < move->count && code == 0; ++k)
            code = map(run, move->result, move->first + k);
        for (int rank = 0; rank < run->direct->comm->size && code == 0; ++rank)
            if (wm_move_reaches(move, rank))
                code = map(run, true, rank);
    }
    return code;
}

// Takes memory without gaps if some moves cannot step over the gaps of both
// sides.
static int
land(wm_direct_run_t *run)
{
    return wm_phase_can_move(run)
               ? 0
               : wm_direct_take_landing(run->direct, &run->why);
}

// Returns the step of the current phase. Each rank publishes its state and
// arrives at a step before the first phase, and at the end of each phase.
static int
step_of(const wm_direct_run_t *run)
{
    return MOVED + run->phase;
}

static void
run_publish(wm_direct_run_t *run)
{
    wm_barrier_t *barrier = run->direct->barrier;
    wm_published_t *mine = wm_preflight_own_data(barrier);
    if (run->why.code < 0 && mine->failed == 0) {
        mine->unmapped = run->unmapped;
        mine->code = run->why.code;
        mine->detail = run->why.detail;
        wm_error_cut(run->why.text, sizeof mine->text, mine->text);
        mine->failed = (uint8_t)step_of(run);
    }
    wm_barrier_arrive(barrier, step_of(run));
}

static void
direct_run_follow(wm_direct_run_t *run)
{
    if (run->why.code == 0)
        (void)!wm_phase_enqueue(run, &run->why);
    if (!run->busy)
        run_publish(run);
}

// Publishes that this rank is ready. If others write into its target, it is
// ready when the work that uses the target has ended.
static void
allow(wm_direct_run_t *run)
{
    wm_direct_t *direct = run->direct;
    bool idle = !run->plan->writes_peers || !direct->into.opened
                || direct->into.settled;
    if (!idle && run->why.code == 0)
        (void)!wm_producer_idle(&direct->into.producer, true, &idle,
                                &run->why);
    run->busy = !idle && run->why.code == 0;
    if (!run->busy)
        run_publish(run);
}

void
wm_direct_restart(wm_direct_run_t *run)
{
    run->busy = run->signals = run->ended = false;
    run->looks = 0;
    run->phase = run->waits ? -1 : 0;
    run->result = 0;
    if (run->waits)
        allow(run);
    else
        direct_run_follow(run);
}

void
wm_direct_start(wm_direct_run_t *run, wm_direct_t *direct,
                const wm_plan_t *plan, wm_reduce_type_t type,
                wm_reduce_op_t op, bool fuses, const wm_error_t *wrong)
{
    size_t ranks = (size_t)direct->comm->size;
    for (int i = 0; i < 2; ++i) {
        memset(run->mappings[i], 0, ranks * sizeof *run->mappings[i]);
        memset(run->places[i], 0, ranks * sizeof *run->places[i]);
    }
    run->rests = false;
    run->direct = direct;
    run->plan = plan;
    run->type = type;
    run->op = op;
    run->fuses = fuses;
    run->why.code = 0;
    // All ranks must be ready before one writes, unless a failed attempt can
    // be repeated through the host: in one phase, in which each rank writes
    // its own receive memory only, and no send data.
    run->waits = plan->phases > 1 || plan->writes_peers;
    run->gapped = false;
    for (int rank = 0; rank < direct->comm->size; ++rank) {
        const wm_published_t *published = wm_preflight_data(direct->barrier,
                                                            rank);
        run->waits |= published->overwrites;
        run->gapped |= published->gaps != WM_PUBLISHED_DENSE;
    }
    bool sound = wrong->code == 0 && run_check_published(run) == 0;
    run->unmapped = sound && (map_all(run) < 0 || land(run) < 0);
    if (wrong->code < 0)
        run->why = *wrong;
    else if (sound && !run->unmapped)
        run->why.code = 0; // an error that was overcome
    wm_direct_restart(run);
}

bool
wm_direct_look(wm_direct_run_t *run)
{
    wm_error_t why;
    if (!run->busy)
        return wm_barrier_all_arrived(run->direct->barrier, step_of(run));
    if (run->signals && wm_signal_is_set(&run->signal)) {
        run->direct->into.idle = true; // the kernel has signalled its end
        return true;
    }
    if (run->signals && ++run->looks % LOOKS_A_STREAM != 0)
        return false;
    int code = wm_access_look(&run->direct->into, WM_LOOK_TRIES, &why);
    if (code < 0 && run->why.code == 0)
        run->why = why;
    return code != 0;
}

bool
wm_direct_go_on(wm_direct_run_t *run)
{
    if (run->busy) {
        run->busy = run->signals = false;
        run_publish(run);
        return false;
    }
    for (int rank = 0; rank < run->direct->comm->size; ++rank) {
        const wm_published_t *published = wm_preflight_data(
            run->direct->barrier, rank);
        if (published->failed != 0 && published->failed <= step_of(run))
            run->result = 1; // all ranks find this at the same step
    }
    run->ended = run->result != 0 || ++run->phase == run->plan->phases;
    if (!run->ended)
        direct_run_follow(run);
    return run->ended;
}

// Returns the result if a rank has failed: 1 if the host can do the call, else
// an error, on all ranks.
static int
direct_run_explain(const wm_direct_run_t *run, wm_error_t *err)
{
    int failed = -1;
    const wm_direct_t *direct = run->direct;
    for (int rank = 0; rank < direct->comm->size; ++rank) {
        const wm_published_t *published = wm_preflight_data(direct->barrier,
                                                            rank);
        if (published->failed != 0 && !published->unmapped)
            failed = rank;
    }
    if (failed < 0)
        return 1;
    const wm_published_t *published = wm_preflight_data(direct->barrier,
                                                        failed);
    bool known = published->code < 0 && published->code > WM_ERR_PYTHON;
    if (run->why.code == 0 || failed != direct->comm->rank)
        return wm_error_set(
            err, known ? published->code : WM_ERR_STATE, published->detail,
            "%s failed in this collective: %.159s",
            wm_comm_name(direct->comm, failed).text, published->text);
    if (err != NULL)
        *err = run->why;
    return run->why.code;
}

// Releases a mapping, or forgets it if the run rests.
static void
direct_run_let_go(const wm_direct_run_t *run, wm_mapping_t *mapping)
{
    if (run->rests)
        wm_mapping_forget(mapping);
    else
        wm_mapping_release(mapping);
}

void
wm_direct_unmap(wm_direct_run_t *run)
{
    for (int i = 0; i < 2; ++i)
        for (int rank = 0; rank < run->direct->comm->size; ++rank)
            if (run->mappings[i][rank] != NULL) {
                direct_run_let_go(run, run->mappings[i][rank]);
                run->mappings[i][rank] = NULL;
            }
}

bool
wm_direct_rest(wm_direct_run_t *run)
{
    if (run->gapped || !wm_direct_close(run->direct))
        return false;
    for (int i = 0; i < 2; ++i)
        for (int rank = 0; rank < run->direct->comm->size; ++rank)
            if (run->mappings[i][rank] != NULL)
                wm_mapping_rest(run->mappings[i][rank]);
    run->rests = true;
    return true;
}

bool
wm_direct_resume(wm_direct_run_t *run)
{
    bool there = true;
    for (int i = 0; i < 2; ++i)
        for (int rank = 0; rank < run->direct->comm->size; ++rank)
            if (run->mappings[i][rank] != NULL)
                there = there && wm_mapping_is_there(run->mappings[i][rank]);
    for (int i = 0; i < 2 && there; ++i)
        for (int rank = 0; rank < run->direct->comm->size; ++rank)
            if (run->mappings[i][rank] != NULL)
                wm_mapping_resume(run->mappings[i][rank]);
    run->rests = !there;
    return there;
}

int
wm_direct_finish(const wm_direct_run_t *run, wm_error_t *err)
{
    if (run->ended && run->result == 0)
        wm_stat_add(WM_STAT_ipc_collectives, 1);
    return run->result == 0 ? 0 : direct_run_explain(run, err);
}

static int
direct_run_look(void *context, wm_error_t *err)
{
    wm_direct_run_t *run = context;
    (void)err;
    for (int i = 0; run->signals && i < LOOKS_AT_ONCE; ++i)
        if (wm_signal_is_set(&run->signal))
            break;
    return wm_direct_look(run);
}

// Returns the number of looks before the engine waits.
static int
looks_of(const wm_direct_run_t *run)
{
    return run->signals ? LOOKS_AT_ENDS
           : run->busy  ? WM_LOOKS_AT_STREAM
                        : WM_LOOKS_AT_WORDS;
}

int
wm_direct_run(wm_direct_t *direct, const wm_plan_t *plan,
              wm_reduce_type_t type, wm_reduce_op_t op,
              const wm_error_t *wrong, wm_error_t *err)
{
    wm_direct_run_t run;
    int code;
    wm_engine_lock();
    wm_direct_start(&run, direct, plan, type, op, false, wrong);
    wm_engine_unlock();
    do
        code = wm_coll_wait(direct->comm, direct_run_look, &run,
                            looks_of(&run), err);
    while (code == 0 && !wm_direct_go_on(&run));
    wm_engine_lock();
    wm_direct_unmap(&run);
    wm_engine_unlock();
    int finished = wm_direct_finish(&run, err);
    return code < 0 ? code : finished;
}
