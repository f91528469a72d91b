// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/hierarchy/hierarchy_work.h"

#include "array/pull.h"

// Enqueues the copies that were collected.
static void
copies_launch(wm_hierarchy_copies_t *copies)
{
    const wm_hierarchy_work_t *work = copies->work;
    if (copies->code == 0 && copies->params.count > 0)
        copies->code = wm_pull_launch(work->device, &copies->params,
                                      work->access.stream, copies->err);
    copies->params.count = 0;
}

// Enqueues the last copy, or collects it.
static void
copies_flush(wm_hierarchy_copies_t *copies)
{
    const wm_hierarchy_work_t *work = copies->work;
    const wm_pull_t *last = &copies->last;
    if (copies->code < 0 || last->nbytes == 0 || last->dst == last->src)
        return;
    if (!wm_pull_serves(last)) {
        copies->code = wm_memory_copy(work->device, last->dst, last->src,
                                      last->nbytes, work->access.stream,
                                      copies->err);
        return;
    }
    copies->params.pulls[copies->params.count++] = *last;
    if (copies->params.count == WM_PULLS)
        copies_launch(copies);
}

void
wm_hierarchy_copy(wm_hierarchy_copies_t *copies, char *into, const char *from,
                  size_t nbytes)
{
    wm_pull_t *last = &copies->last;
    if (into == last->dst + last->nbytes && from == last->src + last->nbytes) {
        last->nbytes += nbytes;
        return;
    }
    copies_flush(copies);
    *last = (wm_pull_t){.dst = into, .src = from, .nbytes = nbytes};
}

static int
work_copy(wm_hierarchy_work_t *work, wm_error_t *err)
{
    wm_hierarchy_copies_t copies; // a few KiB
    copies.work = work;
    copies.last = (wm_pull_t){.nbytes = 0};
    copies.code = 0;
    copies.err = err;
    copies.params.count = 0;
    copies.params.signal.word = NULL;
    work->lay(work->context, work->into->data, work->from->data, &copies);
    copies_flush(&copies);
    copies_launch(&copies);
    return copies.code;
}

static int
work_reduce(wm_hierarchy_work_t *work, wm_error_t *err)
{
    size_t nbytes = work->into->nbytes;
    const wm_reduce_many_t many = {
        .type = work->type,
        .op = work->divisor > 0 ? WM_REDUCE_AVG : work->op,
        .dst = work->into->data,
        .sums = work->into->data,
        .sources = work->from->data,
        .each = nbytes,
        .own = -1,
        .n = work->parts,
        .divisor = work->divisor,
        .count = nbytes / wm_reduce_size(work->type),
    };
    return wm_reduce_many(work->device, &many, work->access.stream, err);
}

static int
work_give(wm_hierarchy_work_t *work, wm_error_t *err)
{
    return work->lay != NULL ? work_copy(work, err) : work_reduce(work, err);
}

static int
work_begin(wm_hierarchy_work_t *work, wm_error_t *err)
{
    const wm_producer_t nobody = {.kind = WM_PRODUCER_NONE};
    wm_access_begin(&work->access, &nobody, true, work->device);
    work->begun = true;
    int code = wm_access_open(&work->access, err);
    if (code < 0)
        return code;
    work->access.idle = false;
    return work_give(work, err);
}

int
wm_hierarchy_work_enqueue(wm_hierarchy_work_t *work, CUstream stream,
                          wm_error_t *err)
{
    work->access.stream = stream;
    return work_give(work, err);
}

int
wm_hierarchy_work_step(wm_schedule_work_t *base, wm_error_t *err)
{
    wm_hierarchy_work_t *work = (wm_hierarchy_work_t *)base;
    int code = work->begun ? 0 : work_begin(work, err);
    return code < 0 ? code : wm_access_look(&work->access, 1, err);
}

void
wm_hierarchy_work_drop(wm_hierarchy_work_t *work)
{
    wm_access_t *access = &work->access;
    if (!work->begun)
        return;
    if (access->opened && !access->idle)
        access->idle = wm_access_synchronize(access, NULL) == 0;
    wm_access_close(access);
}
