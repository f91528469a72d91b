// SPDX-License-Identifier: BSD-3-Clause
// Calls and groups. A group is one operation on each of its communicators.
#include "simnccl.h"

#include <algorithm>

namespace simnccl {

using OperationPtr = std::shared_ptr<Operation>;

struct SelfSend {
    Place place;
    size_t size;
};

struct Call {
    const char *name;
    Desc desc;
    const void *send;
    void *recv;
    int peer;
};

// What a thread has begun.
struct Group {
    int depth = 0;
    Result error = ncclSuccess;
    std::vector<OperationPtr> operations;
    std::map<Operation *, std::deque<SelfSend>> to_self, from_self;
    std::vector<CommPtr> begun;
};

static thread_local Group *the_group;

static Group &
group()
{
    if (the_group == nullptr)
        the_group = new Group;
    return *the_group;
}

bool
group_adds(const CommPtr &comm)
{
    if (group().depth == 0)
        return false;
    group().begun.push_back(comm);
    return true;
}

Result
launch(const OperationPtr &operation)
{
    std::shared_ptr<sim::Guest> guest = operation;
    int error = driver()->enqueue(operation->comm->device, operation->stream,
                                  &guest);
    switch (error) {
    case CUDA_SUCCESS:
        return ncclSuccess;
    case CUDA_ERROR_INVALID_VALUE:
        return warn(ncclInvalidArgument,
                    "a buffer is not memory of device %d: pageable, of "
                    "another device, or not allocated in whole",
                    operation->comm->device);
    case CUDA_ERROR_INVALID_CONTEXT:
        return warn(ncclInvalidArgument, "the stream is not of device %d",
                    operation->comm->device);
    default:
        return warn(ncclUnhandledCudaError, "the driver returns %d", error);
    }
}

static Place
add(Operation &operation, const void *address, size_t size)
{
    if (size == 0)
        return {};
    operation.spans.push_back({(uintptr_t)address, size, nullptr});
    return {(int)operation.spans.size() - 1, 0};
}

static Place
within(Place place, size_t offset)
{
    place.offset += offset;
    return place;
}

static void
add_message(Operation &operation, const Call &call, bool sends)
{
    size_t size = call.desc.count * type_size(call.desc.type);
    Place place = add(operation, sends ? call.send : call.recv, size);
    if (call.peer != operation.comm->rank)
        operation.parts.push_back(
            {sends, call.peer, place, size, call.desc, 0, false});
    else
        (sends ? group().to_self : group().from_self)[&operation].push_back(
            {place, size});
}

// All ranks tell all others of a collective, with data or without.
static void
add_collective(Operation &operation, const Call &call)
{
    const Comm &comm = *operation.comm;
    const Desc &desc = call.desc;
    size_t size = desc.count * type_size(desc.type);
    bool gathers = desc.kind == Kind::ALL_GATHER;
    bool reduces = desc.kind == Kind::ALL_REDUCE;
    bool sends = gathers || reduces || desc.root == comm.rank;
    Place from,
        to = add(operation, call.recv, size * (gathers ? comm.ranks : 1));
    if (sends)
        from = add(operation, call.send, size);
    Place all = to; // where the others' data go
    if (reduces) {
        all = {-1, operation.room};
        operation.room += size * comm.ranks;
        operation.folds.push_back({to, from, all, desc});
    }
    else if (sends) {
        operation.copies.push_back(
            {within(to, gathers ? comm.rank * size : 0), from, size});
    }
    for (int i = 0; i < comm.ranks; i++) {
        if (i == comm.rank)
            continue;
        bool receives = gathers || reduces || desc.root == i;
        operation.parts.push_back(
            {true, i, from, sends ? size : 0, desc, 0, false});
        operation.parts.push_back(
            {false, i, within(all, gathers || reduces ? i * size : 0),
             receives ? size : 0, desc, 0, false});
    }
}

// What is sent to this rank itself is copied.
static Result
pair_own(Group &g, const OperationPtr &operation)
{
    auto &to = g.to_self[operation.get()],
         &from = g.from_self[operation.get()];
    bool even = to.size() == from.size();
    for (size_t i = 0; even && i < to.size(); i++) {
        even = to[i].size == from[i].size;
        operation->copies.push_back({from[i].place, to[i].place, to[i].size});
    }
    return even ? ncclSuccess
                : warn(ncclInvalidUsage,
                       "messages of rank %d to itself have no receive of "
                       "that size in the group",
                       operation->comm->rank);
}

// A communicator that does not block is given the operations at a later poll.
static Result
hand_over(const OperationPtr &operation)
{
    Comm &comm = *operation->comm;
    if (comm.blocking)
        return launch(operation);
    {
        Lock lock(comm.mu);
        uint64_t n = comm.launches++;
        if (n % 4 != 3) {
            comm.polls = (int)(n % 3);
            comm.held_back.push_back(operation);
            return ncclInProgress;
        }
    }
    return launch(operation);
}

static Result
group_end()
{
    Group &g = group();
    if (g.depth == 0)
        return warn(ncclInvalidUsage, "ncclGroupEnd: not in a group call");
    if (--g.depth > 0)
        return ncclSuccess;
    Group all;
    std::swap(g, all);
    Result result = all.error, pending = ncclSuccess;
    for (const CommPtr &comm : all.begun) {
        Result failed = comm_await(*comm);
        result = result ? result : failed;
    }
    for (const OperationPtr &operation : all.operations)
        result = result ? result : pair_own(all, operation);
    for (const OperationPtr &operation : all.operations) {
        if (result != ncclSuccess)
            break;
        result = hand_over(operation);
        if (result == ncclInProgress) {
            pending = ncclInProgress;
            result = ncclSuccess;
        }
    }
    return result ? result : pending;
}

static Result
operation_of(Group &g, const CommPtr &comm, CUstream stream, OperationPtr *out)
{
    for (const OperationPtr &each : g.operations) {
        if (each->comm != comm)
            continue;
        *out = each;
        return each->stream == stream
                   ? ncclSuccess
                   : warn(ncclInvalidUsage, "a group gives one communicator's "
                                            "calls to two streams: not "
                                            "simulated");
    }
    *out = std::make_shared<Operation>();
    (*out)->comm = comm;
    comm->operations++;
    (*out)->line = comm.get();
    (*out)->stream = stream;
    g.operations.push_back(*out);
    return ncclSuccess;
}

// Buffers must be apart, or be each other's part as documented.
static bool
is_laid_out(const Comm &comm, const Call &call, size_t size)
{
    if (call.desc.kind == Kind::P2P || call.send == nullptr
        || call.recv == nullptr || size == 0)
        return true;
    bool gathers = call.desc.kind == Kind::ALL_GATHER;
    uintptr_t send = (uintptr_t)call.send, recv = (uintptr_t)call.recv;
    size_t room = size * (gathers ? comm.ranks : 1);
    return send + size <= recv || recv + room <= send
           || send == recv + (gathers ? comm.rank * size : 0);
}

static Result
check(const Comm &comm, const Call &call)
{
    const Desc &desc = call.desc;
    size_t size = desc.count * type_size(desc.type);
    bool sends = desc.kind != Kind::BROADCAST || desc.root == comm.rank;
    bool p2p = desc.kind == Kind::P2P;
    if (type_size(desc.type) == 0)
        return warn(ncclInvalidArgument, "%s: type %d", call.name, desc.type);
    if (call.peer < 0 || call.peer >= comm.ranks)
        return warn(ncclInvalidArgument, "%s: rank %d of %d", call.name,
                    call.peer, comm.ranks);
    if (desc.kind == Kind::ALL_REDUCE && !reduce_knows(desc.type, desc.op))
        return warn(ncclInvalidArgument, "%s: type %d, op %d: not simulated",
                    call.name, desc.type, desc.op);
    bool lacks = p2p ? call.send == nullptr && call.recv == nullptr
                     : call.recv == nullptr || (sends && call.send == nullptr);
    if (size != 0 && lacks)
        return warn(ncclInvalidArgument, "%s: a buffer is null", call.name);
    if (sends && !is_laid_out(comm, call, size))
        return warn(ncclInvalidArgument,
                    "%s: the buffers overlap, not as in place", call.name);
    return ncclSuccess;
}

static Result
add_call(const Call &call, ncclComm_t handle, CUstream stream)
{
    Result failed = count_call(call.name);
    if (failed != ncclSuccess)
        return failed;
    CommPtr comm = comm_of(handle, call.name);
    failed = comm ? comm_ready(*comm) : ncclInvalidArgument;
    bool blocks = call_blocks(call.name);
    while (failed == ncclSuccess && blocks) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        if (comm->cancelled)
            failed = warn(ncclInternalError, "%s: aborted", call.name);
    }
    if (failed == ncclSuccess && comm->finalized)
        failed = warn(ncclInvalidUsage, "%s: after CommFinalize", call.name);
    if (failed == ncclSuccess)
        failed = check(*comm, call);
    bool p2p = call.desc.kind == Kind::P2P;
    if (failed == ncclSuccess && call.desc.count == 0 && !p2p)
        return ncclSuccess; // as NCCL, which does nothing
    OperationPtr operation;
    if (failed == ncclSuccess)
        failed = operation_of(group(), comm, stream, &operation);
    if (failed != ncclSuccess)
        return failed;
    if (p2p)
        add_message(*operation, call, call.send != nullptr);
    else
        add_collective(*operation, call);
    return ncclSuccess;
}

