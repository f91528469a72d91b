# SPDX-License-Identifier: BSD-3-Clause
"""A second library between hosts is one file and one row.

tests/toys/toy_movers_engine.c, which builds with WARPMPI_TOYS=1 have, is a
table of moves (coll/movers/movers.h), its opening and a row.
"""

import ast

import pytest

import kinds
import ranks
import simulated_nccl
import warpmpi as wm
from warpmpi import _core

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(
        "toy_movers" not in _core._coll_engines(),
        reason="the core was built without WARPMPI_TOYS=1",
    ),
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
    pytest.mark.skipif(kinds.is_real(), reason="needs the simulated NCCL"),
]

BEGIN = """
    import os, sys
    import numpy as np
    from mpi4py import MPI
    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    os.environ["WARPMPI_HOST"] = "host " + sys.argv[1][rank]
    os.environ["NCCL_HOSTID"] = f"host {rank}"
    import warpmpi as wm
    from warpmpi import _core

    comm = wm.Comm(MPI.COMM_WORLD)
    stream = wm.Stream(wm.get_device())

    def started():
        counts = _core._coll_engines()
        return [counts[name] for name in ("toy_movers", "nccl")]

    def array(values):
        return wm.array(np.asarray(values, "float32"), device=stream.device)

    def check(got, values):
        assert np.array_equal(np.asarray(got.to("cpu")), values), got

    LINE = np.arange(3000, dtype="float32")
    ALL = np.concatenate([LINE + each for each in range(size)])
    SUM = size * LINE + sum(range(size))

    def allreduce(on=comm):
        given, got = array(LINE + rank), array(0 * LINE)
        on.Allreduce(given, got)
        stream.synchronize()
        check(got, SUM)

    def allgather(on=comm):
        given, got = array(LINE + rank), array(0 * ALL)
        on.Allgather(given, got)
        stream.synchronize()
        check(got, ALL)

    def scan(on=comm):
        given, got = array(LINE + rank), array(0 * LINE)
        on.Scan(given, got)
        stream.synchronize()
        check(got, (rank + 1) * LINE + sum(range(rank + 1)))

    def bcast(on=comm):
        got = array(LINE + rank)
        on.Bcast(got, size - 1)
        stream.synchronize()
        check(got, LINE + size - 1)
"""


def run(folder, hosts, program, toy):
    settings = simulated_nccl.environment(TOY_MOVERS=toy)
    return ranks.run_text(
        folder, BEGIN + program, hosts, ranks=len(hosts), **settings
    )


def test_it_does_all_calls(tmp_path):
    """NCCL is not opened; blocking, on streams, on rails and of all ranks."""
    program = """
    for call in allreduce, allgather, scan, bcast:
        call()
        call(comm.on(stream))
    given, got = array(LINE + rank), array(0 * LINE)
    comm.Iallreduce(given, got).Wait()
    check(got, SUM)
    print(started())
    row = _core._coll_libraries()[0]
    assert row[0] == "toy_movers" and row[3:] == ("1.0.0", "tests/toys", None)
"""
    printed = run(tmp_path, "0011", program, "on")
    found = [ast.literal_eval(line) for line in printed.splitlines()]
    assert len(found) == 4
    assert all(toy > 0 and nccl == 0 for toy, nccl in found), found


def test_one_of_allgather_alone_leaves_the_others_to_nccl(tmp_path):
    """It is before NCCL in the list: between hosts of a rank, and on rails."""
    program = """
    allreduce()  # opens NCCL
    allgather()  # opens the toy
    before = started()
    allgather()
    assert started() == [before[0] + 1, before[1]], started()
    bcast()
    allreduce()
    scan()
    assert started() == [before[0] + 1, before[1] + 3], started()
    for call in allreduce, allgather, scan, bcast:
        call(comm.on(stream))
"""
    assert run(tmp_path, "012", program, "gathers") == ""
    rails = """
    allreduce()  # opens both on the rails
    before = started()
    given, got = array(LINE + rank), array(0 * LINE)
    comm.Iallreduce(given, got).Wait()
    check(got, SUM)
    assert started() == [before[0], before[1] + 1], started()
    for call in allreduce, allgather, bcast:
        call(comm.on(stream))
    reason = "between hosts by toy_movers and nccl"
    assert reason in wm.transport(comm, "Allreduce").reason
"""
    assert run(tmp_path, "0011", rails, "gathers") == ""
