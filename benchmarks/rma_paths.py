# SPDX-License-Identifier: BSD-3-Clause
"""The ways into another rank's memory that bench_rma.py compares.

Each is a class, whose `calls` gives what it can do, of a number of bytes or of none.
Rank 0 reads and writes the memory of rank 1; all ranks synchronize. A library is imported
by the ranks that measure it and by no others.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import package  # noqa: F401  # makes _bench
from _bench import nccl as nccl_ctypes
from coll_paths import LeftOut
from harness import Call
from p2p_paths import cupy_on, cupy_on_own_gpu, library_version

TARGET = 1  # the rank whose memory it is
LARGEST = 1 << 28
LONG = 1 << 20  # bytes from which copies by kernels are measured
KERNEL_COPY = "copy by a kernel"
TURNS = 1000  # of a signal between kernels


def nothing() -> None:
    """What a rank does that has nothing to do."""


class Row(NamedTuple):
    """One call, which all ranks make or rank 0 alone."""

    op: str
    call: Call
    right: Call = lambda: True  # whether its data are there, on the rank that has them
    messages: int = 1  # times that data travel in a call


class Way:
    """One library; `world` is mpi4py's communicator of its ranks."""

    room = LARGEST  # bytes of the memory

    def __init__(self, world: Any):
        self.world, self.rank = world, world.rank

    def calls(self, nbytes: int) -> Iterator[Row]:
        """What moves so many bytes."""
        return iter(())

    def synchronizations(self) -> Iterator[Row]:
        """What moves 8 bytes at most."""
        return iter(())

    def only_origin(self, call: Call) -> Call:
        return call if self.rank == 0 else nothing

    def only_target(self, right: Call) -> Call:
        return right if self.rank == TARGET else lambda: True

    def close(self) -> None:
        """Leave the library as it wants to be left."""

    def about(self) -> Any:
        """What the results should say of it."""
        return library_version()


