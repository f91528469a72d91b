# SPDX-License-Identifier: BSD-3-Clause
"""MPI.IN_PLACE where some ranks give GPU memory and others host memory."""

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm

# Above the pieces in which GPU memory is staged.
LARGE = 2_200_000
MIXES = [
    (5, {0}),
    (5, {1, 2}),
    (87_500, {0}),
    (87_500, {1}),
    (87_500, {0, 2, 3}),
    (LARGE, {1, 2}),
]
NAMES = """
    Allreduce Reduce Gather Gatherv Scatter Scatterv Allgather Allgatherv
    Alltoall Alltoallv Alltoallw Reduce_scatter_block Reduce_scatter Scan
    Exscan
""".split()


@pytest.fixture(scope="module")
def comm(world):
    return wm.Comm(world)


def case(comm, name, n, root, place):
    """Arguments of a call in place of n doubles a rank, and who has what.

    place: makes an array of this rank's kind. Gives the arguments, the array
    and what it must hold, None where it is not looked at.
    """
    size, rank = comm.size, comm.rank
    ranks = np.arange(size) + 1.0
    counts = [n] * size
    displs = [n * each for each in range(size)]
    rows = np.repeat(ranks, n)
    if name in ("Allreduce", "Scan", "Exscan"):
        array = place(np.full(n, rank + 1.0))
        total = {
            "Allreduce": ranks.sum(),
            "Scan": ranks[: rank + 1].sum(),
            "Exscan": ranks[:rank].sum() if rank else 1.0,
        }[name]
        return (MPI.IN_PLACE, array), array, np.full(n, total)
    if name == "Reduce":
        array = place(np.full(n, rank + 1.0))
        if rank != root:
            return (array, None, MPI.SUM, root), array, None
        expected = np.full(n, ranks.sum())
        return (MPI.IN_PLACE, array, MPI.SUM, root), array, expected
    if name in ("Gather", "Gatherv"):
        if rank != root:
            array = place(np.full(n, rank + 1.0))
            return (array, None, root), array, None
        array = place(np.where(rows == rank + 1, rows, -1.0))
        spec = (
            [array, counts, displs, MPI.DOUBLE] if name[-1] == "v" else array
        )
        return (MPI.IN_PLACE, spec, root), array, rows
    if name in ("Scatter", "Scatterv"):
        if rank != root:
            array = place(np.full(n, -1.0))
            return (None, array, root), array, np.full(n, rank + 1.0)
        array = place(rows)
        spec = (
            [array, counts, displs, MPI.DOUBLE] if name[-1] == "v" else array
        )
        return (spec, MPI.IN_PLACE, root), array, rows
    if name in ("Allgather", "Allgatherv"):
        array = place(np.where(rows == rank + 1, rows, -1.0))
        spec = (
            [array, counts, displs, MPI.DOUBLE] if name[-1] == "v" else array
        )
        return (MPI.IN_PLACE, spec), array, rows
    if name in ("Alltoall", "Alltoallv", "Alltoallw"):
        array = place(np.repeat(10.0 * rank + np.arange(size), n))
        bytes_at = [8 * each for each in displs]
        spec = {
            "Alltoall": array,
            "Alltoallv": [array, counts, displs, MPI.DOUBLE],
            "Alltoallw": [array, counts, bytes_at, [MPI.DOUBLE] * size],
        }[name]
        expected = np.repeat(10.0 * np.arange(size) + rank, n)
        return (MPI.IN_PLACE, spec), array, expected
    array = place(np.repeat(ranks, n))
    expected = np.repeat(ranks, n)
    expected[:n] = (rank + 1.0) * size
    if name == "Reduce_scatter":
        return (MPI.IN_PLACE, array, counts), array, expected
    return (MPI.IN_PLACE, array), array, expected


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
@pytest.mark.ranks(2)
@pytest.mark.parametrize(("n", "on_gpu"), MIXES)
@pytest.mark.parametrize("form", ["", "I", "_init"])
@pytest.mark.parametrize("name", NAMES)
def test_in_place_where_memory_differs(comm, name, form, n, on_gpu):
    kind = "device" if comm.rank in on_gpu else "host"
    called = name + form if form == "_init" else form + name
    if form == "I":
        called = "I" + name[0].lower() + name[1:]
    if n == LARGE and name not in ("Allreduce", "Reduce", "Scan"):
        n //= comm.size
    for root in {0, comm.size - 1}:
        args, array, expected = case(
            comm, name, n, root, lambda values: kinds.make(kind, values)
        )
        try:
            result = getattr(comm, called)(*args)
        except NotImplementedError:
            pytest.skip(f"this MPI has no {called}")
        if form == "_init":
            result.Start()
        if form:
            result.Wait()
            if form == "_init":
                result.Free()
        if expected is None:
            continue
        got = kinds.values_of(array)
        length = n if "Reduce_scatter" in name else len(expected)
        np.testing.assert_array_equal(got[:length], expected[:length])
        if name not in ("Gather", "Gatherv", "Scatter", "Scatterv", "Reduce"):
            break
