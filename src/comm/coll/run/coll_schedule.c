// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/run/coll_schedule.h"

#include "comm/coll/run/nonblocking.h"
#include "comm/coll/run/nonblocking_call.h"
#include "comm/comm/failure.h"
#include "comm/comm/require.h"
#include "comm/engine/engine.h"

#define LOOKS 100 // before a blocking call waits
// In the verdict, beside the rank: it has refused to stage memory (require.h).
#define STAGED ((int64_t)1 << 32)

static wm_comm_t *
comm_of(const wm_schedule_t *schedule)
{
    return schedule->op->participant.comm;
}

void
wm_schedule_init(wm_schedule_t *schedule, wm_coll_op_t *op)
{
    *schedule = (wm_schedule_t){.op = op};
}

// Returns a new task; NULL: there are too many, and the call has failed.
static wm_schedule_task_t *
append(wm_schedule_t *schedule, int most)
{
    wm_error_t why;
    wm_schedule_task_t *task = &schedule->tasks[schedule->count];
    if (schedule->count < most) {
        ++schedule->count;
        *task = (wm_schedule_task_t){.comm = NULL};
        return task;
    }
    (void)!wm_error_set(&why, WM_ERR_STATE, 0,
                        "a schedule has at most %d tasks", most);
    wm_coll_op_fail(schedule->op, &why);
    return NULL;
}

void
wm_schedule_add(wm_schedule_t *schedule, wm_comm_t *level,
                const wm_coll_t *call)
{
    wm_schedule_task_t *task = append(schedule, WM_SCHEDULE_TASKS - 1);
    if (task == NULL)
        return;
    task->comm = level;
    task->call = *call;
}

void
wm_schedule_add_work(wm_schedule_t *schedule, wm_schedule_work_t *work)
{
    wm_schedule_task_t *task = append(schedule, WM_SCHEDULE_TASKS - 1);
    if (task != NULL)
        task->work = work;
}

// Adds the task in which all ranks learn if one has failed.
static void
add_verdict(wm_schedule_t *schedule)
{
    wm_buffer_t *buffer = &schedule->failed_buffer;
    *buffer = (wm_buffer_t){
        .data = (char *)&schedule->failed,
        .nbytes = sizeof schedule->failed,
        .memory = {.device = -1},
    };
    wm_coll_t call = {
        .kind = WM_COLL_ALLREDUCE,
        .read = true,
        .on_host = true,
        .receive = buffer,
        .type = MPI_INT64_T,
        .size = sizeof schedule->failed,
        .op = MPI_MAX,
    };
    wm_schedule_task_t *task = append(schedule, WM_SCHEDULE_TASKS);
    task->comm = comm_of(schedule)->levels.all;
    task->call = call;
}

// Takes the turns of all tasks.
static int
take_turns(wm_schedule_t *schedule, wm_error_t *err)
{
    wm_coll_form_t form = schedule->op->form == WM_COLL_FORM_BLOCKING
                              ? WM_COLL_FORM_TASK
                              : WM_COLL_FORM_NONBLOCKING;
    for (int i = 0; i < schedule->count; ++i) {
        wm_schedule_task_t *task = &schedule->tasks[i];
        if (task->comm == NULL)
            continue;
        wm_nonblocking_t *of = wm_nonblocking_of(task->comm);
        if (of != NULL)
            task->under_way = wm_nonblocking_call_new(of, task->comm,
                                                      &task->call, form);
        if (task->under_way == NULL)
            return wm_error_set(err, WM_ERR_MEMORY, 0, "out of host memory");
        wm_turn_queue(&of->turns, &task->under_way->turn);
    }
    schedule->queued = true;
    return 0;
}

wm_coll_result_t
wm_schedule_start(wm_schedule_t *schedule, wm_error_t *err)
{
    wm_coll_op_t *op = schedule->op;
    add_verdict(schedule);
    op->looks = LOOKS;
    // A blocking call comes behind the nonblocking ones before it.
    if (op->form == WM_COLL_FORM_BLOCKING)
        return WM_COLL_UNDER_WAY;
    wm_engine_lock();
    int code = take_turns(schedule, err);
    wm_engine_unlock();
    op->begun = true;
    return code < 0 ? (wm_coll_result_t)code : WM_COLL_UNDER_WAY;
}

// Makes the data of a task ready; on an error the rank still takes part.
static int
prepare(wm_coll_op_t *coll, wm_error_t *err)
{
    int code = wm_coll_op_prepare(coll, err);
    return code == 0 && coll->engines == 0 && coll->participant.call->on_device
               ? wm_participant_order(&coll->participant, err)
               : code;
}

// Chooses the engine of a task where ranks cannot tell each other which
// engines serve them: all know it.
static void
choose_unasked(wm_nonblocking_call_t *call, unsigned engines)
{
    wm_coll_op_t *coll = &call->coll;
    wm_error_t why;
    unsigned first = wm_coll_engines_first(engines);
    if (first == 0) {
        wm_nonblocking_give_to_mpi(call);
        return;
    }
    int code = wm_coll_op_choose(coll, first, &why);
    if (code == 0 && (coll->engines & first) == 0)
        code = wm_error_set(&why, WM_ERR_STATE, 0,
                            "the engine \"%s\" does not take this memory",
                            coll->engine->name);
    if (code < 0)
        wm_coll_op_fail(coll, &why);
    call->state = WM_NONBLOCKING_CHOSEN;
}

