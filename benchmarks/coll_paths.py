# SPDX-License-Identifier: BSD-3-Clause
"""The libraries whose collectives bench_coll.py compares.

Each is a class: `prepare` makes the buffers of an operation, `call` gives its call in a mode,
`wait` waits for what calls only enqueue. But for torch.distributed they are the ways of
`python -m warpmpi bench`, in ranks of their own.
"""

from __future__ import annotations

import ctypes
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
        if isinstance(self.way, Windows):
            self.way.move()

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


class Room:
    """Memory that NCCL has allocated, as an array of others."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: Any):
        self.address = address
        described = {"shape": shape, "typestr": dtype.str, "data": (address, False)}
        self.__cuda_array_interface__ = {**described, "version": 3}


class Windows(Nccl):
    """NCCL with both buffers in registered symmetric windows."""

    ALIGNMENT, SYMMETRIC = 4096, 1  # NCCL_WIN_REQUIRED_ALIGNMENT, NCCL_WIN_COLL_SYMMETRIC

    def __init__(self, rank):
        super().__init__(rank)
        if not hasattr(self.nccl.lib, "ncclCommWindowRegister"):
            raise LeftOut("this NCCL has no symmetric windows")
        # Of what is sent and of what is received: (address, window, bytes).
        self.windows: list[tuple[c_void_p, c_void_p, int]] = []

    def move(self) -> None:
        """Have the rank's buffers in windows, of one size on all ranks."""
        rank = self.rank
        sizes = [0 if array is None else rank.view(array).nbytes for array in rank.own]
        sizes = [max(each) for each in zip(*rank.world.allgather(sizes), strict=True)]
        if any(size > nbytes for size, (_, _, nbytes) in zip(sizes, self.windows, strict=False)):
            self.free()
        if not self.windows:
            self.windows = [self.window(size) for size in sizes]
        rank.own = rank.given = tuple(map(self.moved, rank.own, self.windows))

    def moved(self, array: Any, window: tuple[c_void_p, c_void_p, int]) -> Any:
        if array is None:
            return None
        view = self.rank.view(array)
        assert window[0].value is not None
        room = self.rank.wm.asarray(Room(window[0].value, view.shape, view.dtype))
        room[...] = view
        self.rank.wm.synchronize_device(self.rank.device)
        return room

    def window(self, size: int) -> tuple[c_void_p, c_void_p, int]:
        lib, check = self.nccl.lib, self.nccl.check
        size = -(-max(1, size) // self.ALIGNMENT) * self.ALIGNMENT
        memory, window, nbytes = c_void_p(), c_void_p(), c_size_t(size)
        check(lib.ncclMemAlloc(ctypes.byref(memory), nbytes))
        to, flags = ctypes.byref(window), c_int(self.SYMMETRIC)
        check(lib.ncclCommWindowRegister(self.nccl.handle, memory, nbytes, to, flags))
        return memory, window, size

    def free(self) -> None:
        self.wait()
        for memory, window, _ in self.windows:
            self.nccl.check(self.nccl.lib.ncclCommWindowDeregister(self.nccl.handle, window))
            self.nccl.check(self.nccl.lib.ncclMemFree(memory))
        self.windows = []

    def close(self):
        self.rank.own = self.rank.given = None, None
        self.free()
        super().close()


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


class TorchSymm:
    """PyTorch's symmetric memory: its kernels that add what all ranks have mapped.

    two_shots: Allreduce reduces parts and gathers them, in place; else each rank adds all.
    Buffers are padded to 16 bytes, as the kernels want. In place, sums grow from call to
    call, by powers of two exactly.
    """

    modes = "synced", "stream", "graph"
    everything = False

    def __init__(self, two_shots: bool, world: Any):
        self.two_shots, self.world = two_shots, world
        self.place = world.rank, world.size
        self.torch = torch = importlib.import_module("torch")
        refuse_shared_gpus(world, torch.cuda.device_count())
        self.library = p2p_paths.Torch(world)
        self.memory = importlib.import_module("torch.distributed._symmetric_memory")
        self.group = self.library.dist.group.WORLD.group_name
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self.wait, self.calls = self.stream.synchronize, 1
        self.buffers: dict[int, Any] = {}

    def buffer(self, blocks: int, padded: int) -> Any:
        """Symmetric memory of so many blocks; kept, as mapping it takes all ranks."""
        count = blocks * padded
        if count not in self.buffers:
            device = f"cuda:{self.torch.cuda.current_device()}"
            made = self.memory.empty(count, dtype=self.torch.float32, device=device)
            self.memory.rendezvous(made, self.group)
            self.buffers[count] = made
        return self.buffers[count].view(blocks, padded)

    def prepare(self, op, n):
        if op.name not in ("Allreduce", "Reduce_scatter_block") or op.kind != "float32":
            raise LeftOut("there is no such call")
        blocks, padded = self.place[1] if op.split else 1, -(-n // 4) * 4
        given = self.torch.from_numpy(op.given(*self.place, n)).cuda().view(blocks, n)
        self.n, self.given = n, given
        self.send = self.buffer(blocks, padded)
        self.recv = self.torch.zeros(padded, dtype=self.torch.float32, device="cuda")
        self.in_place = self.two_shots and not op.split

    def clear(self):
        self.send.zero_()
        self.send[:, : self.n].copy_(self.given)
        self.recv.fill_(-1)
        self.torch.cuda.synchronize()

    def received(self):
        if not self.in_place:
            return self.recv[: self.n].cpu().numpy()
        grown = float(self.place[1]) ** (self.calls - 1)
        return self.send[0, : self.n].cpu().numpy() / grown

    def enqueued(self, op):
        ops, send, recv, group = self.torch.ops.symm_mem, self.send.view(-1), self.recv, self.group
        if op.split:
            return partial(ops.reduce_scatter_out, send, group, False, recv)
        if self.two_shots:
            return partial(ops.two_shot_all_reduce_, send, "sum", group)
        return partial(ops.one_shot_all_reduce_out, send, "sum", group, recv)

    def call(self, op, n, mode):
        call = self.enqueued(op)
        self.calls = ways.graph_calls(op, n, self.place[1]) if mode == "graph" else 1
        if mode == "synced":
            return chained([call, self.wait])
        if mode == "stream":
            return call
        call()  # so that nothing is left to be set up
        self.wait()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph, stream=self.stream, capture_error_mode="relaxed"):
            for _ in range(self.calls):
                call()
        self.torch.cuda.set_stream(self.stream)
        return graph.replay

    def close(self):
        self.torch.cuda.synchronize()
        self.buffers.clear()
        self.library.close()

    def about(self):
        return self.library.about()


# name: (class, the caption); "link" is no library.
WAYS: dict[str, tuple[Callable[[Any], Any] | None, str]] = {
    "warpmpi": (partial(Library, ways.Ours, "wm", True), "warpmpi"),
    "warpmpi-cupy": (partial(Library, ways.Ours, "cupy", False), "warpmpi, CuPy"),
    "nccl": (partial(Library, Nccl, "cupy", False), "NCCL"),
    "nccl-windows": (partial(Library, Windows, "wm", False), "NCCL, symmetric windows"),
    "torch-symm": (partial(TorchSymm, False), "torch, symmetric memory"),
    "torch-symm-2": (partial(TorchSymm, True), "torch, symmetric memory, two shots"),
    "torch-nccl": (Torch, "torch, NCCL"),
    "staged": (partial(Library, ways.Staged, "cupy", True), "mpi4py, staged"),
    "cuda-aware-mpi": (partial(Library, CudaAwareMpi, "cupy", False), "CUDA-aware MPI"),
    "link": (None, "link"),
}
