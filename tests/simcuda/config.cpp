// SPDX-License-Identifier: BSD-3-Clause
// Initialisation, devices, primary contexts, and the look-up of functions.
#include "sim.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

namespace sim {

Config config;
std::mutex &mu = *new std::mutex;
bool initialised;
Context *const contexts = new Context[MAX_DEVICES];

// No destructor: threads call us until the very end.
constexpr int MAX_DEPTH = 256;
static thread_local Context *stack[MAX_DEPTH];
static thread_local int depth;
static thread_local CUstreamCaptureMode capture_mode =
    CU_STREAM_CAPTURE_MODE_GLOBAL;
static uint64_t random_state;

uint64_t
random_below(uint64_t n)
{
    random_state += 0x9e3779b97f4a7c15u; // splitmix64
    uint64_t z = random_state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % n;
}

static uint64_t
number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != nullptr && *text ? strtoull(text, nullptr, 0) : otherwise;
}

static void
configure()
{
    config.devices = (int)number("SIMCUDA_DEVICES", 2);
    config.devices = std::min(std::max(config.devices, 0), MAX_DEVICES);
    config.first = number("SIMCUDA_FIRST", 0);
    config.memory = number("SIMCUDA_MEMORY", config.memory) & ~(PAGE - 1);
    config.peer = number("SIMCUDA_PEER", 1) != 0;
    config.mps = number("SIMCUDA_MPS", 0) != 0;
    config.link = number("SIMCUDA_LINK", 1) != 0;
    config.ipc = number("SIMCUDA_IPC", 1) != 0;
    config.access = number("SIMCUDA_OPEN", 0) != 0 ? PROT_READ | PROT_WRITE
                                                   : PROT_NONE;
    config.seed = number("SIMCUDA_SEED", 0);
    config.delay_us = number("SIMCUDA_DELAY_US", config.delay_us);
    config.lazy_us = number("SIMCUDA_LAZY_US", config.lazy_us);
    config.kernel_threads = number("SIMCUDA_KERNEL_THREADS",
                                   config.kernel_threads);
    std::string mode = getenv("SIMCUDA_MODE") ? getenv("SIMCUDA_MODE") : "";
    config.mode = mode == "eager"   ? Mode::EAGER
                  : mode == "delay" ? Mode::DELAY
                                    : Mode::LAZY;
    if (config.mode == Mode::LAZY && mode != "" && mode != "lazy")
        fprintf(stderr,
                "simcuda: SIMCUDA_MODE=%s is none of lazy, delay and eager\n",
                mode.c_str());
    random_state = config.seed;
}

Context *
current()
{
    return depth == 0 ? nullptr : stack[depth - 1];
}

Context *
context_of(CUcontext handle)
{
    Context *ctx = (Context *)handle;
    bool ours = ctx >= contexts && ctx < contexts + config.devices;
    return ours && ctx->retained > 0 ? ctx : nullptr;
}

static bool
is_device(CUdevice device)
{
    return device >= 0 && device < config.devices;
}

Call::Call(const char *name, CUdevice device) : Call(name, Need::INIT)
{
    if (result == CUDA_SUCCESS && !is_device(device))
        result = CUDA_ERROR_INVALID_DEVICE;
}

Call::Call(const char *name, Need need)
{
    if (forked()) {
        result = CUDA_ERROR_NOT_INITIALIZED;
        return;
    }
    result = count_call(name, initialised);
    if (result != CUDA_SUCCESS)
        return;
    lock = Lock(mu);
    result = capture_allows(name, capture_mode);
    if (result != CUDA_SUCCESS)
        return;
    if (need != Need::NOTHING && !initialised) {
        result = CUDA_ERROR_NOT_INITIALIZED;
    }
    else if (need == Need::CONTEXT) {
        ctx = current();
        result = ctx == nullptr || ctx->retained == 0
                     ? CUDA_ERROR_INVALID_CONTEXT
                     : ctx->error;
    }
}

static int
attribute(CUdevice_attribute what, int device)
{
    switch (what) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        return 9;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        return 4;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
        return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
        return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
        return 2048;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH:
        return INT32_MAX;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        return device + 1;
    case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
        return config.ipc;
    case CU_DEVICE_ATTRIBUTE_MPS_ENABLED:
        return config.mps;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
        return 1;
    default:
        return 0;
    }
}

static void
deactivate(Lock &lock, Context *ctx)
{
    wait_until_idle(lock, ctx);
    std::vector<RangePtr> mine;
    for (auto &item : ranges)
        if (item.second->ctx == ctx)
            mine.push_back(item.second);
    for (const RangePtr &range : mine)
        range_free(lock, range);
    for (auto it = streams.begin(); it != streams.end();)
        it = it->second->ctx == ctx ? streams.erase(it) : std::next(it);
    ctx->error = CUDA_SUCCESS;
    ctx->peers = 0;
}

