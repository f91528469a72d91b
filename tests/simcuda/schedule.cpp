// SPDX-License-Identifier: BSD-3-Clause
// The schedule. Each stream is a queue of operations. Worker threads take the
// head of a queue when it was demanded or is due, and when the operations it
// waits for have ended. In lazy mode an operation that nobody demands is left
// alone for 20 to 40 ms, so that a program that forgets to wait reads the old
// bytes.
#include "sim.h"

#include <algorithm>
#include <csignal>
#include <pthread.h>
#include <thread>

namespace sim {

using std::chrono::microseconds;

constexpr int MAX_WORKERS = 16;
constexpr microseconds POLL(500);

std::vector<StreamPtr> &active = *new std::vector<StreamPtr>;
std::condition_variable &progress = *new std::condition_variable;
static std::condition_variable &work = *new std::condition_variable;
static int workers, idle;
static uint64_t demands; // grows with each demand
static Time next_wake = Time::max();

bool
ended(const Mark &mark)
{
    return mark.stream->done >= mark.pos;
}

void
demand(const Mark &mark)
{
    if (!ended(mark) && mark.stream->demand < mark.pos) {
        mark.stream->demand = mark.pos;
        demands++;
        work.notify_one();
    }
}

void
wake_workers()
{
    demands++;
    work.notify_one();
}

// Returns true if the head of the stream's queue can run. Demands what it
// waits for.
static bool
runnable(Stream &s, Time now, Time *wake)
{
    Op &op = s.queue.front();
    if (s.ctx->error != CUDA_SUCCESS)
        return true; // to be dropped
    bool asked = config.mode == Mode::LAZY && op.pos <= s.demand;
    if (!asked && now < op.due) {
        *wake = std::min(*wake, op.due);
        return false;
    }
    bool blocked = false;
    for (const Mark &mark : op.after) {
        if (!ended(mark)) {
            blocked = true;
            demand(mark);
        }
    }
    if (blocked)
        return false;
    if (op.ready && !op.ready()) {
        *wake = std::min(*wake, now + POLL);
        return false;
    }
    return true;
}

static StreamPtr
pick(Time *wake)
{
    uint64_t seen;
    do {
        seen = demands;
        *wake = Time::max();
        Time now = Clock::now();
        for (const StreamPtr &s : active)
            if (!s->running && !s->queue.empty() && runnable(*s, now, wake))
                return s;
    } while (seen != demands);
    return nullptr;
}

static CUresult
execute(Lock &lock, Op &op)
{
    for (const RangePtr &range : op.uses)
        if (range->freed)
            return CUDA_ERROR_ILLEGAL_ADDRESS;
    for (const RangePtr &range : op.uses)
        range->busy++;
    CUresult result = CUDA_SUCCESS;
    if (op.run) {
        lock.unlock();
        result = op.run();
        lock.lock();
    }
    for (const RangePtr &range : op.uses)
        range->busy--;
    if (op.finish && result == CUDA_SUCCESS)
        op.finish();
    return result;
}

static void
run_head(Lock &lock, const StreamPtr &s)
{
    s->running = true;
    Op op = std::move(s->queue.front());
    s->queue.pop_front();
    if (s->ctx->error == CUDA_SUCCESS) {
        CUresult result = execute(lock, op);
        if (result != CUDA_SUCCESS && s->ctx->error == CUDA_SUCCESS)
            s->ctx->error = result;
    }
    s->done = op.pos;
    s->running = false;
    if (s->queue.empty()) {
        s->active = false;
        active.erase(std::find(active.begin(), active.end(), s));
    }
    progress.notify_all();
}

static void
spawn();

static void
work_loop()
{
    Lock lock(mu);
    for (;;) {
        Time wake;
        StreamPtr s = pick(&wake);
        if (s != nullptr) {
            if (idle == 0 && workers < MAX_WORKERS)
                spawn();
            else if (idle > 0 && active.size() > 1)
                work.notify_one();
            run_head(lock, s);
            continue;
        }
        idle++;
        next_wake = std::min(next_wake, wake);
        if (wake == Time::max())
            work.wait(lock);
        else
            work.wait_until(lock, wake);
        next_wake = Time::max();
        idle--;
    }
}

static void
spawn()
{
    sigset_t all, old;
    sigfillset(&all);
    for (int sig : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT})
        sigdelset(&all, sig);
    pthread_sigmask(SIG_SETMASK, &all, &old); // the caller may block all
    std::thread(work_loop).detach();
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    workers++;
}

static void
order_with_legacy(const StreamPtr &s, Op *op)
{
    if (!s->blocking)
        return;
    const StreamPtr &legacy = s->ctx->legacy;
    for (const StreamPtr &other : active) {
        bool follow = other->ctx == s->ctx && other->blocking && other != s
                      && (s == legacy || other == legacy);
        if (follow)
            op->after.push_back({other, other->last});
    }
}

static Time
due_time()
{
    switch (config.mode) {
    case Mode::EAGER:
        return Clock::now();
    case Mode::DELAY:
        return Clock::now() + microseconds(random_below(config.delay_us + 1));
    default:
        return Clock::now()
               + microseconds(config.lazy_us
                              + random_below(config.lazy_us + 1));
    }
}

Mark
enqueue(const StreamPtr &s, Op op)
{
    Lock lock(mu, std::adopt_lock);
    progress.wait(lock, [&] { return s->ctx->frees == 0 || s->capture; });
    lock.release(); // the caller's
    return append(s, std::move(op));
}

Mark
append(const StreamPtr &s, Op op)
{
    if (capture_take(s, op))
        return Mark();
    spoil_capture(s);
    order_with_legacy(s, &op);
    op.pos = ++s->last;
    if (op.submit)
        op.submit({s, op.pos}, &op);
    op.due = due_time();
    Time due = op.due;
    s->queue.push_back(std::move(op));
    if (!s->active) {
        s->active = true;
        active.push_back(s);
    }
    if (workers == 0)
        spawn();
    else if (due < next_wake || s->ctx->error != CUDA_SUCCESS)
        work.notify_one();
    return {s, s->last};
}

CUresult
wait_for(Lock &lock, const Mark &mark)
{
    demand(mark);
    progress.wait(lock, [&] { return ended(mark); });
    return mark.stream->ctx->error;
}

std::vector<Mark>
pending(const Context *ctx)
{
    std::vector<Mark> marks;
    for (const StreamPtr &s : active)
        if (s->ctx == ctx)
            marks.push_back({s, s->last});
    return marks;
}

void
wait_until_idle(Lock &lock, Context *only)
{
    Context *first = only != nullptr ? only : contexts;
    Context *last = only != nullptr ? only + 1 : contexts + config.devices;
    for (Context *ctx = first; ctx < last; ctx++)
        ctx->frees++;
    for (Context *ctx = first; ctx < last; ctx++)
        for (const Mark &mark : pending(ctx))
            wait_for(lock, mark);
    for (Context *ctx = first; ctx < last; ctx++)
        ctx->frees--;
    progress.notify_all();
}

bool
demand_word(const Word &word)
{
    bool found = false;
    for (const StreamPtr &s : active) {
        uint64_t pos = 0;
        for (const Op &op : s->queue)
            pos = op.writes_word && op.word == word ? op.pos : pos;
        if (pos != 0) {
            found = true;
            demand({s, pos});
        }
    }
    return found;
}

} // namespace sim
