# SPDX-License-Identifier: BSD-3-Clause
"""The libraries whose collectives bench_coll.py compares.

Each is a class: `prepare` makes the buffers of an operation, `synced` gives its
blocking call, `enqueued` the one that only enqueues it on a stream, for which
`wait` waits. A library is imported by the ranks that measure it and by no others.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from ctypes import c_int, c_size_t, c_void_p
from functools import partial
from typing import Any

import nccl_ctypes
import numpy as np
import p2p_paths
from coll_ops import Many, Op
from p2p_paths import cupy_on_own_gpu, library_version, pinned

Call = Callable[[], Any]
GRAPH_CALLS = 20  # of one captured graph


class LeftOut(Exception):
    """Why this machine cannot run it: no failure."""


class Way:
    """One library; `world` is mpi4py's communicator of its ranks."""

    modes: tuple[str, ...] = ("synced",)
    everything = False  # also the operations that NCCL lacks
    send: Any
    recv: Any

    def __init__(self, world: Any):
        self.world = world
        self.place = world.rank, world.size

    def prepare(self, op: Op, n: int) -> None:
        """Make what this rank gives, and the place for what it gets; each may be None."""
        self.send = self.recv = None  # the ones before
        given, room = op.given(*self.place, n), op.room(*self.place, n)
        self.send = None if given is None else self.upload(given)
        self.recv = None if room is None else self.make(room, op.dtype)

    def upload(self, data: np.ndarray) -> Any:
        raise NotImplementedError

    def make(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        raise NotImplementedError

    def clear(self) -> None:
        """Overwrite what this rank gets, and wait for that."""
        raise NotImplementedError

    def received(self) -> np.ndarray | None:
        """What this rank got, on the host."""
        raise NotImplementedError

    def synced(self, op: Op, n: int) -> Call | None:
        """The call after which its result can be used; None: there is none."""
        raise NotImplementedError

    def enqueued(self, op: Op, n: int) -> Call | None:
        """The call that only enqueues it; None: there is none."""
        return None

    def wait(self) -> None:
        """Wait for what was enqueued."""

    def captured(self, op: Op, n: int) -> Call | None:
        """GRAPH_CALLS enqueued calls as one graph, which only is enqueued."""
        return None

    def close(self) -> None:
        """Leave the library as it wants to be left."""

    def about(self) -> Any:
        """What the results should say of it."""
        return library_version()


def capture(stream: Any, call: Call) -> Call:
    """A CUDA graph of GRAPH_CALLS calls that enqueue on CuPy's stream."""
    stream.begin_capture()
    try:
        for _ in range(GRAPH_CALLS):
            call()
    finally:
        graph = stream.end_capture()
    return partial(graph.launch, stream)


class CupyArrays(Way):
    """Buffers that are CuPy's arrays, on its current device."""

    cupy: Any

    def upload(self, data):
        return self.cupy.asarray(data)

    def make(self, shape, dtype):
        return self.cupy.zeros(shape, dtype)

    def received(self):
        return None if self.recv is None else self.recv.get()

    def overwrite(self):
        if self.recv is not None:
            self.recv.fill(-1)


class Warpmpi(Way):
    """warpmpi's own arrays."""

    modes = "synced", "stream", "graph"
    everything = True

    def __init__(self, world):
        super().__init__(world)
        self.wm = importlib.import_module("warpmpi")
        self.comm = self.wm.Comm(world)
        self.device = self.wm.get_device()
        self.stream = self.wm.Stream(self.device)

    def upload(self, data):
        return self.wm.from_numpy(data, device=self.device)

    def make(self, shape, dtype):
        return self.wm.zeros(shape, dtype, self.device)

    def clear(self):
        if self.recv is not None:
            self.recv.fill_(-1)
        self.wm.synchronize_device(self.device)

    def received(self):
        return None if self.recv is None else self.recv.numpy()

    def synced(self, op, n):
        return op.call(self.comm, self.send, self.recv, *self.place, n)

    def on(self, stream, op, n):
        comm = self.comm.on(stream)
        if isinstance(op, Many) or not hasattr(comm, op.name):
            return None
        return op.call(comm, self.send, self.recv, *self.place, n)

    def enqueued(self, op, n):
        return self.on(self.stream, op, n)

    def wait(self):
        self.stream.synchronize()

    def captured(self, op, n):
        if self.on(self.stream, op, n) is None:
            return None
        if importlib.util.find_spec("cupy") is None:
            raise LeftOut("CuPy, which captures the graph, is not installed")
        cupy = p2p_paths.cupy_on(self.device)
        self.stream = cupy.cuda.Stream(non_blocking=True)
        call = self.on(self.stream, op, n)
        call()  # so that nothing is left to be set up
        self.stream.synchronize()
        return capture(self.stream, call)

    def about(self):
        peer = (self.world.rank + 1) % self.world.size
        buffer = self.wm.zeros(1, "f4", self.device)
        return {
            "version": self.wm.__version__,
            "mpi": library_version(),
            "device": self.device.alias,
            "transport": str(self.wm.transport(self.comm, peer, buffer)),
            "stats": {name: count for name, count in self.wm.stats().items() if count},
        }


class WarpmpiCupy(CupyArrays, Warpmpi):
    """The same calls with CuPy's arrays."""

    everything = False

    def __init__(self, world):
        super().__init__(world)
        self.cupy = importlib.import_module("cupy")
        self.cupy.cuda.Device(self.device.ordinal).use()

    def clear(self):
        self.overwrite()
        self.wm.synchronize_device(self.device)


class Cupy(CupyArrays):
    """What the ways below have in common: CuPy's arrays on this rank's GPU."""

    def __init__(self, world):
        super().__init__(world)
        self.cupy = cupy_on_own_gpu(world)
        self.stream = self.cupy.cuda.Stream(non_blocking=True)

    def prepare(self, op, n):
        super().prepare(op, n)
        self.cupy.cuda.runtime.deviceSynchronize()

    def clear(self):
        self.overwrite()
        self.cupy.cuda.runtime.deviceSynchronize()

    def wait(self):
        self.stream.synchronize()


class Staged(Cupy):
    """Staged by hand: copy to pinned memory, mpi4py, copy from pinned memory."""

    everything = True

    def host(self, array: Any) -> np.ndarray | None:
        if array is None:
            return None
        return pinned(self.cupy, array.nbytes).view(array.dtype).reshape(array.shape)

    def synced(self, op, n):
        out, into = self.host(self.send), self.host(self.recv)
        try:
            call = op.call(self.world, out, into, *self.place, n)
        except NotImplementedError:
            return None  # mpi4py's, where MPI has no persistent collectives
        wait = self.stream.synchronize
        steps: list[Call] = [call]
        if out is not None:
            source, pointer = self.send.data, c_void_p(out.ctypes.data)
            down = partial(source.copy_to_host_async, pointer, out.nbytes, self.stream)
            steps = [down, wait, *steps]
        if into is not None:
            target, pointer = self.recv.data, c_void_p(into.ctypes.data)
            up = partial(target.copy_from_host_async, pointer, into.nbytes, self.stream)
            steps = [*steps, up, wait]

        def run() -> None:
            for step in steps:
                step()

        return run


class CudaAwareMpi(Cupy):
    """mpi4py on a CUDA-aware MPI takes the arrays as they are."""

    def __init__(self, world):
        p2p_paths.CudaAwareMpi(world)  # it raises where MPI is another one
        super().__init__(world)

    def synced(self, op, n):
        if isinstance(op, Many):
            return None  # nonblocking ones add on the CPU, which cannot read these
        return op.call(self.world, self.send, self.recv, *self.place, n)


def refuse_shared_gpus(world: Any, gpus: int) -> None:
    """NCCL wants one GPU for each rank."""
    from mpi4py import MPI

    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    shared = any(world.allgather(node.size > gpus))
    node.Free()
    if shared:
        raise LeftOut("ranks share a GPU, which NCCL refuses")


class NcclCalls(Way):
    """NCCL's calls by ctypes, with arguments that were made beforehand.

    A class of it has the communicator, a word on the GPU, and the arrays.
    """

    nccl: nccl_ctypes.Communicator
    word: Any

    def address(self, array: Any) -> int:
        raise NotImplementedError

    def handle(self) -> int:
        """CUDA's, of the stream."""
        raise NotImplementedError

    def enqueued(self, op, n):
        world, nccl, kind = self.world, self.nccl, c_int(nccl_ctypes.FLOAT32)
        add, root, stream = c_int(nccl_ctypes.SUM), c_int(0), c_void_p(self.handle())

        def at(array: Any, block: int = 0) -> c_void_p:
            return c_void_p(None if array is None else self.address(array) + 4 * n * block)

        def one(name: str, *arguments: Any) -> Call:
            return nccl.checked(nccl.prepared(name, stream, *arguments))

        def blocks(name: str, array: Any) -> list[Callable[[], int]]:
            """A send or receive of each rank's block."""
            return [
                nccl.prepared(name, stream, at(array, rank), count, kind, c_int(rank))
                for rank in range(world.size)
            ]

        def part(each: slice) -> Callable[[], int]:
            """Reduces a part of the vector."""
            at = [
                c_void_p(self.address(array) + 4 * each.start) for array in (self.send, self.recv)
            ]
            return nccl.prepared(
                "ncclAllReduce", stream, *at, c_size_t(each.stop - each.start), kind, add
            )

        def with_root(name: str, array: Any) -> Callable[[], int]:
            return nccl.prepared(name, stream, at(array), count, kind, root)

        send, recv, count = at(self.send), at(self.recv), c_size_t(n)
        if op.name == "Barrier":  # what stands for it where NCCL is used
            word = at(self.word)
            return one("ncclAllReduce", word, word, c_size_t(1), kind, add)
        if op.name == "Bcast":
            buffer = recv if self.send is None else send
            return one("ncclBroadcast", buffer, buffer, count, kind, root)
        if op.name == "Reduce":
            return one("ncclReduce", send, recv, count, kind, add, root)
        if op.name == "Allreduce":
            return one("ncclAllReduce", send, recv, count, kind, add)
        if isinstance(op, Many):
            return nccl.grouped([part(each) for each in op.parts(n)])
        if op.name == "Allgather":
            return one("ncclAllGather", send, recv, count, kind)
        if op.name == "Reduce_scatter_block":
            return one("ncclReduceScatter", send, recv, count, kind, add)
        native = hasattr(nccl.lib, "ncclAlltoAll")  # since 2.28
        if op.name == "Alltoall":
            if native:
                return one("ncclAlltoAll", send, recv, count, kind)
            return nccl.grouped(blocks("ncclSend", self.send) + blocks("ncclRecv", self.recv))
        if op.name == "Gather":
            if native:
                return one("ncclGather", send, recv, count, kind, root)
            received = blocks("ncclRecv", self.recv) if world.rank == 0 else []
            return nccl.grouped([with_root("ncclSend", self.send), *received])
        if op.name == "Scatter":
            if native:
                return one("ncclScatter", send, recv, count, kind, root)
            sent = blocks("ncclSend", self.send) if world.rank == 0 else []
            return nccl.grouped([*sent, with_root("ncclRecv", self.recv)])
        return None

    def synced(self, op, n):
        enqueue, wait = self.enqueued(op, n), self.wait
        if enqueue is None:
            return None

        def run() -> None:
            enqueue()
            wait()

        return run

    def close(self):
        self.wait()
        self.nccl.close()

    def about(self):
        return f"NCCL {self.nccl.version}"


class Nccl(NcclCalls, Cupy):
    """The same on CuPy's arrays."""

    modes = "synced", "stream", "graph"

    def __init__(self, world):
        super().__init__(world)
        refuse_shared_gpus(world, self.cupy.cuda.runtime.getDeviceCount())
        self.nccl = nccl_ctypes.Communicator(world)
        self.word = self.cupy.zeros(1, self.cupy.float32)
        self.cupy.cuda.runtime.deviceSynchronize()

    def address(self, array):
        return array.data.ptr

    def handle(self):
        return self.stream.ptr

    def captured(self, op, n):
        call = self.enqueued(op, n)
        return None if call is None else capture(self.stream, call)


class Torch(Way):
    """torch.distributed over NCCL; reductions are in place, as it has no others."""

    modes = "synced", "stream"

    def __init__(self, world):
        super().__init__(world)
        torch = importlib.import_module("torch")
        refuse_shared_gpus(world, torch.cuda.device_count())
        self.library = p2p_paths.Torch(world)
        self.torch, self.dist = torch, self.library.dist
        self.wait = torch.cuda.current_stream().synchronize

    def prepare(self, op, n):
        super().prepare(op, n)
        if op.name in ("Reduce", "Allreduce"):
            self.recv = self.torch.empty_like(self.send)
        self.in_place = op.name in ("Reduce", "Allreduce")
        self.torch.cuda.synchronize()

    def upload(self, data):
        return self.torch.from_numpy(data).cuda()

    def make(self, shape, dtype):
        return self.torch.zeros(shape, dtype=getattr(self.torch, dtype.name), device="cuda")

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

    def synced(self, op, n):
        if op.name == "Barrier":
            enqueue: Call | None = self.dist.barrier
        else:
            enqueue = self.enqueued(op, n)
        if enqueue is None:
            return None

        def run() -> None:
            enqueue()
            self.wait()

        return run

    def close(self):
        self.torch.cuda.synchronize()
        self.library.close()

    def about(self):
        return self.library.about()


# name: (class, the caption); "link" is no library.
WAYS: dict[str, tuple[type[Way] | None, str]] = {
    "warpmpi": (Warpmpi, "warpmpi"),
    "warpmpi-cupy": (WarpmpiCupy, "warpmpi, CuPy"),
    "nccl": (Nccl, "NCCL"),
    "torch-nccl": (Torch, "torch, NCCL"),
    "staged": (Staged, "mpi4py, staged"),
    "cuda-aware-mpi": (CudaAwareMpi, "CUDA-aware MPI"),
    "link": (None, "link"),
}
