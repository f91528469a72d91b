# SPDX-License-Identifier: BSD-3-Clause
"""A stream waits for a rank that comes after what this rank does next.

The driver frees and unmaps memory once the device is idle, so neither may be
asked of it meanwhile.
"""

import contextlib
import sys

import numpy as np
import pytest

import kinds
import warpmpi as wm
from warpmpi import _core

pytestmark = [
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
    pytest.mark.ranks(2),
]

simulated = pytest.mark.skipif(kinds.is_real(), reason="simulated memory")

MIB = 1 << 20
OUT_OF_MEMORY = 2  # of the driver
GO, DATA = 7, 8  # tags: the late rank may come; what else is sent


class Waiting:
    """In its block a stream of rank 0 waits for rank 1, or for all others.

    They skip the rest of theirs, and come when rank 0 leaves its own.
    """

    def __init__(self, world, how):
        self.how = how
        self.comm = wm.Comm(world)
        self.stream = wm.Stream()
        self.channel = self.comm.on(self.stream)
        self.source = wm.ones(MIB, "uint8")
        self.into = wm.zeros(MIB, "uint8")
        self.channel.Allreduce(self.source, self.into)
        self.stream.synchronize()

    @contextlib.contextmanager
    def __call__(self, others=lambda: None, used=None):
        """others: what they do meanwhile. used: by rank 0's call, and left."""
        self.comm.Barrier()
        if self.comm.rank > 0:
            self.come_late(others)
            yield False
        else:
            if self.how == "collective":
                source = used.pop() if used else self.source
                self.channel.Allreduce(source, self.into)
                del source
            else:
                self.channel.Recv(used.pop() if used else self.into, 1)
            try:
                with kinds.uncollected():
                    yield True
            finally:
                for rank in range(1, self.comm.size):
                    self.comm.Send(np.zeros(1), rank, GO)
        self.stream.synchronize()
        self.comm.Barrier()

    def come_late(self, others):
        message = self.how == "message" and self.comm.rank == 1
        with kinds.Gate() as gate:
            if message:  # rank 0 has it in a stream that comes behind ours
                gate.stop(self.stream)
                sending = self.channel.Isend(self.source, 0)
            others()
            self.comm.Recv(np.zeros(1), 0, GO)
        if message:
            sending.Wait()
        elif self.how == "collective":
            self.channel.Allreduce(self.source, self.into)


@pytest.fixture(scope="module", params=["collective", "message"])
def waiting(request, world):
    return Waiting(world, request.param)


def device_bytes(kind="free"):
    """Of the device: not in use. Or of ours: held, but not in use."""
    stats = _core._memory_stats()
    if kind == "idle":
        return stats["device_bytes"] - stats["device_bytes_used"]
    return _core._device_free_memory(wm.get_device())


def test_arrays_are_let_go(waiting):
    """More than an eighth of the memory, which goes back afterwards."""
    size = device_bytes() // 12
    arrays = [wm.empty(size, "uint8") for _ in range(3)]
    kept = device_bytes("idle") + 3 * size
    with waiting() as here:
        arrays.clear()
        if here:
            assert device_bytes("idle") >= kept
    while device_bytes("idle") >= kept:  # another thread may be at it
        waiting.stream.synchronize()


def test_arrays_that_the_stream_uses_are_let_go(waiting):
    """Of page-locked memory as well, which nobody else gets meanwhile."""
    with waiting() as here:
        if here:
            copy = wm.empty(MIB, "uint8", "cpu", pinned=True)
            where = address_of(copy)
            copy.assign(waiting.into, False, stream=waiting.stream)
            del copy
            other = wm.empty(MIB, "uint8", "cpu", pinned=True)
            assert address_of(other) != where
    if waiting.comm.rank == 0:
        again = [wm.empty(MIB, "uint8", "cpu", pinned=True) for _ in range(3)]
        assert where in map(address_of, again)


def address_of(array):
    """As NumPy tells it; by `ptr` a library would use the memory on a GPU."""
    return array.numpy().ctypes.data


def test_a_view_of_foreign_memory_is_let_go(waiting):
    """Its owner is kept until the stream has done with the memory."""
    owner = kinds.make("foreign", np.ones(MIB, np.uint8))
    alone = sys.getrefcount(owner)
    with waiting(used=[wm.asarray(owner)]) as here:
        if here:
            assert sys.getrefcount(owner) > alone
    while sys.getrefcount(owner) > alone:  # another thread may be at it
        wm.empty(1, "uint8")


@pytest.mark.long
def test_no_room_for_an_allocation(waiting):
    """It raises, though memory is idle or freed, and all goes on.

    The driver, asked for what it has not, waits if it has a memory pool.
    """
    kinds.make("pool", np.ones(1))
    arrays = []
    size = device_bytes() // 3
    if waiting.comm.rank == 0:
        arrays += [wm.empty(size, "uint8") for _ in range(2)]
    with waiting() as here:
        if here:
            if waiting.how == "message":  # they are freed behind the stream
                for array in arrays:
                    array[:MIB].fill_(1, False, stream=waiting.stream)
                del array
            arrays.clear()
            with pytest.raises(MemoryError, match="waits for another rank"):
                wm.empty(2 * size, "uint8")
    if waiting.comm.rank == 0:
        wm.empty(2 * size, "uint8")


def receive(comm):
    """What rank 1 sends."""
    into = wm.zeros(2 * MIB, "uint8")
    comm.Recv(into, 1, DATA)
    assert (into.numpy() == 3).all()


def send(comm, array):
    if comm.rank == 1:
        comm.Send(array[: 2 * MIB], 0, DATA)


@simulated
def test_mappings_beyond_the_budget(waiting):
    """Those of a peer's two allocations take more than the device has."""
    comm, large = waiting.comm, 560 * MIB
    arrays = []
    if comm.rank == 1:
        for device in ("cuda:0", "cuda:1"):
            arrays.append(wm.empty(large, "uint8", device))
            arrays[-1][: 2 * MIB].fill_(3)
    if comm.rank == 0:
        receive(comm)
    else:
        send(comm, arrays and arrays[0])
    with waiting(lambda: send(comm, arrays and arrays[1])) as here:
        if here:
            receive(comm)


@simulated
def test_no_room_for_a_mapping(waiting, fail):
    """Others that nobody uses are not closed for it: the host serves."""
    comm = waiting.comm
    # Each an allocation of its own.
    array, other = wm.full(20 * MIB, 3, "uint8"), wm.full(30 * MIB, 3, "uint8")
    if comm.rank == 0:
        receive(comm)
    else:
        send(comm, other)
    with waiting(lambda: send(comm, array)) as here:
        if here:
            before = wm.stats()
            fail("IpcOpenMemHandle", OUT_OF_MEMORY)
            receive(comm)
            after = wm.stats()
            assert after["mappings_closed"] == before["mappings_closed"]
            assert after["staged_bytes"] > before["staged_bytes"]
