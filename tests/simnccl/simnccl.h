// SPDX-License-Identifier: BSD-3-Clause
// What the files of the double share. A communicator has a lock and a thread;
// the thread connects, then moves bytes. The simulator's lock is taken before
// a communicator's, never while one is held.
#ifndef SIMNCCL_H
#define SIMNCCL_H

#include "nccl_abi.h"

#include "guest.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace simnccl {

using Lock = std::unique_lock<std::mutex>;
using Result = ncclResult_t;

// --- settings.cpp ---------------------------------------------------------

// Counts a call; returns the error that a test asks for.
Result
count_call(const char *name);

// Returns true if the call that was counted last blocks until an abort.
bool
call_blocks(const char *name);

// Prints and keeps what is wrong; returns the result.
__attribute__((format(printf, 2, 3))) Result
warn(Result result, const char *format, ...);

std::string
last_warning();

int
slow_ms(); // what initialisation, each operation and an end take at least

// The functions of the simulated driver.
struct Driver {
    decltype(&simcuda_enqueue) enqueue;
    decltype(&simcuda_demand) demand;
    decltype(&simcuda_settle) settle;
    decltype(&simcuda_wake) wake;
    decltype(&simcuda_line_end) line_end;
    CUresult (*device)(CUdevice *);
    CUresult (*uuid)(CUuuid *, CUdevice);
    CUresult (*allocate)(CUdeviceptr *, size_t);
    CUresult (*release)(CUdeviceptr);
};

const Driver *
driver(); // null: there is none, which has been said

// --- net.cpp --------------------------------------------------------------

struct Address {
    uint32_t ip;
    uint16_t port;
};

using Cancelled = std::function<bool()>;

// Listens on NCCL's choice of an interface; returns the socket, or -1.
int
net_listen(Address *address);

// These return -1 or false after an error, the other side's end, or once
// cancelled.
int
net_connect(const Address &address, const Cancelled &cancelled);
int
net_accept(int listener, const Cancelled &cancelled);
bool
net_write(int fd, const void *data, size_t size);
bool
net_read(int fd, void *data, size_t size, const Cancelled &cancelled);

// Starts a thread that gets no signals.
std::thread
quiet_thread(std::function<void()> body);

// --- root.cpp -------------------------------------------------------------

struct Id {
    uint64_t magic, nonce;
    Address root;
};

// What ranks say of themselves.
struct Hello {
    uint64_t nonce;
    uint64_t host;
    CUuuid gpu;
    int32_t rank, ranks, device;
    Address address;
    Id split; // of rank 0: where the ranks of a split meet
};

// Cancelled: the thread ends, though ranks have not come.
using Flag = std::shared_ptr<std::atomic<bool>>;

bool
root_start(Id *id, const Flag &cancelled);

// --- wire.cpp, reduce.cpp -------------------------------------------------

enum class Kind : uint32_t { P2P, ALL_GATHER, BROADCAST, ALL_REDUCE };

// What both sides must agree on.
struct Desc {
    Kind kind;
    int32_t type, root, op;
    uint64_t count;
};

struct Place {
    int span = -1; // -1: memory of the task's own
    size_t offset = 0;
};

// A message between two ranks: of a collective too, where it may be empty.
struct Part {
    bool sends;
    int peer;
    Place place;
    size_t size;
    Desc desc;
    uint64_t number = 0; // from 0, of messages to, or from, this peer
    bool done = false;
};

struct Copy {
    Place to, from;
    size_t size;
};

struct Fold { // of an AllReduce: the others' data lie in the task's memory
    Place to, from, others;
    Desc desc;
};

using CommPtr = std::shared_ptr<Comm>;

// The calls of one group on one communicator.
struct Operation : sim::Guest, std::enable_shared_from_this<Operation> {
    CommPtr comm;
    CUstream stream;
    std::vector<Part> parts;
    std::vector<Copy> copies;
    std::vector<Fold> folds;
    size_t room = 0; // of the task's own memory
    std::shared_ptr<sim::Turn>
    submit(uint64_t number) override;
    ~Operation() override;
};

// One run of an operation.
struct Task : sim::Turn {
    std::shared_ptr<const Operation> operation;
    std::vector<Part> parts;
    std::vector<char> memory;
    uint64_t number = 0;
    bool demanded = false, posted = false, told = false;
    std::chrono::steady_clock::time_point since; // posted
    std::atomic<bool> started{false}, ended{false};
    bool
    step() override;
    char *
    at(const Place &place);
};
using TaskPtr = std::shared_ptr<Task>;

enum class Word : uint32_t { POST, DATA, BYE };

struct Head {
    Word word;
    uint32_t sends; // POST: the other side's message is one that it sends
    uint64_t number;
    Desc desc;
};

struct Out {
    Head head;
    Part *part; // DATA
    TaskPtr task;
    size_t moved = 0; // of head and data
};

struct Peer {
    int fd = -1;
    bool bye = false;
    uint64_t numbers[2] = {0, 0};      // of the next message: from it, to it
    std::map<uint64_t, Desc> posts[2]; // not ours yet: it receives, it sends
    std::deque<Out> out;
    Head head;
    Part *into = nullptr;
    size_t got = 0; // of head and data
};

struct Comm : std::enable_shared_from_this<Comm> {
    Id id = {};
    int rank = 0, ranks = 0, device = 0;
    bool blocking = true;
    Hello self = {};
    std::mutex mu;
    std::condition_variable changed;
    // Under the lock:
    Result state = ncclInProgress;
    std::string error;
    std::vector<Peer> peers;
    std::deque<TaskPtr> tasks; // that have not ended
    std::vector<std::shared_ptr<Operation>> held_back;
    int polls = 0;         // until those are given to their streams
    uint64_t launches = 0; // counts calls
    uint64_t last = 0;     // number of the operation submitted last
    bool closing = false, finalized = false;
    Id split = {}; // where ranks of a split meet; unused if magic is not 0
    CommPtr child; // of a split under way
    Comm **child_out = nullptr;
    //
    Flag no_split = std::make_shared<std::atomic<bool>>(false);
    std::atomic<bool> cancelled{false};
    std::atomic<int> operations{0}; // that streams or graphs have
    int waker = -1;                 // an eventfd
    std::thread thread;
    ~Comm();
    void
    poke();
    // Lock held: an error that is found later, for ncclCommGetAsyncError.
    __attribute__((format(printf, 3, 4))) void
    fail(Result result, const char *format, ...);
};

// The communicator's thread, once connected, until it closes or is cancelled.
void
wire_run(Comm &comm, Lock &lock);

// Adds the others' data to this rank's, in the order of ranks.
bool
reduce_knows(int type, int op);
void
reduce(Task &task, const Fold &fold, int rank, int ranks);

size_t
type_size(int type); // 0: unknown

// --- comm.cpp ---------------------------------------------------------------

// Returns the communicator of a handle; null, with a warning, for none.
CommPtr
comm_of(ncclComm_t handle, const char *caller);

// Checks that a call is admitted now.
Result
comm_ready(Comm &comm);

// Waits until an initialisation has ended.
Result
comm_await(Comm &comm);

// --- call.cpp ---------------------------------------------------------------

// Gives an operation to its stream.
Result
launch(const std::shared_ptr<Operation> &operation);

// Returns true in a group, which then waits for the initialisation.
bool
group_adds(const CommPtr &comm);

} // namespace simnccl

#endif
