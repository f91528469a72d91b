// SPDX-License-Identifier: BSD-3-Clause
// Communicators.
#include "simnccl.h"

#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <sys/eventfd.h>
#include <unistd.h>

NCCL_API const char *
ncclGetErrorString(ncclResult_t code);

namespace simnccl {

static auto &handles_mu = *new std::mutex;
static auto &handles = *new std::map<Comm *, CommPtr>;

CommPtr
comm_of(ncclComm_t handle, const char *caller)
{
    std::lock_guard<std::mutex> guard(handles_mu);
    auto it = handles.find(handle);
    if (it != handles.end())
        return it->second;
    warn(ncclInvalidArgument,
         "%s: not a communicator, or one that has been "
         "destroyed",
         caller);
    return nullptr;
}

void
Comm::fail(Result result, const char *format, ...)
{
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (state != ncclSuccess && state != ncclInProgress)
        return;
    state = result;
    error = text;
    warn(result, "%s", text);
    changed.notify_all();
}

// Lock held.
static Result
comm_state(const Comm &comm)
{
    bool busy = !comm.held_back.empty() || comm.child != nullptr
                || (comm.finalized && !comm.tasks.empty());
    return comm.state == ncclSuccess && busy ? ncclInProgress : comm.state;
}

Result
comm_ready(Comm &comm)
{
    Lock lock(comm.mu);
    if (comm_state(comm) == ncclInProgress)
        return warn(ncclInvalidArgument,
                    "Attempt to use communicator before the previous "
                    "operation returned ncclSuccess");
    return comm.state;
}

// As NCCL: what NCCL_HOSTID says, else name and boot of the host.
static uint64_t
host_hash()
{
    char text[300] = "";
    const char *given = getenv("NCCL_HOSTID");
    if (given != nullptr && *given) {
        snprintf(text, sizeof text, "%s", given);
    }
    else {
        gethostname(text, 200);
        size_t used = strlen(text);
        FILE *boot = fopen("/proc/sys/kernel/random/boot_id", "re");
        size_t n = boot ? fread(text + used, 1, 40, boot) : 0;
        text[used + n] = 0;
        if (boot != nullptr)
            fclose(boot);
    }
    return std::hash<std::string>()(text);
}

// Connects to the ranks before this one, and takes connections of the others.
static bool
connect_all(Comm &comm, int listener, const std::vector<Hello> &table,
            std::vector<int> *fds, const Cancelled &cancelled)
{
    for (int i = 0; i < comm.rank; i++) {
        (*fds)[i] = net_connect(table[i].address, cancelled);
        if ((*fds)[i] < 0
            || !net_write((*fds)[i], &comm.self, sizeof comm.self))
            return false;
    }
    for (int left = comm.ranks - comm.rank - 1; left > 0;) {
        int fd = net_accept(listener, cancelled);
        Hello hello;
        if (fd < 0)
            return false;
        if (net_read(fd, &hello, sizeof hello, cancelled)
            && hello.nonce == comm.id.nonce && hello.rank > comm.rank
            && hello.rank < comm.ranks && (*fds)[hello.rank] < 0) {
            (*fds)[hello.rank] = fd;
            left--;
        }
        else {
            close(fd);
        }
    }
    return true;
}

// Checks this rank's word against the others', and puts these in their order.
static Result
check(const Comm &comm, std::vector<Hello> *table)
{
    std::vector<Hello> sorted(comm.ranks);
    const Hello &self = comm.self;
    int same = 0;
    for (const Hello &other : *table) {
        if (other.ranks != self.ranks)
            return warn(ncclInvalidArgument,
                        "a rank gives rank %d of %d, rank %d %d ranks",
                        other.rank, other.ranks, self.rank, self.ranks);
        sorted[other.rank] = other;
        same += other.rank == self.rank;
        if (other.rank != self.rank && other.host == self.host
            && !memcmp(&other.gpu, &self.gpu, sizeof self.gpu))
            return warn(ncclInvalidUsage,
                        "Duplicate GPU detected : rank %d and rank %d both "
                        "on CUDA device %d",
                        self.rank, other.rank, self.device);
    }
    *table = sorted;
    return same == 1 ? ncclSuccess
                     : warn(ncclInvalidUsage, "%d ranks give rank %d", same,
                            self.rank);
}

static Result
meet(Comm &comm, int listener, std::vector<int> *fds)
{
    Cancelled cancelled = [&] { return comm.cancelled.load(); };
    std::vector<Hello> table(comm.ranks);
    int fd = net_connect(comm.id.root, cancelled);
    bool met = fd >= 0 && net_write(fd, &comm.self, sizeof comm.self)
               && net_read(fd, table.data(), sizeof table[0], cancelled);
    // Of another number of ranks there is another number of words.
    if (met && table[0].ranks != comm.ranks)
        table.resize(1);
    else if (met)
        met = net_read(fd, &table[1], (comm.ranks - 1) * sizeof table[0],
                       cancelled);
    close(fd);
    Result result = met ? check(comm, &table) : ncclRemoteError;
    if (result == ncclSuccess)
        comm.split = table[0].split;
    if (result == ncclSuccess
        && !connect_all(comm, listener, table, fds, cancelled))
        result = ncclRemoteError;
    return result;
}

static void
live(CommPtr comm)
{
    std::vector<int> fds(comm->ranks, -1);
    usleep((useconds_t)slow_ms() * 1000);
    int listener = net_listen(&comm->self.address);
    if (comm->rank == 0)
        root_start(&comm->self.split, comm->no_split);
    Result result = count_call("Meet");
    if (result == ncclSuccess)
        result = listener < 0 ? ncclSystemError : meet(*comm, listener, &fds);
    close(listener);
    Lock lock(comm->mu);
    for (int i = 0; i < comm->ranks; i++)
        comm->peers[i].fd = fds[i];
    if (result != ncclSuccess) {
        comm->fail(result, "rank %d cannot make its communicator: %s",
                   comm->rank, ncclGetErrorString(result));
    }
    else {
        comm->state = ncclSuccess;
        comm->changed.notify_all();
        wire_run(*comm, lock);
    }
    for (Peer &peer : comm->peers) {
        if (peer.fd >= 0)
            close(peer.fd);
        peer.fd = -1;
        peer.out.clear();
    }
}

Result
comm_await(Comm &comm)
{
    Lock lock(comm.mu);
    comm.changed.wait(lock, [&] { return comm.state != ncclInProgress; });
    return comm.state;
}

static Result
check(const ncclConfig_t *config)
{
    if (config == nullptr)
        return ncclSuccess;
    if (config->magic != 0xcafebeef || config->size < sizeof(size_t))
        return warn(ncclInvalidArgument,
                    "ncclConfig_t argument not initialized via "
                    "NCCL_CONFIG_INITIALIZER");
    auto given = [](int value) { return value != INT_MIN; };
    if ((given(config->blocking) && (config->blocking & ~1) != 0)
        || (given(config->cgaClusterSize)
            && (config->cgaClusterSize < 0 || config->cgaClusterSize > 8))
        || (given(config->minCTAs) && config->minCTAs <= 0)
        || (given(config->maxCTAs)
            && (config->maxCTAs <= 0 || config->maxCTAs < config->minCTAs)))
        return warn(ncclInvalidArgument,
                    "Invalid config: blocking %d, "
                    "cgaClusterSize %d, minCTAs %d, maxCTAs %d",
                    config->blocking, config->cgaClusterSize, config->minCTAs,
                    config->maxCTAs);
    return ncclSuccess;
}

// Makes a communicator, whose thread connects it.
static CommPtr
make(const Id &id, int ranks, int rank, CUdevice device, bool blocking)
{
    auto comm = std::make_shared<Comm>();
    comm->id = id;
    comm->rank = rank;
    comm->ranks = ranks;
    comm->device = device;
    comm->blocking = blocking;
    comm->self.nonce = comm->id.nonce;
    comm->self.host = host_hash();
    driver()->uuid(&comm->self.gpu, device);
    comm->self.rank = rank;
    comm->self.ranks = ranks;
    comm->self.device = device;
    comm->peers.resize(ranks);
    comm->waker = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    {
        std::lock_guard<std::mutex> guard(handles_mu);
        handles[comm.get()] = comm;
    }
    comm->thread = quiet_thread([comm] { live(comm); });
    pthread_setname_np(comm->thread.native_handle(), "NCCL");
    return comm;
}

static Result
init(const char *name, ncclComm_t *out, int ranks, const ncclUniqueId &given,
     int rank, const ncclConfig_t *config)
{
    Result failed = count_call(name);
    if (failed == ncclSuccess)
        failed = check(config);
    if (failed != ncclSuccess)
        return failed;
    Id id;
    memcpy(&id, &given, sizeof id);
    if (out == nullptr || rank < 0 || rank >= ranks
        || id.magic != 0x6c63636e6d6973)
        return warn(ncclInvalidArgument, "%s: rank %d of %d, or no unique id",
                    name, rank, ranks);
    CUdevice device;
    if (driver() == nullptr)
        return ncclSystemError;
    if (driver()->device(&device) != CUDA_SUCCESS)
        return warn(ncclUnhandledCudaError, "%s: no context is current", name);
    CommPtr comm = make(id, ranks, rank, device,
                        config == nullptr || config->blocking != 0);
    *out = comm.get();
    if (!comm->blocking)
        return ncclInProgress;
    return group_adds(comm) ? ncclSuccess : comm_await(*comm);
}

// Fills what has not been received with garbage, and ends all operations.
static void
give_up(Comm &comm)
{
    Lock lock(comm.mu);
    for (const TaskPtr &task : comm.tasks) {
        for (const Part &part : task->parts)
            if (task->started && !part.sends && !part.done)
                memset(task->at(part.place), 0xA5, part.size);
        task->ended = true;
    }
    comm.tasks.clear();
    comm.held_back.clear();
}

// Waits as NCCL until no graph has an operation, and until the streams have
// done what comes before the operations.
static void
reclaim(Comm &comm)
{
    while (comm.operations > 0) {
        Lock lock(comm.mu);
        uint64_t last = comm.last;
        lock.unlock();
        driver()->demand(&comm, last);
        usleep(1000);
    }
}

static void
end(const CommPtr &comm)
{
    *comm->no_split = true;
    if (comm->child != nullptr) { // told as it is, and to be aborted
        comm->child->cancelled = true;
        comm_await(*comm->child);
        *comm->child_out = comm->child.get();
    }
    comm->poke();
    if (comm->thread.joinable())
        comm->thread.join();
    give_up(*comm);
    driver()->wake();
    reclaim(*comm);
    usleep((useconds_t)slow_ms() * 1000);
    driver()->settle(); // as NCCL, which frees page-locked memory
    driver()->line_end(comm.get());
    std::lock_guard<std::mutex> guard(handles_mu);
    handles.erase(comm.get());
}

// Waits for the operations, but not if `polls`. Returns the communicator's
// state.
static Result
finish(Comm &comm, bool polls)
{
    Lock lock(comm.mu);
    uint64_t last = comm.tasks.empty() ? 0 : comm.tasks.back()->number;
    lock.unlock();
    driver()->demand(&comm, last);
    lock.lock();
    if (polls)
        return comm_state(comm);
    comm.changed.wait(
        lock, [&] { return comm.tasks.empty() || comm.state != ncclSuccess; });
    return comm.state;
}

// Ends a split under way once the child is connected, or has failed. Parent's
// lock held.
static void
look_at_child(Comm &comm)
{
    CommPtr child = comm.child;
    if (child == nullptr)
        return;
    Result state;
    {
        Lock lock(child->mu);
        state = child->state;
    }
    if (state == ncclInProgress)
        return;
    comm.child = nullptr;
    *comm.child_out = child.get(); // also one that has failed
    if (state != ncclSuccess)
        comm.fail(state, "a split has failed");
}

// Begins to make the child of all ranks, in their order, or of none.
static Result
split(Comm &comm, int color, int key, ncclComm_t *out,
      const ncclConfig_t *config)
{
    if (color < 0 && color != -1)
        return warn(ncclInvalidArgument, "CommSplit: color %d", color);
    if (color != 0 || key != comm.rank)
        return warn(ncclInvalidUsage, "CommSplit: other splits than that of "
                                      "all ranks, of color 0, in their order, "
                                      "are not simulated");
    Id id = comm.split;
    comm.split = {};
    if (id.magic == 0)
        return warn(ncclInvalidUsage,
                    "CommSplit: a second split is not simulated");
    bool given = config != nullptr && config->blocking != INT_MIN;
    comm.child_out = out;
    comm.child = make(id, comm.ranks, comm.rank, comm.device,
                      given ? config->blocking != 0 : comm.blocking);
    return ncclInProgress;
}

// Counts a call, and finds its communicator.
static Result
enter(const char *name, ncclComm_t handle, CommPtr *comm)
{
    Result failed = count_call(name);
    *comm = comm_of(handle, name);
    return failed || *comm != nullptr ? failed : ncclInvalidArgument;
}

} // namespace simnccl

