# SPDX-License-Identifier: BSD-3-Clause
"""The ways to fill ghosts that bench_halo.py compares, and the blocks that have them.

Each is a class: `prepare` makes the block of a case, `exchange` enqueues an exchange or
does it, `wait` waits for what was enqueued. A library is imported by the ranks that
measure it and by no others.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import itertools
from typing import Any, NamedTuple

import harness
import numpy as np
from coll_paths import LeftOut, capture
from p2p_paths import cupy_on, library_version, pinned

PRIME = 1021  # ghosts differ from edges, on every side
STRIDES = 7, 131, 17


class Case(NamedTuple):
    """Blocks of `points`, by dimension, in a periodic grid of ranks."""

    points: tuple[int, ...]
    dims: tuple[int, ...]  # ranks
    inner: tuple[int, ...]  # of an element
    width: int
    corners: bool

    @property
    def name(self) -> str:
        points = "x".join(map(str, self.points + self.inner))
        return f"{points}, width {self.width}{', corners' if self.corners else ''}"

    @property
    def shape(self) -> tuple[int, ...]:
        return (*(n + 2 * self.width for n in self.points), *self.inner)

    def ghosts(self) -> list[tuple[tuple[int, ...], tuple[slice, ...]]]:
        """Each direction, and where its ghosts are."""
        w, found = self.width, []
        for step in itertools.product((-1, 0, 1), repeat=len(self.points)):
            moves = sum(map(abs, step))
            if moves and (self.corners or moves == 1):
                part = {-1: slice(0, w), 0: slice(w, -w), 1: slice(-w, None)}
                found.append((step, tuple(part[s] for s in step)))
        return found

    def edge(self, step: tuple[int, ...]) -> tuple[slice, ...]:
        """What the neighbour in a direction gets."""
        w = self.width
        part = {-1: slice(w, 2 * w), 0: slice(w, -w), 1: slice(-2 * w, -w)}
        return tuple(part[s] for s in step)

    def nbytes(self) -> int:
        """Of the ghosts of a rank."""
        return 4 * sum(
            int(np.prod([len(range(n)[part]) for n, part in zip(self.shape, where, strict=False)]))
            * int(np.prod(self.inner, dtype=int))
            for _, where in self.ghosts()
        )

    def field(self, coords: list[int]) -> np.ndarray:
        """A rank's block as it is behind an exchange, its corners included."""
        total: Any = 0
        for axis, n in enumerate(self.shape):
            if axis < len(self.points):
                first = coords[axis] * self.points[axis] - self.width
                at = np.arange(first, first + n) % (self.points[axis] * self.dims[axis])
            else:
                at = np.arange(n)
            along = [1] * len(self.shape)
            along[axis] = n
            total = total + (at * STRIDES[axis] % PRIME).astype(np.float32).reshape(along)
        return total


class Way:
    """One implementation: it makes a block and exchanges its ghosts."""

    modes: tuple[str, ...] = ("synced",)

    def __init__(self, world: Any):
        self.world = world

    def prepare(self, case: Case) -> None:
        """Make the block, its ghosts empty."""
        self.cart = self.world.Create_cart(case.dims, [True] * len(case.dims))
        self.expected = case.field(self.cart.coords)
        block = np.full_like(self.expected, -1)
        inside = (slice(case.width, -case.width),) * len(case.points)
        block[inside] = self.expected[inside]
        self.block = self.upload(block)
        self.connect(case)

    def upload(self, block: np.ndarray) -> Any:
        raise NotImplementedError

    def download(self) -> np.ndarray:
        raise NotImplementedError

    def connect(self, case: Case) -> None:
        """Make what is made once."""

    def exchange(self) -> None:
        """Enqueue an exchange, or do it."""
        raise NotImplementedError

    def wait(self) -> None:
        """Wait for what was enqueued."""

    def synced(self) -> None:
        self.exchange()
        self.wait()

    def captured(self) -> harness.Call:
        """A graph of GRAPH_CALLS exchanges."""
        raise LeftOut("there is no such call")

    def is_right(self, case: Case) -> bool:
        """Whether the ghosts are the neighbours' edges, and nothing else changed."""
        found = self.download()
        inside = (slice(case.width, -case.width),) * len(case.points)
        parts = [inside, *(where for _, where in case.ghosts())]
        return all(np.array_equal(found[part], self.expected[part]) for part in parts)

    def about(self) -> Any:
        """What the results should say of it."""
        wm = importlib.import_module("warpmpi")
        stats = {name: count for name, count in wm.stats().items() if count}
        return {"version": wm.__version__, "mpi": library_version(), "stats": stats}

    def finish(self) -> None:
        """Drop what a case made."""
        self.block = None
        self.cart.Free()


