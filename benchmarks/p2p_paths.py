# SPDX-License-Identifier: BSD-3-Clause
"""The ways from one GPU's memory to another's that bench_p2p.py compares.

Each is a class with two buffers: `prepare` makes them, `send` and `recv` move
one message as a user of that library would, `finish` waits for what they only
enqueued. A library is imported by the ranks that measure it and by no others.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np


class Path:
    """One way; `world` is mpi4py's communicator of its ranks."""

    messages_a_round = 2  # there and back
    send: Callable[[], Any]
    recv: Callable[[], Any]

    def __init__(self, world: Any):
        self.world = world
        self.peer = 1 - world.rank

    def prepare(self, data: np.ndarray) -> None:
        """Make a buffer to send that holds `data`, and one to receive into."""
        raise NotImplementedError

    def clear(self) -> None:
        """Overwrite the receive buffer, and wait for that."""
        raise NotImplementedError

    def received(self) -> np.ndarray:
        """The receive buffer, on the host."""
        raise NotImplementedError

    def finish(self) -> None:
        """Wait for everything enqueued; blocking ways have nothing to wait for."""

    def close(self) -> None:
        """Leave the library as it wants to be left."""

    def about(self) -> Any:
        """What the results should say of it."""
        return library_version()


def cupy_on_own_gpu(world: Any) -> Any:
    """CuPy, with this rank's GPU as the current one."""
    cupy = importlib.import_module("cupy")
    cupy.cuda.Device(local_rank(world) % cupy.cuda.runtime.getDeviceCount()).use()
    return cupy


def cupy_on(device: Any) -> Any:
    """CuPy, with a device of warpmpi's as the current one."""
    cupy = importlib.import_module("cupy")
    cupy.cuda.Device(device.ordinal).use()
    return cupy


def pinned(cupy: Any, nbytes: int) -> np.ndarray:
    return np.frombuffer(cupy.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)


def library_version() -> str:
    """The first words of the MPI library that mpi4py runs on."""
    from mpi4py import MPI

    return MPI.Get_library_version().split("\n")[0].split(", package")[0][:80]


def local_rank(world: Any) -> int:
    from mpi4py import MPI

    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    rank = node.rank
    node.Free()
    return rank


class Host(Path):
    """mpi4py between NumPy arrays: no GPU, what MPI's own message costs."""

    def prepare(self, data):
        self.a, self.b = data, np.zeros_like(data)
        self.send = partial(self.world.Send, self.a, self.peer)
        self.recv = partial(self.world.Recv, self.b, self.peer)

    def clear(self):
        self.b.fill(0)

    def received(self):
        return self.b


class Warpmpi(Path):
    """warpmpi's blocking Send and Recv, of its own arrays."""

    def __init__(self, world):
        super().__init__(world)
        self.wm = importlib.import_module("warpmpi")
        self.comm = self.wm.Comm(world)
        self.device = self.wm.get_device()

    def arrays(self, data):
        a = self.wm.from_numpy(data, device=self.device)
        return a, self.wm.zeros(data.shape, dtype=data.dtype, device=self.device)

    def prepare(self, data):
        self.a, self.b = self.arrays(data)
        self.send = partial(self.comm.Send, self.a, self.peer)
        self.recv = partial(self.comm.Recv, self.b, self.peer)

    def clear(self):
        self.b.fill_(0)
        self.wm.synchronize_device(self.device)

    def received(self):
        return self.b.numpy()

    def about(self):
        return {
            "version": self.wm.__version__,
            "mpi": library_version(),
            "device": self.device.alias,
            "transport": str(self.wm.transport(self.comm, self.peer, self.b)),
            "staged_bytes": self.wm.stats()["staged_bytes"],
            "stats": {name: count for name, count in self.wm.stats().items() if count},
        }


class WarpmpiCupy(Warpmpi):
    """The same calls with CuPy's arrays."""

    def arrays(self, data):
        cupy = cupy_on(self.device)
        a = cupy.asarray(data)
        return a, cupy.zeros_like(a)

    def clear(self):
        self.b.fill(0)
        self.wm.synchronize_device(self.device)

    def received(self):
        return self.b.get()


class WarpmpiWarp(Warpmpi):
    """The same calls with Warp's arrays, from its default pool allocator."""

    def arrays(self, data):
        wp = importlib.import_module("warp")
        wp.config.log_level = wp.LOG_WARNING
        a = wp.array(data, dtype=wp.uint8, device=self.device.alias)
        return a, wp.zeros_like(a)

    def clear(self):
        self.b.zero_()
        self.wm.synchronize_device(self.device)


