# SPDX-License-Identifier: BSD-3-Clause
"""Between hosts: how often ranks ask each other for the engine of calls whose
lengths no rank knows, such as Alltoallv.

Hosts are told apart by WARPMPI_HOST.
"""

import pytest

import compiled
import kinds
import ranks
import simulated_nccl
import warpmpi as wm

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
]

BEGIN = """
    import os, random, sys
    import numpy as np
    from mpi4py import MPI
    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    os.environ["WARPMPI_HOST"] = "host " + sys.argv[1][rank]
    os.environ["NCCL_HOSTID"] = f"host {rank}"  # may share a GPU
    import warpmpi as wm
    comm = wm.Comm(MPI.COMM_WORLD)
    counts = [5 + 3 * each for each in range(size)]
    ring = comm.Create_cart([size], [True])

    def asked():
        return wm.stats()["asked_collectives"]

    def count_of(call, times, *makes):
        before = asked()
        for at in range(times):
            call(makes[at % len(makes)])
        told = MPI.COMM_WORLD.allgather(asked() - before)
        assert len(set(told)) == 1, told  # all ranks asked alike
        return told[0]

    def values_of(array):
        return array if isinstance(array, np.ndarray) else array.to("cpu")

    def block(of, to):  # what a rank has for another one
        return np.full(counts[to], 10.0 * of + to, "f4")

    def gatherv(make, root=1):
        got = make(np.zeros(sum(counts), "f4")) if rank == root else None
        given = make(block(rank, rank))
        comm.Gatherv(given, [got, counts] if rank == root else None, root)
        if rank == root:
            want = [block(each, each) for each in range(size)]
            assert np.array_equal(values_of(got), np.concatenate(want))

    def scatterv(make, root=1):
        all = make(np.concatenate([block(7, to) for to in range(size)]))
        got = make(np.zeros(counts[rank], "f4"))
        comm.Scatterv([all, counts] if rank == root else None, got, root)
        assert np.array_equal(values_of(got), block(7, rank))

    def alltoallv(make):
        given = make(np.concatenate([block(rank, to) for to in range(size)]))
        got = make(np.zeros(counts[rank] * size, "f4"))
        comm.Alltoallv([given, counts], [got, [counts[rank]] * size])
        want = [block(of, rank) for of in range(size)]
        assert np.array_equal(values_of(got), np.concatenate(want))

    def neighbor(make):
        given, got = make(np.full(6, rank, "f4")), make(np.zeros(6, "f4"))
        ring.Neighbor_alltoallv([given, [2, 4]], [got, [4, 2]])
        want = [(rank - 1) % size] * 4 + [(rank + 1) % size] * 2
        assert np.array_equal(values_of(got), want)

    CALLS = gatherv, scatterv, alltoallv, neighbor
"""


def run(folder, program, *words, hosts="001", **options):
    options = simulated_nccl.environment(
        WARPMPI_ENGINES="hierarchy,copies,kernels,nccl,mpi", **options
    )
    return ranks.run_text(
        folder, BEGIN + program, hosts, *words, ranks=len(hosts), **options
    )


def test_host_memory_seldom_asks(tmp_path):
    # The 1st, 3rd, 7th, ... call, then each 64th one.
    program = """
    for call in CALLS:
        assert count_of(call, 200, np.array) == 8, call

    # Lengths that all ranks know need no question.
    def allgatherv(make):
        got = make(np.zeros(sum(counts), "f4"))
        comm.Allgatherv(make(block(rank, rank)), [got, counts])
    assert count_of(allgatherv, 10, np.array, wm.array) == 0

    # A call that has not happened on a rank does not count there.
    def refused(make):
        for _ in range(2 * (rank == 1)):
            try:
                comm.Gatherv(np.zeros(3, "f4"), [np.zeros(1, "f4"), [9]], 1)
            except Exception:
                pass
            else:
                raise AssertionError("wrong counts were taken")
        gatherv(make)
    assert count_of(refused, 200, np.array) == 3
    print("done")
    """
    assert run(tmp_path, program).count("done") == 3


def test_calls_of_gpus_ask_if_an_engine_serves(tmp_path):
    program = """
    def served():
        return wm.stats()["nccl_collectives"]
    for call in CALLS:
        count_of(call, 20, np.array)  # the next question: 31st call
        before = served()
        assert count_of(call, 20, wm.array) == 10
        assert served() - before == 10, call  # from the question on
        # Two calls of hosts to one of GPUs: each asks, and finds NCCL.
        before = served()
        assert count_of(call, 30, np.array, np.array, wm.array) == 30
        assert served() - before == 10
        # Each rank has any memory.
        random.seed(rank)
        count_of(call, 150, lambda a: random.choice((np.array, wm.array))(a))
        assert count_of(call, 200, np.array) < 80
    print("done")
    """
    assert run(tmp_path, program).count("done") == 3


@pytest.mark.skipif(kinds.is_real(), reason="the simulated NCCL is too old")
def test_calls_of_gpus_do_not_ask_in_vain(tmp_path):
    program = """
    for call in CALLS:
        assert count_of(call, 70, wm.array) > 60
        assert 0 < count_of(call, 200, wm.array) <= 8, call
    print("done")
    """
    assert run(tmp_path, program, SIMNCCL_VERSION="21903").count("done") == 3


SENDS = """
    #include <mpi.h>

    long sends[64];

    int
    MPI_Isend(const void *buffer, int count, MPI_Datatype type, int rank,
              int tag, MPI_Comm comm, MPI_Request *request)
    {
        ++sends[rank];
        return PMPI_Isend(buffer, count, type, rank, tag, comm, request);
    }
"""


@pytest.mark.skipif(ranks.ASAN, reason="its library is preloaded, too")
@pytest.mark.parametrize(
    ("hosts", "own", "other"),
    [
        ("010101", 2, 1),
        pytest.param("001122", 1, 2, marks=pytest.mark.long),
    ],
)
def test_a_question_waits_seldom_for_the_network(tmp_path, hosts, own, other):
    """Messages of a rank to its own host, and to other ones."""
    program = f"""
    import ctypes
    sends = (ctypes.c_long * 64).in_dll(ctypes.CDLL(sys.argv[2]), "sends")
    alltoallv(np.array)
    alltoallv(np.array)
    before = list(sends)
    assert count_of(alltoallv, 1, np.array) == 1
    sent = [now - old for now, old in zip(sends, before)][:size]
    own = [rank for rank in range(size) if hosts[rank] == hosts[comm.rank]]
    assert sum(sent) == {own + other}, sent
    assert sum(sent[rank] for rank in own) == {own}, sent
    print("done")
    """
    library = str(compiled.library(tmp_path, SENDS))
    printed = run(
        tmp_path,
        program.replace("hosts[", "sys.argv[1]["),
        library,
        hosts=hosts,
        LD_PRELOAD=library,
    )
    assert printed.count("done") == len(hosts)
