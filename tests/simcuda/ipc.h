// SPDX-License-Identifier: BSD-3-Clause
// What processes share: each has one control block, in a memfd that others
// open through /proc/<pid>/fd, and one datagram socket in the abstract
// namespace, on which others ask it to run what they wait for. Both vanish
// with the process, however it ends.
#ifndef SIMCUDA_IPC_H
#define SIMCUDA_IPC_H

#include "sim.h"

namespace sim {

constexpr int MAX_EXPORTS = 4096;
constexpr int MAX_SLOTS = 8192;

struct Control {
    uint64_t nonce;
    int32_t pid;
    int32_t fd;
    std::atomic<uint64_t> exports[MAX_EXPORTS]; // ids of exported memory
    Slot slots[MAX_SLOTS];
};

struct Home { // how a handle names the process that made it
    uint64_t nonce;
    int32_t pid;
    int32_t control_fd;
};

extern Control *control; // this process's

Home
home();

// The control block a handle speaks of, null when its process is gone.
Control *
control_of(const Home &home);

// The same, only among those already open.
Control *
control_known(uint64_t nonce);

// The block that the slot lies in.
Control *
control_holding(const Slot *slot);

int
open_foreign(int pid, int fd);

void
slot_init();

} // namespace sim

#endif
