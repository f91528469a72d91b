# SPDX-License-Identifier: BSD-3-Clause
"""MPI's pairs of a value and an index in GPU memory, by all reductions."""

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import ranks
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


@pytest.mark.programs
def test_a_rank_of_another_host_receives_nothing(tmp_path):
    """An empty array of another library may have no address."""
    program = """
    import os
    import numpy as np
    from mpi4py import MPI
    rank = MPI.COMM_WORLD.rank
    os.environ["WARPMPI_HOST"] = f"host {rank}"
    import warpmpi as wm

    class Nowhere:
        __cuda_array_interface__ = dict(
            shape=(0,), typestr="|u1", data=(0, False), version=3
        )

    kind = np.dtype([("value", "f8"), ("index", "i4")], align=True)
    mine = np.zeros(1, kind)
    mine["value"], mine["index"] = 5 - rank, rank
    comm = wm.Comm(MPI.COMM_WORLD)
    got = wm.zeros(mine.itemsize, "uint8")
    comm.Reduce_scatter(
        [wm.array(mine.view("uint8")), MPI.DOUBLE_INT],
        [*([Nowhere(), 0] if rank else [got, 1]), MPI.DOUBLE_INT],
        [1, 0],
        MPI.MINLOC,
    )
    if rank == 0:
        assert got.numpy().view(kind)["index"] == 1
    print("done", flush=True)
    """
    printed = ranks.run_text(tmp_path, program)
    assert printed.split() == ["done"] * 2
