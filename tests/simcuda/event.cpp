// SPDX-License-Identifier: BSD-3-Clause
// Events. A record is a point in a stream. An interprocess event keeps the
// number of its last record, and of the last record that ended, in a slot that
// processes share.
#include "sim.h"

namespace sim {

struct Record {
    Mark mark;
    Time when;
};

struct Event {
    Context *ctx = nullptr;
    unsigned int flags = 0;
    std::shared_ptr<Record> last;
    Slot *slot = nullptr;
    bool imported = false;
    CapturePtr capture; // of the last record, with its `follows`
    Follows follows;
};
using EventPtr = std::shared_ptr<Event>;

static auto &events = *new std::unordered_map<CUevent, EventPtr>;

long
events_live()
{
    return (long)events.size();
}

static EventPtr
event_of(CUevent handle)
{
    auto it = events.find(handle);
    return it == events.end() ? nullptr : it->second;
}

static CUevent
add(const EventPtr &event)
{
    CUevent handle = (CUevent)event.get();
    events[handle] = event;
    return handle;
}

static void
record_shared(Slot *slot, const StreamPtr &stream, Op op)
{
    uint64_t seq = slot_record(slot);
    op.finish = [slot, seq] { slot_complete(slot, seq); };
    slot_recorded(slot, seq, enqueue(stream, std::move(op)));
}

static bool
shared_pending(Slot *slot, uint64_t seq)
{
    return slot->done.load() < seq;
}

// Returns the error of the context of the stream that the event was recorded
// on.
static CUresult
error_of(const Event &event)
{
    return event.last ? event.last->mark.stream->ctx->error : CUDA_SUCCESS;
}

// Returns true, and spoils the capture, if the event was recorded in a
// capture: it has no work that could end.
static bool
is_captured(const Event &event)
{
    if (event.capture == nullptr)
        return false;
    capture_spoil(event.capture);
    return true;
}

static CUresult
query(const Event &event)
{
    if (event.slot != nullptr) {
        uint64_t seq = event.slot->recorded.load();
        if (!shared_pending(event.slot, seq))
            return CUDA_SUCCESS;
        slot_demand(event.slot, seq);
        return CUDA_ERROR_NOT_READY;
    }
    if (event.last == nullptr)
        return CUDA_SUCCESS;
    demand(event.last->mark);
    return error_of(event)           ? error_of(event)
           : ended(event.last->mark) ? CUDA_SUCCESS
                                     : CUDA_ERROR_NOT_READY;
}

static Op
wait_for_slot(Slot *slot, uint64_t seq)
{
    Op op;
    Mark mark;
    if (slot_mark(slot, seq, &mark)) {
        op.after.push_back(mark);
        return op;
    }
    op.ready = [slot, seq, next = Time()]() mutable {
        if (!shared_pending(slot, seq))
            return true;
        if (Clock::now() >= next) {
            slot_demand(slot, seq);
            next = Clock::now() + std::chrono::milliseconds(4);
        }
        return false;
    };
    return op;
}

static void
follow(const StreamPtr &stream, const Event &event)
{
    if (event.slot != nullptr) {
        uint64_t seq = event.slot->recorded.load();
        if (shared_pending(event.slot, seq))
            enqueue(stream, wait_for_slot(event.slot, seq));
    }
    else if (event.last != nullptr && !ended(event.last->mark)) {
        Op op;
        op.after.push_back(event.last->mark);
        enqueue(stream, std::move(op));
    }
}

} // namespace sim

using namespace sim;

CUresult
cuEventCreate(CUevent *handle, unsigned int flags)
{
    Call call("EventCreate");
    if (!call)
        return call.result;
    bool shared = flags & CU_EVENT_INTERPROCESS;
    if (flags > 7 || (shared && !(flags & CU_EVENT_DISABLE_TIMING)))
        return CUDA_ERROR_INVALID_VALUE;
    if (shared && !config.ipc)
        return CUDA_ERROR_NOT_SUPPORTED;
    auto event = std::make_shared<Event>();
    event->ctx = call.ctx;
    event->flags = flags;
    if (shared) {
        event->slot = slot_take(call.ctx->device);
        if (event->slot == nullptr)
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = add(event);
    return CUDA_SUCCESS;
}

CUresult
cuEventDestroy(CUevent handle)
{
    Call call("EventDestroy");
    if (!call)
        return call.result;
    EventPtr event = event_of(handle);
    if (event == nullptr)
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->slot != nullptr && !event->imported)
        slot_give(event->slot);
    events.erase(handle);
    return CUDA_SUCCESS;
}