class OwnArrays(Way):
    """wm.Comm and wm.Arrays; CuPy's where it is installed."""

    def __init__(self, world: Any):
        super().__init__(world)
        self.wm = importlib.import_module("warpmpi")
        self.comm = self.wm.Comm(world)
        self.world = self.comm  # whose Create_cart gives ours
        self.device = self.wm.get_device()
        self.cupy = None
        self.stream = self.named = None
        if self.device.is_cuda:
            self.stream = self.named = self.wm.Stream(self.device)
            if importlib.util.find_spec("cupy"):
                self.cupy = cupy_on(self.device)
                # The current one, as programs have it. On another one an exchange
                # is also ordered behind the current one, which is two more calls.
                self.stream = self.cupy.cuda.Stream(non_blocking=True)
                self.stream.use()
                self.named = None  # so no call needs to name it

    def upload(self, block):
        if self.cupy:
            array = self.cupy.asarray(block)
            self.cupy.cuda.runtime.deviceSynchronize()
            return array
        return self.wm.from_numpy(block, device=self.device)

    def download(self):
        return self.block.get() if self.cupy else self.block.numpy()


class Halo(OwnArrays):
    """wm.Halo."""

    modes = "synced", "stream", "graph"

    def connect(self, case):
        self.halo = self.wm.Halo(self.cart, width=case.width, corners=case.corners)
        self.halo.exchange(self.block, stream=self.named)
        self.wait()

    def exchange(self):
        self.halo.exchange(self.block, stream=self.named)

    def wait(self):
        if self.stream:
            self.stream.synchronize()

    def captured(self):
        if not self.cupy:
            raise LeftOut("CuPy, which captures the graph, is not installed")
        return capture(self.stream, self.exchange)

    def finish(self):
        self.halo.free()
        super().finish()


class Plan(Halo):
    """wm.Halo's plan."""

    def connect(self, case):
        super().connect(case)
        self.plan = self.halo.plan(self.block)

    def exchange(self):
        self.plan(stream=self.named)


class Slices(OwnArrays):
    """Isend and Irecv of the slices as they are."""

    def connect(self, case):
        ghosts, self.messages = dict(case.ghosts()), []
        for tag, step in enumerate(ghosts):
            here, there = np.array(self.cart.coords), np.array(step)
            target = self.cart.Get_cart_rank(list(here + there))
            source = self.cart.Get_cart_rank(list(here - there))
            edge, into = self.block[case.edge(step)], self.block[ghosts[tuple(-there)]]
            self.messages.append((edge, target, into, source, tag))

    def exchange(self):
        comm, requests = self.cart, []
        for _, _, into, source, tag in self.messages:
            requests.append(comm.Irecv(into, source, tag))
        for edge, target, _, _, tag in self.messages:
            requests.append(comm.Isend(edge, target, tag))
        self.wm.Request.Waitall(requests)

    def finish(self):
        self.messages = []
        super().finish()


class Packed(Slices):
    """Edges packed by CuPy, Isend and Irecv, ghosts unpacked by CuPy."""

    def __init__(self, world):
        super().__init__(world)
        if not self.cupy:
            raise LeftOut("CuPy, which packs, is not installed")
        self.mpi = importlib.import_module("mpi4py.MPI")

    def connect(self, case):
        super().connect(case)
        make = self.cupy.empty
        self.buffers = [
            (edge, make(edge.shape, edge.dtype), target, make(edge.shape, edge.dtype), into, source)
            for edge, target, into, source, _ in self.messages
        ]

    def exchange(self):
        comm, requests, copy = self.cart, [], self.cupy.copyto
        for tag, (_, _, _, got, _, source) in enumerate(self.buffers):
            requests.append(comm.Irecv(got, source, tag))
        for tag, (edge, packed, target, _, _, _) in enumerate(self.buffers):
            copy(packed, edge)
            requests.append(comm.Isend(packed, target, tag))
        self.wm.Request.Waitall(requests)
        for _, _, _, got, into, _ in self.buffers:
            copy(into, got)

    def wait(self):
        self.cupy.cuda.get_current_stream().synchronize()

    def finish(self):
        self.buffers = []
        super().finish()


