// SPDX-License-Identifier: BSD-3-Clause
#include "comm/coll/nccl/nccl_movers.h"

#include "comm/coll/nccl/nccl_library.h"
#include "comm/engine/stats.h"

#define FINAL_TURNS 1000

static int
nccl_begin(wm_error_t *err)
{
    return WM_NCCL(err, GroupStart);
}

static int
nccl_end(wm_error_t *err)
{
    return WM_NCCL(err, GroupEnd);
}

static int
nccl_send(void *handle, const void *data, size_t nbytes, int rank,
          CUstream stream, wm_error_t *err)
{
    return WM_NCCL(err, Send, data, nbytes, WM_NCCL_UINT8, rank, handle,
                   stream);
}

static int
nccl_receive(void *handle, void *data, size_t nbytes, int rank,
             CUstream stream, wm_error_t *err)
{
    return WM_NCCL(err, Recv, data, nbytes, WM_NCCL_UINT8, rank, handle,
                   stream);
}

static int
nccl_gather(void *handle, const void *from, void *into, size_t nbytes,
            CUstream stream, wm_error_t *err)
{
    return WM_NCCL(err, AllGather, from, into, nbytes, WM_NCCL_UINT8, handle,
                   stream);
}

static int
nccl_broadcast(void *handle, void *data, size_t nbytes, int root,
               CUstream stream, wm_error_t *err)
{
    return WM_NCCL(err, Broadcast, data, data, nbytes, WM_NCCL_UINT8, root,
                   handle, stream);
}

static void
nccl_count(size_t nbytes)
{
    wm_stat_add(WM_STAT_nccl_collectives, 1);
    wm_stat_add(WM_STAT_nccl_bytes, (int64_t)nbytes);
}

static int
nccl_look(void *handle, wm_error_t *err)
{
    wm_nccl_result_t state = WM_NCCL_SUCCESS;
    int code = WM_NCCL(err, CommGetAsyncError, handle, &state);
    return code < 0 ? code : wm_nccl_check(state, "a collective of NCCL", err);
}

static bool
nccl_lost(const wm_error_t *err)
{
    return err->code == WM_ERR_STATE && err->detail == WM_NCCL_REMOTE_ERROR;
}

// Ends the parent, which does not block: it has no work.
static void
nccl_end_parent(wm_nccl_handle_t *parent)
{
    wm_nccl_result_t state = wm_nccl.CommFinalize(parent);
    for (int i = 0; i < FINAL_TURNS && state == WM_NCCL_IN_PROGRESS; ++i)
        if (wm_nccl.CommGetAsyncError(parent, &state) != WM_NCCL_SUCCESS)
            break;
    if (state == WM_NCCL_SUCCESS)
        (void)wm_nccl.CommDestroy(parent);
    else
        (void)wm_nccl.CommAbort(parent);
}

static void
nccl_destroy(void *handle, void *parent)
{
    if (handle != NULL)
        (void)wm_nccl.CommDestroy(handle);
    if (parent != NULL)
        nccl_end_parent(parent);
}

static void
nccl_abort(void *handle, void *parent)
{
    if (handle != NULL)
        (void)wm_nccl.CommAbort(handle);
    if (parent != NULL)
        (void)wm_nccl.CommAbort(parent);
}

const wm_movers_t wm_nccl_movers = {
    .begin = nccl_begin,
    .end = nccl_end,
    .send = nccl_send,
    .receive = nccl_receive,
    .gather = nccl_gather,
    .broadcast = nccl_broadcast,
    .count = nccl_count,
    .look = nccl_look,
    .lost = nccl_lost,
    .destroy = nccl_destroy,
    .abort = nccl_abort,
};