class Windows(Way):
    """MPI's calls on a window; `memory` makes its arrays."""

    messages: Any  # a communicator whose messages are measured beside

    def open(self, windows: Any, comm: Any, memory: Any, host: Any) -> None:
        """windows: MPI.Win or ours. memory: makes an array of NumPy's; host: gives it back."""
        self.memory, self.host, self.messages = memory, host, comm
        self.part, self.win = self.make(windows, self.room if self.rank == TARGET else 8)
        self.win.Lock_all()

    def make(self, windows: Any, nbytes: int) -> tuple[Any, Any]:
        """This rank's memory, and the window."""
        part = self.memory(np.zeros(nbytes, np.uint8))
        return part, windows.Create(part, 1, comm=self.messages)

    def origin(self, nbytes: int, value: int) -> Any:
        return self.memory(np.full(nbytes, value, np.uint8))

    def arrived(self, nbytes: int, value: int) -> bool:
        return bool((self.host(self.part[:nbytes]) == value).all())

    def calls(self, nbytes):
        win, sent = self.win, self.origin(nbytes, 7)

        def put() -> None:
            win.Put(sent, TARGET)
            win.Flush(TARGET)

        right = self.only_target(partial(self.arrived, nbytes, 7))
        yield Row("Put, Flush", self.only_origin(put), right)
        got = self.origin(nbytes, 1)

        def get() -> None:
            win.Get(got, TARGET)
            win.Flush(TARGET)

        def fetched() -> bool:
            return self.rank != 0 or bool((self.host(got) == 7).all())

        yield Row("Get, Flush", self.only_origin(get), fetched)
        yield from self.accumulates(nbytes)
        comm, back = self.messages, self.origin(nbytes, 2)
        order = [partial(comm.Send, sent, 1 - self.rank), partial(comm.Recv, back, 1 - self.rank)]
        if self.rank > TARGET:
            order = []
        elif self.rank:
            order.reverse()

        def ping_pong() -> None:
            for step in order:
                step()

        yield Row("Send", ping_pong, messages=2)

    def accumulates(self, nbytes: int) -> Iterator[Row]:
        win, added = self.win, self.memory(np.zeros(nbytes // 4, np.float32))

        def add() -> None:
            win.Accumulate(added, TARGET)
            win.Flush(TARGET)

        yield Row("Accumulate, Flush", self.only_origin(add))

    def synchronizations(self):
        from mpi4py import MPI

        win = self.win
        one, old = (self.memory(np.ones(1, np.int64)) for _ in range(2))

        def fetch() -> None:
            win.Fetch_and_op(one, old, TARGET)
            win.Flush(TARGET)

        def swap() -> None:
            win.Compare_and_swap(one, one, old, TARGET)
            win.Flush(TARGET)

        yield Row("Fetch_and_op, Flush", self.only_origin(fetch))
        yield Row("Compare_and_swap, Flush", self.only_origin(swap))
        win.Unlock_all()

        def lock() -> None:
            win.Lock(TARGET, MPI.LOCK_EXCLUSIVE)
            win.Unlock(TARGET)

        yield Row("Lock, Unlock", self.only_origin(lock))
        self.world.Barrier()
        win.Fence()
        yield Row("Fence", win.Fence)
        win.Fence(MPI.MODE_NOSUCCEED)
        yield Row("Barrier", self.messages.Barrier)

    def close(self):
        self.win.Free()


class Warpmpi(Windows):
    """wm.Win over wm.Arrays."""

    def __init__(self, world):
        super().__init__(world)
        wm = self.wm = importlib.import_module("warpmpi")
        self.open(wm.Win, wm.Comm(world), self.upload, lambda array: array.numpy())

    def upload(self, data: np.ndarray) -> Any:
        return self.wm.from_numpy(data, device=self.wm.get_device())

    def about(self):
        stats = {name: count for name, count in self.wm.stats().items() if count}
        return {"version": self.wm.__version__, "mpi": library_version(), "stats": stats}


class WarpmpiCupy(Warpmpi):
    """The same with CuPy's arrays."""

    def __init__(self, world):
        if not importlib.util.find_spec("cupy"):
            raise LeftOut("CuPy is not installed")
        self.cupy = cupy_on(importlib.import_module("warpmpi").get_device())
        super().__init__(world)
        self.host = lambda array: array.get()

    def upload(self, data):
        return self.cupy.asarray(data)


class HostMemory(Windows):
    """Windows that allocate host memory, as Open MPI 4.1 with threads has no others."""

    def make(self, windows, nbytes):
        win = windows.Allocate(nbytes, 1, comm=self.messages)
        return np.asarray(win.tomemory()), win


class WarpmpiHost(HostMemory, Warpmpi):
    """wm.Win over NumPy's arrays."""

    def __init__(self, world):
        super().__init__(world)
        self.host = np.asarray

    def upload(self, data):
        return data


class Mpi4py(HostMemory):
    """Plain mpi4py over NumPy's arrays."""

    def __init__(self, world):
        from mpi4py import MPI

        super().__init__(world)
        self.open(MPI.Win, world, lambda data: data, np.asarray)


COPY = r"""
extern "C" __global__ void copy(const uint4 *from, uint4 *to, long long n)
{
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.x * blockDim.x)
        to[i] = from[i];
}
"""


def kernel_copy(cupy: Any, stream: Any, to: int, source: int, nbytes: int) -> Call:
    """A copy by a kernel on all multiprocessors, and the wait for it."""
    copy = cupy.RawKernel(COPY, "copy")
    blocks = 4 * cupy.cuda.Device().attributes["MultiProcessorCount"]
    args = np.uint64(source), np.uint64(to), np.int64(nbytes // 16)

    def call() -> None:
        with stream:
            copy((blocks,), (512,), args)
        stream.synchronize()

    return call


class Bare(Way):
    """Copies and sums in a GPU's own memory, and a wait for each."""

    def __init__(self, world):
        if not importlib.util.find_spec("cupy"):
            raise LeftOut("CuPy is not installed")
        super().__init__(world)
        self.cupy = cupy_on_own_gpu(world)
        self.stream = self.cupy.cuda.Stream(non_blocking=True)

    def calls(self, nbytes):
        stream, cupy = self.stream, self.cupy
        a, b = cupy.zeros(nbytes, "u1"), cupy.ones(nbytes, "u1")
        x, y = a[: nbytes // 4 * 4].view("f4"), cupy.ones(nbytes // 4, "f4")
        cupy.cuda.runtime.deviceSynchronize()

        def copy() -> None:
            a.data.copy_from_device_async(b.data, nbytes, stream)
            stream.synchronize()

        def add() -> None:
            with stream:
                cupy.add(x, y, x)
            stream.synchronize()

        yield Row("copy", self.only_origin(copy), lambda: self.rank != 0 or bool(a.all()))
        yield Row("add", self.only_origin(add))
        if nbytes >= LONG:
            by_kernel = kernel_copy(cupy, stream, a.data.ptr, b.data.ptr, nbytes)
            yield Row(KERNEL_COPY, self.only_origin(by_kernel))

    def about(self):
        return f"CuPy {self.cupy.__version__}"


class Signals(Way):
    """What shared arrays, NVSHMEM and NCCL have: a put with a signal, and the wait for it."""

    def __init__(self, world):
        if not importlib.util.find_spec("cupy"):
            raise LeftOut("CuPy is not installed")
        super().__init__(world)
        self.cupy = cupy_on_own_gpu(world)
        self.peer = self.rank ^ 1  # ranks 0 and 1 measure; others look on

    def wait(self) -> None:
        raise NotImplementedError

    def put(self, nbytes: int) -> None:
        raise NotImplementedError

    def await_signal(self) -> None:
        raise NotImplementedError

    def calls(self, nbytes):
        def ping_pong() -> None:
            if self.rank == 0:
                self.put(nbytes)
            self.await_signal()
            if self.rank == 1:
                self.put(nbytes)
            self.wait()

        yield Row("put, signal, wait", ping_pong if self.rank < 2 else nothing, messages=2)


PING = r"""
#include <warpmpi/shared.cuh>

extern "C" __global__ void ping(const wm_shared_t *a, int peer, int rank, int turns)
{
    volatile long long *theirs = (volatile long long *)wm_shared_pointer(a, peer);
    for (int turn = 1; turn <= turns; ++turn) {
        if (rank > 0)
            wm_shared_wait(a, 1, 1);
        *theirs = turn;
        wm_shared_signal(a, peer, 1, 1);
        if (rank == 0)
            wm_shared_wait(a, 1, 1);
    }
}
"""


class Shared(Signals):
    """wm.SharedArray: CuPy copies into the other rank's array, or kernels store there."""

    def __init__(self, world):
        super().__init__(world)
        wm = self.wm = importlib.import_module("warpmpi")
        cupy_on(wm.get_device())
        self.stream = self.cupy.cuda.Stream(non_blocking=True)
        self.wait = self.stream.synchronize
        self.array = wm.shared_empty(self.room, "u1", comm=wm.Comm(world), like="cupy")
        self.into = self.array.peer(self.peer % world.size).data
        self.source = self.cupy.zeros(self.room, "u1")
        self.cupy.cuda.runtime.deviceSynchronize()

    def put(self, nbytes):
        self.into.copy_from_device_async(self.source.data, nbytes, self.stream)
        self.array.signal(self.peer, 0, stream=self.stream)

    def await_signal(self):
        self.array.wait(0, stream=self.stream)

    def calls(self, nbytes):
        yield from super().calls(nbytes)
        if nbytes == 8:
            yield self.in_kernels()
        if nbytes >= LONG:
            to, source = self.into.ptr, self.source.data.ptr
            by_kernel = kernel_copy(self.cupy, self.stream, to, source, nbytes)
            yield Row(KERNEL_COPY, self.only_origin(by_kernel))

            def copy() -> None:
                self.into.copy_from_device_async(self.source.data, nbytes, self.stream)
                self.wait()

            yield Row("copy to the peer", self.only_origin(copy))

    def in_kernels(self) -> Row:
        """Both kernels are one launch: each turn is there and back."""
        options = (f"-I{self.wm.include_dir()}", "-std=c++17")
        kernel = self.cupy.RawKernel(PING, "ping", options)
        numbers = map(np.int32, (self.peer, self.rank, TURNS))
        args = np.uint64(self.array.handle), *numbers

        def ping() -> None:
            with self.stream:
                kernel((1,), (1,), args)
            self.wait()

        def right() -> bool:
            return self.rank > 1 or int(self.array.array[:8].view("i8")[0]) == TURNS

        name = "put, signal, wait, and back, in kernels"
        return Row(name, ping if self.rank < 2 else nothing, right, TURNS)

    def synchronizations(self):
        def barrier() -> None:
            self.array.barrier(stream=self.stream)
            self.wait()

        yield Row("Barrier of a stream", barrier)


class Nvshmem(Signals):
    """NVSHMEM by nvshmem4py."""

    def __init__(self, world):
        if not importlib.util.find_spec("nvshmem"):
            raise LeftOut("nvshmem4py is not installed")
        super().__init__(world)
        core = self.core = importlib.import_module("nvshmem.core")
        device = importlib.import_module("cuda.core").Device()
        device.set_current()
        unique = core.get_unique_id(empty=self.rank != 0)
        world.Bcast(unique._data.view(np.int8))
        core.init(
            device=device, uid=unique, rank=self.rank, nranks=world.size, initializer_method="uid"
        )
        self.stream = device.create_stream()
        self.wait = self.stream.sync
        self.signal, self.number = core.buffer(8), 0

    def put(self, nbytes):
        into, data = self.parts[nbytes]
        add = self.core.SignalOp.SIGNAL_ADD
        self.core.put_signal(
            into, data, self.signal, 1, add, remote_pe=self.peer, stream=self.stream
        )

    def await_signal(self):
        self.number += 1
        least = self.core.ComparisonType.CMP_GE
        self.core.signal_wait(self.signal, self.number, least, stream=self.stream)

    def calls(self, nbytes):
        core, stream, wait = self.core, self.stream, self.wait
        into, data = (core.array((nbytes,), "uint8") for _ in range(2))
        self.parts = {nbytes: (into, data)}

        def one_way(move: Any) -> Call:
            def call() -> None:
                move(into, data, remote_pe=self.peer, stream=stream)
                core.quiet(stream=stream)
                wait()

            return self.only_origin(call)

        yield Row("Put, Flush", one_way(core.put))
        yield Row("Get, Flush", one_way(core.get))
        yield from super().calls(nbytes)
        wait()
        self.world.Barrier()
        core.free_array(into)
        core.free_array(data)

    def synchronizations(self):
        def barrier() -> None:
            self.core.barrier_all(stream=self.stream)
            self.wait()

        yield Row("Barrier of a stream", barrier)

    def close(self):
        self.core.free(self.signal)
        self.core.finalize()

    def about(self):
        version = self.core.get_version()
        return f"nvshmem4py {version.nvshmem4py_version}, NVSHMEM {version.libnvshmem_version}"


class Awaited(ctypes.Structure):
    """ncclWaitSignalDesc_t."""

    _fields_ = [(name, ctypes.c_int) for name in ("opCnt", "peer", "sigIdx", "ctx")]


class Nccl(Signals):
    """NCCL's put_signal, since 2.29, by ctypes."""

    def __init__(self, world):
        super().__init__(world)
        self.nccl = nccl_ctypes.Communicator(world)
        if not hasattr(self.nccl.lib, "ncclPutSignal"):
            raise LeftOut(f"NCCL {self.nccl.version} has no ncclPutSignal")
        self.stream = self.cupy.cuda.Stream(non_blocking=True)
        self.wait = self.stream.synchronize
        self.data, self.into = self.registered(), self.registered()  # both ends, says NCCL
        self.awaited = Awaited(1, self.peer, 0, 0)

    def registered(self) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
        """Memory of NCCL's, and its window. Collective."""
        lib, size = self.nccl.lib, ctypes.c_size_t(self.room)
        memory, window = ctypes.c_void_p(), ctypes.c_void_p()
        self.nccl.check(lib.ncclMemAlloc(ctypes.byref(memory), size))
        register = lib.ncclCommWindowRegister
        self.nccl.check(register(self.nccl.handle, memory, size, ctypes.byref(window), 1))
        if not window.value:
            raise LeftOut("NCCL makes no window here")
        return memory, window

    def put(self, nbytes):
        number = ctypes.c_int
        self.nccl.check(
            self.nccl.lib.ncclPutSignal(
                *(self.data[0], ctypes.c_size_t(nbytes), number(nccl_ctypes.UINT8)),
                *(number(self.peer), self.into[1], ctypes.c_size_t(0), number(0), number(0)),
                *(ctypes.c_uint(0), self.nccl.handle, ctypes.c_void_p(self.stream.ptr)),
            )
        )

    def await_signal(self):
        awaited, stream = ctypes.byref(self.awaited), ctypes.c_void_p(self.stream.ptr)
        self.nccl.check(self.nccl.lib.ncclWaitSignal(1, awaited, self.nccl.handle, stream))

    def close(self):
        self.wait()
        self.nccl.close()

    def about(self):
        return f"NCCL {self.nccl.version}"


# name: (class, what the environment adds, the caption)
ONE_GPU = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}  # which several ranks may share
WAYS: dict[str, tuple[type[Way], dict[str, str], str]] = {
    "warpmpi": (Warpmpi, {}, "warpmpi"),
    "warpmpi-cupy": (WarpmpiCupy, {}, "warpmpi, CuPy"),
    "warpmpi-shared": (Shared, {}, "wm.SharedArray"),
    "warpmpi-host": (WarpmpiHost, {}, "warpmpi, NumPy"),
    "mpi4py": (Mpi4py, {}, "mpi4py, NumPy"),
    "bare": (Bare, {}, "bare"),
    "nvshmem": (Nvshmem, {"NVSHMEM_REMOTE_TRANSPORT": "none"}, "nvshmem4py"),
    "nccl": (Nccl, ONE_GPU, "NCCL"),
}