def at(memory: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(memory.ctypes.data)


class Staged(Packed):
    """The same by plain mpi4py and pinned memory."""

    def connect(self, case):
        super().connect(case)
        self.plain = self.mpi.COMM_WORLD.Create_cart(case.dims, [True] * len(case.dims))
        self.buffers = [
            (*each, *(pinned(self.cupy, each[1].nbytes) for _ in range(2))) for each in self.buffers
        ]

    def exchange(self):
        comm, copy = self.plain, self.cupy.copyto
        stream = self.cupy.cuda.get_current_stream()
        requests = [comm.Irecv(each[7], each[5], tag) for tag, each in enumerate(self.buffers)]
        for edge, packed, _, _, _, _, out, _ in self.buffers:
            copy(packed, edge)
            packed.data.copy_to_host_async(at(out), packed.nbytes, stream)
        stream.synchronize()
        for tag, each in enumerate(self.buffers):
            requests.append(comm.Isend(each[6], each[2], tag))
        self.mpi.Request.Waitall(requests)
        for _, _, _, got, into, _, _, arrived in self.buffers:
            got.data.copy_from_host_async(at(arrived), got.nbytes, stream)
            copy(into, got)

    def finish(self):
        self.plain.Free()
        super().finish()


FACES = r"""
extern "C" __global__ void faces(const int *boxes, const float *from, float *to)
{
    // A box: how many points, its extents, the strides, where it begins in both.
    const int *box = boxes + 9 * blockIdx.y;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < box[0]; i += gridDim.x * blockDim.x) {
        int z = i % box[3], y = i / box[3] % box[2], x = i / box[3] / box[2];
        int at = x * box[4] + y * box[5] + z * box[6];
        to[box[8] + at] = from[box[7] + at];
    }
}
"""


class Bare(OwnArrays):
    """The same bytes, copied by one kernel from the block to another one here."""

    modes = "synced", "stream", "graph"

    def __init__(self, world):
        super().__init__(world)
        if not self.cupy:
            raise LeftOut("CuPy, whose kernel it is, is not installed")
        self.kernel = self.cupy.RawKernel(FACES, "faces")

    def connect(self, case):
        self.other = self.cupy.full_like(self.block, -1)
        ndim = len(case.shape)
        strides = [int(np.prod(case.shape[axis + 1 :])) for axis in range(ndim)]
        rows = []
        for step, ghosts in case.ghosts():
            back = tuple(-s for s in step)
            ranges = [range(n)[p] for n, p in zip(case.shape, ghosts, strict=False)]
            edges = [range(n)[p] for n, p in zip(case.shape, case.edge(back), strict=False)]
            ranges += [range(n) for n in case.inner]
            edges += [range(n) for n in case.inner]
            extents = [1] * (3 - ndim) + [len(each) for each in ranges]
            first, source = (
                sum(each.start * stride for each, stride in zip(place, strides, strict=True))
                for place in (ranges, edges)
            )
            padded = [0] * (3 - ndim) + strides
            rows.append([int(np.prod(extents)), *extents, *padded, source, first])
        self.boxes = self.cupy.asarray(np.array(rows, np.int32))
        points = max(row[0] for row in rows)
        self.grid = max(1, min(64, points // 512)), len(rows)
        self.cupy.cuda.runtime.deviceSynchronize()

    def exchange(self):
        self.kernel(self.grid, (512,), (self.boxes, self.block, self.other))

    def wait(self):
        self.stream.synchronize()

    def captured(self):
        return capture(self.stream, self.exchange)

    def is_right(self, case):
        found, block = self.other.get(), self.block.get()
        return all(
            np.array_equal(found[where], block[case.edge(tuple(-s for s in step))])
            for step, where in case.ghosts()
        )

    def finish(self):
        self.other = None
        super().finish()


class Copy(Bare):
    """As many bytes side by side, by the driver's copy."""

    def connect(self, case):
        self.nbytes = case.nbytes()
        self.source = self.cupy.zeros(self.nbytes, "u1")
        self.target = self.cupy.ones(self.nbytes, "u1")
        self.cupy.cuda.runtime.deviceSynchronize()

    def exchange(self):
        self.target.data.copy_from_device_async(self.source.data, self.nbytes, self.stream)

    def is_right(self, case):
        return not self.target.get().any()

    def finish(self):
        self.source = self.target = None
        Way.finish(self)


# name: (class, the caption)
WAYS: dict[str, tuple[type[Way], str]] = {
    "warpmpi": (Halo, "wm.Halo"),
    "warpmpi-plan": (Plan, "wm.Halo, plan"),
    "slices": (Slices, "Isend, Irecv of slices"),
    "packed": (Packed, "packed by CuPy, Isend, Irecv"),
    "staged": (Staged, "packed by CuPy, staged, mpi4py"),
    "bare": (Bare, "bare kernel"),
    "copy": (Copy, "bare copy"),
}
