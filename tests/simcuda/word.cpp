// SPDX-License-Identifier: BSD-3-Clause
// Words that streams write and wait for.
#include "sim.h"

namespace sim {

struct Condition {
    uint32_t *word;
    uint64_t value64;
    unsigned int flags;
    bool is_long;

    bool
    holds() const
    {
        if (is_long) // GEQ alone, see give()
            return (int64_t)(__atomic_load_n((uint64_t *)word,
                                             __ATOMIC_ACQUIRE)
                             - value64)
                   >= 0;
        uint32_t value = (uint32_t)value64;
        uint32_t now = __atomic_load_n(word, __ATOMIC_ACQUIRE);
        switch (flags & 3) {
        case CU_STREAM_WAIT_VALUE_GEQ:
            return (int32_t)(now - value) >= 0;
        case CU_STREAM_WAIT_VALUE_EQ:
            return now == value;
        case CU_STREAM_WAIT_VALUE_AND:
            return (now & value) != 0;
        default:
            return ~(now | value) != 0;
        }
    }
};

static CUresult
find(CUdeviceptr address, unsigned int size, RangePtr *range)
{
    CUresult result = range_get(address, size, range);
    return result != CUDA_SUCCESS || *range == nullptr || address % size != 0
               ? CUDA_ERROR_INVALID_VALUE
               : CUDA_SUCCESS;
}

static Op
write(const RangePtr &range, CUdeviceptr address, uint64_t value, bool is_long)
{
    Op op;
    op.uses.push_back(range);
    op.writes_word = true;
    op.word = word_at(range, address);
    uint32_t *word = (uint32_t *)bytes_at(range, address);
    op.run = [=] {
        if (is_long)
            __atomic_store_n((uint64_t *)word, value, __ATOMIC_RELEASE);
        else
            __atomic_store_n(word, (uint32_t)value, __ATOMIC_RELEASE);
        return CUDA_SUCCESS;
    };
    return op;
}

static Op
wait(const RangePtr &range, CUdeviceptr address, uint64_t value,
     unsigned int flags, bool is_long)
{
    Condition condition = {(uint32_t *)bytes_at(range, address), value, flags,
                           is_long};
    Word name = word_at(range, address);
    Op op;
    op.uses.push_back(range);
    op.ready = [condition, name, range, next = Time()]() mutable {
        if (range->freed || condition.holds())
            return true;
        bool here = demand_word(name);
        if (!here && name.inode != 0 && Clock::now() >= next) {
            word_broadcast(name);
            next = Clock::now() + std::chrono::milliseconds(4);
        }
        return false;
    };
    return op;
}

// Enqueues all operations, or none.
static CUresult
give(const char *name, CUstream handle, unsigned int count,
     const CUstreamBatchMemOpParams *params)
{
    Call call(name);
    if (!call)
        return call.result;
    StreamPtr stream = stream_of(handle, call.ctx);
    if (stream == nullptr)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = capture_admits(stream);
    if (result != CUDA_SUCCESS)
        return result;
    std::vector<Op> ops;
    for (unsigned int i = 0; i < count; i++) {
        // The members, and their offsets, are the same for both operations.
        const auto &each = params[i].waitValue;
        RangePtr range;
        bool writes_long = each.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
        bool is_long = each.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64
                       || writes_long;
        result = find(each.address, is_long ? 8 : 4, &range);
        bool writes = each.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32
                      || writes_long;
        bool known = writes ? each.flags <= 1
                     : is_long
                         ? each.flags == CU_STREAM_WAIT_VALUE_GEQ
                         : each.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32
                               && (each.flags & ~(3u | 1u << 30)) == 0;
        if (result != CUDA_SUCCESS || !known)
            return CUDA_ERROR_INVALID_VALUE;
        uint64_t value = is_long ? each.value64 : each.value;
        ops.push_back(
            writes ? write(range, each.address, value, is_long)
                   : wait(range, each.address, value, each.flags, is_long));
    }
    for (Op &op : ops)
        enqueue(stream, std::move(op));
    return CUDA_SUCCESS;
}

static CUresult
give_one(const char *name, CUstream handle, CUstreamBatchMemOpType operation,
         CUdeviceptr address, uint32_t value, unsigned int flags)
{
    CUstreamBatchMemOpParams params = {};
    params.waitValue.operation = operation;
    params.waitValue.address = address;
    params.waitValue.value = value;
    params.waitValue.flags = flags;
    return give(name, handle, 1, &params);
}

} // namespace sim

using namespace sim;

CUresult
cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                     unsigned int flags)
{
    return give_one("StreamWriteValue32", stream,
                    CU_STREAM_MEM_OP_WRITE_VALUE_32, address, value, flags);
}

CUresult
cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                    unsigned int flags)
{
    return give_one("StreamWaitValue32", stream,
                    CU_STREAM_MEM_OP_WAIT_VALUE_32, address, value, flags);
}

CUresult
cuStreamBatchMemOp(CUstream stream, unsigned int count,
                   CUstreamBatchMemOpParams *params, unsigned int flags)
{
    return flags != 0 || count == 0 || count > 255
               ? CUDA_ERROR_INVALID_VALUE
               : give("StreamBatchMemOp", stream, count, params);
}
