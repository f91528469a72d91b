# SPDX-License-Identifier: BSD-3-Clause
"""The libraries whose collectives bench_coll.py compares.

Each is a class: `prepare` makes the buffers of an operation, `call` gives its call in a mode,
`wait` waits for what calls only enqueue. But for torch.distributed they are the ways of
`python -m warpmpi bench`, in ranks of their own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from ctypes import c_int, c_size_t, c_void_p
from functools import partial
from typing import Any

import p2p_paths
import package  # noqa: F401  # makes _bench
from _bench import nccl, ways
from _bench.ops import Call, LeftOut, Op, Step, chained
from coll_ops import Many

GRAPH_CALLS = 20  # of one captured graph


def capture(stream: Any, call: Call) -> Call:
    """A CUDA graph of GRAPH_CALLS calls that enqueue on CuPy's stream."""
    stream.begin_capture()
    try:
        for _ in range(GRAPH_CALLS):
            call()
    finally:
        graph = stream.end_capture()
    return partial(graph.launch, stream)


class Library:
    """A way of `bench`; `world` is mpi4py's communicator of its ranks.

    everything: also the operations that NCCL lacks.
    """

    def __init__(self, way: Callable[..., ways.Way], kind: str, everything: bool, world: Any):
        self.wm, self.everything, self.world = importlib.import_module("warpmpi"), everything, world
        self.rank = ways.Rank(world, self.wm, kind)
        self.way = way(self.rank)
        self.modes, self.place = self.way.modes, self.rank.at
        self.call, self.wait, self.received = self.way.call, self.way.wait, self.way.received
        self.clear, self.close = self.rank.clear, self.way.close

    def prepare(self, op: Op, n: int) -> None:
        """Make what this rank gives, and the place for what it gets."""
        self.rank.prepare(op, n, alone=True)

    def about(self) -> Any:
        """What the results should say of it."""
        if isinstance(self.way, Nccl):
            return f"NCCL {self.way.nccl.version}"
        if not isinstance(self.way, ways.Ours):
            return p2p_paths.library_version()
        peer = (self.world.rank + 1) % self.world.size
        buffer = self.wm.zeros(1, "f4", self.rank.device)
        return {
            "version": self.wm.__version__,
            "mpi": p2p_paths.library_version(),
            "device": self.rank.device.alias,
            "transport": str(self.wm.transport(self.rank.comm, peer, buffer)),
            "stats": {name: count for name, count in self.wm.stats().items() if count},
        }


class CudaAwareMpi(ways.Mpi):
    """mpi4py on a CUDA-aware MPI takes the arrays as they are."""

    def __init__(self, rank):
        p2p_paths.CudaAwareMpi(rank.world)  # it raises where MPI is another one
        super().__init__(rank)

    def steps(self, op, n):
        if isinstance(op, Many):
            raise LeftOut("nonblocking ones add on the CPU, which cannot read these")
        return super().steps(op, n)


def refuse_shared_gpus(world: Any, gpus: int) -> None:
    """NCCL wants one GPU for each rank."""
    from mpi4py import MPI

    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    shared = any(world.allgather(node.size > gpus))
    node.Free()
    if shared:
        raise LeftOut("ranks share a GPU, which NCCL refuses")


class Nccl(ways.Nccl):
    """NCCL, also of many Allreduces at once."""

    def __init__(self, rank):
        refuse_shared_gpus(rank.world, rank.wm.get_cuda_device_count())
        super().__init__(rank)

    def _parts(self, op, n):
        if not isinstance(op, Many):
            return super()._parts(op, n)
        kind, add = c_int(nccl.FLOAT32), c_int(nccl.SUM)
        stream = c_void_p(self.rank.stream.cuda_stream)
        ends = [self.rank.address(array) for array in self.ends]

        def part(each: slice) -> Callable[[], int]:
            """Reduces a part of the vector."""
            at = [c_void_p(end + 4 * each.start) for end in ends]
            count = c_size_t(each.stop - each.start)
            return self.nccl.prepared("ncclAllReduce", stream, *at, count, kind, add)

        return [Step(True, True, self.nccl.grouped([part(each) for each in op.parts(n)]))]


class Torch:
    """torch.distributed over NCCL; reductions are in place, as it has no others."""

    modes = "synced", "stream"
    everything = False

    def __init__(self, world: Any):
        self.world, self.place = world, (world.rank, world.size)
        torch = importlib.import_module("torch")
        refuse_shared_gpus(world, torch.cuda.device_count())
        self.library = p2p_paths.Torch(world)
        self.torch, self.dist = torch, self.library.dist
        self.wait = torch.cuda.current_stream().synchronize

    def prepare(self, op, n):
        self.send = self.recv = None  # the ones before
        given, room = op.given(*self.place, n), op.room(*self.place, n)
        if given is not None:
            self.send = self.torch.from_numpy(given).cuda()
        if room is not None:
            kind = getattr(self.torch, op.dtype.name)
            self.recv = self.torch.zeros(room, dtype=kind, device="cuda")
        if op.name in ("Reduce", "Allreduce"):
            self.recv = self.torch.empty_like(self.send)
        self.in_place = op.name in ("Reduce", "Allreduce")
        self.torch.cuda.synchronize()

    def clear(self):
        if self.in_place:
            self.recv.copy_(self.send)
        elif self.recv is not None:
            self.recv.fill_(-1)
        self.torch.cuda.synchronize()

    def received(self):
        return None if self.recv is None else self.recv.cpu().numpy()

    def enqueued(self, op, n):
        dist, send, recv = self.dist, self.send, self.recv
        if op.name == "Bcast":
            return partial(dist.broadcast, recv if send is None else send, 0)
        if op.name == "Gather":
            return partial(dist.gather, send, None if recv is None else list(recv.split(n)), 0)
        if op.name == "Scatter":
            return partial(dist.scatter, recv, None if send is None else list(send.split(n)), 0)
        if op.name == "Allgather":
            return partial(dist.all_gather_into_tensor, recv, send)
        if op.name == "Alltoall":
            return partial(dist.all_to_all_single, recv, send)
        if op.name == "Reduce":
            return partial(dist.reduce, recv, 0)
        if op.name == "Allreduce":
            return partial(dist.all_reduce, recv)
        if op.name == "Reduce_scatter_block":
            return partial(dist.reduce_scatter_tensor, recv, send)
        return None

    def call(self, op, n, mode):
        enqueue = self.enqueued(op, n)
        if op.name == "Barrier" and mode == "synced":
            enqueue = self.dist.barrier
        if enqueue is None:
            raise LeftOut("there is no such call")
        return chained([enqueue, self.wait]) if mode == "synced" else enqueue

    def close(self):
        self.torch.cuda.synchronize()
        self.library.close()

    def about(self):
        return self.library.about()


# name: (class, the caption); "link" is no library.
WAYS: dict[str, tuple[Callable[[Any], Any] | None, str]] = {
    "warpmpi": (partial(Library, ways.Ours, "wm", True), "warpmpi"),
    "warpmpi-cupy": (partial(Library, ways.Ours, "cupy", False), "warpmpi, CuPy"),
    "nccl": (partial(Library, Nccl, "cupy", False), "NCCL"),
    "torch-nccl": (Torch, "torch, NCCL"),
    "staged": (partial(Library, ways.Staged, "cupy", True), "mpi4py, staged"),
    "cuda-aware-mpi": (partial(Library, CudaAwareMpi, "cupy", False), "CUDA-aware MPI"),
    "link": (None, "link"),
}
