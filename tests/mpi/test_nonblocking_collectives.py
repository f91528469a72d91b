# SPDX-License-Identifier: BSD-3-Clause
"""Nonblocking collectives: by GPUs where all ranks can, else by MPI."""

import functools
import os
import time

import numpy as np
import pytest
from mpi4py import MPI

import cases
import kinds
import warpmpi as wm
from cases import on_device

pytestmark = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)
FULL = "WARPMPI_TEST_FULL" in os.environ
AHEAD = 1024  # calls, of which ranks tell each other who does them


@pytest.fixture(scope="module")
def comm(connected):
    return connected


class Counted:
    """How many went from GPU to GPU, and how many by way of the host."""

    def __enter__(self):
        self.before = wm.stats()
        return self

    def __exit__(self, *error):
        after = wm.stats()
        names = "ipc_collectives", "staged_collectives"
        self.went = tuple(after[name] - self.before[name] for name in names)


def everyone(comm):
    return comm.size * (comm.size + 1) / 2


def pair(comm, kind="device", count=5, dtype=np.float64):
    """What a rank sends and receives into; the sum is everyone(comm)."""
    sent = kinds.make(kind, np.full(count, comm.rank + 1, dtype))
    return sent, kinds.make(kind, np.zeros(count, dtype))


def check_sum(comm, array):
    assert (kinds.values_of(array) == everyone(comm)).all()


# Of neighbors test_mixed_memory.py has them.
CALLS = [call for call in cases.CALLS if call[0] not in cases.NEIGHBORS]
each_call = pytest.mark.parametrize(
    ("name", "in_place"), CALLS, ids=cases.id_of
)


def on_host(values):
    return values


def begin(comm, make, name, in_place=False):
    """Begin a call of int32 with the last rank as root."""
    case = cases.Case(
        comm,
        name,
        make,
        comm.size - 1,
        in_place,
        value=lambda source, to, n: np.full(n, 10 * to + source, "i4"),
    )
    return cases.begun(comm, name, "I", *case.args), case


@each_call
def test_gpus_do_it(comm, name, in_place):
    with Counted() as counted:
        request, case = begin(comm, on_device, name, in_place)
        request.Wait()
    assert counted.went == (1, 0)
    case.check()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("host", [0, -1])
@pytest.mark.parametrize("late", [False, True])
@each_call
def test_a_rank_has_host_memory(comm, name, in_place, host, late):
    """Late it is known to the others after they have begun."""
    alone = comm.rank == host % comm.size
    if alone and late:
        time.sleep(0.02)
    make = on_host if alone else on_device
    with Counted() as counted:
        begun = [begin(comm, make, name, in_place) for _ in range(2)]
        for request, _ in begun:
            request.Wait()
    assert counted.went[0] == 0
    for _, case in begun:
        case.check()


def test_many_are_under_way(comm):
    arrays = [pair(comm, count=n) for n in (1, 10, 1000, 100_000) * 10]
    comm.Barrier()  # closes mappings of what was freed, which are in the way
    with Counted() as counted:
        requests = [comm.Iallreduce(*each) for each in arrays]
        MPI.Request.Waitall(requests[::-1])
    assert counted.went == (len(arrays), 0)
    for _, into in arrays:
        check_sum(comm, into)


@pytest.mark.ranks(2)
def test_one_is_ahead_by_more_than_is_told(comm):
    """What it cannot ask yet has its turn before what it begins later."""
    sent, _ = pair(comm)
    few, more = 10, AHEAD // 2
    into = [kinds.make("device", np.zeros(5)) for _ in range(2 * AHEAD + 100)]

    def begin(arrays):
        return [comm.Iallreduce(sent, each) for each in arrays]

    first = comm.rank == 0
    begun = begin(into[: AHEAD + more]) if first else []
    comm.Barrier()
    begun += [] if first else begin(into[:few])
    wm.Request.Waitall(begun[:few])
    comm.Barrier()
    begun += begin(into[len(begun) :])
    wm.Request.Waitall(begun[few:])
    for each in into:
        check_sum(comm, each)


def test_it_goes_on_while_the_program_computes(comm):
    sent, into = pair(comm)
    request = comm.Iallreduce(sent, into)
    until = time.monotonic() + 10
    while not request.Test() and time.monotonic() < until:
        time.sleep(0.01)
    assert not request
    check_sum(comm, into)


def test_a_rank_comes_late(comm):
    """The others begin it, and blocking ones go by."""
    sent, into = pair(comm)
    request = None
    if comm.rank > 0:
        request = comm.Iallreduce(sent, into)
    other = comm.allreduce(1)
    if comm.rank == 0:
        request = comm.Iallreduce(sent, into)
    request.Wait()
    assert other == comm.size
    check_sum(comm, into)


@pytest.mark.ranks(2)
def test_host_memory_comes_behind_what_waits(comm):
    """MPI begins its calls in one order on all ranks."""
    sent, into = pair(comm)
    column = MPI.DOUBLE.Create_vector(2, 1, 2).Commit()
    some = np.full(4, float(comm.rank))
    first, second = np.full(3, comm.rank + 1.0), np.zeros(3)
    third = first.copy()
    if comm.rank == 0:
        comm.Recv(np.zeros(1), 1)
        sent, into = kinds.values_of(sent), np.zeros(5)
    requests = [
        comm.Iallreduce(sent, into),
        comm.Iallreduce(first, second),
    ]
    if comm.rank == 1:
        comm.Send(np.zeros(1), 0)
    requests.append(comm.Ibcast([some, 1, column], 0))
    requests.append(comm.Iallreduce(MPI.IN_PLACE, third))
    MPI.Request.Waitall(requests)
    column.Free()
    check_sum(comm, into)
    check_sum(comm, second)
    check_sum(comm, third)
    assert (some[::2] == 0).all()
    assert (some[1::2] == comm.rank).all()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("on_gpus", [False, True])
