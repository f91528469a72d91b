# SPDX-License-Identifier: BSD-3-Clause
"""The libraries that are compared, in one process of each rank.

They take turns. `steps` gives an operation's calls in a mode: "synced", after
which the host can use the result; "stream", which only enqueue it; "graph", a
captured graph of such calls. warpmpi's buffers are not those of the others:
once an address is read, a wm.Array counts as given away, and each call of
warpmpi synchronizes the device.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from ctypes import c_int, c_size_t, c_void_p
from typing import Any

import numpy as np

from . import nccl
from .driver import Driver
from .ops import Bandwidth, Call, Ends, LeftOut, Op, PingPong, Step, chained

MODES = "synced", "stream", "graph"
GRAPH_BYTES = 1 << 20


def graph_calls(op: Op, n: int, ranks: int) -> int:
    """Return the calls of one graph: fewer of those that take long."""
    if isinstance(op, Bandwidth):
        return 1  # a graph has room for so many messages
    return 20 if op.nbytes(n, ranks) <= GRAPH_BYTES else 4


class Rank:
    """One rank: warpmpi, its communicator and device, the buffers of all ways.

    kind: whose arrays these are. own, given: an array to send and one to
    receive, each may be None; of warpmpi, and of the others.
    """

    def __init__(self, world: Any, wm: Any, kind: str) -> None:
        self.world, self.wm, self.kind = world, wm, kind
        self.at = world.rank, world.size
        self.comm = wm.Comm(world)
        self.device = wm.get_device("cpu" if kind == "numpy" else None)
        self.stream: Any = None
        self.driver: Any = None
        self.own: Ends = (None, None)
        self.given: Ends = (None, None)
        self.dtype: Any = None
        self._rings: dict[int, Any] = {}
        if self.device.is_cuda:
            self.driver = Driver(self.device.ordinal)
            self.stream = wm.Stream(self.device)
        self.library = self._open()

    def _open(self) -> Any:
        """Import the library of the arrays, on this rank's device."""
        if self.kind in ("wm", "numpy"):
            return None
        library = importlib.import_module(self.kind)
        if self.kind == "cupy":
            library.cuda.Device(self.device.ordinal).use()
        elif self.device.is_cuda:
            library.cuda.set_device(self.device.ordinal)
        return library

    def upload(self, data: np.ndarray[Any, Any]) -> Any:
        """Return an array of that library, with this data."""
        if self.kind == "wm":
            return self.wm.from_numpy(data, device=self.device)
        if self.kind == "numpy":
            return data.copy()
        if self.kind == "cupy":
            return self.library.asarray(data)
        if data.dtype.name == "bfloat16":
            raw = self.library.from_numpy(data.view("i2"))
            made = raw.view(self.library.bfloat16)
        else:
            made = self.library.from_numpy(data)
        return made.to(self.device.alias if self.device.is_cuda else "cpu")

    def prepare(self, op: Op, n: int, alone: bool = False) -> None:
        """Make what this rank gives, and the places for what it gets.

        alone: warpmpi is not compared with others.
        """
        self.own = self.given = (None, None)  # the ones before
        self.dtype = op.dtype
        data, room = op.given(*self.at, n), op.room(*self.at, n)

        def pair() -> Ends:
            return (
                None if data is None else self.upload(data),
                None
                if room is None
                else self.upload(np.zeros(room, self.dtype)),
            )

        self.own = pair()
        self.given = self.own if alone else pair()

    def view(self, array: Any) -> Any:
        """Return the array as a wm.Array."""
        return array if self.kind == "wm" else self.wm.asarray(array)

    def clear(self) -> None:
        """Overwrite what this rank gets, and wait for that."""
        for _, recv in (self.own, self.given):
            if recv is not None:
                view = self.view(recv)
                fresh = np.full(view.nbytes, 0xA5, "u1").view(self.dtype)
                fresh = fresh.reshape(view.shape)
                view[...] = self.wm.from_numpy(fresh, device=view.device)
        if self.device.is_cuda:
            self.wm.synchronize_device(self.device)

    def comm_of(self, comm: Any, op: Op) -> Any:
        """Return the communicator of an operation: neighbors' is a ring."""
        if not op.on_ring:
            return comm
        key = id(comm)
        if key not in self._rings:
            self._rings[key] = comm.Create_cart([comm.size], [True])
        return self._rings[key]

    def address(self, array: Any) -> int:
        """Return where an array begins."""
        return int(self.view(array).ptr)


