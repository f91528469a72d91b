// SPDX-License-Identifier: BSD-3-Clause
// Work of this rank's GPU between two tasks of a schedule: copies that bring
// blocks into another order, or a reduction of parts that other hosts have
// sent. It runs on a stream of ours; nobody else uses its memory. Engine lock
// held.
#ifndef WM_COMM_COLL_HIERARCHY_HIERARCHY_WORK_H
#define WM_COMM_COLL_HIERARCHY_HIERARCHY_WORK_H

#include "array/access.h"
#include "array/reduce.h"
#include "comm/coll/run/coll_schedule.h"
#include "kernels/pull.h"

typedef struct wm_hierarchy_work wm_hierarchy_work_t;

// Copies under way: those that are not enqueued yet, and the last one, to
// which the next one may be appended.
typedef struct {
    wm_hierarchy_work_t *work;
    wm_pull_t last;
    int code;
    wm_error_t *err;
    wm_pull_params_t params;
} wm_hierarchy_copies_t;

// Makes the copies of a work, each by wm_hierarchy_copy().
typedef void
wm_hierarchy_lay_t(void *context, char *into, const char *from,
                   wm_hierarchy_copies_t *copies);

struct wm_hierarchy_work {
    wm_schedule_work_t base; // must be first
    int device;
    bool begun;
    wm_access_t access;
    const wm_buffer_t *into, *from;
    // Copies; NULL: a reduction of `parts` parts of `from`, each as long as
    // `into`, in their order.
    wm_hierarchy_lay_t *lay;
    void *context;
    int parts;
    int divisor; // of an average; 0: none
    wm_reduce_type_t type;
    wm_reduce_op_t op;
};

// Adds a copy.
void
wm_hierarchy_copy(wm_hierarchy_copies_t *copies, char *into, const char *from,
                  size_t nbytes);

// A step of the schedule.
int
wm_hierarchy_work_step(wm_schedule_work_t *base, wm_error_t *err);

// Gives the work to a stream of the program.
WM_MUST_CHECK int
wm_hierarchy_work_enqueue(wm_hierarchy_work_t *work, CUstream stream,
                          wm_error_t *err);

// Waits for the work, also in the middle.
void
wm_hierarchy_work_drop(wm_hierarchy_work_t *work);

#endif
