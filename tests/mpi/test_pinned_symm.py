# SPDX-License-Identifier: BSD-3-Clause
"""Collectives of GPUs that do not reach each other, through host memory."""

import textwrap

import pytest

import kinds
import ranks
import warpmpi as wm

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
]

HEAD = """
    import numpy as np
    from mpi4py import MPI
    import kinds
    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    rank, size = comm.rank, comm.size

    def make(values):
        return kinds.make("device", values)

    def counted(call, *arguments):
        before = wm.stats()
        call(*arguments)
        after = wm.stats()
        names = "ipc_collectives", "staged_collectives"
        return tuple(after[name] - before[name] for name in names)
"""

VALUES = """
    for count in 3, 20_000, 5_000_001:
        mine = np.arange(count, dtype=np.float32) + rank
        everything = np.stack([mine - rank + each for each in range(size)])
        a, b = make(mine), make(np.zeros(count, np.float32))
        every = make(np.zeros(size * count, np.float32))
        other = make(np.zeros(size * count, np.float32))
        assert counted(comm.Allreduce, a, b) == (0, 1)
        assert (kinds.values_of(b) == everything.sum(0)).all()
        assert counted(comm.Allgather, a, every) == (0, 1)
        assert (kinds.values_of(every) == everything.ravel()).all()
        assert counted(comm.Alltoall, every, other) == (0, 1)
        assert (kinds.values_of(other) == np.tile(mine, size)).all()
        counts = [count - each for each in range(size)]
        got = make(np.zeros(sum(counts), np.float32))
        sent = make(mine[: counts[rank]])
        assert counted(comm.Allgatherv, sent, [got, counts]) == (0, 1)
        expected = [everything[k, : counts[k]] for k in range(size)]
        assert (kinds.values_of(got) == np.concatenate(expected)).all()
        assert counted(comm.Reduce, a, b, MPI.MAX, 0) == (0, 1)
        assert rank or (kinds.values_of(b) == everything.max(0)).all()
        assert counted(comm.Scan, a, b) == (0, 1)
        total = everything[: rank + 1].sum(0)
        assert (kinds.values_of(b) == total).all()
        assert counted(comm.Reduce_scatter_block, every, b) == (0, 1)
        assert (kinds.values_of(b) == size * everything[rank]).all()
        assert counted(comm.Allreduce, MPI.IN_PLACE, a) == (0, 1)
        assert (kinds.values_of(a) == everything.sum(0)).all()
        root = size - 1
        assert counted(comm.Scatter, every, b, root) == (0, 1)
        assert (kinds.values_of(b) == everything[rank]).all()
        assert counted(comm.Bcast, b, root) == (0, 1)
        assert (kinds.values_of(b) == everything[root]).all()
    print("right", flush=True)
"""

DIFFER = """
    count = 100_000
    a, b = make(np.ones(count)), make(np.zeros(size * count))
    longer = make(np.zeros(size * count + 1))

    def raises(call, *arguments):
        try:
            call(*arguments)
        except (MPI.Exception, TypeError, wm.CudaError) as error:
            return True
        return False

    sent = make(np.ones(count + (rank == 0)))
    assert raises(comm.Allreduce, sent, make(np.ones(count + (rank == 0))))
    assert raises(comm.Gather, [a, count - (rank == 0)], b)
    assert raises(comm.Gather, a, make(np.zeros(size * (count - 1))))
    assert raises(comm.Allgather, a, make(np.zeros(size * (count + 1))))
    assert raises(comm.Bcast, a, rank)
    counts = [count + (rank == 0)] + [count] * (size - 1)
    assert raises(comm.Allgatherv, a, [longer, counts])
    into = make(np.zeros(count))
    assert counted(comm.Allreduce, a, into) == (0, 1)
    assert (kinds.values_of(into) == size).all()
    print("right", flush=True)
"""

# More communicators than pinned symmetric memory: MPI serves the rest.
MANY = """
    a, b = make(np.ones(50_000)), make(np.zeros(50_000))
    comms = [wm.Comm(MPI.Comm.Dup(comm)) for _ in range(10)]
    for each in comms:
        assert counted(each.Allreduce, a, b) == (0, 1)
        assert (kinds.values_of(b) == size).all()
        assert counted(each.Scan, a, b) == (0, 1)
        assert (kinds.values_of(b) == rank + 1).all()
    stream = wm.Stream()
    try:
        comms[-1].on(stream).Allreduce(MPI.IN_PLACE, a)
        raise AssertionError("there is no room")
    except MemoryError as error:
        print(error, flush=True)
    comms[0].Free()
    comms[-1].on(stream).Allreduce(MPI.IN_PLACE, a)
    stream.synchronize()
    assert (kinds.values_of(a) == size).all()
    print("right", flush=True)
"""

# The last rank's driver fails at one call after the other.
FAILS = """
    import ctypes
    import gc
    from warpmpi import _core

    def arm(n):
        driver.simcuda_fail(None, ctypes.c_long(n), 999)

    driver, stream, world = kinds.driver(), wm.Stream(), MPI.COMM_WORLD
    driver.simcuda_calls.restype = ctypes.c_long
    a, b = make(np.ones(50_000)), make(np.zeros(50_000))
    comm.Allreduce(a, b)
    n = used = 1
    by_mpi = 0
    while n <= used:
        plain = world.Dup()
        each = wm.Comm(plain)
        error, before = None, _core._coll_engines()["mpi"]
        world.Barrier()
        begun = driver.simcuda_calls(None)
        arm(n if rank == size - 1 else 0)
        try:
            each.Allreduce(a, b)
        except (wm.CudaError, RuntimeError) as caught:
            error = caught
        arm(0)
        used = world.bcast(driver.simcuda_calls(None) - begun, size - 1)
        assert len(set(world.allgather(error is None))) == 1, (n, error)
        if error is None:
            assert (kinds.values_of(b) == size).all(), n
        if _core._coll_engines()["mpi"] > before:
            by_mpi += 1
            each.on(stream).Allreduce(a, b)  # makes it after all
            stream.synchronize()
            assert (kinds.values_of(b) == size).all(), n
        plain.Free()
        gc.collect()
        n += 1
    assert by_mpi > 0
    print("right", flush=True)
"""

ROUTES = {
    "told so": {"WARPMPI_TRANSPORT": "host"},
    "without IPC": {"SIMCUDA_IPC": "0"},
    "without peer access": {"SIMCUDA_PEER": "0"},
}


def run(text, number, route):
    if "SIMCUDA" in next(iter(route)) and kinds.is_real():
        pytest.skip("needs the simulated driver")
    text = textwrap.dedent(HEAD) + textwrap.dedent(text)
    path = str(ranks.ROOT / "tests")
    program = f"import sys; sys.path.insert(0, {path!r})\n{text}"
    return ranks.run("-c", program, ranks=number, timeout=90, **route)


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
def test_values(number, route):
    if number == 1 and "SIMCUDA_PEER" in route:
        pytest.skip("a GPU reaches itself")
    run(VALUES, number, route)


def test_ranks_differ():
    run(DIFFER, 2, ROUTES["told so"])


@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
def test_mpi_does_the_calls_if_one_rank_cannot_make_it():
    """Streams, which have only these kernels, try again."""
    run(FAILS, 2, ROUTES["told so"])


def test_there_are_not_enough():
    run(MANY, 2, ROUTES["told so"])
