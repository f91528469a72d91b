// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/stream/stream_coll.h"

#include <stdio.h>

#include "comm/coll/direct/preflight.h"
#include "comm/coll/stream/coll_desc.h"
#include "comm/coll/stream/coll_order.h"
#include "comm/coll/stream/fragmented_coll.h"
#include "comm/coll/stream/packed_coll.h"
#include "comm/coll/stream/symm_state.h"
#include "comm/comm/require.h"
#include "comm/engine/stats.h"
#include "comm/diagnostics/hang.h"
#include "comm/node/stream_words.h"
#include "cuda/settings.h"
#include "cuda/stream.h"

typedef struct {
    wm_coll_desc_t desc;
    wm_symm_t *symm;
    const wm_coll_stream_t *on;
    size_t fragments; // their number, if streams wait, not kernels
    bool given;       // the stream may have a part of the call
} run_t;

// Counts the bytes that this rank sends through the host.
static void
stream_coll_count_staged(const wm_coll_desc_t *desc)
{
    int blocks = desc->shape->scatters ? desc->comm->size : 1;
    for (int i = 0; i < blocks && desc->source != NULL; ++i)
        wm_stat_add(WM_STAT_staged_bytes, (int64_t)desc->out[i].nbytes);
}

static int
exchange(run_t *run, wm_error_t *err)
{
    wm_block_t *copy;
    int code = wm_packed_coll_open(&run->desc, &copy, err);
    if (code == 0)
        code = run->symm->kernel_coll
                       && run->desc.call->kind != WM_COLL_BARRIER
                   ? wm_symm_enqueue_kernel(run->symm, &run->desc, err)
                   : wm_fragmented_coll_enqueue(run->symm, &run->desc,
                                                run->fragments, err);
    if (code == 0)
        code = wm_packed_coll_unpack(&run->desc, err);
    int kept = copy == NULL
                   ? 0
                   : wm_symm_keep(run->symm, copy, code == 0 ? err : NULL);
    return code < 0 ? code : kept;
}

static int
stream_coll_enqueue(run_t *run, wm_error_t *err)
{
    const wm_coll_t *call = run->desc.call;
    uint64_t id = run->symm->last;
    int code = wm_coll_order_before(call, run->on, id, err);
    run->given = code == 0;
    if (code == 0)
        code = exchange(run, err);
    return code < 0 ? code : wm_coll_order_after(call, run->on, id, NULL, err);
}

// Ends a call that fails on this rank, on a stream of ours, after the calls
// before it. If all ranks fail alike (`desc`), the call counts as any other;
// else it has failed.
static void
stream_coll_refuse(wm_symm_t *symm, const wm_coll_desc_t *desc, int code)
{
    CUstream stream;
    int device = symm->device;
    bool ours = wm_stream_acquire(device, &stream, NULL) == 0;
    if (!ours)
        stream = CU_STREAM_LEGACY; // the legacy stream always exists
    if (wm_symm_begin(symm, desc, stream, NULL) == 0) {
        if (desc != NULL)
            code = wm_symm_leave_turn(symm, false, NULL);
        (void)!wm_symm_finish(symm, code, NULL);
    }
    if (ours)
        wm_stream_release(device, stream);
}

// The facts that ranks compare on the host when the first call of a
// communicator is captured.
typedef struct {
    int kind;       // wm_coll_kind_t
    uint64_t asked; // hash of the arguments that must be alike on all ranks
} captured_t;

static int
compare_captured(const captured_t *mine, const captured_t *other, int rank,
                 wm_error_t *err)
{
    const char *name = wm_call_name((wm_coll_kind_t)mine->kind);
    if (mine->kind != other->kind)
        return wm_error_set(err, WM_ERR_TYPE, 0,
                            "the ranks capture different collectives: rank %d "
                            "captures %s, and this rank %s: all must capture "
                            "the same calls in the same order",
                            rank, wm_call_name((wm_coll_kind_t)other->kind),
                            name);
    if (mine->asked != other->asked)
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "the ranks' captured collectives differ: rank %d "
                            "gave other counts, types, op or root than this "
                            "rank in %s: all must give the same",
                            rank, name);
    return 0;
}

static const char *
name_of(const wm_coll_t *call)
{
    return call != NULL ? wm_call_name(call->kind) : "a refused call";
}

// Meets the other ranks before the first captured call of a communicator,
// which makes symmetric memory for graphs: all raise if one has failed
// (`code`; then `err` is written), or if the calls differ. Later calls meet
// nobody, so that a rank may capture again alone.
static int
compare_first(wm_comm_t *comm, const wm_coll_desc_t *desc, int code,
              wm_error_t *err)
{
    wm_error_t other;
    captured_t mine = {.kind = -1};
    int told = 0;
    if (code == 0)
        mine = (captured_t){(int)desc->call->kind, wm_coll_desc_hash(desc)};
    if (comm->symm != NULL)
        told = wm_symm_arrive_captured(comm->symm, name_of(desc->call),
                                       code == 0 ? err : &other);
    if (told < 0)
        return code < 0 ? code : told;
    code = wm_preflight_tell(comm, WM_COLL_CAPTURED, code, err);
    if (code == 0)
        code = wm_preflight_share(comm, &mine, sizeof mine, err);
    for (int rank = 0; rank < comm->size && code == 0; ++rank)
        code = compare_captured(
            &mine, (const captured_t *)wm_preflight_data(comm->barrier, rank),
            rank, err);
    return code < 0 ? code : wm_symm_make(comm, desc->device, true, code, err);
}