def test_a_rank_is_far_ahead(comm, on_gpus):
    count = 2 * AHEAD + 300 if FULL else AHEAD + 100
    makes = on_device if on_gpus else on_host
    arrays = [makes(np.full(1, comm.rank)) for _ in range(count)]
    token = np.zeros(1)
    if comm.rank == 1:
        comm.Recv(token, 0)
    requests = [comm.Ibcast(each, 0) for each in arrays]
    if comm.rank == 0:
        comm.Send(token, 1)
    MPI.Request.Waitall(requests)
    assert all(kinds.values_of(each)[0] == 0 for each in arrays)
    sent, into = pair(comm)
    with Counted() as counted:
        comm.Iallreduce(sent, into).Wait()
    assert counted.went == (1, 0)
    check_sum(comm, into)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("what", ["count", "type", "op", "root", "call"])
def test_ranks_differ(comm, what):
    one = comm.rank == 0
    dtype = np.float32 if one and what == "type" else np.float64
    count = 4 if one and what == "count" else 5
    sent, into = pair(comm, count=count, dtype=dtype)
    with pytest.raises((MPI.Exception, TypeError)):
        if what == "root":
            comm.Ibcast(sent, comm.rank).Wait()
        elif what == "call" and one:
            comm.Ibcast(sent, 0).Wait()
        else:
            op = MPI.MAX if one and what == "op" else MPI.SUM
            comm.Iallreduce(sent, into, op).Wait()
    sent, into = pair(comm)
    comm.Iallreduce(sent, into).Wait()
    check_sum(comm, into)


@pytest.mark.ranks(2)
@pytest.mark.skipif(
    not hasattr(kinds.driver(), "simcuda_fail"),
    reason="needs the simulated driver",
)
@pytest.mark.parametrize("name", ["MemcpyAsync", "LaunchKernel"])
def test_a_rank_fails(comm, fail, name):
    sent, into = pair(comm)
    long = wm.zeros(17 << 20, "uint8")
    longer = wm.zeros(long.size * comm.size, "uint8")
    comm.Iallreduce(sent, into).Wait()  # the kernels are loaded
    if comm.rank == 0:
        fail(name)
    with pytest.raises(wm.CudaError):
        if name == "LaunchKernel":
            comm.Iallreduce(sent, into).Wait()
        else:
            comm.Iscatter(longer, long, 1).Wait()  # one copy: no kernel
    comm.Iallreduce(sent, into).Wait()
    check_sum(comm, into)


def test_arrays_outlive_their_names(comm):
    requests = [begin(comm, on_device, "Allreduce")[0] for _ in range(5)]
    results = [begin(comm, on_device, "Bcast") for _ in range(5)]
    MPI.Request.Waitall(requests)
    for request, case in results:
        request.Wait()
        case.check()


def test_its_communicator_is_freed(comm):
    sent, into = pair(comm)
    other = wm.Comm(MPI.Comm.Dup(comm))
    request = other.Iallreduce(sent, into)
    other.Free()
    request.Wait()
    check_sum(comm, into)


def test_nothing_stays_behind(comm):
    sent, into = pair(comm, count=1000)
    comm.Iallreduce(sent, into).Wait()
    assert wm.get_device("cuda:0").free_memory  # has a context in all ranks
    comm.Barrier()
    used = wm.get_device("cuda:0").free_memory
    for _ in range(50):
        comm.Iallreduce(sent, into).Wait()
        comm.Iallreduce(MPI.IN_PLACE, sent).Wait()
        sent.assign(np.full(1000, comm.rank + 1.0))
    assert wm.get_device("cuda:0").free_memory == used


def test_those_begun_together_share_kernels(comm):
    """Of one kind, many sizes, kinds and operations between them."""
    rng = np.random.default_rng(7)
    size, rank = comm.size, comm.rank
    before = wm.stats()["fused_collectives"]
    for mixed in False, True, True:
        counts = [int(x) for x in np.exp(rng.uniform(0, 11, 40))]
        types = [rng.choice(["f4", "f8", "i4", "u1", "c8"]) for _ in counts]
        types = types if mixed else ["f4"] * len(counts)
        operations = [
            MPI.PROD if mixed and rng.integers(4) == 0 else MPI.SUM
            for _ in counts
        ]
        cases = [*zip(counts, types, operations, strict=True)]
        sent = [
            kinds.make("device", (np.arange(n) % 17 + rank).astype(t))
            for n, t, _ in cases
        ]
        got = [kinds.make("device", np.zeros(n, t)) for n, t, _ in cases]
        wm.Request.Waitall(
            [
                comm.Iallreduce(a, b, operation)
                for a, b, (_, _, operation) in zip(
                    sent, got, cases, strict=True
                )
            ]
        )
        for array, (n, t, operation) in zip(got, cases, strict=True):
            each = [(np.arange(n) % 17 + r).astype(t) for r in range(size)]
            combine = np.add if operation is MPI.SUM else np.multiply
            expected = functools.reduce(combine, each)
            assert (kinds.values_of(array) == expected).all(), (n, t)
    shared = wm.stats()["fused_collectives"] - before
    assert size == 1 or shared > 0
