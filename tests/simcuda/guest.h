// SPDX-License-Identifier: BSD-3-Clause
// Operations of other libraries on simulated streams: what a kernel of the
// library's own does on a GPU. The library finds the functions by dlsym() in
// the simulated driver. None of them counts as a call of the driver.
#ifndef SIMCUDA_GUEST_H
#define SIMCUDA_GUEST_H

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace sim {

// One run of an operation. The simulator's lock is held in all functions: they
// may neither wait nor call the driver.
struct Turn {
    virtual ~Turn() = default;
    // Called when the stream has come to the operation, and then again until
    // it returns true: the operation has ended.
    virtual bool
    step() = 0;
};

struct Span {
    uintptr_t address = 0;
    size_t size = 0;
    char *bytes = nullptr; // for the library, filled in by simcuda_enqueue()
};

// What a stream is given, or a graph by a capture.
struct Guest {
    // Operations of one line run one after the other, on whichever streams,
    // in the order in which the streams were given them.
    void *line = nullptr;
    std::vector<Span> spans;
    virtual ~Guest() = default;
    // Called each time that a stream is given the operation, also by the
    // launch of a graph. number: 1, 2, ... in the line.
    virtual std::shared_ptr<Turn>
    submit(uint64_t number) = 0;
};

} // namespace sim

extern "C" {

// Gives the operation to a stream. Fails with INVALID_CONTEXT for a stream of
// another device, with INVALID_VALUE for memory that the device's kernels do
// not reach: pageable, not allocated, or of another device.
int
simcuda_enqueue(int device, CUstream stream,
                const std::shared_ptr<sim::Guest> *guest);

// Runs the operation soon, with all that it waits for, as a synchronise would.
void
simcuda_demand(void *line, uint64_t number);

// Waits as a call of a thread of the library's own that frees page-locked
// memory, and like it ends captures in global mode.
void
simcuda_settle(void);

// Makes the simulator look at steps again.
void
simcuda_wake(void);

// Forgets a line that is given nothing more.
void
simcuda_line_end(void *line);
}

#endif
