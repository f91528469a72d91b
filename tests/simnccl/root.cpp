// SPDX-License-Identifier: BSD-3-Clause
// Where the ranks of a communicator meet: a thread of the process that made
// the unique id. It tells each rank of all.
#include "simnccl.h"

#include <cstring>
#include <random>
#include <unistd.h>

namespace simnccl {

static Result
check(const std::vector<Hello> &all, const Hello &one)
{
    if (one.rank < 0 || one.rank >= one.ranks || one.ranks != all[0].ranks)
        return warn(ncclInvalidArgument,
                    "a rank gives rank %d of %d, another one %d ranks",
                    one.rank, one.ranks, all[0].ranks);
    for (const Hello &other : all) {
        if (&other == &one)
            continue;
        if (other.rank == one.rank)
            return warn(ncclInvalidUsage, "two ranks give rank %d", one.rank);
        if (other.host == one.host
            && !memcmp(&other.gpu, &one.gpu, sizeof one.gpu))
            return warn(ncclInvalidUsage,
                        "Duplicate GPU detected : rank %d and rank %d both "
                        "on CUDA device %d",
                        one.rank, other.rank, one.device);
    }
    return ncclSuccess;
}

static void
serve(int listener, Id id)
{
    auto never = [] { return false; };
    std::vector<Hello> all;
    std::vector<int> fds;
    Result result = ncclSuccess;
    while (all.empty() || (int)all.size() < all[0].ranks) {
        int fd = net_accept(listener, never);
        Hello hello;
        if (fd < 0 || !net_read(fd, &hello, sizeof hello, never)
            || hello.nonce != id.nonce) {
            close(fd); // of no rank, or of one that has ended
            continue;
        }
        all.push_back(hello);
        fds.push_back(fd);
    }
    for (const Hello &each : all)
        result = result ? result : check(all, each);
    std::vector<Hello> table(all.size());
    for (Hello &each : all) {
        each.result = result;
        table[result ? &each - &all[0] : each.rank] = each;
    }
    for (int fd : fds) {
        net_write(fd, table.data(), table.size() * sizeof table[0]);
        close(fd);
    }
    close(listener);
}

bool
root_start(Id *id)
{
    int listener = net_listen(&id->root);
    if (listener < 0)
        return false;
    std::random_device random;
    id->magic = 0x6c63636e6d6973; // "simnccl"
    id->nonce = (uint64_t)random() << 32 | random();
    quiet_thread([=, id = *id] { serve(listener, id); }).detach();
    return true;
}

} // namespace simnccl

using namespace simnccl;

NCCL_API Result
ncclGetUniqueId(ncclUniqueId *out)
{
    Result failed = count_call("GetUniqueId");
    if (failed || out == nullptr)
        return failed ? failed : ncclInvalidArgument;
    Id id = {};
    if (!root_start(&id))
        return ncclSystemError;
    memset(out, 0, sizeof *out);
    memcpy(out, &id, sizeof id);
    return ncclSuccess;
}