static void
task_begin(wm_schedule_t *schedule, wm_nonblocking_call_t *call)
{
    wm_coll_op_t *coll = &call->coll;
    const wm_error_t *wrong = &schedule->op->wrong;
    bool last = schedule->current == schedule->count - 1;
    unsigned engines = coll->engines;
    wm_error_t why;
    if (last && wrong->code < 0)
        schedule->failed = (comm_of(schedule)->rank + 1)
                           | (wrong->code == WM_ERR_STAGING ? STAGED : 0);
    if (!last && wrong->code < 0)
        wm_coll_op_fail(coll, wrong);
    else if (prepare(coll, &why) < 0)
        wm_coll_op_fail(coll, &why);
    call->preflight = wm_coll_op_preflight(coll, coll->wrong.code);
    call->state = WM_NONBLOCKING_PREPARED;
    if (!wm_comm_is_one_host(coll->participant.comm))
        choose_unasked(call, engines);
    schedule->begun = true;
}

// Ends the current task.
static void
task_end(wm_schedule_t *schedule)
{
    wm_schedule_task_t *task = &schedule->tasks[schedule->current];
    wm_turn_pass(&task->under_way->turn);
    wm_nonblocking_call_free(task->under_way);
    task->under_way = NULL;
    schedule->begun = false;
    ++schedule->current;
}

// Steps work of this rank.
static wm_coll_result_t
work_on(wm_schedule_t *schedule, wm_schedule_work_t *work, bool *waits)
{
    wm_coll_op_t *op = schedule->op;
    wm_error_t why;
    int code = op->wrong.code < 0 ? 1 : work->step(work, &why);
    if (code < 0)
        wm_coll_op_fail(op, &why);
    *waits = code == 0;
    schedule->current += code != 0;
    return WM_COLL_UNDER_WAY;
}

// Returns the error of another rank.
static int
raise_verdict(const wm_schedule_t *schedule, wm_error_t *err)
{
    int rank = (int)(schedule->failed & (STAGED - 1)) - 1;
    wm_rank_name_t name = wm_comm_name(comm_of(schedule), rank);
    return (schedule->failed & STAGED) != 0
               ? wm_require_refuse("another rank has refused the call",
                                   name.text, err)
               : wm_error_set(
                   err, WM_ERR_CUDA, 0,
                   "%s failed in this collective: its error tells why",
                   name.text);
}

// Steps the current task.
static wm_coll_result_t
go_on(wm_schedule_t *schedule, bool *waits, wm_error_t *err)
{
    wm_coll_op_t *op = schedule->op;
    const wm_schedule_task_t *task = &schedule->tasks[schedule->current];
    wm_nonblocking_call_t *call = task->under_way;
    if (task->comm == NULL)
        return work_on(schedule, task->work, waits);
    if (!schedule->begun)
        task_begin(schedule, call);
    bool ended = wm_nonblocking_call_step(call, waits);
    op->asks = ended ? WM_ASKS_NOTHING : call->coll.asks;
    if (!ended)
        return WM_COLL_UNDER_WAY;
    const wm_error_t *wrong = &call->coll.wrong;
    schedule->broken = wm_failure_is_cause(wrong);
    if (wrong->code < 0 && !schedule->broken)
        wm_coll_op_fail(op, wrong);
    if (schedule->broken && !wm_failure_is_told()) {
        *err = *wrong;
        return (wm_coll_result_t)err->code;
    }
    task_end(schedule);
    if (schedule->broken || schedule->current < schedule->count)
        return WM_COLL_UNDER_WAY;
    return schedule->failed == 0 || op->wrong.code < 0
               ? WM_COLL_DONE
               : (wm_coll_result_t)raise_verdict(schedule, err);
}

wm_coll_result_t
wm_schedule_step(wm_schedule_t *schedule, bool *waits, wm_error_t *err)
{
    int code = 0;
    wm_coll_result_t result = WM_COLL_UNDER_WAY;
    wm_engine_lock();
    // Once it is broken, the caller finds who has died.
    *waits = schedule->broken
             || (!schedule->queued
                 && wm_nonblocking_is_busy(comm_of(schedule)));
    if (!*waits && !schedule->queued)
        code = take_turns(schedule, err);
    if (!*waits)
        result = code < 0 ? (wm_coll_result_t)code
                          : go_on(schedule, waits, err);
    wm_engine_unlock();
    return result;
}

// Lets the ranks of all levels leave: MPI ends its calls there.
static void
leave_levels(wm_schedule_t *schedule)
{
    wm_comm_t *comm = comm_of(schedule);
    wm_error_t err;
    if (wm_failure_look_at_all(comm, &err) < 0)
        for (int i = 0; i < WM_LEVELS; ++i)
            (void)!wm_failure_revoke(comm->levels.each[i], NULL);
}

void
wm_schedule_drop(wm_schedule_t *schedule)
{
    wm_engine_lock();
    if (schedule->queued && schedule->current < schedule->count)
        leave_levels(schedule);
    for (int i = 0; i < schedule->count; ++i) {
        wm_nonblocking_call_t *call = schedule->tasks[i].under_way;
        if (call == NULL)
            continue;
        wm_turn_pass(&call->turn);
        wm_nonblocking_call_free(call);
    }
    wm_engine_unlock();
}