static Result
perform(const Call &call, ncclComm_t handle, CUstream stream)
{
    Group &g = group();
    g.depth++;
    Result failed = add_call(call, handle, stream);
    g.error = g.error ? g.error : failed;
    Result ended = group_end();
    return failed ? failed : ended;
}

} // namespace simnccl

using namespace simnccl;

NCCL_API Result
ncclGroupStart()
{
    Result failed = count_call("GroupStart");
    group().depth += failed == ncclSuccess;
    return failed;
}

NCCL_API Result
ncclGroupEnd()
{
    Result failed = count_call("GroupEnd");
    Group &g = group();
    g.error = g.error ? g.error : failed;
    return group_end();
}

// A message has one buffer. Null with a count of 0 is one as well.
static char nothing;

NCCL_API Result
ncclSend(const void *send, size_t count, ncclDataType_t type, int peer,
         ncclComm_t comm, cudaStream_t stream)
{
    Desc desc = {Kind::P2P, type, -1, -1, count};
    send = count == 0 ? &nothing : send;
    return perform({"Send", desc, send, nullptr, peer}, comm, stream);
}

NCCL_API Result
ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer,
         ncclComm_t comm, cudaStream_t stream)
{
    Desc desc = {Kind::P2P, type, -1, -1, count};
    return perform({"Recv", desc, nullptr, recv, peer}, comm, stream);
}

NCCL_API Result
ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
              ncclComm_t comm, cudaStream_t stream)
{
    Desc desc = {Kind::ALL_GATHER, type, -1, -1, count};
    return perform({"AllGather", desc, send, recv, 0}, comm, stream);
}

NCCL_API Result
ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
              int root, ncclComm_t comm, cudaStream_t stream)
{
    Desc desc = {Kind::BROADCAST, type, root, -1, count};
    return perform({"Broadcast", desc, send, recv, root}, comm, stream);
}

NCCL_API Result
ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
              ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    Desc desc = {Kind::ALL_REDUCE, type, -1, op, count};
    return perform({"AllReduce", desc, send, recv, 0}, comm, stream);
}
