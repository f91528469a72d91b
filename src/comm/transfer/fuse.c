// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transfer/fuse.h"

#include "array/fused.h"
#include "array/kernels.h"
#include "comm/engine/engine.h"
#include "comm/engine/modules.h"
#include "comm/engine/stats.h"
#include "cuda/stream.h"

// The stream of each device's fused kernels, kept until the process ends.
static struct {
    CUstream stream; // NULL: not taken yet
    wm_signal_t signal;
} fuse_streams[WM_MAX_DEVICES];

static int device; // device of `fused`
static wm_fused_t fused;
static wm_transfer_set_t *sets[WM_FUSED_PARTS];

static bool
fuse_open_stream(int on)
{
    CUstream stream;
    if (fuse_streams[on].stream != NULL)
        return true;
    if (wm_kernels_prepare(on, WM_KERNELS_FUSED, NULL)
            < 0 // usually done before
        || wm_stream_acquire(on, &stream, NULL) < 0)
        return false;
    if (!wm_signal_acquire(&fuse_streams[on].signal)) {
        wm_stream_release(on, stream);
        return false;
    }
    fuse_streams[on].stream = stream;
    return true;
}

void
wm_fuse_prepare(int on)
{
    // Loads without the lock, as this may wait for the device.
    if (wm_kernels_prepare(on, WM_KERNELS_FUSED, NULL) < 0)
        return;
    wm_engine_lock();
    (void)fuse_open_stream(on); // on failure, no kernel is shared
    wm_engine_unlock();
}

// Launches the reductions that were added.
static void
fuse_flush(void)
{
    wm_error_t err;
    uint32_t count = fused.params.count;
    if (count == 0)
        return;
    int code = wm_fused_launch(device, &fused, &fuse_streams[device].signal,
                               fuse_streams[device].stream, &err);
    if (code == 0 && count > 1)
        wm_stat_add(WM_STAT_fused_collectives, count);
    for (uint32_t i = 0; i < count && code < 0; ++i) {
        sets[i]->failure = err;
        sets[i]->signals = false; // its stream is looked at instead
    }
}

bool
wm_fuse_add(wm_transfer_set_t *set, const wm_reduction_t *reduction)
{
    if (!fuse_open_stream(set->device))
        return false;
    if (device != set->device)
        fuse_flush();
    if (!wm_fused_add(&fused, reduction)) {
        fuse_flush();
        if (!wm_fused_add(&fused, reduction))
            return false;
    }
    device = set->device;
    if (fused.params.count == 1)
        wm_signal_renew(&fuse_streams[device].signal);
    sets[fused.params.count - 1] = set;
    set->awaited = fuse_streams[device].signal;
    wm_access_use(set->access, fuse_streams[device].stream);
    return true;
}

const wm_module_t wm_fuse_module = {
    .queued = &fused.params.count,
    .round = fuse_flush,
};
