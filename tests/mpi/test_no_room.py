# SPDX-License-Identifier: BSD-3-Clause
"""Blocking sends that must not wait, without memory for a copy or a slot."""

import contextlib
import os

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import ranks
import warpmpi as wm

needs_gpu = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)
simulated = pytest.mark.skipif(
    "WARPMPI_CUDA_DRIVER" not in os.environ, reason="needs the simulator"
)
SLOTS = 2048  # WM_SLOTS

BEGIN = """
    import ctypes, os
    import numpy as np
    from mpi4py import MPI
    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    rank, other = comm.rank, 1 - comm.rank
    LARGE = 3_000_000
    arrays = {n: wm.zeros(n, "u1") for n in (800, 65536, LARGE)}
    into = {n: wm.empty(n, "u1") for n in arrays}
    for n in arrays:  # takes what is taken once
        request = comm.irecv(source=other)
        comm.send([arrays[n]], other)
        request.wait()
        comm.Sendrecv(arrays[n], other, 0, into[n], other)
    request = None
    taken = []  # all other memory of the GPU
    for size in (1 << 20, 1 << 16, 512):
        try:
            while True:
                taken.append(wm.empty(size, "u1"))
        except wm.OutOfMemoryError:
            pass
    driver = ctypes.CDLL(os.environ["WARPMPI_CUDA_DRIVER"])
    def fail(name):
        driver.simcuda_fail(name, ctypes.c_long(1), 2)
    def serve():
        driver.simcuda_fail(None, ctypes.c_long(0), 0)
    comm.Barrier()
"""
FULL = """
    before = wm.stats()["staged_bytes"]
    for n in (800, 65536):
        for dest in (other, rank):  # to the other, and to itself
            arrays[n].fill_(n % 251 + dest)
            fail(b"MemHostAlloc")  # the copy is tried again
            comm.Send(arrays[n], dest, n)
            serve()
            arrays[n].fill_(9)
            arrays[n].numpy()
        for source in (other, rank):
            comm.Recv(into[n], source, n)
            assert (into[n].numpy() == n % 251 + rank).all(), (n, source)
    assert wm.stats()["staged_bytes"] > before
    array = arrays[LARGE]
    array.fill_(3 + rank)
    request = comm.irecv(source=other)
    comm.send([array], other)
    taken.clear()  # room for what comes, which the receiver makes
    into.clear()
    made, = request.wait()
    assert (made.numpy() == 3 + other).all()
    print("done", flush=True)
"""
NEITHER = """
    request = comm.irecv(source=other)
    fail(b"MemHostAlloc")
    try:
        comm.send([arrays[LARGE]], other)
    except wm.OutOfMemoryError:
        print("no-room", flush=True)
    serve()
    taken.clear()
    into.clear()
    try:
        request.wait()
    except wm.CudaError as error:
        assert f"rank {other}, failed: allocating" in str(error), error
        print("told", flush=True)
    comm.send([arrays[800]], other)
    assert comm.recv(source=other)[0].size == 800
"""

NO_STREAM = """
    import ctypes, os
    from mpi4py import MPI
    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    rank, other = comm.rank, 1 - comm.rank
    sizes = (8, 1000, 65536, 3_000_000)
    arrays = [wm.full(n, n % 251, dtype="u1") for n in sizes]
    into = [wm.zeros(n, "u1") for n in sizes]
    driver = ctypes.CDLL(os.environ["WARPMPI_CUDA_DRIVER"])
    for array in into + arrays:
        array.numpy()
    comm.Barrier()
    driver.simcuda_fail(b"StreamCreateWithPriority", ctypes.c_long(-1), 2)
    for turn in range(2):
        requests = [comm.Irecv(array, other, 1) for array in into]
        comm.Barrier()
        for array in arrays:
            comm.Send(array, other, 1)
        wm.Request.Waitall(requests)
        for array in into:
            comm.Sendrecv(array, other, 2, array.copy(), other, 2)
            comm.Bcast(array, 0)
            assert (array.numpy() == array.size % 251).all(), array.size
            array.fill_(0)
    print("done", flush=True)
"""


def run(folder, program, **environment):
    text = BEGIN + program
    environment["SIMCUDA_MEMORY"] = "50000000"
    return sorted(ranks.run_text(folder, text, **environment).split())


@pytest.mark.programs
@simulated
@pytest.mark.parametrize("transport", ["ipc", "host"])
def test_memory_of_a_gpu_is_full(tmp_path, transport):
    """Then the copy is in the host's memory."""
    done = run(tmp_path, FULL, WARPMPI_TRANSPORT=transport)
    assert done == ["done"] * 2


@pytest.mark.programs
@simulated
def test_neither_memory_has_room_for_an_object(tmp_path):
    """Both ranks raise it, and go on."""
    assert run(tmp_path, NEITHER) == ["no-room"] * 2 + ["told"] * 2


@pytest.mark.programs
@simulated
@pytest.mark.parametrize("transport", ["ipc", "host"])
def test_no_memory_for_a_stream(tmp_path, transport):
    """Messages share a stream that exists."""
    done = ranks.run_text(tmp_path, NO_STREAM, WARPMPI_TRANSPORT=transport)
    assert done.split() == ["done"] * 2


@contextlib.contextmanager
def without_slots(comm, other):
    """Pending sends of this rank have all its slots."""
    array = kinds.make("device", np.ones(80_000, np.uint8))
    sends = [comm.Isend(array, other, 7) for _ in range(SLOTS + 20)]
    comm.Barrier()
    yield
    into = kinds.make("device", np.zeros(80_000, np.uint8))
    for _ in sends:
        comm.Recv(into, other, 7)
    wm.Request.Waitall(sends)


@needs_gpu
@pytest.mark.skipif(MPI.COMM_WORLD.size != 2, reason="between two ranks")
@pytest.mark.parametrize("size", [100, 65536])
def test_a_send_without_a_slot(comm, size):
    other = 1 - comm.rank
    array = kinds.make("device", np.full(size, 5 + comm.rank, np.uint8))
    into = kinds.make("device", np.zeros(size, np.uint8))
    with without_slots(comm, other):
        for tag in range(3):
            comm.Send(array, other, tag)
        wm.asarray(array).fill_(99)
        for tag in range(3):
            comm.Recv(into, other, tag)
            assert (kinds.values_of(into) == 5 + other).all()


@needs_gpu
@pytest.mark.skipif(MPI.COMM_WORLD.size != 2, reason="between two ranks")
@pytest.mark.parametrize("size", [1000, 5_000_000])
def test_an_object_without_a_slot(comm, size):
    """The receiver unpickles after its own send."""
    other = 1 - comm.rank
    array = wm.full(size, comm.rank + 5, dtype="u1")
    with without_slots(comm, other):
        request = comm.irecv(source=other, tag=1)
        comm.send([array, "text"], other, 1)
        array.fill_(99)
        made, text = request.wait()
        assert (made.numpy() == other + 5).all()
        assert text == "text"
