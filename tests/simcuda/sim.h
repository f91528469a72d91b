// SPDX-License-Identifier: BSD-3-Clause
// Declarations that the files of the simulated driver share. One lock, `mu`,
// guards all state; it is released only while the bytes of an operation move,
// while a kernel runs and while the host waits. Everything global is allocated
// once and never destroyed, so that threads may outlive main().
#ifndef SIMCUDA_SIM_H
#define SIMCUDA_SIM_H

#pragma GCC visibility push(default)
#include <cuda.h>
// The version of the function that the library asks for.
#undef cuStreamGetCaptureInfo
extern "C" CUresult
cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status,
                       cuuint64_t *id, CUgraph *graph,
                       const CUgraphNode **dependencies, size_t *count);
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
    int first = 0; // the host's number of device 0
    size_t memory = (size_t)1 << 30;
    Mode mode = Mode::LAZY;
    bool peer = true;
    bool mps = false;
    bool link = true;
    bool ipc = true;
    int access = 0; // of the host to device memory: PROT_...
    uint64_t seed = 0;
    uint64_t delay_us = 2000;     // delay mode: longest delay of an op
    uint64_t lazy_us = 20000;     // lazy mode: an op is left alone this long
    size_t kernel_threads = 4096; // most threads of a kernel
};

struct Stream;
using StreamPtr = std::shared_ptr<Stream>;

// A primary context. Lives for ever; active while retained.
struct Context {
    int device = 0;
    int retained = 0;
    uint32_t peers = 0; // bit d: access to memory of device d is enabled
    CUresult error = CUDA_SUCCESS; // sticky
    StreamPtr legacy;
    int frees = 0; // that wait for its work, and let nothing be launched
};

enum class Kind { DEVICE, IMPORTED, MANAGED, PINNED, REGISTERED };

// One allocation or mapping, found by the address its owner was given.
struct Range {
    uintptr_t base = 0;
    size_t size = 0; // as requested
    size_t room = 0; // as allocated: whole pages
    Kind kind = Kind::DEVICE;
    Context *ctx = nullptr;
    uint64_t id = 0;
    char *bytes = nullptr; // the simulator's own mapping
    bool pooled = false;   // from cuMemAllocAsync
    bool freed = false;
    bool open = false;  // a running kernel touched it
    int busy = 0;       // operations that move its bytes
    int64_t offset = 0; // in its file
    uint64_t inode = 0; // of its file, 0: no file
    int export_slot = -1;
    int fd = -1; // imported: file with the lock the exporter sees
    int references = 0;
    // imported: nonce, id and address in the exporter
    uint64_t owner = 0, owner_id = 0, owner_base = 0;
};
using RangePtr = std::shared_ptr<Range>;

// A point in a stream.
struct Mark {
    StreamPtr stream;
    uint64_t pos = 0;
};

// A 32-bit word, with a name that is the same in all processes that map it.
struct Word {
    uint64_t inode = 0;
    uint64_t offset = 0;
    bool
    operator==(const Word &o) const
    {
        return inode == o.inode && offset == o.offset;
    }
};

struct Op;
// Lock held: the stream gets the operation, each time that a graph is
// launched.
using Submit = std::function<void(const Mark &, Op *)>;

struct Op {
    uint64_t pos = 0;
    Submit submit;                 // may be empty
    Time due;                      // runs then at the latest, demanded or not
    std::vector<Mark> after;       // runs after these
    std::function<bool()> ready;   // lock held; may demand; may be empty
    std::function<CUresult()> run; // lock not held; may be empty
    std::function<void()> finish;  // lock held, after run; may be empty
    std::vector<RangePtr> uses;
    std::vector<std::shared_ptr<void>> keeps; // until it has run
    bool writes_word = false;
    Word word;
};

struct Capture;
using CapturePtr = std::shared_ptr<Capture>;

// In a capture: the position in each of its streams that one stream follows.
using Follows = std::map<const Stream *, uint64_t>;

struct Stream {
    Context *ctx = nullptr;
    unsigned long long id = 0;
    bool blocking = true; // synchronises with the legacy stream
    std::deque<Op> queue;
    uint64_t last = 0;   // submitted operations
    uint64_t done = 0;   // ended operations
    uint64_t demand = 0; // operations asked for
    bool running = false;
    bool active = false; // in the scheduler's list
    CapturePtr capture;  // the capture it is in
    Follows follows;
    bool capturing = false; // in a test's capture, which admits no work
    bool spoilt = false;    // the capture was spoilt by a forbidden call
};

// --- config.cpp ---------------------------------------------------------

extern Config config;
extern std::mutex &mu;
extern bool initialised;
extern Context *const contexts;

enum class Need { NOTHING, INIT, CONTEXT };

// The start of every driver function: counts the call, injects failures,
// checks that there is a context, and holds the lock. False: return `result`.
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
context_of(CUcontext handle); // null for a foreign context

inline bool
reaches(const Context *ctx, int device)
{
    return ctx->device == device || (ctx->peers >> device & 1);
}