class Way:
    """One library."""

    modes: tuple[str, ...] = ("synced",)

    def __init__(self, rank: Rank) -> None:
        self.rank = rank

    @property
    def ends(self) -> Ends:
        """The buffers to send and to receive."""
        return self.rank.given

    def received(self) -> Any:
        """Return what this rank got, on the host; None if nothing."""
        recv = self.ends[1]
        return None if recv is None else self.rank.view(recv).numpy()

    def steps(self, op: Op, n: int) -> list[Step]:
        """Return the calls that block. LeftOut."""
        raise NotImplementedError

    def enqueued(self, op: Op, n: int) -> Call:
        """Return the call that only enqueues it. LeftOut."""
        raise NotImplementedError

    def synced(self, op: Op, n: int) -> Call:
        """Return the call after which the host can use its result."""
        return chained([step.call for step in self.steps(op, n)])

    def captured(self, op: Op, n: int) -> Any:
        """Return graph_calls() of them as one graph, which is enqueued."""
        call, rank = self.enqueued(op, n), self.rank
        call()  # so that nothing is left to be set up
        self.wait()
        calls = graph_calls(op, n, rank.world.size)
        return rank.driver.captured(rank.stream.cuda_stream, call, calls)

    def wait(self) -> None:
        """Wait for what was enqueued."""
        if self.rank.stream is not None:
            self.rank.stream.synchronize()

    def close(self) -> None:
        """Leave the library as it wants to be left."""

    def call(self, op: Op, n: int, mode: str) -> Any:
        """Return a mode's call. LeftOut."""
        if mode not in self.modes:
            raise LeftOut("it has no calls on streams")
        if mode == "synced":
            return self.synced(op, n)
        return (
            self.enqueued(op, n) if mode == "stream" else self.captured(op, n)
        )


class Ours(Way):
    """warpmpi's calls."""

    modes = MODES

    @property
    def ends(self) -> Ends:
        """The buffers, whose addresses nobody else reads."""
        return self.rank.own

    def _steps(self, comm: Any, op: Op, n: int) -> list[Step]:
        rank = self.rank
        return op.steps(comm, self.ends, (*rank.at, n), rank.wm.AVG)

    def steps(self, op: Op, n: int) -> list[Step]:
        """Return the blocking calls."""
        return self._steps(self.rank.comm_of(self.rank.comm, op), op, n)

    def enqueued(self, op: Op, n: int) -> Call:
        """Return the calls of comm.on(stream)."""
        comm = self.rank.comm_of(self.rank.comm, op).on(self.rank.stream)
        return chained([step.call for step in self._steps(comm, op, n)])


class Mpi(Way):
    """mpi4py's own calls, of the arrays as they are."""

    def steps(self, op: Op, n: int) -> list[Step]:
        """Return the blocking calls."""
        rank = self.rank
        comm = rank.comm_of(rank.world, op)
        return op.steps(comm, self.ends, (*rank.at, n))


class Staged(Way):
    """By hand: copy to pinned memory, mpi4py, copy from pinned memory."""

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        self.room = [np.empty(0, "u1"), np.empty(0, "u1")]

    def host(self, side: int, array: Any, dtype: Any) -> Any:
        """Return page-locked memory in place of an array."""
        if array is None:
            return None
        if self.room[side].nbytes < array.nbytes:
            self.room[side] = self.rank.driver.pinned(array.nbytes)
        bytes_ = self.room[side][: array.nbytes]
        return bytes_.view(dtype).reshape(array.shape)

    def steps(self, op: Op, n: int) -> list[Step]:
        """Return the calls with the copies before and after."""
        rank, (send, recv) = self.rank, self.ends
        out = self.host(0, send, op.dtype)
        into = self.host(1, recv, op.dtype)
        comm = rank.comm_of(rank.world, op)
        copier = rank.driver.copier
        handle, found = rank.stream.cuda_stream, []
        for step in op.steps(comm, (out, into), (*rank.at, n)):
            calls = [step.call]
            if step.sends and out is not None:
                source = rank.address(send)
                down = copier(out.ctypes.data, source, out.nbytes, handle)
                calls = [down, self.wait, *calls]
            if step.receives and into is not None:
                target = rank.address(recv)
                up = copier(target, into.ctypes.data, into.nbytes, handle)
                calls += [up, self.wait]
            found.append(step._replace(call=chained(calls)))
        return found


