# SPDX-License-Identifier: BSD-3-Clause
"""The ways from host to host that bench_hosts.py compares, in one process of each rank.

All take turns, on warpmpi's arrays. Its own are not those of the others: once an address is
read, the array counts as given away, and each call of warpmpi synchronizes the device.
"""

from __future__ import annotations

import importlib
from ctypes import c_int, c_size_t, c_void_p
from functools import partial
from typing import Any

import coll_paths
import nccl_ctypes
import numpy as np
from coll_ops import Op
from coll_paths import Call, NcclCalls, Way
from driver_ctypes import Driver

MODES = "synced", "stream", "graph"


def graph_calls(op: Op, n: int, ranks: int) -> int:
    """Calls of one graph: fewer of those that take milliseconds."""
    return 20 if op.nbytes(n, ranks) <= 1 << 20 else 4


class Gpu:
    """A rank's: the driver, warpmpi with its communicator, and the buffers of all ways.

    own, given: an array to send and one to receive; of warpmpi, and those of the others.
    """

    def __init__(self, world: Any):
        self.wm = importlib.import_module("warpmpi")
        self.device = self.wm.get_device()
        self.driver = Driver(self.device.ordinal)
        self.world, self.comm = world, self.wm.Comm(world)
        self.stream = self.wm.Stream(self.device)
        self.own: Any = None
        self.given: Any = None

    def prepare(self, data: np.ndarray | None, room: tuple[int, ...] | None, dtype: Any) -> None:
        self.own = self.given = None  # the ones before

        def pair() -> list[Any]:
            return [
                None if data is None else self.wm.from_numpy(data, device=self.device),
                None if room is None else self.wm.zeros(room, dtype, self.device),
            ]

        self.own, self.given = pair(), pair()

    def clear(self) -> None:
        """Overwrite what this rank gets, and wait for that."""
        for _, recv in (self.own, self.given):
            if recv is not None:
                recv.fill_(111)
        self.wm.synchronize_device(self.device)


class Ours(coll_paths.Warpmpi):
    """warpmpi's calls: blocking, on a stream, and in a graph."""

    modes = MODES

    def __init__(self, gpu: Gpu):
        Way.__init__(self, gpu.world)
        self.gpu, self.wm, self.comm = gpu, gpu.wm, gpu.comm
        self.device, self.stream = gpu.device, gpu.stream

    def prepare(self, op: Op, n: int) -> None:
        self.send, self.recv = self.gpu.own

    def captured(self, op, n):
        call = self.on(self.stream, op, n)
        if call is None:
            return None
        call()  # so that nothing is left to be set up
        self.wait()
        return self.gpu.driver.captured(
            self.stream.cuda_stream, call, graph_calls(op, n, self.world.size)
        )

    def messages(self, peer: int) -> dict[str, Call]:
        """A message to the peer, one from it, and both at once."""
        comm, send, recv = self.comm, self.send, self.recv
        return {
            "send": partial(comm.Send, send, peer),
            "recv": partial(comm.Recv, recv, peer),
            "both": partial(comm.Sendrecv, send, peer, 0, recv, peer, 0),
        }


class Nccl(NcclCalls):
    """NCCL itself."""

    modes = MODES

    def __init__(self, gpu: Gpu):
        super().__init__(gpu.world)
        self.gpu = gpu
        gpu.driver.make_current()
        self.nccl = nccl_ctypes.Communicator(gpu.world)

    def prepare(self, op: Op, n: int) -> None:
        self.send, self.recv = self.gpu.given

    def address(self, array):
        return array.ptr

    def handle(self):
        return self.gpu.stream.cuda_stream

    def wait(self):
        self.gpu.stream.synchronize()

    def captured(self, op, n):
        call = self.enqueued(op, n)
        if call is None:
            return None
        return self.gpu.driver.captured(self.handle(), call, graph_calls(op, n, self.world.size))

    def messages(self, peer: int) -> dict[str, Call]:
        kind, stream = c_int(nccl_ctypes.UINT8), c_void_p(self.handle())

        def one(name: str, array: Any) -> Any:
            at, count = c_void_p(array.ptr), c_size_t(array.nbytes)
            return self.nccl.prepared(name, stream, at, count, kind, c_int(peer))

        def waited(*calls: Any) -> Call:
            run = self.nccl.grouped(calls)

            def call() -> None:
                run()
                self.wait()

            return call

        send, recv = one("ncclSend", self.send), one("ncclRecv", self.recv)
        return {"send": waited(send), "recv": waited(recv), "both": waited(send, recv)}


class Staged(Way):
    """By hand: copy to pinned memory, mpi4py, copy from pinned memory."""

    modes = ("synced",)

    def __init__(self, gpu: Gpu):
        super().__init__(gpu.world)
        self.gpu, self.room = gpu, [np.empty(0, "u1"), np.empty(0, "u1")]

    def prepare(self, op: Op, n: int) -> None:
        self.send, self.recv = self.gpu.given

    def host(self, side: int, array: Any) -> np.ndarray | None:
        """Page-locked memory in place of an array."""
        if array is None:
            return None
        if self.room[side].nbytes < array.nbytes:
            self.room[side] = self.gpu.driver.pinned(array.nbytes)
        return self.room[side][: array.nbytes].view(array.dtype).reshape(array.shape)

    def around(self, make: Any, sends: bool, receives: bool) -> Call:
        """The copies before and after the call that `make` makes of host arrays."""
        out = self.host(0, self.send if sends else None)
        into = self.host(1, self.recv if receives else None)
        copier, handle = self.gpu.driver.copier, self.gpu.stream.cuda_stream
        wait, steps = self.gpu.stream.synchronize, [make(out, into)]
        if out is not None:
            down = copier(out.ctypes.data, self.send.ptr, out.nbytes, handle)
            steps = [down, wait, *steps]
        if into is not None:
            steps += [copier(self.recv.ptr, into.ctypes.data, into.nbytes, handle), wait]

        def run() -> None:
            for step in steps:
                step()

        return run

    def synced(self, op, n):
        def make(out: Any, into: Any) -> Call:
            return op.call(self.world, out, into, *self.place, n)

        return self.around(make, True, True)

    def messages(self, peer: int) -> dict[str, Call]:
        world = self.world
        return {
            "send": self.around(lambda out, into: partial(world.Send, out, peer), True, False),
            "recv": self.around(lambda out, into: partial(world.Recv, into, peer), False, True),
            "both": self.around(
                lambda out, into: partial(world.Sendrecv, out, peer, 0, into, peer, 0), True, True
            ),
        }


# name: (class, the caption); "nccl-again" is NCCL measured a second time in each turn.
WAYS: dict[str, tuple[type[Ours] | type[Nccl] | type[Staged], str]] = {
    "warpmpi": (Ours, "warpmpi"),
    "nccl": (Nccl, "NCCL"),
    "staged": (Staged, "by hand"),
}
