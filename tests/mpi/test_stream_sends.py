# SPDX-License-Identifier: BSD-3-Clause
"""Sends on a stream up to the eager limit do not wait for their receiver."""

import os

import numpy as np
import pytest

import kinds
import ranks
import warpmpi as wm

pytestmark = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)

LIMIT = 65536
FORMS = {
    "Send": lambda channel, *message: channel.Send(*message),
    "Isend": lambda channel, *message: channel.Isend(*message).Wait(),
    "persistent": lambda channel, *message: begin(channel.Send_init(*message)),
}


def begin(request):
    request.Start()
    request.Wait()
    request.Free()


def columns(size):
    """GPU memory with gaps that kernels step over."""
    return wm.zeros((size, 2), np.uint8, device=wm.get_device())[:, 0]


MAKE = {
    **{
        kind: lambda size, kind=kind: kinds.make(kind, np.zeros(size, "u1"))
        for kind in kinds.DEVICE_KINDS
    },
    "columns": columns,
}


def write(stream, array, values):
    wm.asarray(array).assign(values, blocking=False, stream=stream)


def exchange(comm, channel, stream, make, form, size, turns=3):
    """Sends to the next rank, then receives: one rank's own messages."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    out, into = make(size), make(size)
    for turn in range(turns):
        write(stream, out, wm.full(size, 5 * turn + comm.rank, "u1"))
        form(channel, out, right, turn)
    # Later work on the stream changes the buffer, and not what was sent.
    write(stream, out, wm.full(size, 255, "u1"))
    for turn in range(turns):
        channel.Recv(into, left, turn)
        stream.synchronize()
        assert (kinds.values_of(into) == 5 * turn + left).all()


@pytest.mark.parametrize("size", [8, LIMIT])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", MAKE)
def test_all_send_before_anybody_receives(comm, stream, kind, form, size):
    channel = comm.on(stream)
    exchange(comm, channel, stream, MAKE[kind], FORMS[form], size)


def test_more_sends_than_eager_buffers(comm, stream):
    """There are 32 LL buffers: the other messages are copied."""
    make, form = MAKE["device"], FORMS["Send"]
    exchange(comm, comm.on(stream), stream, make, form, 100, turns=40)


@pytest.mark.skipif(len(wm.get_cuda_devices()) < 2, reason="needs two GPUs")
@pytest.mark.parametrize("gaps", [False, True])
def test_a_stream_of_another_gpu(comm, gaps):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    device, other = wm.get_cuda_devices()[:2]
    stream = wm.Stream(other)
    whole = wm.zeros((1000, 2), "u1", device=device)
    out = whole[:, 0] if gaps else whole
    into = wm.zeros(out.shape, "u1", device=device)
    for turn in range(3):
        out.fill_(5 * turn + comm.rank)
        comm.on(stream).Send(out, right, turn)
    out.fill_(255)
    for turn in range(3):
        comm.on(stream).Recv(into, left, turn)
        stream.synchronize()
        assert (into.numpy() == 5 * turn + left).all()


@pytest.mark.ranks(1)
def test_the_copy_is_counted(comm, stream):
    channel, array = comm.on(stream), wm.ones(8)
    before = wm.stats()
    channel.Send(array, comm.rank)
    channel.Recv(wm.zeros(8), comm.rank)
    stream.synchronize()
    told = {key: value - before[key] for key, value in wm.stats().items()}
    assert told["self_bytes"] == told["handed_off_bytes"] == 64


@pytest.mark.ranks(1)
def test_an_exchange_with_oneself(comm, stream):
    channel, mine, into = comm.on(stream), wm.ones(8), wm.zeros(8)
    channel.Sendrecv(mine, comm.rank, recvbuf=into, source=comm.rank)
    stream.synchronize()
    assert (into.numpy() == 1).all()


@pytest.mark.parametrize("size", [8, LIMIT])
def test_ssend_waits(comm, stream, size):
    """A synchronous send ends when its receive has begun."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    out = wm.full(size, comm.rank + 1, "u1")
    into = wm.zeros(size, "u1")
    channel = comm.on(stream)
    request = channel.Issend(out, right)
    assert not any(request.Test() for _ in range(200))
    comm.Barrier()
    channel.Recv(into, left)
    request.Wait()
    stream.synchronize()
    assert (into.numpy() == left + 1).all()


