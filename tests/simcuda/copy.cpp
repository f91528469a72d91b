// SPDX-License-Identifier: BSD-3-Clause
// Copies and fills. Bytes are read when the operation runs. As on real
// hardware, only pageable sources are read at submission, and only pageable
// destinations make the host wait.
#include "sim.h"

#include <cstring>

namespace sim {

struct Side {
    uintptr_t address = 0;
    size_t pitch = 0, slice = 0; // bytes between rows, between layers
    RangePtr range;
    char *bytes = nullptr;
};

struct Box {
    size_t width = 0, height = 1, depth = 1;
};

static CUresult
find(Side *side, const Box &box)
{
    size_t span = (box.depth - 1) * side->slice
                  + (box.height - 1) * side->pitch + box.width;
    CUresult result = range_get(side->address, span, &side->range);
    side->bytes = bytes_at(side->range, side->address);
    return result;
}

static void
move(const Side &dst, const Side &src, const Box &box)
{
    for (size_t z = 0; z < box.depth; z++) {
        for (size_t y = 0; y < box.height; y++) {
            memmove(dst.bytes + z * dst.slice + y * dst.pitch,
                    src.bytes + z * src.slice + y * src.pitch, box.width);
        }
    }
}

// Reads a pageable source at once, into memory that lives as long as the op.
static std::shared_ptr<std::vector<char>>
stage(Side *src, const Box &box)
{
    auto staged = std::make_shared<std::vector<char>>(box.width * box.height
                                                      * box.depth);
    Side packed;
    packed.bytes = staged->data();
    packed.pitch = box.width;
    packed.slice = box.width * box.height;
    move(packed, *src, box);
    *src = packed;
    return staged;
}

static CUresult
copy(Call &call, CUstream handle, Side dst, Side src, const Box &box,
     bool blocking = false)
{
    StreamPtr stream = stream_of(handle, call.ctx);
    if (stream == nullptr)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = capture_admits(stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (box.width == 0 || box.height == 0 || box.depth == 0)
        return CUDA_SUCCESS;
    result = find(&dst, box);
    if (result == CUDA_SUCCESS)
        result = find(&src, box);
    if (result != CUDA_SUCCESS)
        return result;
    Op op;
    for (const Side *side : {&dst, &src}) {
        if (!copies_reach(stream->ctx->device, side->range)
            || !copies_reach(call.ctx->device, side->range))
            return CUDA_ERROR_INVALID_VALUE;
        if (side->range != nullptr)
            op.uses.push_back(side->range);
    }
    std::shared_ptr<std::vector<char>> staged;
    bool captured = stream->capture != nullptr; // read when the op runs
    if (src.range == nullptr && dst.range != nullptr && !captured)
        staged = stage(&src, box);
    op.run = [dst, src, box, staged] {
        move(dst, src, box);
        return CUDA_SUCCESS;
    };
    Mark mark = enqueue(stream, std::move(op));
    if ((dst.range == nullptr || blocking) && !captured)
        return wait_for(call.lock, mark);
    return CUDA_SUCCESS;
}

static CUresult
copy_line(const char *name, uintptr_t dst, uintptr_t src, size_t size,
          CUstream handle, bool blocking)
{
    Call call(name);
    if (!call)
        return call.result;
    trace("  %zu bytes", size);
    Side to, from;
    to.address = dst;
    from.address = src;
    return copy(call, handle, to, from, {size, 1, 1}, blocking);
}

// Reads one side of a 2-D or 3-D descriptor.
static bool
side_of(CUmemorytype type, const void *host, CUdeviceptr device, size_t pitch,
        size_t height, size_t x, size_t y, size_t z, const Box &box,
        Side *side)
{
    if (type == CU_MEMORYTYPE_ARRAY || pitch > INT32_MAX
        || (pitch != 0 && pitch < x + box.width))
        return false;
    side->pitch = pitch ? pitch : x + box.width;
    side->slice = side->pitch * (height ? height : y + box.height);
    side->address = (type == CU_MEMORYTYPE_HOST ? (uintptr_t)host : device)
                    + z * side->slice + y * side->pitch + x;
    RangePtr range = range_find(side->address);
    return type != CU_MEMORYTYPE_DEVICE || range != nullptr;
}

static CUresult
fill(const char *name, CUdeviceptr dst, uint32_t value, size_t unit,
     size_t count, CUstream handle)
{
    Call call(name);
    if (!call)
        return call.result;
    StreamPtr stream = stream_of(handle, call.ctx);
    if (stream == nullptr || stream->ctx != call.ctx)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = capture_admits(stream);
    if (result != CUDA_SUCCESS)
        return result;
    RangePtr range;
    result = range_get(dst, count * unit, &range);
    if (result != CUDA_SUCCESS || (range == nullptr && count > 0)
        || dst % unit != 0 || !copies_reach(call.ctx->device, range))
        return CUDA_ERROR_INVALID_VALUE;
    if (count == 0)
        return CUDA_SUCCESS;
    Op op;
    op.uses.push_back(range);
    char *bytes = bytes_at(range, dst);
    op.run = [=] {
        if (unit == 1)
            memset(bytes, (int)value, count);
        for (size_t i = 0; unit == 4 && i < count; i++)
            memcpy(bytes + i * 4, &value, 4);
        return CUDA_SUCCESS;
    };
    enqueue(stream, std::move(op));
    return CUDA_SUCCESS;
}

} // namespace sim

using namespace sim;

CUresult
cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream)
{
    return copy_line("MemcpyAsync", dst, src, size, stream, false);
}

