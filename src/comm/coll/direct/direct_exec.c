// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/direct/direct_exec.h"

#include "comm/coll/direct/preflight.h"
#include "comm/coll/call/coll_wait.h"
#include "comm/engine/engine.h"
#include "comm/engine/stats.h"

#define MOVED 2 // the step at the end of the first phase

_Static_assert(MOVED + WM_PLAN_PHASES == WM_DIRECT_STEPS, "and the others");

// Fills the regions of the plan: the memory that the ranks have published.
static void
run_fill(wm_direct_exec_t *run)
{
    const wm_direct_t *direct = run->direct;
    const wm_comm_t *comm = direct->comm;
    int index = comm->rank - wm_comm_group(comm, comm->rank).first;
    for (int rank = 0; rank < comm->size; ++rank) {
        const wm_published_t *published = wm_preflight_data(direct->barrier,
                                                            rank);
        bool known = published->gaps <= WM_PUBLISHED_GAPS_EACH;
        run->regions[rank] = (wm_transfer_region_t){
            .peer = comm->peers[rank],
            .place = known ? &published->sends : NULL,
            .gaps = wm_published_gaps(published, index),
        };
        run->regions[comm->size + rank] = (wm_transfer_region_t){
            .peer = comm->peers[rank],
            .place = known ? &published->receives : NULL,
        };
        run->waits |= published->overwrites;
        run->gapped |= published->gaps != WM_PUBLISHED_DENSE;
    }
    wm_transfer_region_t *source = &run->regions[comm->rank];
    wm_transfer_region_t *target = &run->regions[comm->size + comm->rank];
    source->peer = target->peer = NULL;
    source->memory = direct->source;
    target->memory = direct->target;
    target->pattern = direct->landing == NULL ? direct->gaps : NULL;
}

// Refuses published numbers if a move would leave the memory of a rank. Called
// before any memory is mapped.
static int
run_check_published(wm_direct_exec_t *run)
{
    const wm_comm_t *comm = run->direct->comm;
    int damaged = wm_transfer_set_find_damaged(&run->set);
    return damaged < 0
               ? 0
               : wm_comm_damaged(comm, damaged % comm->size, &run->why);
}

// Takes memory without gaps if some moves cannot step over the gaps of both
// sides.
static int
land(wm_direct_exec_t *run)
{
    wm_direct_t *direct = run->direct;
    wm_transfer_region_t *target =
        &run->regions[direct->comm->size + direct->comm->rank];
    if (wm_transfer_set_can_copy(&run->set))
        return 0;
    int code = wm_direct_take_landing(direct, &run->why);
    target->memory = direct->target;
    target->pattern = NULL;
    return code;
}

// Returns the step of the current phase. Each rank publishes its state and
// arrives at a step before the first phase, and at the end of each phase.
static int
step_of(const wm_direct_exec_t *run)
{
    return MOVED + run->phase;
}

static void
run_publish(wm_direct_exec_t *run)
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
            const wm_transfer_t *move = &plan->moves[i];
            if (move->into <= *end && move->into + move->nbytes > *end)
                *end = move->into + move->nbytes;
        }
    } while (*end > before);
    return begin;
}

// Unpacks the received bytes only; bytes between them are not written.
static int
unpack(const wm_direct_exec_t *run, wm_error_t *err)
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

static int
enqueue_phase(wm_direct_exec_t *run, wm_error_t *err)
{
    bool unpacks = run->phase == run->plan->phases - 1
                   && run->direct->landing != NULL && run->plan->count > 0;
    int code = wm_transfer_set_enqueue(&run->set, run->phase, unpacks,
                                       &run->busy, err);
    run->direct->written |= run->busy;
    return code == 0 && unpacks ? unpack(run, err) : code;
}

static void
direct_run_follow(wm_direct_exec_t *run)
{
    if (run->why.code == 0)
        (void)!enqueue_phase(run, &run->why);
    if (!run->busy)
        run_publish(run);
}

// Publishes that this rank is ready. If others write into its target, it is
// ready when the work that uses the target has ended.
static void
allow(wm_direct_exec_t *run)
{
    wm_direct_t *direct = run->direct;
    bool idle = !run->plan->writes_peers || !direct->into.opened
                || direct->into.after_nothing;
    if (!idle && run->why.code == 0)
        (void)!wm_producer_idle(&direct->into.producer, true, &idle,
                                &run->why);
    run->busy = !idle && run->why.code == 0;
    if (!run->busy)
        run_publish(run);
}

void
wm_direct_restart(wm_direct_exec_t *run)
{
    run->busy = run->ended = false;
    run->phase = run->waits ? -1 : 0;
    run->result = 0;
    if (run->waits)
        allow(run);
    else
        direct_run_follow(run);
}

void
wm_direct_start(wm_direct_exec_t *run, wm_direct_t *direct,
                const wm_plan_t *plan, wm_reduce_type_t type,
                wm_reduce_op_t op, bool fuses, const wm_error_t *wrong)
{
    wm_transfer_set_t *set = &run->set;
    wm_transfer_set_init(set);
    set->device = direct->device;
    set->regions = run->regions;
    set->region_count = 2 * direct->comm->size;
    set->transfers = plan->moves;
    set->count = plan->count;
    set->type = type;
    set->op = op;
    set->access = &direct->into;
    set->signal = &direct->signal;
    set->shares = fuses;
    run->direct = direct;
    run->plan = plan;
    run->why.code = 0;
    // All ranks must be ready before one writes, unless a failed attempt can
    // be repeated through the host: in one phase, in which each rank writes
    // its own receive memory only, and no send data.
    run->waits = plan->phases > 1 || plan->writes_peers;
    run->gapped = false;
    run_fill(run);
    bool sound = wrong->code == 0 && run_check_published(run) == 0;
    run->unmapped =
        sound && (wm_transfer_set_map(set, &run->why) < 0 || land(run) < 0);
    if (wrong->code < 0)
        run->why = *wrong;
    else if (sound && !run->unmapped)
        run->why.code = 0; // an error that was overcome
    wm_direct_restart(run);
}

bool
wm_direct_look(wm_direct_exec_t *run)
{
    wm_error_t why;
    if (!run->busy)
        return wm_barrier_all_arrived(run->direct->barrier, step_of(run));
    int code = wm_transfer_set_look(&run->set, WM_LOOK_TRIES, &why);
    if (code < 0 && run->why.code == 0)
        run->why = why;
    return code != 0;
}

bool
wm_direct_go_on(wm_direct_exec_t *run)
{
    if (run->busy) {
        run->busy = false;
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
direct_run_explain(const wm_direct_exec_t *run, wm_error_t *err)
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

void
wm_direct_unmap(wm_direct_exec_t *run)
{
    wm_transfer_set_drop(&run->set);
}

bool
wm_direct_rest(wm_direct_exec_t *run)
{
    if (run->gapped || !wm_direct_close(run->direct))
        return false;
    wm_transfer_set_rest(&run->set);
    return true;
}

bool
wm_direct_resume(wm_direct_exec_t *run)
{
    return wm_transfer_set_resume(&run->set);
}

int
wm_direct_finish(const wm_direct_exec_t *run, wm_error_t *err)
{
    if (run->ended && run->result == 0)
        wm_stat_add(WM_STAT_ipc_collectives, 1);
    return run->result == 0 ? 0 : direct_run_explain(run, err);
}