using namespace simnccl;

NCCL_API Result
ncclCommInitRank(ncclComm_t *out, int ranks, ncclUniqueId id, int rank)
{
    return init("CommInitRank", out, ranks, id, rank, nullptr);
}

NCCL_API Result
ncclCommInitRankConfig(ncclComm_t *out, int ranks, ncclUniqueId id, int rank,
                       ncclConfig_t *config)
{
    return init("CommInitRankConfig", out, ranks, id, rank, config);
}

NCCL_API Result
ncclCommGetAsyncError(ncclComm_t handle, Result *state)
{
    CommPtr comm;
    Result failed = enter("CommGetAsyncError", handle, &comm);
    if (failed || state == nullptr)
        return failed ? failed : ncclInvalidArgument;
    std::vector<std::shared_ptr<Operation>> operations;
    {
        Lock lock(comm->mu);
        look_at_child(*comm);
        *state = comm_state(*comm);
        if (*state != ncclInProgress || comm->held_back.empty()
            || comm->polls-- > 0)
            return ncclSuccess;
        operations.swap(comm->held_back);
    }
    *state = ncclSuccess;
    for (const auto &operation : operations)
        *state = *state ? *state : launch(operation);
    if (*state != ncclSuccess) {
        Lock lock(comm->mu);
        comm->fail(*state, "the call before failed");
    }
    return ncclSuccess;
}

