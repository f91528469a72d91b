# SPDX-License-Identifier: BSD-3-Clause
"""Buffers that their own streams are still at work on, at both ends.

Nothing demands that work but the message: it stays undone until then. What
was found is judged at the end, when nobody waits for a rank that failed.
"""

import ctypes
import time

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm

pytestmark = [
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
    pytest.mark.ranks(2),
]

BUSY = ("foreign", "pool", "managed")
SIZES = (8, 1000, 100_000, 3_000_000)
SENDS = ("Send", "Ssend", "Isend", "Send_init")
STALE = 9


def make(kind, size, gaps=False):
    """Memory of a kind, and in it an array, every other byte of it or all."""
    memory = kinds.Foreign(size * (1 + gaps), np.uint8, kind)
    if gaps:
        memory.__cuda_array_interface__.update(shape=(size,), strides=(2,))
    return memory


def whole(memory):
    return memory.__cuda_array_interface__["shape"][0] * (
        2 if memory.__cuda_array_interface__.get("strides") else 1
    )


def fill(memory, value):
    """On its stream, some time."""
    with memory.context():
        result = memory.cuda.cuMemsetD8Async(
            ctypes.c_uint64(memory.pointer),
            ctypes.c_ubyte(value),
            ctypes.c_size_t(whole(memory)),
            ctypes.c_void_p(memory.stream.cuda_stream),
        )
    assert result == 0, result


def copy(memory, other):
    """What it holds when its stream comes to that."""
    with memory.context():
        result = memory.cuda.cuMemcpyAsync(
            ctypes.c_uint64(other.pointer),
            ctypes.c_uint64(memory.pointer),
            ctypes.c_size_t(whole(memory)),
            ctypes.c_void_p(memory.stream.cuda_stream),
        )
    assert result == 0, result


def pair(memory):
    """Room for two copies; making it waits for the stream."""
    size = whole(memory)
    return [
        kinds.Foreign(size, np.uint8, "foreign", memory.stream) for _ in "ab"
    ]


def holds(memory, value):
    memory.stream.synchronize()
    found = wm.asarray(memory).numpy()
    return (found == value).all()


def start(comm, form, memory, peer):
    """The request of a call of any form; None of one that is blocking."""
    request = getattr(comm, form)(memory, peer)
    if form.endswith("_init"):
        request.Start()
    return request


def send(comm, form, memory, value):
    fill(memory, value)
    request = start(comm, form, memory, 1)
    if request is not None:
        request.Wait()
    fill(memory, 0)  # it is ours again


def receive(comm, form, memory, copies, value):
    fill(memory, STALE)
    copy(memory, copies[0])
    request = start(comm, form, memory, 0)
    if request is not None:
        request.Wait()
    copy(memory, copies[1])
    return [
        holds(copies[0], STALE),
        holds(memory, value),
        holds(copies[1], value),
    ]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("form", SENDS)
@pytest.mark.parametrize("kind", BUSY)
def test_writes_come_before_a_send_and_after_it(comm, kind, form, size):
    memory, found = make(kind, size), []
    for turn in range(1, 4):
        if comm.rank == 0:
            send(comm, form, memory, turn)
        elif comm.rank == 1:
            into = np.zeros(size, np.uint8)
            comm.Recv(into, 0)
            found.append((into == turn).all())
    assert all(found)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("form", ["Recv", "Irecv", "Recv_init"])
@pytest.mark.parametrize("kind", BUSY)
def test_a_receive_comes_after_reads_and_writes(comm, kind, form, size):
    memory, found = make(kind, size), []
    copies = pair(memory)
    out = kinds.make("device", np.zeros(size, np.uint8))
    for turn in range(1, 4):
        if comm.rank == 0:
            out.fill_(turn)
            comm.Send(out, 1)
        elif comm.rank == 1:
            found += receive(comm, form, memory, copies, turn)
    assert all(found)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("posted", [False, True])
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("kind", BUSY)
def test_both_ends_are_at_work(comm, world, kind, gaps, posted, size):
    """Whoever comes first, and with gaps in the memory, which stay."""
    memory, found = make(kind, size, gaps), []
    before, after = pair(memory)
    for turn in range(1, 4):
        if comm.rank == 0:
            fill(memory, turn)
            if posted:
                world.Barrier()
            request = comm.Isend(memory, 1)
            if not posted:
                world.Barrier()
            request.Wait()
            fill(memory, 0)
        elif comm.rank == 1:
            fill(memory, STALE)
            copy(memory, before)
            if not posted:
                world.Barrier()
            request = comm.Irecv(memory, 0)
            if posted:
                world.Barrier()
            request.Wait()
            copy(memory, after)
            found += [holds(before, STALE), holds(memory, turn)]
            if gaps:
                found.append((after.numpy()[1::2] == STALE).all())
        else:
            world.Barrier()
    assert all(found)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", BUSY)
