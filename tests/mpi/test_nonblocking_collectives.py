# SPDX-License-Identifier: BSD-3-Clause
"""Nonblocking collectives: by GPUs where all ranks can, else by MPI."""

import functools
import os
import time

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm

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


def ibcast(comm, make):
    array = make(np.full(3, comm.rank, "i4"))
    root = comm.size - 1
    return comm.Ibcast(array, root), array, np.full(3, root)


def iallreduce(comm, make):
    into = make(np.zeros(3, "i4"))
    request = comm.Iallreduce(make(np.full(3, comm.rank, "i4")), into)
    return request, into, np.full(3, sum(range(comm.size)))


def in_place(comm, make):
    into = make(np.full(3, comm.rank, "i4"))
    request = comm.Iallreduce(MPI.IN_PLACE, into, MPI.MAX)
    return request, into, np.full(3, comm.size - 1)


def igather(comm, make):
    root = comm.rank == 0
    into = make(np.full(2 * comm.size, -1, "i4"))
    sent = make(np.full(2, comm.rank, "i4"))
    request = comm.Igather(sent, into if root else None)
    expected = np.repeat(np.arange(comm.size), 2)
    return request, into, expected if root else np.full(2 * comm.size, -1)


def igatherv(comm, make):
    counts = [rank + 1 for rank in range(comm.size)]
    into = make(np.full(sum(counts), -1, "i4"))
    root = comm.size - 1
    sent = make(np.full(counts[comm.rank], comm.rank, "i4"))
    request = comm.Igatherv(
        sent, [into, counts] if comm.rank == root else None, root
    )
    expected = np.repeat(np.arange(comm.size), counts)
    if comm.rank != root:
        expected = np.full(sum(counts), -1)
    return request, into, expected


def iscatter(comm, make):
    sent = make(np.arange(2 * comm.size, dtype="i4"))
    into = make(np.full(2, -1, "i4"))
    request = comm.Iscatter(sent if comm.rank == 0 else None, into)
    return request, into, 2 * comm.rank + np.arange(2)


def scatter_in_place(comm, make):
    sent = make(np.arange(2 * comm.size, dtype="i4"))
    into = make(np.full(2, -1, "i4"))
    if comm.rank == 0:
        request = comm.Iscatter(sent, MPI.IN_PLACE)
        return request, into, np.full(2, -1)
    return comm.Iscatter(None, into), into, 2 * comm.rank + np.arange(2)


def iscatterv(comm, make):
    counts = [rank % 2 + 1 for rank in range(comm.size)]
    at = [sum(counts[:rank]) for rank in range(comm.size)]
    sent = make(np.arange(sum(counts), dtype="i4"))
    into = make(np.full(counts[comm.rank], -1, "i4"))
    request = comm.Iscatterv([sent, counts] if comm.rank == 0 else None, into)
    return request, into, at[comm.rank] + np.arange(counts[comm.rank])


def iallgather(comm, make):
    into = make(np.zeros(2 * comm.size, "i4"))
    request = comm.Iallgather(make(np.full(2, comm.rank, "i4")), into)
    return request, into, np.repeat(np.arange(comm.size), 2)


def iallgatherv(comm, make):
    counts = [2 + rank for rank in range(comm.size)]
    into = make(np.zeros(sum(counts), "i4"))
    sent = make(np.full(counts[comm.rank], comm.rank, "i4"))
    request = comm.Iallgatherv(sent, [into, counts])
    return request, into, np.repeat(np.arange(comm.size), counts)


def ialltoall(comm, make):
    sent = make(comm.rank * 10 + np.arange(comm.size, dtype="i4"))
    into = make(np.zeros(comm.size, "i4"))
    request = comm.Ialltoall(sent, into)
    return request, into, np.arange(comm.size) * 10 + comm.rank


def ialltoallv(comm, make):
    counts = [1] * comm.size
    sent = make(comm.rank * 10 + np.arange(comm.size, dtype="i4"))
    into = make(np.zeros(comm.size, "i4"))
    request = comm.Ialltoallv([sent, counts], [into, counts])
    return request, into, np.arange(comm.size) * 10 + comm.rank


def ireduce(comm, make):
    into = make(np.full(3, -1, "i4"))
    root = comm.size - 1
    sent = make(np.full(3, comm.rank, "i4"))
    request = comm.Ireduce(
        sent, into if comm.rank == root else None, root=root
    )
    result = sum(range(comm.size)) if comm.rank == root else -1
    return request, into, np.full(3, result)


def ireduce_scatter_block(comm, make):
    into = make(np.zeros(2, "i4"))
    sent = make(np.arange(2 * comm.size, dtype="i4"))
    request = comm.Ireduce_scatter_block(sent, into)
    return request, into, comm.size * (2 * comm.rank + np.arange(2))


def ireduce_scatter(comm, make):
    counts = [rank + 1 for rank in range(comm.size)]
    at = sum(counts[: comm.rank])
    into = make(np.zeros(counts[comm.rank], "i4"))
    sent = make(np.arange(sum(counts), dtype="i4"))
    request = comm.Ireduce_scatter(sent, into, counts)
    return request, into, comm.size * (at + np.arange(counts[comm.rank]))


def iscan(comm, make):
    into = make(np.zeros(3, "i4"))
    request = comm.Iscan(make(np.full(3, comm.rank, "i4")), into)
    return request, into, np.full(3, sum(range(comm.rank + 1)))


def iexscan(comm, make):
    into = make(np.full(3, -1, "i4"))
    request = comm.Iexscan(make(np.full(3, comm.rank, "i4")), into)
    result = sum(range(comm.rank)) if comm.rank > 0 else -1
    return request, into, np.full(3, result)


CALLS = [
    ibcast,
    iallreduce,
    in_place,
    igather,
    igatherv,
    iscatter,
    scatter_in_place,
    iscatterv,
    iallgather,
    iallgatherv,
    ialltoall,
    ialltoallv,
    ireduce,
    ireduce_scatter_block,
    ireduce_scatter,
    iscan,
    iexscan,
]


def on_device(values):
    return kinds.make("device", values)


def on_host(values):
    return values


@pytest.mark.parametrize("call", CALLS)
def test_gpus_do_it(comm, call):
    with Counted() as counted:
        request, array, expected = call(comm, on_device)
        request.Wait()
    assert counted.went == (1, 0)
    assert (kinds.values_of(array) == expected).all()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("host", [0, -1])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_a_rank_has_host_memory(comm, call, host, late):
    """Late it is known to the others after they have begun."""
    alone = comm.rank == host % comm.size
    if alone and late:
        time.sleep(0.02)
    make = on_host if alone else on_device
    with Counted() as counted:
        requests = [call(comm, make) for _ in range(2)]
        for request, _, _ in requests:
            request.Wait()
    assert counted.went[0] == 0
    for _, array, expected in requests:
        assert (kinds.values_of(array) == expected).all()


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
    requests = [iallreduce(comm, on_device)[0] for _ in range(5)]
    results = [ibcast(comm, on_device) for _ in range(5)]
    MPI.Request.Waitall(requests)
    for request, array, expected in results:
        request.Wait()
        assert (kinds.values_of(array) == expected).all()


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
