// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "comm/coll/movers/mover_stream.h"

#include <time.h>

#include "comm/coll/call/coll_wait.h"
#include "comm/coll/movers/mover_abort.h"
#include "comm/coll/movers/mover_run.h"
#include "comm/coll/stream/coll_order.h"
#include "comm/coll/stream/packed_coll.h"
#include "comm/engine/engine.h"
#include "cuda/freeing.h"
#include "cuda/lock.h"
#include "cuda/stream.h"

#define LOOK_NS 20000

// Waits for threads that free memory, WM_FREEING_US at most. A capture
// launches nothing.
static bool
mover_stream_begin_giving(const wm_coll_stream_t *on)
{
    int64_t end = wm_engine_now() + WM_FREEING_US;
    bool begun = false;
    if (on->capture != 0 || (begun = wm_mover_comm_begin_giving()))
        return begun;
    void *held = wm_gil_release();
    while (!(begun = wm_mover_comm_begin_giving()) && wm_engine_now() < end)
        nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    wm_gil_retake(held);
    return begun;
}

// Gives the call to the stream. Others may have begun it, so memory is taken
// before. `passed`: the end of the call; NULL: it is captured, or has failed.
// `gives`: wm_mover_comm_end_giving() follows.
static int
mover_stream_enqueue_run(wm_mover_run_t *run, const wm_coll_stream_t *on,
                         uint64_t id, CUevent *passed, bool *gives,
                         wm_error_t *err)
{
    wm_block_t *copy = NULL;
    wm_error_t later;
    int code = wm_mover_run_take(run, err);
    *passed = NULL;
    wm_mover_abort_finish();
    if (code == 0)
        code = wm_coll_order_before(run->desc.call, on, id, err);
    if (code == 0)
        code = wm_packed_coll_open(&run->desc, &copy, err);
    *on->given |= code == 0;
    *gives = code == 0 && mover_stream_begin_giving(on);
    if (code == 0)
        code = wm_mover_run_enqueue(run, err);
    if (code == 0)
        code = wm_packed_coll_unpack(&run->desc, err);
    if (code == 0)
        code = wm_coll_order_mark(on, passed, err);
    wm_block_t *blocks[] = {run->room, copy};
    for (int i = 0; i < 2; ++i) {
        int kept = wm_coll_order_keep(on, *passed, blocks[i],
                                      code == 0 ? err : &later);
        code = code < 0 ? code : kept;
    }
    return code;
}

// Gives the call to the stream, with its orders, and its end to the progress
// thread.
static int
mover_stream_give(wm_mover_run_t *run, const wm_coll_stream_t *on,
                  wm_error_t *err)
{
    CUevent passed;
    bool gives;
    uint64_t id = on->capture == 0 ? wm_stream_id(on->device, on->stream) : 0;
    int code = mover_stream_enqueue_run(run, on, id, &passed, &gives, err);
    if (code == 0)
        code = wm_coll_order_after(run->desc.call, on, id, passed, err);
    bool captured = code == 0 && on->capture != 0;
    if (captured)
        ++run->own->given;
    else if (passed != NULL)
        wm_mover_comm_note(run->own, passed);
    if (gives)
        wm_mover_comm_end_giving();
    return captured ? wm_mover_comm_keep(run->own, on->stream, err) : code;
}

static int
mover_stream_fill(wm_mover_run_t *run, wm_mover_comm_t *own,
                  const wm_coll_t *call, const wm_coll_stream_t *on,
                  wm_error_t *err)
{
    if (on->device != own->device)
        return wm_error_set(
            err, WM_ERR_VALUE, 0,
            "stream: the stream is on cuda:%d, and the collectives of this "
            "communicator are on streams of cuda:%d; use a stream of that "
            "GPU, or another communicator (Dup)",
            on->device, own->device);
    int code = wm_mover_run_fill(run, own, call, on->stream, err);
    if (code < 0)
        wm_mover_run_drop(run);
    return code;
}

static int
mover_stream_look_lost(void *context, wm_error_t *err)
{
    return wm_mover_comm_look(context, err);
}

static int
mover_stream_enqueue(wm_comm_t *comm, void *state, const wm_coll_t *call,
                     const wm_coll_stream_t *on, wm_error_t *err)
{
    wm_mover_run_t run;
    wm_mover_comm_t *own = state;
    if (call == NULL)
        return err->code;
    int code = wm_mover_comm_failure(own, err);
    own->told |= code < 0;
    if (code == 0)
        code = mover_stream_fill(&run, own, call, on, err);
    if (code < 0)
        return code;
    code = mover_stream_give(&run, on, err);
    wm_mover_run_drop(&run);
    if (code < 0 && wm_mover_comm_lost(own, err))
        code = wm_coll_wait(comm, mover_stream_look_lost, own, 1, err);
    if (code < 0 && *on->given && on->capture == 0) {
        own->told = true;
        wm_mover_comm_break(own, err);
    }
    return code;
}

static uint64_t
mover_stream_place(const wm_comm_t *comm, const void *state)
{
    const wm_mover_comm_t *own = state;
    (void)comm;
    return own->given;
}

static int
mover_stream_look(wm_comm_t *comm, void *state, uint64_t place,
                  wm_error_t *err)
{
    wm_mover_comm_t *own = state;
    int code = wm_mover_comm_failure(own, err);
    (void)comm, (void)place;
    own->told |= code < 0;
    return code;
}

static void
mover_stream_fail(wm_comm_t *comm)
{
    (void)comm; // the call itself goes on
}

static int
mover_stream_find_failure(wm_comm_t *comm, void *state, wm_error_t *err)
{
    (void)comm;
    return wm_mover_comm_find_failure(state, err);
}

const wm_coll_on_stream_t wm_mover_on_stream = {
    .captures = true,
    .watches = true,
    .check = wm_coll_desc_check,
    .enqueue = mover_stream_enqueue,
    .place = mover_stream_place,
    .look = mover_stream_look,
    .fail = mover_stream_fail,
    .find_failure = mover_stream_find_failure,
    .any = wm_mover_any,
    .find_failures = wm_mover_find_failures,
};