CUresult
cuEventRecord(CUevent handle, CUstream stream_handle)
{
    Call call("EventRecord");
    if (!call)
        return call.result;
    EventPtr event = event_of(handle);
    StreamPtr stream = stream_of(stream_handle, call.ctx);
    if (event == nullptr || stream == nullptr || stream->ctx != event->ctx)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult admitted = capture_admits(stream);
    if (admitted != CUDA_SUCCESS)
        return admitted;
    event->capture = stream->capture;
    event->follows = stream->follows;
    if (stream->capture != nullptr)
        return event->slot ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
    Op op;
    if (event->slot != nullptr) {
        record_shared(event->slot, stream, std::move(op));
        return CUDA_SUCCESS;
    }
    auto record = std::make_shared<Record>();
    op.run = [record] {
        record->when = Clock::now();
        return CUDA_SUCCESS;
    };
    record->mark = enqueue(stream, std::move(op));
    event->last = record;
    return CUDA_SUCCESS;
}

CUresult
cuEventQuery(CUevent handle)
{
    Call call("EventQuery");
    if (!call)
        return call.result;
    EventPtr event = event_of(handle);
    return event == nullptr      ? CUDA_ERROR_INVALID_HANDLE
           : is_captured(*event) ? CUDA_ERROR_CAPTURED_EVENT
                                 : query(*event);
}

CUresult
cuEventSynchronize(CUevent handle)
{
    Call call("EventSynchronize");
    if (!call)
        return call.result;
    EventPtr event = event_of(handle);
    if (event == nullptr)
        return CUDA_ERROR_INVALID_HANDLE;
    if (is_captured(*event))
        return CUDA_ERROR_CAPTURED_EVENT;
    if (event->slot == nullptr) {
        auto last = event->last;
        return last ? wait_for(call.lock, last->mark) : CUDA_SUCCESS;
    }
    uint64_t seq = event->slot->recorded.load();
    while (shared_pending(event->slot, seq)
           && event->ctx->error == CUDA_SUCCESS) {
        slot_demand(event->slot, seq);
        slot_sleep(call.lock, event->slot, seq);
    }
    return event->ctx->error;
}

CUresult
cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
    Call call("EventElapsedTime", Need::INIT);
    if (!call)
        return call.result;
    EventPtr pair[2] = {event_of(start), event_of(end)};
    for (const EventPtr &event : pair)
        if (event == nullptr || event->flags & CU_EVENT_DISABLE_TIMING
            || event->last == nullptr)
            return CUDA_ERROR_INVALID_HANDLE;
    for (const EventPtr &event : pair) {
        CUresult result = query(*event);
        if (result != CUDA_SUCCESS)
            return result;
    }
    *ms = std::chrono::duration<float, std::milli>(pair[1]->last->when
                                                   - pair[0]->last->when)
              .count();
    return CUDA_SUCCESS;
}

CUresult
cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned int)
{
    Call call("StreamWaitEvent");
    if (!call)
        return call.result;
    EventPtr event = event_of(handle);
    StreamPtr stream = stream_of(stream_handle, call.ctx);
    if (event == nullptr || stream == nullptr)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = capture_admits(stream);
    if (result == CUDA_SUCCESS)
        result = capture_join(stream, event->capture, event->follows,
                              event->last != nullptr
                                  || event->slot != nullptr);
    if (result == CUDA_SUCCESS && event->capture == nullptr)
        follow(stream, *event);
    return result;
}

CUresult
cuIpcGetEventHandle(CUipcEventHandle *out, CUevent handle)
{
    Call call("IpcGetEventHandle");
    if (!call)
        return call.result;
    EventPtr event = event_of(handle);
    if (event == nullptr || event->slot == nullptr || event->imported)
        return CUDA_ERROR_INVALID_HANDLE;
    return slot_export(event->slot, out);
}

CUresult
cuIpcOpenEventHandle(CUevent *handle, CUipcEventHandle from)
{
    Call call("IpcOpenEventHandle");
    if (!call)
        return call.result;
    auto event = std::make_shared<Event>();
    event->ctx = call.ctx;
    event->flags = CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    event->imported = true;
    CUresult result = slot_import(&from, &event->slot);
    if (result == CUDA_SUCCESS)
        *handle = add(event);
    return result;
}
