# SPDX-License-Identifier: BSD-3-Clause
"""Messages in CUDA graphs, and what is beside them in bench_messages.py: bare kernels.

Each is a class, whose calls enqueue on a stream, in a capture: `send` and `receive` one
message, or `both`, one each way. Two ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

FLAG = 512  # bytes behind the data, where the number of messages lies


class Messages:
    """Persistent requests of comm.on(stream)."""

    def __init__(self, bench: Any, cupy: Any, stream: Any, nbytes: int):
        self.wm, channel, peer = bench.wm, bench.comm.on(stream), bench.peer
        self.sent = cupy.full(nbytes, 1 + bench.world.rank, "u1")
        self.got = cupy.zeros(nbytes, "u1")
        cupy.cuda.runtime.deviceSynchronize()
        self.requests = [channel.Recv_init(self.got, peer), channel.Send_init(self.sent, peer)]

    def start(self, request: Any) -> None:
        request.Start()
        request.Wait()

    def send(self) -> None:
        self.start(self.requests[1])

    def receive(self) -> None:
        self.start(self.requests[0])

    def both(self) -> None:
        self.wm.Prequest.Startall(self.requests)
        self.wm.Request.Waitall(self.requests)


KERNELS = r"""
// counts: messages sent, messages received, blocks that have ended.
__device__ unsigned move(const uint4 *from, uint4 *to, long long n, unsigned *flag,
                         unsigned *counts)
{
    const unsigned number = *(volatile unsigned *)counts + 1;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.x * blockDim.x)
        to[i] = from[i];
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence_system();
        if (gridDim.x == 1 || atomicAdd(counts + 2, 1) + 1 == gridDim.x) {
            counts[2] = 0;
            counts[0] = number;
            __threadfence_system();
            *(volatile unsigned *)flag = number;
        }
    }
    return number;
}

__device__ void await(const unsigned *flag, unsigned number)
{
    while ((int)(*(const volatile unsigned *)flag - number) < 0) {
    }
    __threadfence_system();
}

extern "C" __global__ void put(const uint4 *from, uint4 *to, long long n, unsigned *flag,
                               unsigned *counts)
{
    move(from, to, n, flag, counts);
}

extern "C" __global__ void wait(const unsigned *own, unsigned *counts)
{
    await(own, ++counts[1]);
}

extern "C" __global__ void both(const uint4 *from, uint4 *to, long long n, unsigned *flag,
                                unsigned *counts, const unsigned *own)
{
    const unsigned number = move(from, to, n, flag, counts);
    if (blockIdx.x == 0 && threadIdx.x == 0)
        await(own, number);
}
"""


class Bare:
    """A kernel that stores into the other rank's memory and then a flag; one that waits."""

    def __init__(self, bench: Any, cupy: Any, stream: Any, nbytes: int):
        room, self.stream = max(nbytes, 16), stream
        module = cupy.RawModule(code=KERNELS)
        self.kernels = {name: module.get_function(name) for name in ("put", "wait", "both")}
        self.array = bench.wm.shared_zeros(room + FLAG, "u1", comm=bench.comm, like="cupy")
        self.got = self.array.array[:nbytes]
        self.sent = cupy.full(room, 1 + bench.world.rank, "u1")
        self.counts = cupy.zeros(3, "u4")
        own, theirs = self.array.ptr, self.array.peer(bench.peer).data.ptr
        self.own, count = np.uint64(own + room), np.int64(room // 16)
        self.args = self.sent, np.uint64(theirs), count, np.uint64(theirs + room), self.counts
        self.grid = (int(min(max(room // 16 // 512, 1), 64)),)
        cupy.cuda.runtime.deviceSynchronize()

    def launch(self, name: str, grid: tuple[int], threads: int, *args: Any) -> None:
        with self.stream:
            self.kernels[name](grid, (threads,), args)

    def send(self) -> None:
        self.launch("put", self.grid, 512, *self.args)

    def receive(self) -> None:
        self.launch("wait", (1,), 1, self.own, self.counts)

    def both(self) -> None:
        self.launch("both", self.grid, 512, *self.args, self.own)