// --- fault.cpp ----------------------------------------------------------

// Counts a call. Returns the error that it must fail with, if any.
CUresult
count_call(const char *name, bool after_init);

void
fault_init();

// Returns true in a child of a process that had initialised the driver.
bool
forked();

// --- trace.cpp ----------------------------------------------------------

// Writes a line to the trace, if a test asked for one.
__attribute__((format(printf, 1, 2))) void
trace(const char *format, ...);

// --- stream.cpp ---------------------------------------------------------

extern std::unordered_map<CUstream, StreamPtr> &streams;

// Returns the stream of a handle, null if there is none. Lock held.
StreamPtr
stream_of(CUstream handle, Context *ctx);

// --- graph.cpp (lock held everywhere) -----------------------------------

long
graphs_live();

// Checks that a thread in this mode may make a call while others capture.
CUresult
capture_allows(const char *name, CUstreamCaptureMode mode);

// Returns true if work for `stream` concerns the capture of the other stream:
// the legacy stream stands for all blocking ones.
bool
is_captured_with(const StreamPtr &captured, const StreamPtr &stream);

// Spoils the captures that forbid to wait for the stream or to query it.
// Returns true if there was one.
bool
spoil_capture(const StreamPtr &stream);

void
capture_spoil(const CapturePtr &capture);

// Checks that work can be given to the stream.
CUresult
capture_admits(const StreamPtr &stream);

// Takes the op into the graph of the stream's capture. Returns false if the
// stream is in no capture.
bool
capture_take(const StreamPtr &stream, const Op &op);

// Makes the stream wait for an event that was recorded, in a capture or in
// none.
CUresult
capture_join(const StreamPtr &stream, const CapturePtr &capture,
             const Follows &follows, bool recorded);

// --- schedule.cpp (lock held everywhere) --------------------------------

extern std::vector<StreamPtr> &active;
extern std::condition_variable &progress; // notified when an op has ended

// Waits first while a call of another thread frees memory.
Mark
enqueue(const StreamPtr &stream, Op op);

// Does not: of calls that launch nothing.
Mark
append(const StreamPtr &stream, Op op);

bool
ended(const Mark &mark);

void
demand(const Mark &mark);

// Makes the workers look again at what waits.
void
wake_workers();

// Demands and waits; returns the error of the stream's context.
CUresult
wait_for(Lock &lock, const Mark &mark);

// Returns marks for everything submitted in the context.
std::vector<Mark>
pending(const Context *ctx);

// Waits until the device is idle, null: all devices, and lets no thread launch
// anything on it meanwhile: a GPU's driver does so when memory is freed or
// unmapped.
void
wait_until_idle(Lock &lock, Context *ctx);

// Runs our operations that write this word, for which another process waits.
bool
demand_word(const Word &word);

// --- memory.cpp (lock held) ---------------------------------------------

extern std::map<uintptr_t, RangePtr> &ranges;

void
memory_init();

// Returns true if copies of this device reach the memory. That of a pool is
// its own device's, until cuMemPoolSetAccess opens the pool to others.
bool
copies_reach(int device, const RangePtr &range);

RangePtr
range_find(uintptr_t address);

// Finds the range that holds [address, address + size): null for pageable
// memory. Fails with INVALID_VALUE for device addresses that are not
// allocated, or only in part.
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

// Reserves address space without access, for device memory; returns 0 when it
// is used up.
uintptr_t
reserve(size_t room);

void
unreserve(uintptr_t base, size_t room);

// Takes a range out of the table: queued work must not use it.
void
range_withdraw(const RangePtr &range);

// Withdraws a range, waits until nothing moves its bytes, and frees its
// memory.
void
range_free(Lock &lock, const RangePtr &range);

int
arena_fd(int device);

// --- ipc.cpp (lock held) ------------------------------------------------

// The state of an interprocess event, in shared memory.
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

// Makes the handle of an allocation that is freed invalid.
void
ipc_withdraw(Range *range);

void
import_free(Range *range);

Slot *
slot_take(int device);

void
slot_give(Slot *slot);

// Records of this process on a slot. The first returns the record's number;
// the second stores the mark that is demanded for it.
uint64_t
slot_record(Slot *slot);

void
slot_recorded(Slot *slot, uint64_t seq, const Mark &mark);

void
slot_complete(Slot *slot, uint64_t seq);

// Finds the mark of record `seq`, if this process made it.
bool
slot_mark(Slot *slot, uint64_t seq, Mark *mark);

// Asks the process that recorded `seq` to run it.
void
slot_demand(Slot *slot, uint64_t seq);

// Sleeps on the slot, without the lock, for at most a few milliseconds.
void
slot_sleep(Lock &lock, Slot *slot, uint64_t seq);

CUresult
slot_export(Slot *slot, CUipcEventHandle *handle);

CUresult
slot_import(const CUipcEventHandle *handle, Slot **slot);

// Asks all other processes to run the operations that write this word.
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
