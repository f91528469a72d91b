# SPDX-License-Identifier: BSD-3-Clause
"""Reduce_scatter, in which ranks receive blocks of their own lengths."""

import itertools

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import ranks
import warpmpi as wm
from cases import is_direct

PLACES = ["host", *(kinds.DEVICE_KINDS if wm.is_cuda_available() else ())]


def blocks(counts, rank):
    ends = [0, *itertools.accumulate(counts)]
    return slice(ends[rank], ends[rank + 1])


def lengths(comm, number):
    """One of them has none."""
    return [number * (rank % 3) + rank // 3 for rank in range(comm.size)]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("number", [0, 1, 40, 30_000])
@pytest.mark.parametrize("told", [True, False])
def test_blocks_of_all_lengths(comm, place, number, told):
    counts = lengths(comm, number)
    if comm.size == 1:
        counts = [number]
    total = np.arange(sum(counts)) * sum(range(1, comm.size + 1))
    mine = kinds.make(place, np.arange(sum(counts)) * (comm.rank + 1))
    into = kinds.make(place, np.full(counts[comm.rank], -1))
    before = wm.stats()["ipc_collectives"]
    comm.Reduce_scatter(mine, into, counts if told else None)
    done = wm.stats()["ipc_collectives"] - before
    assert done == (place != "host" and is_direct(comm))
    right = total[blocks(counts, comm.rank)]
    np.testing.assert_array_equal(kinds.values_of(into), right)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("number", [1, 40, 30_000])
def test_in_place(comm, place, number):
    counts = lengths(comm, number) if comm.size > 1 else [number]
    total = np.arange(sum(counts)) * sum(range(1, comm.size + 1))
    mine = np.arange(sum(counts)) * (comm.rank + 1)
    array = kinds.make(place, mine)
    before = wm.stats()["ipc_collectives"]
    comm.Reduce_scatter(MPI.IN_PLACE, array, np.array(counts))
    done = wm.stats()["ipc_collectives"] - before
    assert done == (place != "host" and is_direct(comm))
    right = total[blocks(counts, comm.rank)]
    found = kinds.values_of(array)
    np.testing.assert_array_equal(found[: len(right)], right)
    if place != "host":  # MPI may use the rest
        np.testing.assert_array_equal(found[len(right) :], mine[len(right) :])


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
def test_some_are_on_the_host(comm):
    counts = lengths(comm, 500) if comm.size > 1 else [500]
    total = np.arange(sum(counts)) * sum(range(1, comm.size + 1))
    for turn in range(2):
        place = "device" if (comm.rank + turn) % 2 else "host"
        mine = kinds.make(place, np.arange(sum(counts)) * (comm.rank + 1))
        into = kinds.make("host", np.full(counts[comm.rank], -1))
        comm.Reduce_scatter(mine, into, counts, MPI.SUM)
        right = total[blocks(counts, comm.rank)]
        np.testing.assert_array_equal(into, right)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("place", PLACES[1:2])
def test_ranks_that_disagree(comm, place):
    """All raise, and the next one is right. Of host arrays MPI may tell."""
    right = [2, 3] + [1] * (comm.size - 2)
    counts = [3, 2, *right[2:]] if comm.rank else right
    mine = kinds.make(place, np.ones(sum(counts)))
    into = kinds.make(place, np.ones(counts[comm.rank]))
    with pytest.raises(MPI.Exception, match="give the same recvcounts"):
        comm.Reduce_scatter(mine, into, counts)
    into = kinds.make(place, np.zeros(right[comm.rank]))
    comm.Reduce_scatter(mine, into, right)
    assert (kinds.values_of(into) == comm.size).all()


def test_counts_that_do_not_fit(comm):
    mine, into = np.ones(2 * comm.size), np.ones(2)
    for counts in ([3] * comm.size, [2] * (comm.size + 1), [-2] * comm.size):
        with pytest.raises(ValueError):
            comm.Reduce_scatter(mine, into, counts)


@pytest.mark.programs
@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
@pytest.mark.parametrize("place", ["apart", "host"])
def test_mpi_does_it_without_counts(tmp_path, place):
    """A rank knows its own block alone: mpi4py asks for the others'."""
    program = """
    import os, sys
    import numpy as np
    from mpi4py import MPI
    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    if "apart" in sys.argv:
        os.environ["WARPMPI_HOST"] = f"host {rank}"
    else:
        os.environ["WARPMPI_TRANSPORT"] = "host"
    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    for number in 1, 2000:
        given = wm.array(np.arange(3 * number, dtype="float32"))
        into = wm.zeros((1 + rank) * number, "float32")
        comm.Reduce_scatter(given, into)
        first = number * rank
        expected = [size * each for each in range(first, first + into.size)]
        assert into.numpy().tolist() == expected, number
    print("done", flush=True)
    """
    printed = ranks.run_text(tmp_path, program, place)
    assert printed.split() == ["done"] * 2
