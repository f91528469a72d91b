// SPDX-License-Identifier: BSD-3-Clause
// Captures and graphs. A graph holds the operations that its streams were
// given, in that order. A launch gives them to a stream again, so branches run
// one after the other.
#include "sim.h"

#include <algorithm>
#include <cstring>
#include <thread>

namespace sim {

// A user object calls back when nothing refers to it any more.
using UserPtr = std::shared_ptr<void>;

struct Capture {
    uint64_t id = 0;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    std::thread::id thread;
    Stream *origin = nullptr;
    bool spoilt = false;
    std::vector<Op> ops;
    std::vector<UserPtr> objects;
};

struct Graph {
    std::vector<Op> ops;
    Mark last; // of the last launch
    std::vector<UserPtr> objects;
};

static auto &captures = *new std::vector<CapturePtr>; // captures under way
static auto &user_objects = *new std::unordered_map<void *, UserPtr>;
static auto &graphs = *new std::unordered_map<void *, std::shared_ptr<Graph>>;

long
graphs_live()
{
    return (long)graphs.size();
}

// Returns true for calls that wait, or allocate or free memory: they could
// interfere with a capture. An H200's driver (580) counts the end of a graph's
// executable among them.
static bool
is_unsafe(const char *name)
{
    static const char *const unsafe[] = {
        "MemAlloc",          "MemAllocManaged",   "MemFree",
        "MemHostAlloc",      "MemFreeHost",       "MemHostRegister",
        "MemHostUnregister", "MemcpyHtoD",        "MemcpyDtoH",
        "IpcOpenMemHandle",  "IpcCloseMemHandle", "ModuleLoadData",
        "ModuleUnload",      "StreamSynchronize", "StreamQuery",
        "EventQuery",        "EventSynchronize",  "MemFreeAsync",
        "GraphExecDestroy",
    };
    return std::any_of(std::begin(unsafe), std::end(unsafe),
                       [=](const char *each) { return !strcmp(each, name); });
}

CUresult
capture_allows(const char *name, CUstreamCaptureMode mode)
{
    CUresult result = CUDA_SUCCESS;
    if (captures.empty() || mode == CU_STREAM_CAPTURE_MODE_RELAXED
        || !is_unsafe(name))
        return result;
    for (const CapturePtr &capture : captures) {
        bool ours = capture->thread == std::this_thread::get_id();
        if (capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL
                ? ours || mode == CU_STREAM_CAPTURE_MODE_GLOBAL
                : ours
                      && capture->mode
                             == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) {
            capture->spoilt = true;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return result;
}

bool
is_captured_with(const StreamPtr &captured, const StreamPtr &stream)
{
    return (captured->capturing || captured->capture != nullptr)
           && (captured == stream
               || (stream == stream->ctx->legacy
                   && captured->ctx == stream->ctx && captured->blocking));
}

bool
spoil_capture(const StreamPtr &stream)
{
    bool spoilt = false;
    for (auto &item : streams) {
        if (!is_captured_with(item.second, stream))
            continue;
        spoilt = item.second->spoilt = true;
        if (item.second->capture != nullptr)
            item.second->capture->spoilt = true;
    }
    return spoilt;
}

void
capture_spoil(const CapturePtr &capture)
{
    capture->spoilt = true;
}

CUresult
capture_admits(const StreamPtr &stream)
{
    if (stream->capture != nullptr)
        return stream->capture->spoilt ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                                       : CUDA_SUCCESS;
    for (auto &item : streams)
        if (item.second->capture != nullptr
            && is_captured_with(item.second, stream)) {
            spoil_capture(stream);
            return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    return CUDA_SUCCESS;
}

bool
capture_take(const StreamPtr &stream, const Op &op)
{
    if (stream->capture == nullptr)
        return false;
    ++stream->follows[stream.get()];
    stream->capture->ops.push_back(op);
    return true;
}

CUresult
capture_join(const StreamPtr &stream, const CapturePtr &capture,
             const Follows &follows, bool recorded)
{
    if (capture == nullptr) {
        if (stream->capture == nullptr || !recorded)
            return CUDA_SUCCESS;
        stream->capture->spoilt = true;
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (std::find(captures.begin(), captures.end(), capture) == captures.end())
        return CUDA_ERROR_CAPTURED_EVENT;
    if (stream->capture != nullptr && stream->capture != capture) {
        stream->capture->spoilt = capture->spoilt = true;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (stream == stream->ctx->legacy) {
        capture->spoilt = true;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (stream->capture == nullptr) {
        stream->capture = capture;
        stream->follows = {{stream.get(), 1}};
    }
    for (const auto &item : follows) {
        uint64_t &at = stream->follows[item.first];
        at = std::max(at, item.second);
    }
    return CUDA_SUCCESS;
}

static CUresult
end_capture(const StreamPtr &origin, Graph *graph)
{
    CapturePtr capture = origin->capture;
    if (capture == nullptr)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != origin.get())
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED
        && capture->thread != std::this_thread::get_id())
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    bool joined = true;
    for (auto &item : streams) {
        Stream *stream = item.second.get();
        if (stream->capture != capture)
            continue;
        joined &= origin->follows[stream] >= stream->follows[stream];
        stream->capture = nullptr;
    }
    captures.erase(std::find(captures.begin(), captures.end(), capture));
    graph->ops = std::move(capture->ops);
    graph->objects = std::move(capture->objects);
    return capture->spoilt ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
           : joined        ? CUDA_SUCCESS
                           : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
}

static void *
add(const Graph &made)
{
    auto graph = std::make_shared<Graph>(made);
    graphs[graph.get()] = graph;
    return graph.get();
}

static std::shared_ptr<Graph>
graph_of(void *handle)
{
    auto it = graphs.find(handle);
    return it == graphs.end() ? nullptr : it->second;
}

static CUresult
destroy(const char *name, void *handle)
{
    Call call(name);
    if (!call)
        return call.result;
    return graphs.erase(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

} // namespace sim

using namespace sim;

CUresult
cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode)
{
    Call call("StreamBeginCapture");
    if (!call)
        return call.result;
    StreamPtr stream = stream_of(handle, call.ctx);
    if (stream == nullptr)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream == call.ctx->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture != nullptr)
        return CUDA_ERROR_ILLEGAL_STATE;
    auto capture = std::make_shared<Capture>();
    capture->id = new_id();
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    capture->origin = stream.get();
    captures.push_back(capture);
    stream->capture = capture;
    stream->follows = {{stream.get(), 1}};
    return CUDA_SUCCESS;
}

CUresult
cuStreamEndCapture(CUstream handle, CUgraph *graph)
{
    Call call("StreamEndCapture");
    if (!call)
        return call.result;
    StreamPtr stream = stream_of(handle, call.ctx);
    if (stream == nullptr || graph == nullptr)
        return CUDA_ERROR_INVALID_HANDLE;
    Graph made;
    *graph = nullptr;
    CUresult result = end_capture(stream, &made);
    if (result == CUDA_SUCCESS)
        *graph = (CUgraph)add(made);
    return result;
}

CUresult
cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
    Call call("StreamIsCapturing");
    if (!call)
        return call.result;
    StreamPtr stream = stream_of(handle, call.ctx);
    if (stream == nullptr)
        return CUDA_ERROR_INVALID_HANDLE;
    bool spoilt = stream->capture != nullptr && stream->capture->spoilt;
    *status = spoilt ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
              : stream->capturing || stream->capture != nullptr
                  ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                  : CU_STREAM_CAPTURE_STATUS_NONE;
    for (auto &item : streams)
        if (item.second != stream && is_captured_with(item.second, stream))
            return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    return CUDA_SUCCESS;
}

// The second version of the function. The graph is one that cuGraphRetain...
// alone knows.
CUresult
cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus *status,
                       cuuint64_t *id, CUgraph *graph, const CUgraphNode **,
                       size_t *)
{
    CUresult result = cuStreamIsCapturing(handle, status);
    if (result != CUDA_SUCCESS || *status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return result;
    Lock lock(mu);
    StreamPtr stream = stream_of(handle, current());
    *id = stream->capture != nullptr ? stream->capture->id : UINT64_MAX;
    if (graph != nullptr)
        *graph = (CUgraph)stream->capture.get();
    return result;
}

CUresult
cuUserObjectCreate(CUuserObject *object, void *pointer, CUhostFn destroy,
                   unsigned int references, unsigned int flags)
{
    Call call("UserObjectCreate");
    if (!call)
        return call.result;
    if (references != 1 || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    // As the driver, which calls destructors in a thread of its own, later.
    UserPtr made(new char, [=](void *self) {
        delete (char *)self;
        std::thread([=] {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            destroy(pointer);
        }).detach();
    });
    *object = (CUuserObject)made.get();
    user_objects[made.get()] = made;
    return CUDA_SUCCESS;
}

CUresult
cuUserObjectRelease(CUuserObject object, unsigned int count)
{
    Call call("UserObjectRelease");
    if (!call)
        return call.result;
    return count == 1 && user_objects.erase(object) ? CUDA_SUCCESS
                                                    : CUDA_ERROR_INVALID_VALUE;
}

// Only for the graph of a capture under way, and a reference that moves.
CUresult
cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
                        unsigned int flags)
{
    Call call("GraphRetainUserObject");
    if (!call)
        return call.result;
    auto found = user_objects.find(object);
    if (found == user_objects.end() || count != 1
        || flags != CU_GRAPH_USER_OBJECT_MOVE)
        return CUDA_ERROR_INVALID_VALUE;
    for (const CapturePtr &capture : captures)
        if ((CUgraph)capture.get() == graph) {
            capture->objects.push_back(found->second);
            user_objects.erase(found);
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult
cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph handle,
                            unsigned long long flags)
{
    Call call("GraphInstantiateWithFlags");
    if (!call)
        return call.result;
    auto graph = graph_of(handle);
    if (graph == nullptr || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    *exec = (CUgraphExec)add(*graph);
    return CUDA_SUCCESS;
}

CUresult
cuGraphLaunch(CUgraphExec handle, CUstream stream_handle)
{
    Call call("GraphLaunch");
    if (!call)
        return call.result;
    auto graph = graph_of(handle);
    StreamPtr stream = stream_of(stream_handle, call.ctx);
    if (graph == nullptr || stream == nullptr)
        return graph ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    CUresult admitted = capture_admits(stream);
    if (admitted != CUDA_SUCCESS)
        return admitted;
    bool first = true; // launches run one after the other
    for (Op op : graph->ops) {
        if (first && stream->capture == nullptr && graph->last.stream)
            op.after.push_back(graph->last);
        first = false;
        op.keeps = graph->objects;
        graph->last = enqueue(stream, std::move(op));
    }
    return CUDA_SUCCESS;
}

CUresult
cuGraphDestroy(CUgraph graph)
{
    return destroy("GraphDestroy", graph);
}

CUresult
cuGraphExecDestroy(CUgraphExec graph)
{
    return destroy("GraphExecDestroy", graph);
}