_CALLS = {
    "Allreduce": "ncclAllReduce",
    "Reduce": "ncclReduce",
    "Allgather": "ncclAllGather",
    "Reduce_scatter_block": "ncclReduceScatter",
    # Since 2.28; else grouped messages.
    "Alltoall": "ncclAlltoAll",
    "Gather": "ncclGather",
    "Scatter": "ncclScatter",
}


class Nccl(Way):
    """NCCL itself."""

    modes = MODES

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        rank.driver.make_current()
        self.nccl = nccl.Communicator(rank.world)
        self.word = rank.wm.zeros(1, "f4", rank.device)

    def _parts(self, op: Op, n: int) -> list[Step]:
        """Return the calls that enqueue, each its own group. LeftOut."""
        rank, lib = self.rank, self.nccl.lib
        root, stream = c_int(op.root), c_void_p(rank.stream.cuda_stream)
        if op.kind not in nccl.TYPES:
            raise LeftOut(f"NCCL has no {op.kind}")
        kind = c_int(nccl.TYPES[op.kind])
        send, recv = (
            c_void_p(array if array is None else rank.address(array))
            for array in self.ends
        )

        def one(name: str, *arguments: Any) -> list[Step]:
            call = self.nccl.prepared(name, stream, *arguments)
            return [Step(True, True, self.nccl.checked(call))]

        if op.name == "Barrier":  # what stands for it where NCCL is used
            word, add = c_void_p(self.word.ptr), c_int(nccl.SUM)
            many, single = c_size_t(1), c_int(nccl.FLOAT32)
            return one("ncclAllReduce", word, word, many, single, add)
        count = c_size_t(n)
        if op.name == "Bcast":
            buffer = recv if self.ends[0] is None else send
            return one("ncclBroadcast", buffer, buffer, count, kind, root)
        name = _CALLS.get(op.name)
        if name is not None and hasattr(lib, name):
            arguments: list[Any] = [send, recv, count, kind]
            if op.reduces:
                if op.op not in nccl.OPS:
                    raise LeftOut(f"NCCL has no {op.op}")
                arguments.append(c_int(nccl.OPS[op.op]))
            return one(name, *arguments, *[root] * op.rooted)
        if op.reduces:
            raise LeftOut(f"this NCCL has no {name or op.name}")
        return self._messages(op, n, kind, stream)

    def _messages(
        self, op: Op, n: int, kind: c_int, stream: c_void_p
    ) -> list[Step]:
        """Return sends and receives, as one group; a ping-pong's as two."""
        rank = self.rank
        item = op.dtype.itemsize

        def made(name: str, array: Any, moves: Sequence[Any]) -> list[Any]:
            return [
                self.nccl.prepared(
                    name,
                    stream,
                    c_void_p(rank.address(array) + item * first),
                    c_size_t(count),
                    kind,
                    c_int(peer),
                )
                for peer, first, count in moves
            ]

        sent, got = op.moves(*rank.at, n)
        sends = made("ncclSend", self.ends[0], sent)
        recvs = made("ncclRecv", self.ends[1], got)
        if not sends and not recvs:
            return []
        if not isinstance(op, PingPong):
            both = self.nccl.grouped([*sends, *recvs])
            return [Step(bool(sends), bool(recvs), both)]
        pair = [
            Step(True, False, self.nccl.grouped(sends)),
            Step(False, True, self.nccl.grouped(recvs)),
        ]
        return pair if rank.world.rank == 0 else pair[::-1]

    def steps(self, op: Op, n: int) -> list[Step]:
        """Return the calls, each with a wait if it receives."""
        found = []
        for step in self._parts(op, n):
            waits = step.receives or isinstance(op, Bandwidth)
            calls = [step.call, self.wait] if waits else [step.call]
            found.append(step._replace(call=chained(calls)))
        return found

    def enqueued(self, op: Op, n: int) -> Call:
        """Return the calls."""
        return chained([step.call for step in self._parts(op, n)])

    def close(self) -> None:
        """Destroy the communicator."""
        self.wait()
        self.nccl.close()


# name: (class, the caption)
RIVALS: dict[str, tuple[Callable[[Rank], Way], str]] = {
    "nccl": (Nccl, "NCCL"),
    "mpi": (Mpi, "MPI"),
    "staged": (Staged, "staged"),
}
