# SPDX-License-Identifier: BSD-3-Clause
"""MPI's pairs of a value and an index in GPU memory, by all reductions."""

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm
from cases import REDUCTIONS, is_direct, reduced

pytestmark = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)

PAIRS = {
    "float": ("f4", MPI.FLOAT_INT),
    "double": ("f8", MPI.DOUBLE_INT),
    "long": ("i8", MPI.LONG_INT),
    "short": ("i2", MPI.SHORT_INT),
    "int": ("i4", MPI.TWOINT),
}


def pairs_of(value, rank, length):
    kind = np.dtype([("value", value), ("index", "i4")], align=True)
    made = np.zeros(length, kind)
    made["value"] = (np.arange(length) * 7 + rank * 3) % 5
    made["index"] = rank
    return made


def least(parts):
    """Of equals the one of the lowest rank, as indices are ranks here."""
    made = parts[0].copy()
    for part in parts[1:]:
        made = np.where(part["value"] < made["value"], part, made)
    return made


def reduce(comm, name, mine, kind, places, in_place=False):
    """What a call leaves, of memory in two places."""
    block = len(mine) // comm.size
    whole = "scatter" not in name
    length = len(mine) if whole or in_place else block
    into = np.full(length * mine.itemsize, 0x55, np.uint8)
    if in_place:
        into = mine.view(np.uint8)
    into = kinds.make(places[1], into)
    sent = kinds.make(places[0], mine.view(np.uint8))
    first = MPI.IN_PLACE if in_place else [sent, kind]
    words = [first, [into, kind], MPI.MINLOC]
    if name == "Reduce_scatter":
        words.insert(2, [block] * comm.size)
    getattr(comm, name)(*words)
    return kinds.values_of(into).view(mine.dtype)


def check(found, right):
    if right is not None:
        found = found[: len(right)]
        np.testing.assert_array_equal(found["value"], right["value"])
        np.testing.assert_array_equal(found["index"], right["index"])


@pytest.mark.parametrize("length", [1, 100, 20_000])
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_pairs_stay_on_the_gpu(comm, name, pair, length):
    value, kind = PAIRS[pair]
    length *= comm.size
    parts = [pairs_of(value, rank, length) for rank in range(comm.size)]
    right = reduced(comm, name, parts, least)
    before = wm.stats()["ipc_collectives"]
    found = reduce(comm, name, parts[comm.rank], kind, ["device"] * 2)
    assert wm.stats()["ipc_collectives"] - before == is_direct(comm)
    check(found, right)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_some_of_them_are_on_the_host(comm, name, pair):
    """It ends, and is right, whoever has what where."""
    value, kind = PAIRS[pair]
    length = 50 * comm.size
    parts = [pairs_of(value, rank, length) for rank in range(comm.size)]
    right = reduced(comm, name, parts, least)
    for first in range(2):
        for places in (["device", "host"], ["host", "device"]):
            mine = places if (comm.rank + first) % 2 else ["host"] * 2
            check(reduce(comm, name, parts[comm.rank], kind, mine), right)


@pytest.mark.parametrize("name", ["Allreduce", "Reduce", "Scan"])
def test_pairs_in_place(comm, name):
    value, kind = PAIRS["double"]
    parts = [pairs_of(value, rank, 100) for rank in range(comm.size)]
    right = reduced(comm, name, parts, least)
    mine = parts[comm.rank]
    in_place = name != "Reduce" or comm.rank == 0
    check(reduce(comm, name, mine, kind, ["device"] * 2, in_place), right)


def test_elements_with_gaps_by_an_own_operation(comm):
    """What lies between them stays."""

    def add(source, into, _):
        values = np.frombuffer(into, "i")[::2]
        values += np.frombuffer(source, "i")[::2]

    op = MPI.Op.Create(add, commute=True)
    kind = MPI.INT.Create_resized(0, 8).Commit()
    for place in ("device", "host" if comm.rank else "device"):
        mine = kinds.make(place, np.arange(6, dtype="i"))
        total = kinds.make(place, np.full(6, -7, "i"))
        comm.Allreduce([mine, 3, kind], [total, 3, kind], op)
        found = kinds.values_of(total).tolist()
        assert found == [0, -7, 2 * comm.size, -7, 4 * comm.size, -7]
    kind.Free()
    op.Free()


@pytest.mark.parametrize("name", ["Allreduce", "Scan"])
def test_the_last_one_has_no_room_for_its_gap(comm, name):
    pairs = np.zeros(2, [("value", "f8"), ("at", "i4"), ("gap", "V4")])
    pairs["value"], pairs["at"] = 5 + comm.rank, comm.rank
    array = kinds.make("device", pairs.view(np.uint8))
    short = comm.rank == comm.size - 1
    given = [array[:28] if short else array, 2, MPI.DOUBLE_INT]
    getattr(comm, name)(MPI.IN_PLACE, given, MPI.MINLOC)
    found = kinds.values_of(array).view(pairs.dtype)
    assert found["value"].tolist() == [5, 5]
    assert found["at"].tolist() == [0, 0]


class Nowhere:
    """An empty array of another library, which has no address."""

    __cuda_array_interface__ = {
        "shape": (0,),
        "typestr": "|u1",
        "data": (0, False),
        "version": 3,
    }


def test_ranks_that_receive_nothing(comm):
    mine = pairs_of("f8", comm.rank, 1)
    sent = kinds.make("device", mine.view(np.uint8))
    got = kinds.make("device", np.zeros(mine.itemsize, np.uint8))
    into = [got, 1] if comm.rank == 0 else [Nowhere(), 0]
    before = wm.stats()["ipc_collectives"]
    comm.Reduce_scatter(
        [sent, MPI.DOUBLE_INT],
        [*into, MPI.DOUBLE_INT],
        [1] + [0] * (comm.size - 1),
        MPI.MINLOC,
    )
    assert wm.stats()["ipc_collectives"] - before == is_direct(comm)
    if comm.rank == 0:
        parts = [pairs_of("f8", rank, 1) for rank in range(comm.size)]
        found = kinds.values_of(got).view(mine.dtype)
        assert np.array_equal(found, least(parts))
