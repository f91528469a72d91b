// SPDX-License-Identifier: BSD-3-Clause
// Finds functions by name and version, as the real driver does.
#include "sim.h"

#include <cstring>

namespace {

struct Row {
    const char *name;
    int version; // the first that had the function
    void *function;
};

const Row rows[] = {
#define X(name, version, need) {"cu" #name, version, (void *)cu##name},
#include "cuda/driver_list.h"
    X(DeviceGetDefaultMemPool, 11020, OPTIONAL) X(MemPoolSetAccess, 11020,
                                                  OPTIONAL)
        X(MemAllocAsync, 11020, OPTIONAL) X(MemFreeAsync, 11020, OPTIONAL) X(
            MemAllocManaged, 6000, OPTIONAL) X(MemsetD32Async, 3020, OPTIONAL)
            X(LaunchHostFunc, 10000, OPTIONAL) X(MemcpyHtoD, 3020, OPTIONAL)
                X(MemcpyDtoH, 3020, OPTIONAL) X(StreamCreate, 2000, OPTIONAL)
                    X(GetProcAddress, 11030, OPTIONAL) X(EventElapsedTime,
                                                         2000, OPTIONAL)
                        X(IpcGetEventHandle, 4010,
                          OPTIONAL) X(IpcOpenEventHandle, 4010, OPTIONAL)
                            X(StreamBeginCapture, 10010,
                              OPTIONAL) X(StreamEndCapture, 10000, OPTIONAL)
                                X(GraphInstantiateWithFlags, 11040,
                                  OPTIONAL) X(GraphLaunch, 10000, OPTIONAL)
                                    X(GraphDestroy, 10000, OPTIONAL)
                                        X(GraphExecDestroy, 10000, OPTIONAL)
#undef X
};

} // namespace

CUresult
cuGetProcAddress_v2(const char *symbol, void **function, int version,
                    cuuint64_t, CUdriverProcAddressQueryResult *status)
{
    CUdriverProcAddressQueryResult found =
        CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    *function = nullptr;
    for (const Row &row : rows) {
        if (strcmp(row.name, symbol) == 0) {
            found = version >= row.version
                        ? CU_GET_PROC_ADDRESS_SUCCESS
                        : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
            *function = version >= row.version ? row.function : nullptr;
        }
    }
    if (status != nullptr)
        *status = found;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

#undef cuGetProcAddress
SIM_EXPORT CUresult
cuGetProcAddress(const char *symbol, void **function, int version,
                 cuuint64_t flags)
{
    return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}
