# SPDX-License-Identifier: BSD-3-Clause
"""Staged calls where CUDA fails on one rank: nobody waits for ever."""

import os
import tempfile

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm
from warpmpi import _core
from warpmpi._install import CLASS_CALLS

pytestmark = pytest.mark.skipif(
    "WARPMPI_CUDA_DRIVER" not in os.environ
    or not hasattr(kinds.driver(), "simcuda_fail"),
    reason="needs the simulated driver",
)
STAGED = {(kind, name): call for kind, name, call in CLASS_CALLS}


def arrays(comm):
    mine = kinds.make("device", np.full(2, comm.rank + 1.0))
    into = kinds.make("device", np.full(2 * comm.size, -1.0))
    return mine, into


@pytest.mark.parametrize("nonblocking", [False, True])
@pytest.mark.parametrize("name", ["copy", "StreamWaitEvent"])
def test_a_copy_fails(comm, fail, nonblocking, name):
    mine, into = arrays(comm)
    failing = comm.size - 1
    comm.Barrier()
    match = f"rank {failing} failed"
    if comm.rank == failing:
        match = None
        if name == "StreamWaitEvent":  # for something, which takes 20 ms
            mine.fill_(failing + 1, blocking=False)
        elif comm.size > 1:  # several share a kernel
            name = "LaunchKernel"
        else:
            name = "MemcpyAsync"
        fail(name)
    with pytest.raises(wm.CudaError, match=match):
        if nonblocking:
            comm.Iallgather(mine, into).Wait()
        else:
            comm.Allgather(mine, into)
    comm.Barrier()
    mine, into = arrays(comm)
    comm.Allgather(mine, into)
    expected = np.repeat(np.arange(comm.size) + 1.0, 2)
    assert (kinds.values_of(into) == expected).all()


@pytest.mark.skipif(MPI.COMM_WORLD.size < 2, reason="needs two ranks")
def test_a_copy_fails_where_mpi_does_it(comm, fail):
    # Of those who begin it first none knows that one has host memory.
    mine, into = arrays(comm)
    if comm.rank == 0:
        mine, into = np.full(2, 1.0), np.full(2 * comm.size, -1.0)
    failing = comm.size - 1
    comm.Barrier()
    if comm.rank == failing:
        fail("MemcpyAsync")
        with pytest.raises(wm.CudaError):
            comm.Iallgather(mine, into).Wait()
    else:
        comm.Iallgather(mine, into).Wait()
        got = kinds.values_of(into)
        assert np.isnan(got[2 * failing :]).all()
        assert (got[: 2 * failing] > 0).all()
    comm.Barrier()
    comm.Allgather(*arrays(comm))


@pytest.mark.parametrize("culprit", [0, MPI.COMM_WORLD.size - 1])
def test_a_datatype_of_bcast_cannot_be_packed(comm, fail, culprit):
    field = kinds.make("device", np.full(24, 1.0 + comm.rank))
    column = MPI.DOUBLE.Create_vector(4, 1, 6).Commit()
    comm.Bcast([field, 1, column], 0)  # the kernels are loaded
    comm.Barrier()
    if comm.rank == culprit:
        fail("LaunchKernel")
    with pytest.raises(wm.CudaError):
        comm.Bcast([field, 1, column], 0)
    comm.Barrier()
    field = kinds.make("device", np.full(24, 1.0 + comm.rank))
    comm.Bcast([field, 1, column], 0)
    assert (kinds.values_of(field)[::6] == 1).all()
    column.Free()


def take_pinned(count):
    """All the blocks of a size that are kept for reuse, held."""
    held = []
    while True:
        before = _core._memory_stats()["pinned_allocations"]
        held.append(wm.empty(count, device="cpu", pinned=True))
        if _core._memory_stats()["pinned_allocations"] > before:
            return held


def test_pinned_memory_cannot_be_had(comm, fail):
    # Of any size: a kept one is given back, and the call tried again.
    held = [take_pinned(2**k) for k in range(6, 25)]
    mine = kinds.make("device", np.ones(5_000_000))
    kind = "host" if comm.rank == 0 else "device"  # no GPU does it alone
    into = kinds.make(kind, np.zeros(5_000_000))
    comm.Barrier()
    if comm.rank == 0:
        fail("MemHostAlloc")
        with pytest.raises(MemoryError):
            comm.Scan(mine, into)
    else:
        comm.Scan(mine, into)
        got = kinds.values_of(
            into
        )  # right where only `into` had no staging copy
        assert np.isnan(got).all() or (got == comm.rank + 1).all()
    comm.Scan(mine, into)
    assert (kinds.values_of(into) == comm.rank + 1).all()
    del held


@pytest.mark.parametrize("waitall", [None, "ours", "stock"])
def test_a_copy_back_fails(comm, fail, waitall):
    _, into = arrays(comm)
    host = np.full(2, comm.rank + 1.0)
    if comm.rank == 0:
        fail("MemcpyAsync")
        if waitall is None:
            with pytest.raises(wm.CudaError):
                comm.Allgather(host, into)
        elif waitall == "ours":
            with pytest.raises(wm.CudaError):
                wm.Request.Waitall([comm.Iallgather(host, into)])
        else:
            request = comm.Iallgather(host, into)
            with pytest.raises(MPI.Exception):
                MPI.Request.Waitall([request])
    else:
        comm.Allgather(host, into) if waitall is None else comm.Iallgather(
            host, into
        ).Wait()
        assert (kinds.values_of(into) > 0).all()
    comm.Barrier()


def test_nothing_bad_is_written_to_a_file(fail):
    mode = MPI.MODE_CREATE | MPI.MODE_RDWR | MPI.MODE_DELETE_ON_CLOSE
    path = os.path.join(tempfile.gettempdir(), f"staging-{os.getpid()}")
    opened = MPI.File.Open(MPI.COMM_SELF, path, mode)
    values = kinds.make("device", np.ones(4))
    for name, args in (
        ("Write", ()),
        ("Write_all", ()),
        ("Iwrite_at_all", (0,)),
    ):
        fail("MemcpyAsync")
        with pytest.raises(wm.CudaError):
            STAGED[MPI.File, name](opened, *args, values)
    MPI.COMM_SELF.Barrier()
    assert opened.Get_size() == 0
    STAGED[MPI.File, "Write"](opened, values)
    assert opened.Get_size() == 32
    opened.Close()


def test_nothing_bad_is_put_into_a_window(fail):
    memory = np.zeros(4)
    window = MPI.Win.Create(memory, 8, comm=MPI.COMM_SELF)
    values = kinds.make("device", np.ones(4))
    window.Fence()
    fail("MemcpyAsync")
    with pytest.raises(wm.CudaError):
        STAGED[MPI.Win, "Put"](window, values, 0)
    into = kinds.make("device", np.ones(4))
    STAGED[MPI.Win, "Get"](window, into, 0)
    fail("MemcpyAsync")
    with pytest.raises(wm.CudaError):
        STAGED[MPI.Win, "Fence"](window)
    assert (memory == 0).all()
    window.Free()