def test_bsend_does_not_wait(comm, stream):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    out = wm.full(LIMIT + 1, comm.rank + 1, "u1")
    into = wm.zeros(LIMIT + 1, "u1")
    channel = comm.on(stream)
    comm.Attach_buffer(bytearray(4 * LIMIT))
    channel.Bsend(out, right)
    out.fill_(0)
    channel.Recv(into, left)
    stream.synchronize()
    comm.Detach_buffer()
    assert (into.numpy() == left + 1).all()


WAYS = {
    "by the host": {"WARPMPI_TRANSPORT": "host"},
    "between hosts": {"APART": "1"},
    "a higher limit": {"LIMIT": "1000000"},
}
PROGRAM = """
    import os
    from mpi4py import MPI
    if "APART" in os.environ:
        os.environ["WARPMPI_HOST"] = f"host {MPI.COMM_WORLD.rank}"
    if "LIMIT" in os.environ:
        os.environ["WARPMPI_EAGER_LIMIT"] = os.environ["LIMIT"]
    import sys
    sys.path.insert(0, "tests/mpi")
    import test_stream_sends as tests
    import warpmpi as wm
    comm = wm.Comm(MPI.COMM_WORLD)
    stream = wm.Stream(wm.get_device())
    channel, most = comm.on(stream), int(os.environ.get("LIMIT", 65536))
    for form in tests.FORMS.values():
        for make in tests.MAKE.values():
            for size in (8, most):
                tests.exchange(comm, channel, stream, make, form, size)
    staged = wm.stats()["staged_bytes"] > 0
    print("staged" if staged else "mapped")
"""


@pytest.mark.programs
@pytest.mark.parametrize(
    "way",
    [
        "by the host",
        "between hosts",
        pytest.param("a higher limit", marks=pytest.mark.long),
    ],
)
def test_on_another_way(tmp_path, way):
    printed = ranks.run_text(tmp_path, PROGRAM, **WAYS[way])
    staged = way != "a higher limit"
    assert printed.split() == ["staged" if staged else "mapped"] * 2


ABOVE = """
    import time
    from mpi4py import MPI
    import warpmpi as wm
    comm = wm.Comm(MPI.COMM_WORLD)
    channel = comm.on(wm.Stream())
    if comm.rank == 0:
        channel.Send(wm.zeros(101, "u1"), 1)
        print(time.monotonic() > comm.recv(None, 1))
    else:
        time.sleep(0.3)
        began = time.monotonic()
        channel.Recv(wm.zeros(101, "u1"), 0)
        comm.send(began, 0)
"""


@pytest.mark.programs
def test_a_longer_one_waits(tmp_path):
    settings = {"WARPMPI_TRANSPORT": "host", "WARPMPI_EAGER_LIMIT": "100"}
    assert ranks.run_text(tmp_path, ABOVE, **settings).strip() == "True"


NO_MEMORY = """
    from mpi4py import MPI
    import warpmpi as wm
    comm = wm.Comm(MPI.COMM_WORLD)
    stream, size = wm.Stream(), 60 << 20
    channel, array = comm.on(stream), wm.full(size, comm.rank + 1, "u1")
    if comm.rank == 0:
        channel.Send(array, 1)
    else:
        channel.Recv(array, 0)
    stream.synchronize()
    assert (array.numpy() == 1).all()
    print("copied", wm.stats()["handed_off_bytes"])
"""


@pytest.mark.programs
@pytest.mark.skipif(
    "WARPMPI_CUDA_DRIVER" not in os.environ,
    reason="needs the simulated driver",
)
def test_without_memory_for_the_copy(tmp_path):
    """The send is not copied, and waits for its receiver."""
    settings = {
        "WARPMPI_TRANSPORT": "host",
        "WARPMPI_EAGER_LIMIT": str(64 << 20),
        "SIMCUDA_MEMORY": str(100 << 20),
    }
    printed = ranks.run_text(tmp_path, NO_MEMORY, **settings)
    assert printed.split() == ["copied", "0"] * 2
