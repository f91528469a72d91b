// SPDX-License-Identifier: BSD-3-Clause
// Operations of other libraries on streams.
#include "sim.h"

#include "guest.h"

namespace sim {

struct Line {
    uint64_t number = 0; // of the last operation
    std::map<uint64_t, Mark> marks;
};

static auto &lines = *new std::map<void *, Line>;

// Memory that an operation under way uses: it cannot be freed.
struct Held {
    std::vector<RangePtr> ranges;
    explicit Held(const std::vector<RangePtr> &uses) : ranges(uses)
    {
        for (const RangePtr &range : ranges)
            range->busy++;
    }
    ~Held()
    {
        for (const RangePtr &range : ranges)
            range->busy--;
    }
};

// Called by enqueue() with the operation that a stream gets.
static void
submit(const std::shared_ptr<Guest> &guest, const Mark &mark, Op *op)
{
    Line &line = lines[guest->line];
    while (!line.marks.empty() && ended(line.marks.begin()->second))
        line.marks.erase(line.marks.begin());
    if (!line.marks.empty())
        op->after.push_back(line.marks.rbegin()->second);
    line.marks[++line.number] = mark;
    std::shared_ptr<Turn> turn = guest->submit(line.number);
    op->ready = [turn, uses = op->uses,
                 held = std::shared_ptr<Held>()]() mutable {
        for (const RangePtr &range : uses)
            if (!held && range->freed)
                return true; // and is an illegal address
        if (!held)
            held = std::make_shared<Held>(uses);
        return turn->step();
    };
}

// Finds the memory of a span; null if the device's kernels do not reach it.
static RangePtr
find(const Context *ctx, Span *span)
{
    RangePtr range;
    if (range_get(span->address, span->size, &range) != CUDA_SUCCESS
        || range == nullptr)
        return nullptr;
    bool host = range->kind != Kind::DEVICE && range->kind != Kind::IMPORTED;
    span->bytes = bytes_at(range, span->address);
    return host || range->ctx == ctx ? range : nullptr;
}

} // namespace sim

using namespace sim;

SIM_EXPORT int
simcuda_enqueue(int device, CUstream handle,
                const std::shared_ptr<Guest> *given)
{
    Lock lock(mu);
    std::shared_ptr<Guest> guest = *given;
    Context *ctx = &contexts[device];
    if (!initialised || ctx->retained == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (ctx->error != CUDA_SUCCESS)
        return ctx->error;
    StreamPtr stream = stream_of(handle, ctx);
    if (stream == nullptr)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->ctx != ctx)
        return CUDA_ERROR_INVALID_CONTEXT;
    CUresult admitted = capture_admits(stream);
    if (admitted != CUDA_SUCCESS)
        return admitted;
    Op op;
    for (Span &span : guest->spans) {
        op.uses.push_back(find(ctx, &span));
        if (op.uses.back() == nullptr)
            return CUDA_ERROR_INVALID_VALUE;
    }
    op.submit = [guest](const Mark &mark, Op *self) {
        submit(guest, mark, self);
    };
    enqueue(stream, std::move(op));
    return CUDA_SUCCESS;
}

SIM_EXPORT void
simcuda_demand(void *key, uint64_t number)
{
    Lock lock(mu);
    auto line = lines.find(key);
    if (line == lines.end())
        return;
    auto mark = line->second.marks.find(number);
    if (mark != line->second.marks.end())
        demand(mark->second);
}

SIM_EXPORT void
simcuda_settle(void)
{
    Lock lock(mu);
    if (capture_allows("MemFreeHost", CU_STREAM_CAPTURE_MODE_GLOBAL)
        == CUDA_SUCCESS)
        wait_until_idle(lock, nullptr);
}

SIM_EXPORT void
simcuda_wake(void)
{
    Lock lock(mu);
    wake_workers();
}

SIM_EXPORT void
simcuda_line_end(void *line)
{
    Lock lock(mu);
    lines.erase(line);
}
