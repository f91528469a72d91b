# SPDX-License-Identifier: BSD-3-Clause
"""WARPMPI_CHECK: what the ranks say of one collective is compared."""

import pytest

import ranks

pytestmark = pytest.mark.programs


def test_it_is_set_on_all_ranks_or_on_none(tmp_path):
    text = """
        import os
        from mpi4py import MPI
        if MPI.COMM_WORLD.rank == 1:
            os.environ["WARPMPI_CHECK"] = "1"
        import warpmpi as wm
        try:
            wm.Comm(MPI.COMM_WORLD)
        except RuntimeError as error:
            print(error)
    """
    printed = ranks.run_text(tmp_path, text, WARPMPI_CHECK="0")
    told = "WARPMPI_CHECK is 0 on rank 0 and 1 on rank 1: set it to the same"
    assert printed.count(told) == 2


# Calls of `comm` on this rank, by whether it is the first, and what is told.
DIFFERENT = """
    Bcast(array(3 if first else 2, "f4"))
    Bcast(array(3, "f4" if first else "i4"))
    Bcast(array(3), root=0 if first else 1)
    Allreduce(array(3, "f4" if first else "f8"), array(3))
    Allreduce(array(3), array(3), MPI.SUM if first else MPI.MAX)
    Allreduce(MPI.IN_PLACE if first else array(3), array(3))
    Scan(array(3 if first else 4), array(3 if first else 4))
    Reduce(array(3, "i8" if first else "u8"), array(3, "i8"))
    Reduce_scatter_block(array(4 if first else 6), array(2 if first else 3))
    Gather(array(1 if first else 2), array(2))
    Gatherv(array(1), [array(4), [1, 2]])
    Scatter(array(4), array(2 if first else 3))
    Scatterv([array(4), [1, 3]], array(1))
    Allgather(array(1, "f8" if first else "u8"), array(2))
    Allgatherv(array(1), [array(4), [1, 2]])
    Alltoall(array(2 if first else 4), array(2 if first else 4))
    Alltoallv([array(3), [1, 2]], [array(2), [1, 1]])
    Allgather_init(array(1, "f8" if first else "u8"), array(2))
    Barrier() if first else comm.Bcast(array(2))
    bcast(3) if first else comm.gather(3)
    bcast(3, root=0 if first else 1)
    allreduce(3, op=MPI.SUM if first else MPI.MAX)
"""
FITTING = """
    Bcast([array(6), 2, MPI.DOUBLE.Create_contiguous(3).Commit()]
          if first else array(6))
    Bcast(array(3) if first else bytearray(24))
    Allreduce(MPI.IN_PLACE, array(3))
    Allreduce(array(3), array(3), op=MPI.MAX)
    Reduce(MPI.IN_PLACE if first else array(3), array(3) if first else None)
    Reduce_scatter_block(array(4), array(2))
    Reduce_scatter_block([array(4), 2] if first else array(4), array(2))
    Reduce_scatter_block(MPI.IN_PLACE, [array(4), 2] if first else array(4))
    Reduce_scatter(array(4), array(3 if first else 1), [3, 1])
    Gather(MPI.IN_PLACE if first else array(2), array(4) if first else None)
    Gatherv(array(1 if first else 2), [array(4), [1, 2]])
    Scatter(array(4) if first else None, MPI.IN_PLACE if first else array(2))
    Scatterv([array(4), [1, 3]], array(1 if first else 3))
    Allgather(MPI.IN_PLACE, array(4))
    Allgatherv(array(1 if first else 2), [array(4), [1, 2]])
    Alltoall(array(4), array(4))
    Alltoallv([array(3), [1, 2] if first else [2, 1]],
              [array(4), [1, 2] if first else [2, 1]])
    Barrier()
    Bcast_init(array(3))
    Iallreduce(held, total).Wait()
    bcast(3, root=1)
    reduce(first, MPI.MAX, 1)
    allreduce({1, 2}, op=lambda a, b: a | b)
"""
PROGRAM = """
    import sys
    import warpmpi as wm
    from mpi4py import MPI
    import numpy as np
    sys.stdout.reconfigure(line_buffering=True)  # whole lines of each rank
    comm = wm.Comm(MPI.COMM_WORLD)
    first = comm.rank == 0
    held, total = np.zeros(3), np.zeros(3)
    def array(count, dtype="f8"):
        kind = "cuda:0" if comm.rank == count % 2 else "cpu"
        return wm.zeros(count, dtype, device=kind)
    for call in CALLS:
        try:
            eval("comm." + call)
        except Exception as error:
            print(comm.rank, type(error).__name__, call, "=>", error)
        else:
            print(comm.rank, "passed", call)
"""


def calls_of(table):
    calls = []
    for line in table.strip().splitlines():
        if line.startswith(" " * 10):
            calls[-1] += " " + line.strip()
        else:
            calls.append(line.strip())
    return calls


def run(tmp_path, table):
    calls = calls_of(table)
    program = PROGRAM.replace("CALLS", repr(calls))
    printed = ranks.run_text(tmp_path, program, WARPMPI_CHECK="1")
    return calls, printed.splitlines()


def test_what_differs_is_told_to_all(tmp_path):
    calls, lines = run(tmp_path, DIFFERENT)
    for call in calls:
        for rank in range(2):
            told = f"{rank} TypeError {call} => WARPMPI_CHECK: "
            (line,) = [line for line in lines if line.startswith(told)]
            both = "rank 0: " in line and "rank 1: " in line
            assert both or "ranks 0, 1: " in line


def test_what_fits_is_left_alone(tmp_path):
    calls, lines = run(tmp_path, FITTING)
    for call in calls:
        for rank in range(2):
            lacking = f"{rank} NotImplementedError {call} => "
            passed = f"{rank} passed {call}" in lines
            assert passed or any(lacking in line for line in lines), lines


# A refused call is compared with the others' next one, which it resembles.
REFUSED = """
    import numpy as np
    from mpi4py import MPI
    import warpmpi as wm
    comm = wm.Comm(MPI.COMM_WORLD)

    def refused(call):
        try:
            call()
        except (MPI.Exception, TypeError, KeyError, ValueError):
            return
        raise SystemExit("not refused")

    def once(x, y, alone):
        if alone:
            refused(lambda: comm.Allreduce(object(), y))
            refused(lambda: comm.Allreduce([x, "no such code"], y))
        comm.Allreduce(x, y)
        assert (y.numpy() == 2).all()
        if alone:
            refused(lambda: comm.allgather(x, x))
        assert comm.allgather(comm.rank) == [0, 1]
        refused(lambda: comm.Allreduce(x, y, MPI.OP_NULL))
        refused(lambda: comm.Bcast(x, 99))
        comm.Barrier()
        if alone:
            refused(lambda: comm.Allreduce_init(x, y, MPI.SUM, None, 1))
        request = comm.Allreduce_init(x, y)
        request.Start()
        request.Wait()
        request.Free()

    for device in ["cpu"] + ["cuda"] * wm.is_cuda_available():
        for turn in range(4):
            x, y = wm.ones(3, device=device), wm.zeros(3, device=device)
            once(x, y, turn % comm.size == comm.rank)
    print("went on")
"""


@pytest.mark.programs
def test_refusals_where_calls_are_checked(tmp_path, monkeypatch):
    monkeypatch.setenv("WARPMPI_CHECK", "1")
    done = ranks.run_text(tmp_path, REFUSED, ranks=2)
    assert done.count("went on") == 2
