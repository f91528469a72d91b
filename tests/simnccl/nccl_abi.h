// SPDX-License-Identifier: BSD-3-Clause
// The part of NCCL's interface that the double has, from its documentation.
#ifndef SIMNCCL_NCCL_ABI_H
#define SIMNCCL_NCCL_ABI_H

#include <cuda.h>

#include <climits>
#include <cstddef>

enum ncclResult_t {
    ncclSuccess,
    ncclUnhandledCudaError,
    ncclSystemError,
    ncclInternalError,
    ncclInvalidArgument,
    ncclInvalidUsage,
    ncclRemoteError,
    ncclInProgress,
};

enum ncclDataType_t {
    ncclInt8,
    ncclUint8,
    ncclInt32,
    ncclUint32,
    ncclInt64,
    ncclUint64,
    ncclFloat16,
    ncclFloat32,
    ncclFloat64,
    ncclBfloat16,
    ncclFloat8e4m3,
    ncclFloat8e5m2,
};

enum ncclRedOp_t { ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg };

struct ncclUniqueId {
    char internal[128];
};

// The fields of 2.20, with which later versions begin too.
struct ncclConfig_t {
    size_t size;
    unsigned int magic; // 0xcafebeef
    unsigned int version;
    int blocking; // INT_MIN: not given
    int cgaClusterSize;
    int minCTAs;
    int maxCTAs;
    const char *netName;
    int splitShare;
};

namespace simnccl {
struct Comm;
}
using ncclComm_t = simnccl::Comm *;
using cudaStream_t = CUstream;

#define NCCL_API extern "C" __attribute__((visibility("default")))

#endif