def test_an_exchange_with_work_on_both_buffers(comm, kind, size):
    if comm.rank > 1:
        return
    other = 1 - comm.rank
    mine, theirs, found = make(kind, size), make(kind, size), []
    before, _ = pair(theirs)
    for turn in range(1, 4):
        fill(mine, turn + comm.rank)
        fill(theirs, STALE)
        copy(theirs, before)
        comm.Sendrecv(mine, other, 0, theirs, other, 0)
        fill(mine, 0)
        found += [holds(before, STALE), holds(theirs, turn + other)]
    assert all(found)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", BUSY)
def test_a_collective_with_work_on_its_buffer(comm, kind, size):
    memory, found = make(kind, size), []
    before, _ = pair(memory)
    for turn in range(1, 3):
        fill(memory, turn if comm.rank == 0 else STALE)
        copy(memory, before)
        comm.Bcast(memory, 0)
        found.append(holds(before, turn if comm.rank == 0 else STALE))
        found.append(holds(memory, turn))
        fill(memory, comm.rank + 1)
        comm.Allreduce(MPI.IN_PLACE, memory, MPI.MAX)
        found.append(holds(memory, comm.size))
    assert all(found)


@pytest.mark.parametrize("size", SIZES[:3])
@pytest.mark.parametrize("streams", [1, 3])
def test_many_sends_in_a_row(comm, streams, size):
    """Which are announced together, the driver asked about them once."""
    count = 70  # more than are kept for that
    memories = [make("foreign", size) for _ in range(count)]
    for number, memory in enumerate(memories):
        stream = memories[number % streams].stream
        memory.stream = stream
        memory.__cuda_array_interface__["stream"] = stream.cuda_stream
    if comm.rank == 0:
        for number, memory in enumerate(memories):
            fill(memory, number + 1)
        requests = [comm.Isend(memory, 1) for memory in memories]
        wm.Request.Waitall(requests)
        for memory in memories:
            fill(memory, 0)
    elif comm.rank == 1:
        for memory in memories:
            fill(memory, STALE)
        requests = [comm.Irecv(memory, 0) for memory in memories]
        wm.Request.Waitall(requests)
        found = [holds(m, n + 1) for n, m in enumerate(memories)]
        assert all(found)


def stream_with(handle):
    """A stream that has the handle of one that is gone, or any."""
    streams = [wm.Stream(wm.get_device())]
    while streams[-1].cuda_stream != handle and len(streams) < 8:
        streams.append(wm.Stream(wm.get_device()))
    return streams[-1]


def use(memory, stream):
    memory.stream = stream
    memory.__cuda_array_interface__["stream"] = stream.cuda_stream


def test_a_stream_with_the_handle_of_one_that_is_gone_is_another(comm):
    """That it is idle does not say that the other was."""
    world, found = MPI.COMM_WORLD, []
    memories = [make("foreign", 1000) for _ in range(3)]
    busy, idle, kept = memories
    for memory in memories:  # mapped while no stream is held
        if comm.rank == 0:
            comm.Send(memory, 1)
        elif comm.rank == 1:
            comm.Recv(memory, 0)
    for _ in range(5):
        comm.Barrier()  # closes what others left
        if comm.rank == 0:
            fill(busy, 0)
            fill(idle, 1)
            wm.synchronize()
            world.recv(source=1)
            time.sleep(0.1)  # the idle one's note has ended by then
            requests = [comm.Isend(busy, 1), comm.Isend(idle, 1)]
            world.send(None, 1)
            MPI.Request.Waitall(requests)
        elif comm.rank == 1:
            use(busy, wm.Stream(wm.get_device()))
            fill(busy, STALE)
            busy.stream.synchronize()
            handle = busy.stream.cuda_stream
            with kinds.Gate() as gate:
                gate.stop(busy.stream)
                copy(busy, kept)
                requests = [comm.Irecv(busy, 0)]
                use(busy, kept.stream)
                use(idle, stream_with(handle))
                requests.append(comm.Irecv(idle, 0))
                world.send(None, 0)
                world.recv(source=0)
                requests[1].Wait()
            requests[0].Wait()
            wm.synchronize()
            found += [holds(kept, STALE), holds(busy, 0), holds(idle, 1)]
    assert all(found), found