CUresult
cuMemcpyHtoD(CUdeviceptr dst, const void *src, size_t size)
{
    return copy_line("MemcpyHtoD", dst, (uintptr_t)src, size, nullptr, true);
}

CUresult
cuMemcpyDtoH(void *dst, CUdeviceptr src, size_t size)
{
    return copy_line("MemcpyDtoH", (uintptr_t)dst, src, size, nullptr, true);
}

CUresult
cuMemcpy2DAsync(const CUDA_MEMCPY2D *c, CUstream stream)
{
    Call call("Memcpy2DAsync");
    if (!call)
        return call.result;
    Box box = {c->WidthInBytes, c->Height, 1};
    Side dst, src;
    if (!side_of(c->dstMemoryType, c->dstHost, c->dstDevice, c->dstPitch, 0,
                 c->dstXInBytes, c->dstY, 0, box, &dst)
        || !side_of(c->srcMemoryType, c->srcHost, c->srcDevice, c->srcPitch, 0,
                    c->srcXInBytes, c->srcY, 0, box, &src))
        return CUDA_ERROR_INVALID_VALUE;
    return copy(call, stream, dst, src, box);
}

CUresult
cuMemcpy3DAsync(const CUDA_MEMCPY3D *c, CUstream stream)
{
    Call call("Memcpy3DAsync");
    if (!call)
        return call.result;
    Box box = {c->WidthInBytes, c->Height, c->Depth};
    Side dst, src;
    bool short_layer = box.depth > 1
                       && ((c->dstHeight && c->dstHeight < box.height)
                           || (c->srcHeight && c->srcHeight < box.height));
    if (short_layer
        || !side_of(c->dstMemoryType, c->dstHost, c->dstDevice, c->dstPitch,
                    c->dstHeight, c->dstXInBytes, c->dstY, c->dstZ, box, &dst)
        || !side_of(c->srcMemoryType, c->srcHost, c->srcDevice, c->srcPitch,
                    c->srcHeight, c->srcXInBytes, c->srcY, c->srcZ, box, &src))
        return CUDA_ERROR_INVALID_VALUE;
    return copy(call, stream, dst, src, box);
}

CUresult
cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count,
                CUstream stream)
{
    return fill("MemsetD8Async", dst, value, 1, count, stream);
}

CUresult
cuMemsetD32Async(CUdeviceptr dst, unsigned int value, size_t count,
                 CUstream stream)
{
    return fill("MemsetD32Async", dst, value, 4, count, stream);
}