NCCL_API Result
ncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t *out,
              ncclConfig_t *config)
{
    CommPtr comm;
    Result failed = enter("CommSplit", handle, &comm);
    if (failed == ncclSuccess)
        failed = out == nullptr ? ncclInvalidArgument : check(config);
    if (failed == ncclSuccess)
        failed = comm_ready(*comm);
    if (failed != ncclSuccess)
        return failed;
    *out = nullptr; // until a poll says that the split has ended
    Lock lock(comm->mu);
    failed = split(*comm, color, key, out, config);
    if (failed != ncclInProgress || !comm->blocking)
        return failed;
    CommPtr child = comm->child;
    lock.unlock();
    comm_await(*child);
    lock.lock();
    look_at_child(*comm);
    return comm->state;
}

NCCL_API Result
ncclCommAbort(ncclComm_t handle)
{
    CommPtr comm;
    Result failed = enter("CommAbort", handle, &comm);
    if (failed != ncclSuccess)
        return failed;
    comm->cancelled = true;
    end(comm);
    return ncclSuccess;
}

NCCL_API Result
ncclCommFinalize(ncclComm_t handle)
{
    CommPtr comm;
    Result failed = enter("CommFinalize", handle, &comm);
    if (failed != ncclSuccess)
        return failed;
    failed = comm_ready(*comm);
    if (failed != ncclSuccess)
        return failed;
    if (comm->finalized)
        return warn(ncclInvalidUsage, "CommFinalize: called twice");
    comm->finalized = true;
    return finish(*comm, !comm->blocking);
}

NCCL_API Result
ncclCommDestroy(ncclComm_t handle)
{
    CommPtr comm;
    Result failed = enter("CommDestroy", handle, &comm);
    if (failed != ncclSuccess)
        return failed;
    failed = comm_ready(*comm);
    if (failed == ncclInvalidArgument)
        return failed;
    failed = failed ? failed : finish(*comm, false);
    if (failed != ncclSuccess) {
        warn(failed, "CommDestroy of a communicator with an error: "
                     "CommAbort is meant");
        comm->cancelled = true;
    }
    else {
        Lock lock(comm->mu);
        comm->closing = true;
        for (Peer &peer : comm->peers)
            if (peer.fd >= 0)
                peer.out.push_back({{Word::BYE, 0, 0, {}}, {}, {}});
    }
    end(comm);
    return failed;
}

// Numbers of `communicators` that live, and of `operations` under way.
NCCL_API long
simnccl_live(const char *kind)
{
    std::lock_guard<std::mutex> guard(handles_mu);
    if (!strcmp(kind, "communicators"))
        return (long)handles.size();
    long count = 0;
    for (auto &item : handles) {
        Lock lock(item.second->mu);
        count += (long)item.second->tasks.size();
    }
    return count;
}
