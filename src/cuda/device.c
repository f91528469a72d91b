// SPDX-License-Identifier: BSD-3-Clause
#define _GNU_SOURCE
#include "cuda/device.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/lock.h"

// One device's facts and primary context. Written once under the lock; read
// without it once `described` (for the facts) or `context` is set.
typedef struct {
    wm_device_t facts;
    _Atomic bool described;
    _Atomic(CUcontext) context;
    _Atomic uint64_t peers; // bits: access enabled, or known to be impossible
} entry_t;

static entry_t entries[WM_MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int
wm_device_count(void)
{
    int count = wm_driver_device_count();
    return count < WM_MAX_DEVICES ? count : WM_MAX_DEVICES;
}

static int
describe_lock_held(int ordinal, wm_error_t *err)
{
    wm_device_t *device = &entries[ordinal].facts;
    device->ordinal = ordinal;
    if (WM_CU(err, DeviceGet, &device->handle, ordinal) < 0
        || WM_CU(err, DeviceGetName, device->name, sizeof(device->name),
                 device->handle)
               < 0
        || WM_CU(err, DeviceGetPCIBusId, device->pci_bus_id,
                 sizeof(device->pci_bus_id), device->handle)
               < 0
        || WM_CU(err, DeviceGetUuid, &device->uuid, device->handle) < 0
        || WM_CU(err, DeviceTotalMem, &device->total_memory, device->handle)
               < 0
        || WM_CU(err, DeviceGetAttribute, &device->multiprocessors,
                 CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device->handle)
               < 0
        || WM_CU(err, DeviceGetAttribute, &device->major,
                 CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device->handle)
               < 0
        || WM_CU(err, DeviceGetAttribute, &device->minor,
                 CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device->handle)
               < 0)
        return wm_error_context(err, "describing cuda:%d", ordinal);
    int mps = 0; // older drivers do not know it
    device->mps = WM_CU(NULL, DeviceGetAttribute, &mps,
                        CU_DEVICE_ATTRIBUTE_MPS_ENABLED, device->handle)
                      == 0
                  && mps != 0;
    atomic_store_explicit(&entries[ordinal].described, true,
                          memory_order_release);
    return 0;
}

static int
device_check_ordinal(int ordinal, wm_error_t *err)
{
    if (wm_driver_load(err) < 0)
        return err != NULL ? err->code : WM_ERR_DRIVER;
    int count = wm_device_count();
    if (ordinal >= 0 && ordinal < count)
        return 0;
    if (count == 0) {
        return wm_error_set(err, WM_ERR_VALUE, 0,
                            "unknown device cuda:%d: there is no CUDA device",
                            ordinal);
    }
    return wm_error_set(err, WM_ERR_VALUE, 0,
                        count == 1 ? "unknown device cuda:%d: the only CUDA "
                                     "device is cuda:0"
                                   : "unknown device cuda:%d: CUDA devices "
                                     "are cuda:0 to cuda:%d",
                        ordinal, count - 1);
}

int
wm_device_describe(int ordinal, const wm_device_t **device, wm_error_t *err)
{
    wm_error_t local;
    err = err != NULL ? err : &local;
    if (wm_driver_forked())
        return wm_driver_load(err);
    if (ordinal < 0 || ordinal >= WM_MAX_DEVICES
        || !atomic_load_explicit(&entries[ordinal].described,
                                 memory_order_acquire)) {
        if (device_check_ordinal(ordinal, err) < 0)
            return err->code;
        wm_lock(&lock);
        int status = entries[ordinal].described
                         ? 0
                         : describe_lock_held(ordinal, err);
        pthread_mutex_unlock(&lock);
        if (status < 0)
            return status;
    }
    *device = &entries[ordinal].facts;
    return 0;
}

static int
retain(int ordinal, wm_error_t *err)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    entry_t *entry = &entries[ordinal];
    int status = 0;
    wm_lock(&lock);
    if (entry->context == NULL) {
        wm_cu.ThreadExchangeStreamCaptureMode(&mode);
        CUcontext context;
        CUdevice handle = entry->facts.handle;
        status = WM_CU(err, DevicePrimaryCtxRetain, &context, handle);
        if (status == 0) {
            entry->facts.context = context;
            atomic_store_explicit(&entry->context, context,
                                  memory_order_release);
        }
        else {
            status = wm_error_context(err, "using cuda:%d", ordinal);
        }
        wm_cu.ThreadExchangeStreamCaptureMode(&mode);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

int
wm_device_get(int ordinal, const wm_device_t **device, wm_error_t *err)
{
    wm_error_t local;
    err = err != NULL ? err : &local;
    const wm_device_t *found;
    if (wm_device_describe(ordinal, &found, err) < 0)
        return err->code;
    if (atomic_load_explicit(&entries[ordinal].context, memory_order_acquire)
            == NULL
        && retain(ordinal, err) < 0)
        return err->code;
    *device = found;
    return 0;
}

// The scopes of this thread.
static _Thread_local struct {
    int open;         // scopes entered and not left
    int stays;        // wm_device_stay() calls without their wm_device_go()
    bool remains;     // the thread has left `scope` but remains there
    wm_scope_t scope; // the scope that the thread remains in
} here;

// Returns true if the thread remains on the device, and its context was not
// changed.
static bool
is_here(int ordinal)
{
    CUcontext current;
    return here.remains && here.open == 0 && here.scope.ordinal == ordinal
           && wm_cu.CtxGetCurrent(&current) == CUDA_SUCCESS
           && current == atomic_load(&entries[ordinal].context);
}

int
wm_device_enter(int ordinal, wm_scope_t *scope, wm_error_t *err)
{
    // The hottest call of this layer: three driver calls of some tens of
    // nanoseconds each if the context is already current.
    CUcontext context = NULL;
    if (is_here(ordinal)) {
        scope->stayed = true;
        return 0;
    }
    if (ordinal >= 0 && ordinal < WM_MAX_DEVICES && !wm_driver_forked()) {
        context = atomic_load_explicit(&entries[ordinal].context,
                                       memory_order_acquire);
    }
    if (context == NULL) {
        const wm_device_t *device;
        int status = wm_device_get(ordinal, &device, err);
        if (status < 0)
            return status;
        context = device->context;
    }
    scope->ordinal = ordinal;
    scope->stayed = scope->pushed = false;
    if (wm_cu.CtxGetCurrent(&scope->previous) != CUDA_SUCCESS
        || scope->previous != context) {
        int status = WM_CU(err, CtxPushCurrent, context);
        if (status < 0)
            return status;
        scope->pushed = true;
    }
    scope->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult result = wm_cu.ThreadExchangeStreamCaptureMode(&scope->mode);
    if (result != CUDA_SUCCESS) {
        CUcontext popped;
        if (scope->pushed)
            wm_cu.CtxPopCurrent(&popped);
        return wm_cu_check(result, "cuThreadExchangeStreamCaptureMode(&mode)",
                           err);
    }
    here.open++;
    return 0;
}

static void
restore(const wm_scope_t *scope)
{
    CUstreamCaptureMode mode = scope->mode;
    wm_cu.ThreadExchangeStreamCaptureMode(&mode);
    if (scope->pushed) {
        CUcontext popped;
        wm_cu.CtxPopCurrent(&popped);
    }
}

void
wm_device_leave(const wm_scope_t *scope)
{
    if (scope->stayed)
        return;
    here.open--;
    if (here.stays > 0 && here.open == 0 && !here.remains) {
        here.scope = *scope;
        here.remains = true;
        return;
    }
    restore(scope);
}

void
wm_device_stay(void)
{
    here.stays++;
}

void
wm_device_go(void)
{
    here.stays--;
    if (here.stays == 0 && here.remains) {
        here.remains = false;
        restore(&here.scope);
    }
}

CUstreamCaptureMode
wm_device_set_mode(CUstreamCaptureMode mode)
{
    if (!wm_driver_forked() && wm_driver_in_process())
        wm_cu.ThreadExchangeStreamCaptureMode(&mode);
    return mode;
}

int
wm_device_synchronize(int ordinal, wm_error_t *err)
{
    return WM_CU_ON_OR(ordinal, err,
                       wm_error_context(err, "synchronizing cuda:%d", ordinal),
                       CtxSynchronize);
}

int
wm_device_can_access(int device, int peer, bool *can, wm_error_t *err)
{
    const wm_device_t *from, *to;
    int status = wm_device_describe(device, &from, err);
    if (status == 0)
        status = wm_device_describe(peer, &to, err);
    if (status < 0)
        return status;
    int value = 1;
    if (device != peer) {
        status = WM_CU(err, DeviceCanAccessPeer, &value, from->handle,
                       to->handle);
        if (status < 0)
            return status;
    }
    *can = value != 0;
    return 0;
}

int
wm_device_is_linked(int device, const CUuuid *peer, bool *linked,
                    wm_error_t *err)
{
    const wm_device_t *from, *to;
    int count = wm_device_count(), atomics = 0;
    *linked = false;
    int code = wm_device_describe(device, &from, err);
    for (int i = 0; i < count && code == 0 && !*linked; ++i) {
        code = wm_device_describe(i, &to, err);
        if (code < 0 || memcmp(&to->uuid, peer, sizeof *peer) != 0)
            continue;
        if (i != device) // only NVLink has native atomics
            code = WM_CU(err, DeviceGetP2PAttribute, &atomics,
                         CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
                         from->handle, to->handle);
        *linked = i == device || atomics != 0;
    }
    return code;
}

int
wm_device_enable_peer(int device, int peer, wm_error_t *err)
{
    if (device == peer)
        return 0;
    bool can;
    int status = wm_device_can_access(device, peer, &can, err);
    if (status < 0)
        return status;
    uint64_t bit = (uint64_t)1 << peer;
    if (!can || (atomic_load(&entries[device].peers) & bit) != 0)
        return 0;
    const wm_device_t *to;
    wm_scope_t scope;
    if ((status = wm_device_get(peer, &to, err)) < 0
        || (status = wm_device_enter(device, &scope, err)) < 0)
        return status;
    CUresult result = wm_cu.CtxEnablePeerAccess(to->context, 0);
    wm_device_leave(&scope);
    if (result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
        && result != CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
        && result != CUDA_ERROR_TOO_MANY_PEERS) {
        status = wm_cu_check(result, "cuCtxEnablePeerAccess(peer, 0)", err);
        if (status < 0) {
            return wm_error_context(err, "from cuda:%d to cuda:%d", device,
                                    peer);
        }
    }
    atomic_fetch_or(&entries[device].peers, bit);
    return 0;
}

int
wm_device_memory(int ordinal, size_t *free, size_t *total, wm_error_t *err)
{
    size_t left, all;
    int status = WM_CU_ON(ordinal, err, MemGetInfo, &left, &all);
    if (status == 0) {
        *free = left;
        *total = all;
    }
    return status;
}

int
wm_device_active(int ordinal, bool *active, wm_error_t *err)
{
    const wm_device_t *device;
    int status = wm_device_describe(ordinal, &device, err);
    if (status < 0)
        return status;
    unsigned int flags;
    int value;
    status = WM_CU(err, DevicePrimaryCtxGetState, device->handle, &flags,
                   &value);
    if (status == 0)
        *active = value != 0;
    return status;
}

int
wm_device_of_context(CUcontext context)
{
    int count = wm_device_count();
    for (int i = 0; i < count; i++)
        if (atomic_load_explicit(&entries[i].context, memory_order_acquire)
            == context)
            return i;
    CUdevice handle;
    CUcontext popped;
    if (wm_cu.CtxPushCurrent(context) != CUDA_SUCCESS)
        return -1;
    CUresult result = wm_cu.CtxGetDevice(&handle);
    wm_cu.CtxPopCurrent(&popped);
    for (int i = 0; i < count && result == CUDA_SUCCESS; i++) {
        const wm_device_t *device;
        if (wm_device_describe(i, &device, NULL) == 0
            && device->handle == handle)
            return i;
    }
    return -1;
}

int
wm_device_current(void)
{
    CUcontext context;
    if (wm_driver_forked() || !wm_driver_in_process()
        || wm_cu.CtxGetCurrent(&context) != CUDA_SUCCESS || context == NULL)
        return -1;
    return wm_device_of_context(context);
}

int
wm_device_default(void)
{
    static const char *const names[] = {
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "MPI_LOCALRANKID",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "PMIX_LOCAL_RANK",
        "PMI_LOCAL_RANK",
        "PALS_LOCAL_RANKID",
        "FLUX_TASK_LOCAL_ID",
        "SLURM_LOCALID",
        "LOCAL_RANK",
    };
    int count = wm_device_count();
    if (count == 0)
        return -1;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *text = getenv(names[i]);
        char *end;
        if (text == NULL || *text == '\0')
            continue;
        long rank = strtol(text, &end, 10);
        if (*end == '\0' && rank >= 0)
            return (int)(rank % count);
        fprintf(stderr,
                "warpmpi: %s=%s is not a rank on this host (0 or more), and "
                "does not choose the device\n",
                names[i], text);
    }
    return 0;
}
