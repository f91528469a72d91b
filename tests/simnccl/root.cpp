// SPDX-License-Identifier: BSD-3-Clause
// Where the ranks of a communicator meet: a thread of the process that made
// the unique id. It tells each rank of all.
#include "simnccl.h"

#include <cstring>
#include <random>
#include <unistd.h>

namespace simnccl {

static void
serve(int listener, Id id, const Flag &cancelled)
{
    auto never = [=] { return cancelled->load(); };
    std::vector<Hello> all;
    std::vector<int> fds;
    while (!*cancelled && (all.empty() || (int)all.size() < all[0].ranks)) {
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
    for (int fd : fds) {
        if (!*cancelled)
            net_write(fd, all.data(), all.size() * sizeof all[0]);
        close(fd);
    }
    close(listener);
}

bool
root_start(Id *id, const Flag &cancelled)
{
    int listener = net_listen(&id->root);
    if (listener < 0)
        return false;
    std::random_device random;
    id->magic = 0x6c63636e6d6973; // "simnccl"
    id->nonce = (uint64_t)random() << 32 | random();
    quiet_thread([=, id = *id] { serve(listener, id, cancelled); }).detach();
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
    if (!root_start(&id, std::make_shared<std::atomic<bool>>(false)))
        return ncclSystemError;
    memset(out, 0, sizeof *out);
    memcpy(out, &id, sizeof id);
    return ncclSuccess;
}
