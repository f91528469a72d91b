// SPDX-License-Identifier: BSD-3-Clause
// A schedule: the collectives of levels (comm/levels.h) that one call of a
// communicator is made of, such as a reduction in each host, one between
// hosts, and a broadcast in each host. An engine of collectives has it in its
// state, fills it in start(), and steps and drops it. Its tasks run one after
// the other, each by the first engine that serves all ranks of the level, else
// by MPI. Each is a nonblocking call, without a vote. On a level of several
// hosts nobody asks: of the engines that were opened there
// (wm_coll_engines_open), the first that serves this rank must serve all.
//
// Ranks start the schedules of a communicator in one order, and each takes its
// turns on all levels at once. So its tasks run in that order on every rank,
// whichever schedule comes to its next task first.
//
// Between tasks a rank may have work of its own, which the schedule steps. A
// rank that has failed leaves it out.
//
// A rank that fails goes on with the other tasks, in which it tells its
// failure, or gives bytes that count for nothing. The last task is ours: all
// ranks learn there if one has failed. The engine lock is taken.
#ifndef WM_COMM_COLL_RUN_COLL_SCHEDULE_H
#define WM_COMM_COLL_RUN_COLL_SCHEDULE_H

#include "comm/coll/direct/coll_op.h"

#define WM_SCHEDULE_TASKS 10 // and works, at most, with the last one

// Work of this rank, the first member of what it needs.
typedef struct wm_schedule_work {
    // Returns 1 when it has ended, 0 if not yet, or an error.
    int (*step)(struct wm_schedule_work *work, wm_error_t *err);
} wm_schedule_work_t;

typedef struct {
    wm_comm_t *comm;          // a level; NULL: work of this rank
    wm_schedule_work_t *work; // borrowed
    wm_coll_t call;
    struct wm_nonblocking_call *under_way; // NULL: not queued, or ended
} wm_schedule_task_t;

// Must not move.
typedef struct {
    wm_coll_op_t *op; // the call
    int count, current;
    bool queued;    // the turns are taken
    bool begun;     // the current task is
    bool broken;    // a rank of a level has died
    int64_t failed; // 1 + a rank that has failed; 0: none
    wm_buffer_t failed_buffer;
    wm_schedule_task_t tasks[WM_SCHEDULE_TASKS];
} wm_schedule_t;

// Initializes the schedule of a call: no tasks.
void
wm_schedule_init(wm_schedule_t *schedule, wm_coll_op_t *op);

// Adds a task. The buffers must live until the schedule is dropped. Each rank
// of the level adds it, in one order. Beyond WM_SCHEDULE_TASKS - 1 the call
// fails.
void
wm_schedule_add(wm_schedule_t *schedule, wm_comm_t *level,
                const wm_coll_t *call);

// Adds work, which must live as long. It counts as a task.
void
wm_schedule_add_work(wm_schedule_t *schedule, wm_schedule_work_t *work);

// Starts it, after the tasks are added. The engine is `in_order`, and these
// are its start() and step(). wm_coll_op_step() raises the rank's own error.
WM_MUST_CHECK wm_coll_result_t
wm_schedule_start(wm_schedule_t *schedule, wm_error_t *err);

WM_MUST_CHECK wm_coll_result_t
wm_schedule_step(wm_schedule_t *schedule, bool *waits, wm_error_t *err);

// Frees what it has. In the middle, as a rank has died, all ranks of the
// levels leave.
void
wm_schedule_drop(wm_schedule_t *schedule);

#endif
