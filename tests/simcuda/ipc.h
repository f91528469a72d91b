// SPDX-License-Identifier: BSD-3-Clause
// State that processes share: each has one control block, in a memfd that
// others open through /proc/<pid>/fd, and one datagram socket in the abstract
// namespace, on which others ask it to run operations they wait for. Both
// vanish with the process, however it ends.
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

struct Home { // names the process that made a handle
    uint64_t nonce;
    int32_t pid;
    int32_t control_fd;
};

extern Control *control; // of this process

Home
home();

// Returns the control block that a handle refers to, null if its process is
// gone.
Control *
control_of(const Home &home);

// Does the same, only among the blocks that are already open.
Control *
control_known(uint64_t nonce);

// Returns the block that contains the slot.
Control *
control_holding(const Slot *slot);

int
open_foreign(int pid, int fd);

void
slot_init();

} // namespace sim

#endif