// With WARPMPI_CHECK puts a small call before the captured one, by which the
// ranks get the marks of each other's calls in each replay.
static int
enqueue_marks(const run_t *run, wm_error_t *err)
{
    const wm_coll_desc_t *desc = &run->desc;
    const wm_coll_t gather = {.kind = WM_COLL_ALLGATHER};
    wm_graph_marks_t marks;
    if (!wm_setting_is_on(WM_SETTING_CHECK))
        return 0;
    int code = wm_symm_mark_captured(run->symm, desc, &marks, err);
    if (code < 0)
        return code;
    run_t check = {
        .desc = {.call = &gather,
                 .shape = wm_coll_shape(gather.kind),
                 .comm = desc->comm,
                 .device = desc->device,
                 .stream = desc->stream,
                 .sends = true,
                 .receives = true,
                 .source = (char *)marks.own,
                 .target = (char *)marks.last},
        .symm = run->symm,
        .fragments = 1,
    };
    code = wm_coll_desc_open(&check.desc, err);
    if (code < 0)
        return code;
    check.desc.out[0] = (wm_span_t){0, sizeof *marks.own};
    for (int rank = 0; rank < desc->comm->size; ++rank)
        check.desc.into[rank] = (wm_span_t){(size_t)rank * sizeof *marks.last,
                                            sizeof *marks.last};
    code = exchange(&check, err);
    const void *sources[] = {marks.ever, marks.last};
    return code < 0
               ? code
               : wm_reduce_launch(desc->device, WM_REDUCE_UINT64,
                                  WM_REDUCE_BOR, marks.ever, sources, 2,
                                  (size_t)desc->comm->size, desc->stream, err);
}

// Puts a call into a graph. After a failure this graph lacks the call, and
// those of other ranks may have it.
static int
capture(run_t *run, wm_error_t *err)
{
    int code = wm_symm_begin_captured(run->symm, run->on->capture,
                                      run->desc.stream, err);
    if (code < 0)
        return code;
    code = enqueue_marks(run, err);
    if (code == 0)
        code = stream_coll_enqueue(run, err);
    if (code < 0 && run->given)
        (void)!wm_graph_words_enqueue_abort(
            run->symm->barrier, run->desc.device, run->desc.stream, NULL);
    return wm_symm_finish(run->symm, code, err);
}

// Names the call, for reports about waiting for other ranks on the host.
static void
name_wait(const wm_coll_t *call, const char *where)
{
    static _Thread_local char name[96];
    snprintf(name, sizeof name, "%s on a stream, %s,", name_of(call), where);
    wm_hang_call(name, true);
}

static int
give(run_t *run, int code, wm_error_t *err)
{
    if (code < 0) {
        stream_coll_refuse(run->symm, run->desc.refused ? &run->desc : NULL,
                           code);
        return code;
    }
    if (run->symm->lost.code < 0) {
        name_wait(run->desc.call, "the first after one that failed");
        code = wm_symm_recover(run->symm, err);
        if (code < 0)
            return code;
    }
    code = wm_symm_begin(run->symm, &run->desc, run->desc.stream, err);
    return code < 0
               ? code
               : wm_symm_finish(run->symm, stream_coll_enqueue(run, err), err);
}

bool
wm_stream_coll_stages(const wm_comm_t *comm, const wm_symm_t *symm)
{
    return symm->memory->on_host && wm_require_is_on(comm);
}

int
wm_stream_coll_call(wm_comm_t *comm, const wm_coll_t *call,
                    const wm_coll_stream_t *on, wm_error_t *err)
{
    run_t run = {
        .desc = {.call = call,
                 .comm = comm,
                 .device = on->device,
                 .stream = on->stream},
        .on = on,
    };
    int code = call == NULL ? err->code : 0;
    if (code == 0)
        code = wm_coll_desc_fill(&run.desc, err);
    if (on->capture != 0 && comm->graph_symm == NULL) {
        name_wait(call, "the first captured into a graph");
        code = compare_first(comm, &run.desc, code, err);
        if (code < 0)
            return code;
    }
    run.symm = on->capture != 0 ? comm->graph_symm : comm->symm;
    if (wm_stream_coll_stages(comm, run.symm)) // as all ranks know
        return code < 0
                   ? code
                   : wm_require_refuse("the GPUs of these ranks do not "
                                       "reach each other",
                                       "see `python -m warpmpi doctor`", err);
    if (code == 0 && on->device != run.symm->device)
        code = wm_error_set(
            err, WM_ERR_VALUE, 0,
            "stream: the stream is on cuda:%d, and the collectives of this "
            "communicator are on streams of cuda:%d; use a stream of that "
            "GPU, or another communicator (Dup)",
            on->device, run.symm->device);
    if (code == 0)
        code = wm_fragmented_coll_count(run.symm, &run.desc, &run.fragments,
                                        err);
    if (on->capture == 0)
        code = give(&run, code, err);
    else if (code == 0)
        code = capture(&run, err);
    if (code < 0 && on->capture != 0)
        wm_symm_refuse_captured(run.symm, on->capture, err);
    bool on_host = run.symm->memory->on_host;
    if (code == 0)
        wm_stat_add(
            on_host ? WM_STAT_staged_collectives : WM_STAT_ipc_collectives, 1);
    if (code == 0 && on_host)
        stream_coll_count_staged(&run.desc);
    return code;
}