struct ErrorText {
    CUresult code;
    const char *name, *text;
};

static const ErrorText error_texts[] = {
#define E(code, text)                                                         \
    {                                                                         \
        CUDA_##code, "CUDA_" #code, text                                      \
    }
    E(SUCCESS, "no error"),
    E(ERROR_INVALID_VALUE, "invalid argument"),
    E(ERROR_OUT_OF_MEMORY, "out of memory"),
    E(ERROR_NOT_INITIALIZED, "initialization error"),
    E(ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    E(ERROR_INVALID_DEVICE, "invalid device ordinal"),
    E(ERROR_INVALID_CONTEXT, "invalid device context"),
    E(ERROR_MAP_FAILED, "mapping of buffer object failed"),
    E(ERROR_ALREADY_MAPPED, "resource already mapped"),
    E(ERROR_PEER_ACCESS_UNSUPPORTED,
      "peer access is not supported between these two devices"),
    E(ERROR_INVALID_HANDLE, "invalid resource handle"),
    E(ERROR_NOT_FOUND, "named symbol not found"),
    E(ERROR_NOT_READY, "device not ready"),
    E(ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    E(ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    E(ERROR_HOST_MEMORY_ALREADY_REGISTERED,
      "part or all of the requested memory range is already mapped"),
    E(ERROR_HOST_MEMORY_NOT_REGISTERED,
      "pointer does not correspond to a registered memory region"),
    E(ERROR_NOT_SUPPORTED, "operation not supported"),
    E(ERROR_STREAM_CAPTURE_UNSUPPORTED,
      "operation not permitted when stream is capturing"),
    E(ERROR_STREAM_CAPTURE_INVALIDATED,
      "operation failed due to a previous error during capture"),
    E(ERROR_STREAM_CAPTURE_MERGE,
      "operation would result in a merge of separate capture sequences"),
    E(ERROR_STREAM_CAPTURE_UNMATCHED,
      "capture was not ended in the same stream as it began"),
    E(ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    E(ERROR_STREAM_CAPTURE_ISOLATION,
      "dependency created on uncaptured work in another stream"),
    E(ERROR_STREAM_CAPTURE_IMPLICIT,
      "operation would make the legacy stream depend on a capturing blocking "
      "stream"),
    E(ERROR_CAPTURED_EVENT,
      "operation not permitted on an event last recorded in a capturing "
      "stream"),
    E(ERROR_UNKNOWN, "unknown error"),
#undef E
};

static CUresult
error_text(CUresult error, const char **out, const char *ErrorText::*field)
{
    *out = nullptr;
    for (const ErrorText &e : error_texts) {
        if (e.code == error) {
            *out = e.*field;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

} // namespace sim

using namespace sim;

CUresult
cuGetErrorName(CUresult error, const char **out)
{
    return error_text(error, out, &ErrorText::name);
}

CUresult
cuGetErrorString(CUresult error, const char **out)
{
    return error_text(error, out, &ErrorText::text);
}

CUresult
cuInit(unsigned int flags)
{
    static std::once_flag once;
    std::call_once(once, fault_init);
    Call call("Init", Need::NOTHING);
    if (!call || flags != 0)
        return call ? CUDA_ERROR_INVALID_VALUE : call.result;
    if (!initialised) {
        configure();
        if (config.devices == 0)
            return CUDA_ERROR_NO_DEVICE;
        memory_init();
        ipc_init();
        for (int d = 0; d < config.devices; d++) {
            contexts[d].device = d;
            contexts[d].legacy = std::make_shared<Stream>();
            contexts[d].legacy->ctx = &contexts[d];
        }
        initialised = true;
    }
    return CUDA_SUCCESS;
}

CUresult
cuDriverGetVersion(int *version)
{
    Call call("DriverGetVersion", Need::NOTHING);
    *version = (int)sim::number("SIMCUDA_VERSION", CUDA_VERSION);
    return call.result;
}

CUresult
cuDeviceGetCount(int *count)
{
    Call call("DeviceGetCount", Need::INIT);
    *count = call ? config.devices : 0;
    return call.result;
}

CUresult
cuDeviceGet(CUdevice *device, int ordinal)
{
    Call call("DeviceGet", Need::INIT);
    if (call && !is_device(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return call.result;
}

CUresult
cuDeviceGetName(char *name, int len, CUdevice device)
{
    Call call("DeviceGetName", device);
    if (!call)
        return call.result;
    snprintf(name, len, "Simulated device %d", device);
    return call.result;
}

CUresult
cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    Call call("DeviceGetUuid", device);
    if (!call)
        return call.result;
    memcpy(uuid->bytes, "simcuda-device-", 15);
    uuid->bytes[15] = (char)('a' + config.first + device);
    return call.result;
}

CUresult
cuDeviceGetPCIBusId(char *id, int len, CUdevice device)
{
    Call call("DeviceGetPCIBusId", device);
    if (!call)
        return call.result;
    snprintf(id, len, "0000:%02X:00.0", device + 1);
    return call.result;
}

CUresult
cuDeviceGetAttribute(int *value, CUdevice_attribute what, CUdevice device)
{
    Call call("DeviceGetAttribute", device);
    if (!call)
        return call.result;
    *value = attribute(what, device);
    return call.result;
}

CUresult
cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    Call call("DeviceTotalMem", device);
    if (!call)
        return call.result;
    *bytes = config.memory;
    return call.result;
}

CUresult
cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    Call call("DeviceCanAccessPeer", device);
    if (!call || !is_device(peer))
        return call ? CUDA_ERROR_INVALID_DEVICE : call.result;
    *can = config.peer && device != peer;
    return call.result;
}

CUresult
cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute what,
                        CUdevice device, CUdevice peer)
{
    Call call("DeviceGetP2PAttribute", device);
    if (!call || !is_device(peer) || device == peer)
        return call ? CUDA_ERROR_INVALID_DEVICE : call.result;
    *value = what == CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
             && config.peer && config.link;
    return call.result;
}

CUresult
cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice device)
{
    Call call("DevicePrimaryCtxRetain", device);
    if (!call)
        return call.result;
    contexts[device].retained++;
    *ctx = (CUcontext)&contexts[device];
    return CUDA_SUCCESS;
}

CUresult
cuDevicePrimaryCtxRelease(CUdevice device)
{
    Call call("DevicePrimaryCtxRelease", device);
    if (!call)
        return call.result;
    if (contexts[device].retained == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--contexts[device].retained == 0)
        deactivate(call.lock, &contexts[device]);
    return CUDA_SUCCESS;
}

CUresult
cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
    Call call("DevicePrimaryCtxGetState", device);
    if (!call)
        return call.result;
    *flags = 0;
    *active = contexts[device].retained > 0;
    return call.result;
}

CUresult
cuCtxPushCurrent(CUcontext ctx)
{
    Call call("CtxPushCurrent", Need::INIT);
    if (call && (context_of(ctx) == nullptr || depth == MAX_DEPTH))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (call)
        stack[depth++] = context_of(ctx);
    return call.result;
}

CUresult
cuCtxPopCurrent(CUcontext *ctx)
{
    Call call("CtxPopCurrent", Need::INIT);
    if (call && depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (call) {
        if (ctx != nullptr)
            *ctx = (CUcontext)current();
        depth--;
    }
    return call.result;
}

CUresult
cuCtxSetCurrent(CUcontext ctx)
{
    Call call("CtxSetCurrent", Need::INIT);
    if (call && ctx != nullptr && context_of(ctx) == nullptr)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (call) {
        depth -= depth > 0;
        if (ctx != nullptr)
            stack[depth++] = context_of(ctx);
    }
    return call.result;
}

CUresult
cuCtxGetCurrent(CUcontext *ctx)
{
    Call call("CtxGetCurrent", Need::INIT);
    *ctx = (CUcontext)current();
    return call.result;
}

CUresult
cuCtxGetDevice(CUdevice *device)
{
    Call call("CtxGetDevice", Need::INIT);
    if (call && current() == nullptr)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (call)
        *device = current()->device;
    return call.result;
}

CUresult
cuCtxSynchronize()
{
    Call call("CtxSynchronize");
    if (!call)
        return call.result;
    for (auto &item : streams)
        if (item.second->ctx == call.ctx && item.second->capture != nullptr) {
            spoil_capture(item.second);
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    std::vector<Mark> marks = pending(call.ctx);
    for (const Mark &mark : marks)
        demand(mark);
    for (const Mark &mark : marks)
        wait_for(call.lock, mark);
    return call.ctx->error;
}

CUresult
cuCtxEnablePeerAccess(CUcontext handle, unsigned int flags)
{
    Call call("CtxEnablePeerAccess");
    if (!call)
        return call.result;
    Context *peer = context_of(handle);
    if (peer == nullptr || peer == call.ctx)
        return peer ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_CONTEXT;
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!config.peer)
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    if (call.ctx->peers >> peer->device & 1)
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    call.ctx->peers |= 1u << peer->device;
    return CUDA_SUCCESS;
}

CUresult
cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    Call call("ThreadExchangeStreamCaptureMode", Need::INIT);
    if (call)
        std::swap(*mode, capture_mode);
    return call.result;
}

// Serves an MPI that cannot tell this driver from a real one.
SIM_EXPORT int
MPIX_Query_cuda_support(void)
{
    return sim::number("SIMCUDA_OPEN", 0) != 0;
}