class Cupy(Path):
    """What the ways below have in common: CuPy's arrays on this rank's GPU."""

    def __init__(self, world):
        super().__init__(world)
        self.cupy = cupy_on_own_gpu(world)

    def prepare(self, data):
        self.a = self.cupy.asarray(data)
        self.b = self.cupy.zeros_like(self.a)
        self.cupy.cuda.runtime.deviceSynchronize()

    def clear(self):
        self.b.fill(0)
        self.cupy.cuda.runtime.deviceSynchronize()

    def received(self):
        self.cupy.cuda.runtime.deviceSynchronize()
        return self.b.get()


class Staged(Cupy):
    """Staged by hand: copy to pinned memory, mpi4py, copy from pinned memory."""

    def prepare(self, data):
        super().prepare(data)
        stream = self.cupy.cuda.Stream(non_blocking=True)
        nbytes, peer = data.nbytes, self.peer
        out, into = pinned(self.cupy, nbytes), pinned(self.cupy, nbytes)
        a, b, world = self.a.data, self.b.data, self.world
        out_pointer, into_pointer = out.ctypes.data, into.ctypes.data

        def send():
            a.copy_to_host_async(ctypes.c_void_p(out_pointer), nbytes, stream)
            stream.synchronize()
            world.Send(out, peer)

        def recv():
            world.Recv(into, peer)
            b.copy_from_host_async(ctypes.c_void_p(into_pointer), nbytes, stream)
            stream.synchronize()

        self.send, self.recv = send, recv


class CudaAwareMpi(Cupy):
    """mpi4py on a CUDA-aware MPI takes the arrays as they are."""

    def __init__(self, world):
        prefix = os.environ["OPAL_PREFIX"]
        with open("/proc/self/maps") as maps:
            loaded = sorted({line.split()[-1] for line in maps if "libmpi.so" in line})
        if not any(path.startswith(prefix) for path in loaded):
            raise RuntimeError(f"mpi4py runs {loaded}, not the MPI in {prefix}")
        super().__init__(world)

    def prepare(self, data):
        super().prepare(data)
        self.send = partial(self.world.Send, self.a, self.peer)
        self.recv = partial(self.world.Recv, self.b, self.peer)


class NcclStream(Cupy):
    """NCCL on a stream: messages follow each other, no host waits for one."""

    def __init__(self, world):
        super().__init__(world)
        import package  # noqa: F401  # makes _bench
        from _bench.nccl import Communicator

        self.nccl = Communicator(world)
        self.stream = self.cupy.cuda.Stream(non_blocking=True)

    def prepare(self, data):
        super().prepare(data)
        peer, stream, nbytes = self.peer, self.stream.ptr, data.nbytes
        self.send = partial(self.nccl.send, self.a.data.ptr, nbytes, peer, stream)
        self.recv = partial(self.nccl.recv, self.b.data.ptr, nbytes, peer, stream)

    def finish(self):
        self.stream.synchronize()

    def close(self):
        self.stream.synchronize()
        self.nccl.close()

    def about(self):
        return f"NCCL {self.nccl.version}"


class NcclSynced(NcclStream):
    """NCCL, the host waiting for each message received, and no more than that."""

    def prepare(self, data):
        super().prepare(data)
        enqueue, wait = self.recv, self.stream.synchronize

        def recv():
            enqueue()
            wait()

        self.recv = recv


class Torch(Path):
    """torch.distributed over NCCL, the host waiting for each message received."""

    def __init__(self, world):
        super().__init__(world)
        self.torch = importlib.import_module("torch")
        self.dist = importlib.import_module("torch.distributed")
        self.device = local_rank(world) % self.torch.cuda.device_count()
        self.torch.cuda.set_device(self.device)
        self.folder = world.bcast(tempfile.mkdtemp() if world.rank == 0 else None)
        self.dist.init_process_group(
            "nccl",
            init_method=f"file://{self.folder}/rendezvous",
            rank=world.rank,
            world_size=world.size,
        )

    def prepare(self, data):
        self.a = self.torch.from_numpy(data).cuda()
        self.b = self.torch.zeros_like(self.a)
        self.torch.cuda.synchronize()
        send, recv, peer = self.dist.send, self.dist.recv, self.peer
        a, b, wait = self.a, self.b, self.torch.cuda.current_stream().synchronize

        def receive():
            recv(b, peer)
            wait()

        self.send, self.recv = partial(send, a, peer), receive

    def clear(self):
        self.b.zero_()
        self.torch.cuda.synchronize()

    def received(self):
        return self.b.cpu().numpy()

    def finish(self):
        self.torch.cuda.synchronize()

    def close(self):
        self.dist.destroy_process_group()
        if self.world.rank == 0:
            shutil.rmtree(self.folder, ignore_errors=True)

    def about(self):
        return f"torch {self.torch.__version__}, NCCL {self.torch.cuda.nccl.version()}"


