// SPDX-License-Identifier: BSD-3-Clause
// The stream functions.
#include "sim.h"

namespace sim {

std::unordered_map<CUstream, StreamPtr> &streams =
    *new std::unordered_map<CUstream, StreamPtr>;

// Handles of destroyed streams, which are reused at once.
static auto &spare_handles = *new std::vector<CUstream>;

static CUstream
new_handle()
{
    if (spare_handles.empty())
        return (CUstream) new char[64]; // never freed
    CUstream handle = spare_handles.back();
    spare_handles.pop_back();
    return handle;
}

static StreamPtr
new_stream(Context *ctx, bool blocking)
{
    static unsigned long long streams_made;
    auto stream = std::make_shared<Stream>();
    stream->id = ++streams_made;
    stream->ctx = ctx;
    stream->blocking = blocking;
    return stream;
}

StreamPtr
stream_of(CUstream handle, Context *ctx)
{
    static thread_local StreamPtr *per_thread[MAX_DEVICES];
    if (handle == nullptr || handle == CU_STREAM_LEGACY)
        return ctx->legacy;
    if (handle == CU_STREAM_PER_THREAD) {
        StreamPtr *&mine = per_thread[ctx->device];
        if (mine == nullptr)
            mine = new StreamPtr(new_stream(ctx, true));
        return *mine;
    }
    auto it = streams.find(handle);
    return it == streams.end() ? nullptr : it->second;
}

// Returns the point at which a wait of the host for the stream ends. The
// legacy stream stands for all blocking streams of its context.
static Mark
end_of(const StreamPtr &stream)
{
    bool others = false;
    for (const StreamPtr &other : active)
        others |= other->ctx == stream->ctx && other->blocking;
    if (stream == stream->ctx->legacy && others)
        return append(stream, Op());
    return {stream, stream->last};
}

static CUresult
create(CUstream *handle, const char *name, unsigned int flags)
{
    Call call(name);
    if (!call)
        return call.result;
    if (handle == nullptr || flags > CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    StreamPtr stream = new_stream(call.ctx, flags == CU_STREAM_DEFAULT);
    *handle = new_handle();
    streams[*handle] = stream;
    return CUDA_SUCCESS;
}

} // namespace sim

using namespace sim;

CUresult
cuStreamCreate(CUstream *stream, unsigned int flags)
{
    return create(stream, "StreamCreate", flags);
}

CUresult
cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int)
{
    return create(stream, "StreamCreateWithPriority", flags);
}

CUresult
cuStreamDestroy(CUstream handle)
{
    Call call("StreamDestroy");
    if (!call)
        return call.result;
    if (streams.erase(handle) == 0)
        return CUDA_ERROR_INVALID_HANDLE;
    spare_handles.push_back(handle);
    return CUDA_SUCCESS;
}

CUresult
cuStreamQuery(CUstream handle)
{
    Call call("StreamQuery");
    if (!call)
        return call.result;
    StreamPtr stream = stream_of(handle, call.ctx);
    if (stream == nullptr)
        return CUDA_ERROR_INVALID_HANDLE;
    if (spoil_capture(stream))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    Mark end = end_of(stream);
    demand(end);
    return stream->ctx->error != CUDA_SUCCESS ? stream->ctx->error
           : ended(end)                       ? CUDA_SUCCESS
                                              : CUDA_ERROR_NOT_READY;
}

CUresult
cuStreamSynchronize(CUstream handle)
{
    Call call("StreamSynchronize");
    if (!call)
        return call.result;
    StreamPtr stream = stream_of(handle, call.ctx);
    if (stream == nullptr)
        return CUDA_ERROR_INVALID_HANDLE;
    if (spoil_capture(stream))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return wait_for(call.lock, end_of(stream));
}

CUresult
cuStreamGetCtx(CUstream handle, CUcontext *ctx)
{
    Call call("StreamGetCtx");
    if (!call)
        return call.result;
    StreamPtr stream = stream_of(handle, call.ctx);
    if (stream == nullptr)
        return CUDA_ERROR_INVALID_HANDLE;
    *ctx = (CUcontext)stream->ctx;
    return CUDA_SUCCESS;
}

CUresult
cuStreamGetId(CUstream handle, unsigned long long *id)
{
    Call call("StreamGetId");
    if (!call)
        return call.result;
    StreamPtr stream = stream_of(handle, call.ctx);
    if (stream == nullptr)
        return CUDA_ERROR_INVALID_HANDLE;
    if (spoil_capture(stream)) // an H100's driver does so in all modes
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    *id = stream->id;
    return CUDA_SUCCESS;
}

SIM_EXPORT int
simcuda_capture(CUstream handle, int begin)
{
    Lock lock(mu);
    auto it = streams.find(handle);
    if (it == streams.end())
        return -1;
    int spoilt = it->second->spoilt;
    it->second->capturing = begin != 0;
    it->second->spoilt = false;
    return spoilt;
}

CUresult
cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data)
{
    Call call("LaunchHostFunc");
    if (!call)
        return call.result;
    StreamPtr stream = stream_of(handle, call.ctx);
    if (stream == nullptr || function == nullptr)
        return stream ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    CUresult admitted = capture_admits(stream);
    if (admitted != CUDA_SUCCESS)
        return admitted;
    Op op;
    op.run = [=] {
        function(data);
        return CUDA_SUCCESS;
    };
    enqueue(stream, std::move(op));
    return CUDA_SUCCESS;
}
