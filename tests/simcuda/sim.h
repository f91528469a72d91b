// SPDX-License-Identifier: BSD-3-Clause
// What the files of the simulated driver share. One lock, `mu`, guards all
// state; it is released only while the bytes of an operation move, while a
// kernel runs and while the host waits. Everything global is allocated once
// and never destroyed, so that threads may outlive main().
#ifndef SIMCUDA_SIM_H
#define SIMCUDA_SIM_H

#pragma GCC visibility push(default)
#include <cuda.h>
// Of its versions the one that the library asks for.
#undef cuStreamGetCaptureInfo
extern "C" CUresult
cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status,
                       cuuint64_t *id);
#pragma GCC visibility pop

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#define SIM_EXPORT extern "C" __attribute__((visibility("default")))

namespace sim {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;
using Lock = std::unique_lock<std::mutex>;

constexpr int MAX_DEVICES = 16;
constexpr size_t PAGE = 4096;

enum class Mode { EAGER, DELAY, LAZY };

struct Config {
    int devices = 2;
    size_t memory = (size_t)1 << 30;
    Mode mode = Mode::LAZY;
    bool peer = true;
    bool mps = false;
    bool link = true;
    bool ipc = true;
    int access = 0; // of the host to device memory: PROT_...
    uint64_t seed = 0;
    uint64_t delay_us = 2000;     // delay mode: the most an op is delayed
    uint64_t lazy_us = 20000;     // lazy mode: the least it is left alone
    size_t kernel_threads = 4096; // the most threads a kernel is run with
};

struct Stream;
using StreamPtr = std::shared_ptr<Stream>;

// A primary context. Lives for ever, active while retained.
struct Context {
    int device = 0;
    int retained = 0;
    uint32_t peers = 0; // bit d: access to device d's memory was enabled
    CUresult error = CUDA_SUCCESS; // sticky
    StreamPtr legacy;
};

enum class Kind { DEVICE, IMPORTED, MANAGED, PINNED, REGISTERED };

// One allocation or mapping, found by the address its owner was given.
struct Range {
    uintptr_t base = 0;
    size_t size = 0; // as asked for
    size_t room = 0; // as taken: whole pages
    Kind kind = Kind::DEVICE;
    Context *ctx = nullptr;
    uint64_t id = 0;
    char *bytes = nullptr; // where the simulator reaches them
    bool pooled = false;   // from cuMemAllocAsync
    bool freed = false;
    bool open = false;  // a running kernel touched it
    int busy = 0;       // operations moving its bytes now
    int64_t offset = 0; // in its file
    uint64_t inode = 0; // of its file, 0 where it has none
    int export_slot = -1;
    int fd = -1; // imported: holds the lock that tells the exporter
    int references = 0;
    // imported: nonce, id and address over there
    uint64_t owner = 0, owner_id = 0, owner_base = 0;
};
using RangePtr = std::shared_ptr<Range>;

// A point in a stream.
struct Mark {
    StreamPtr stream;
    uint64_t pos = 0;
};

// A 32-bit word, named so that every process that maps it agrees.
struct Word {
    uint64_t inode = 0;
    uint64_t offset = 0;
    bool
    operator==(const Word &o) const
    {
        return inode == o.inode && offset == o.offset;
    }
};

struct Op {
    uint64_t pos = 0;
    Time due;                      // runs by then, demanded or not
    std::vector<Mark> after;       // runs after these
    std::function<bool()> ready;   // lock held; may demand; may be empty
    std::function<CUresult()> run; // lock not held; may be empty
    std::function<void()> finish;  // lock held, after run; may be empty
    std::vector<RangePtr> uses;
    bool writes_word = false;
    Word word;
};

struct Capture;
using CapturePtr = std::shared_ptr<Capture>;

// In a capture: how much of each of its streams one stream follows.
using Follows = std::map<const Stream *, uint64_t>;

struct Stream {
    Context *ctx = nullptr;
    unsigned long long id = 0;
    bool blocking = true; // synchronises with the legacy stream
    std::deque<Op> queue;
    uint64_t last = 0;   // submitted
    uint64_t done = 0;   // ended
    uint64_t demand = 0; // asked for
    bool running = false;
    bool active = false; // in the scheduler's list
    CapturePtr capture;  // it is in this one
    Follows follows;
    bool capturing = false; // for a test, and nothing may be given to it
    bool spoilt = false;    // the capture, by what may not be done in it
};

// --- config.cpp ---------------------------------------------------------

extern Config config;
extern std::mutex &mu;
extern bool initialised;
extern Context *const contexts;

enum class Need { NOTHING, INIT, CONTEXT };

// The start of every driver function: counts it, injects failures, checks
// that there is a context, and holds the lock. False: return `result`.
struct Call {
    CUresult result;
    Context *ctx = nullptr;
    Lock lock;
    explicit Call(const char *name, Need need = Need::CONTEXT);
    Call(const char *name, CUdevice device); // also checks the device
    explicit operator bool() const
    {
        return result == CUDA_SUCCESS;
    }
};

uint64_t
random_below(uint64_t n); // lock held

Context *
current();

Context *
context_of(CUcontext handle); // null for none of ours

inline bool
reaches(const Context *ctx, int device)
{
    return ctx->device == device || (ctx->peers >> device & 1);
}

// --- fault.cpp ----------------------------------------------------------

// Counts a call; what it is to fail with, if it is to.
CUresult
count_call(const char *name, bool after_init);

void
fault_init();

// Whether this is a child of a process that had initialised the driver.
bool
forked();

// --- trace.cpp ----------------------------------------------------------

// Writes down a line while a test asks for it.
__attribute__((format(printf, 1, 2))) void
trace(const char *format, ...);

// --- stream.cpp ---------------------------------------------------------

extern std::unordered_map<CUstream, StreamPtr> &streams;

// The stream behind a handle, null where there is none. Lock held.
StreamPtr
stream_of(CUstream handle, Context *ctx);

// --- graph.cpp (lock held everywhere) -----------------------------------

long
graphs_live();

// Whether a thread in this mode may make a call while others capture.
CUresult
capture_allows(const char *name, CUstreamCaptureMode mode);

// Whether work for `stream` has to do with the capture of the other: the
// legacy stream stands for all blocking ones.
bool
is_captured_with(const StreamPtr &captured, const StreamPtr &stream);

// What a capture forbids to do with the stream: waiting for it, and asking
// whether it is done. Whether a capture was spoilt.
bool
spoil_capture(const StreamPtr &stream);

void
capture_spoil(const CapturePtr &capture);

// Whether work can be given to the stream.
CUresult
capture_admits(const StreamPtr &stream);

// Takes it into the graph of the stream's capture; false: it is in none.
bool
capture_take(const StreamPtr &stream, const Op &op);

// The stream waits for an event that was recorded, in a capture or in none.
CUresult
capture_join(const StreamPtr &stream, const CapturePtr &capture,
             const Follows &follows, bool recorded);

// --- schedule.cpp (lock held everywhere) --------------------------------

extern std::vector<StreamPtr> &active;
extern std::condition_variable &progress; // something ended

Mark
enqueue(const StreamPtr &stream, Op op);

bool
ended(const Mark &mark);

void
demand(const Mark &mark);

// Demands and waits; the error the stream's context has then.
CUresult
wait_for(Lock &lock, const Mark &mark);

// Everything submitted in the context, as marks.
std::vector<Mark>
pending(const Context *ctx);

// Waits for all of it, as on a GPU who frees or unmaps memory does.
void
wait_for_context(Lock &lock, const Context *ctx);

// Another process waits for this word: runs what we have that writes it.
bool
demand_word(const Word &word);

// --- memory.cpp (lock held) ---------------------------------------------

extern std::map<uintptr_t, RangePtr> &ranges;

void
memory_init();

RangePtr
range_find(uintptr_t address);

// The range that holds [address, address + size): null for pageable memory,
// INVALID_VALUE for device addresses that are not allocated, or not wholly.
CUresult
range_get(uintptr_t address, size_t size, RangePtr *range);

inline char *
bytes_at(const RangePtr &range, uintptr_t address)
{
    return range ? range->bytes + (address - range->base) : (char *)address;
}

Word
word_at(const RangePtr &range, uintptr_t address);

uint64_t
new_id();

// Address space without access, for device memory; 0 when it is used up.
uintptr_t
reserve(size_t room);

void
unreserve(uintptr_t base, size_t room);

// Takes a range out of the table: work that is queued must not use it.
void
range_withdraw(const RangePtr &range);

// Withdraws it, waits until nothing moves its bytes, and frees what it holds.
void
range_free(Lock &lock, const RangePtr &range);

int
arena_fd(int device);

// --- ipc.cpp (lock held) ------------------------------------------------

// The state of an interprocess event, in memory that processes share.
struct alignas(64) Slot {
    std::atomic<uint64_t> generation;
    std::atomic<uint64_t> recorded;
    std::atomic<uint64_t> done;
    std::atomic<uint32_t> changed; // futex
    std::atomic<int32_t> recorder; // pid
    std::atomic<int32_t> device;
};

void
ipc_init();

// An allocation is going: its handle stops working.
void
ipc_withdraw(Range *range);

void
import_free(Range *range);

Slot *
slot_take(int device);

void
slot_give(Slot *slot);

// A record of this process on a slot: its number, and how it is demanded.
uint64_t
slot_record(Slot *slot);

void
slot_recorded(Slot *slot, uint64_t seq, const Mark &mark);

void
slot_complete(Slot *slot, uint64_t seq);

// The point in a stream of this process that `seq` is, if it is one.
bool
slot_mark(Slot *slot, uint64_t seq, Mark *mark);

// Asks whoever recorded `seq` to run it.
void
slot_demand(Slot *slot, uint64_t seq);

// Sleeps on the slot, without the lock, for a few milliseconds at most.
void
slot_sleep(Lock &lock, Slot *slot, uint64_t seq);

CUresult
slot_export(Slot *slot, CUipcEventHandle *handle);

CUresult
slot_import(const CUipcEventHandle *handle, Slot **slot);

// Asks all other processes to run what writes this word.
void
word_broadcast(const Word &word);

// --- kernel.cpp ---------------------------------------------------------

extern int kernels_running; // lock held

long
modules_live();

long
events_live();

} // namespace sim

#endif
