// SPDX-License-Identifier: BSD-3-Clause
// Pointer attributes, and counts of live objects, for leak tests.
#include "sim.h"

#include <cstring>

using namespace sim;

namespace {

template <typename T>
bool
store(void *out, T value)
{
    memcpy(out, &value, sizeof value);
    return true;
}

CUmemorytype
type_of(const Range *range)
{
    switch (range->kind) {
    case Kind::PINNED:
    case Kind::REGISTERED:
        return CU_MEMORYTYPE_HOST;
    default:
        return CU_MEMORYTYPE_DEVICE;
    }
}

bool
exportable(const Range *range)
{
    return range->kind == Kind::DEVICE && !range->pooled;
}

// Stores an attribute. `r` is null for memory that the driver does not know;
// its attributes are zero then, except for the device.
bool
attribute(CUpointer_attribute what, const Range *r, uintptr_t ptr, void *out)
{
    bool host = r != nullptr && type_of(r) == CU_MEMORYTYPE_HOST;
    switch (what) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        return store(out, r ? (CUcontext)r->ctx : nullptr);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        return store<unsigned>(out, r ? type_of(r) : 0);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        return store<CUdeviceptr>(out, r ? ptr : 0);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        return store<uintptr_t>(
            out, host || (r && r->kind == Kind::MANAGED) ? ptr : 0);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        return store<uint64_t>(out, r ? r->id : 0);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        return store<unsigned>(out, r && r->kind == Kind::MANAGED);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        return store<int>(out, r ? r->ctx->device : CU_DEVICE_INVALID);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        return store<unsigned>(out, r && exportable(r));
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        return store<CUdeviceptr>(out, r ? r->base : 0);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        return store<size_t>(out, r ? r->size : 0);
    case CU_POINTER_ATTRIBUTE_MAPPED:
        return store<unsigned>(out, r != nullptr);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        return store<uint64_t>(out, 0);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        return store<uintptr_t>(
            out, r && r->pooled ? (uintptr_t)(r->ctx->device + 1) << 8 : 0);
    default:
        return false;
    }
}

} // namespace

CUresult
cuPointerGetAttributes(unsigned int count, CUpointer_attribute *what,
                       void **data, CUdeviceptr ptr)
{
    Call call("PointerGetAttributes", Need::INIT);
    if (!call)
        return call.result;
    RangePtr range = range_find(ptr);
    for (unsigned int i = 0; i < count; i++)
        if (!attribute(what[i], range.get(), ptr, data[i]))
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

SIM_EXPORT long
simcuda_live(const char *kind)
{
    if (forked())
        return -1;
    Lock lock(mu);
    std::string k = kind;
    if (k == "streams")
        return (long)streams.size();
    if (k == "events")
        return events_live();
    if (k == "graphs")
        return graphs_live();
    if (k == "modules")
        return modules_live();
    long count = 0, bytes = 0;
    for (auto &item : ranges) {
        const Range &r = *item.second;
        bool device = r.kind == Kind::DEVICE || r.kind == Kind::MANAGED;
        count += (k == "memory" && device)
                 || (k == "pinned" && r.kind == Kind::PINNED)
                 || (k == "registered" && r.kind == Kind::REGISTERED)
                 || (k == "mappings" && r.kind == Kind::IMPORTED);
        bytes += device ? (long)r.size : 0;
    }
    return k == "bytes" ? bytes : count;
}