class OneProcess(Path):
    """What the hardware gives: one process, two GPUs, no messages."""

    messages_a_round = 1

    def __init__(self, world):
        super().__init__(world)
        self.cupy = importlib.import_module("cupy")
        self.runtime = self.cupy.cuda.runtime
        if self.runtime.getDeviceCount() < 2:
            raise RuntimeError("two GPUs are needed")
        self.streams = []
        for gpu in (0, 1):
            with self.cupy.cuda.Device(gpu):
                self.streams.append(self.cupy.cuda.Stream(non_blocking=True))

    def prepare(self, data):
        with self.cupy.cuda.Device(0):
            self.a = self.cupy.asarray(data)
            self.runtime.deviceSynchronize()
        with self.cupy.cuda.Device(1):
            self.b = self.cupy.zeros(data.shape, data.dtype)
            self.runtime.deviceSynchronize()
        self.cupy.cuda.Device(1).use()
        self.recv = lambda: None

    def clear(self):
        self.b.fill(0)
        self.runtime.deviceSynchronize()

    def received(self):
        return self.b.get()

    def about(self):
        return "one process, two GPUs"


class PeerCopy(OneProcess):
    """The bare copy from one GPU to the other, pulled, then waited for."""

    def __init__(self, world):
        super().__init__(world)
        for gpu in (0, 1):
            if not self.runtime.deviceCanAccessPeer(gpu, 1 - gpu):
                raise RuntimeError("the GPUs have no access to each other")
            with self.cupy.cuda.Device(gpu):
                self.runtime.deviceEnablePeerAccess(1 - gpu)

    def prepare(self, data):
        super().prepare(data)
        copy, stream, wait = (
            self.runtime.memcpyPeerAsync,
            self.streams[1].ptr,
            self.streams[1].synchronize,
        )
        source, target, nbytes = self.a.data.ptr, self.b.data.ptr, data.nbytes

        def send():
            copy(target, 1, source, 0, nbytes, stream)
            wait()

        self.send = send


class PinnedLimit(OneProcess):
    """Both halves of staging at once: GPU 0 to the host, the host to GPU 1.

    A staged message that overlaps its two copies perfectly takes this long.
    """

    def prepare(self, data):
        super().prepare(data)
        nbytes, (down, up) = data.nbytes, self.streams
        out, into = pinned(self.cupy, nbytes), pinned(self.cupy, nbytes)
        into[:] = data
        a, b = self.a.data, self.b.data
        out_pointer = ctypes.c_void_p(out.ctypes.data)
        into_pointer = ctypes.c_void_p(into.ctypes.data)
        self.keep = out, into
        devices = self.cupy.cuda.Device(0), self.cupy.cuda.Device(1)

        def send():
            devices[0].use()
            a.copy_to_host_async(out_pointer, nbytes, down)
            devices[1].use()
            b.copy_from_host_async(into_pointer, nbytes, up)
            down.synchronize()
            up.synchronize()

        self.send = send


# name: (class, ranks, what the environment adds, the caption)
PATHS: dict[str, tuple[type[Path], int, dict[str, str], str]] = {
    "warpmpi": (Warpmpi, 2, {}, "warpmpi"),
    "warpmpi-cupy": (WarpmpiCupy, 2, {}, "warpmpi, CuPy arrays"),
    "warpmpi-warp": (WarpmpiWarp, 2, {}, "warpmpi, Warp pool arrays"),
    "warpmpi-host": (Warpmpi, 2, {"WARPMPI_TRANSPORT": "host"}, "warpmpi, through the host"),
    "staged": (Staged, 2, {}, "mpi4py, staged by hand"),
    "cuda-aware-mpi": (CudaAwareMpi, 2, {}, "mpi4py, CUDA-aware Open MPI"),
    "nccl-synced": (NcclSynced, 2, {}, "NCCL, synced"),
    "nccl-stream": (NcclStream, 2, {}, "NCCL, on a stream"),
    "torch-nccl": (Torch, 2, {}, "torch.distributed, NCCL"),
    "peer-copy": (PeerCopy, 1, {}, "bare peer copy"),
    "pinned-limit": (PinnedLimit, 1, {}, "pinned copies, both at once"),
    "host-memory": (Host, 2, {}, "mpi4py, host memory"),
}
