// SPDX-License-Identifier: BSD-3-Clause
// NCCL's memory and its registration. Collectives are the same with it; the
// order of calls is checked.
#include "simnccl.h"

using namespace simnccl;

namespace {

struct Window {
    void *memory;
};

std::mutex mu;
std::map<void *, size_t> memories;                 // of ncclMemAlloc: bytes
std::map<void *, std::unique_ptr<Window>> windows; // by itself

bool
has_window(void *memory)
{
    for (auto &item : windows)
        if (item.second->memory == memory)
            return true;
    return false;
}

} // namespace

NCCL_API Result
ncclMemAlloc(void **out, size_t size)
{
    Result failed = count_call("MemAlloc");
    if (failed || out == nullptr || driver() == nullptr)
        return failed ? failed : ncclInvalidArgument;
    CUdeviceptr made = 0;
    if (driver()->allocate(&made, size) != CUDA_SUCCESS)
        return warn(ncclUnhandledCudaError, "MemAlloc: no memory");
    std::lock_guard<std::mutex> guard(mu);
    *out = (void *)made;
    memories[*out] = size;
    return ncclSuccess;
}

NCCL_API Result
ncclMemFree(void *memory)
{
    Result failed = count_call("MemFree");
    std::lock_guard<std::mutex> guard(mu);
    if (failed || !memories.count(memory))
        return failed ? failed
                      : warn(ncclInvalidArgument, "MemFree: not of MemAlloc");
    if (has_window(memory))
        return warn(ncclInvalidUsage, "MemFree: still registered");
    memories.erase(memory);
    driver()->release((CUdeviceptr)memory);
    return ncclSuccess;
}

NCCL_API Result
ncclCommWindowRegister(ncclComm_t comm, void *memory, size_t size,
                       Window **out, int)
{
    Result failed = count_call("CommWindowRegister");
    std::lock_guard<std::mutex> guard(mu);
    if (failed || comm == nullptr || out == nullptr)
        return failed ? failed : ncclInvalidArgument;
    if (!memories.count(memory) || size % 4096 || size > memories[memory])
        return warn(ncclInvalidArgument,
                    "CommWindowRegister: not of MemAlloc, "
                    "or not whole pages of 4096");
    std::unique_ptr<Window> made(new Window{memory});
    *out = made.get();
    windows[*out] = std::move(made);
    return ncclSuccess;
}

NCCL_API Result
ncclCommWindowDeregister(ncclComm_t comm, Window *window)
{
    Result failed = count_call("CommWindowDeregister");
    std::lock_guard<std::mutex> guard(mu);
    if (failed || comm == nullptr || !windows.erase(window))
        return failed ? failed : ncclInvalidArgument;
    return ncclSuccess;
}
