# SPDX-License-Identifier: BSD-3-Clause
"""float16 and bfloat16 in reductions, in all forms and kinds of memory."""

from functools import partial, reduce

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm
from cases import FORMS, REDUCTIONS, is_direct, perform, reduced, settle
from warpmpi._install import CLASS_CALLS

ml_dtypes = pytest.importorskip("ml_dtypes")

DTYPES = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
OPS = {
    "SUM": np.add,
    "PROD": np.multiply,
    "MIN": np.minimum,
    "MAX": np.maximum,
}
PLACES = ["host", "pinned"] + ["device"] * wm.is_cuda_available()
INSTALLED = {(kind, name): call for kind, name, call in CLASS_CALLS}


@pytest.fixture(scope="module")
def comm(world):
    comm = wm.Comm(world)
    settle(comm)
    return comm


def make(place, values):
    """A NumPy array, or one of this package's that may be bfloat16."""
    if place == "host" or not wm.is_cuda_available():
        return values.copy()
    if place == "pinned":
        return wm.array(values, device="cpu", pinned=True)
    return wm.array(values, device=wm.get_device())


def parts_of(comm, dtype, length):
    """What each rank gives: numbers that are exact whatever the op."""
    values = np.array([-2, -1, 0.5, 1, 2, 1, -1])
    every = [
        values[(np.arange(length) + 3 * rank) % len(values)]
        for rank in range(comm.size)
    ]
    return [part.astype(dtype) for part in every]


def folded(op, parts):
    return reduce(
        lambda a, b: OPS[op](a, b).astype(a.dtype, copy=False), parts
    )


def check(comm, name, form, op, dtype, length, places):
    length *= comm.size
    parts = parts_of(comm, dtype, length)
    right = reduced(comm, name, parts, partial(folded, op))
    share = length if "scatter" not in name else length // comm.size
    sent = make(places[0], parts[comm.rank])
    into = make(places[1], np.full(share, 9, dtype))
    words = [sent, into, getattr(MPI, op)]
    if name == "Reduce_scatter":
        words.insert(2, [share] * comm.size)
    before = wm.stats()["ipc_collectives"]
    perform(comm, name, form, *words)
    if right is not None:
        found = kinds.values_of(into)
        np.testing.assert_array_equal(found.astype(float), right.astype(float))
    return wm.stats()["ipc_collectives"] - before


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_they_are_computed_with(comm, name, form, dtype, op, place):
    for length in (1, 100, 3000):
        check(comm, name, form, op, DTYPES[dtype], length, [place] * 2)


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_some_are_on_the_host(comm, name, dtype):
    for first in range(2):
        for length in (5, 3000):
            places = ["device", "host"]
            if (comm.rank + first) % 2:
                places = ["host", "host"]
            check(comm, name, "", "SUM", DTYPES[dtype], length, places)
            check(comm, name, "I", "SUM", DTYPES[dtype], length, places[::-1])


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_they_stay_on_the_gpu(comm, name, dtype):
    """And are rounded once, however many ranks there are."""
    direct = is_direct(comm)
    done = check(comm, name, "", "SUM", DTYPES[dtype], 999, ["device"] * 2)
    assert done == direct
    if name != "Allreduce" or not direct:
        return
    # 1, and what is lost beside it unless all come together.
    tiny = float(ml_dtypes.finfo(DTYPES[dtype]).eps) / 4
    values = np.full(100, 1 if comm.rank == 0 else tiny, DTYPES[dtype])
    mine = make("device", values)
    comm.Allreduce(MPI.IN_PLACE, mine)
    right = DTYPES[dtype].type(1 + (comm.size - 1) * tiny)
    assert (mine.numpy() == right).all()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_counts_and_displacements_are_of_elements(comm, dtype, place):
    kind = DTYPES[dtype]
    for form in FORMS:
        for words in ((3,), ((3, 1),), ((3, None),), (3, None), (3, 1, None)):
            mine = make(place, np.arange(6).astype(kind))
            into = make(place, np.full(6, 9, kind))
            perform(comm, "Allreduce", form, [mine, *words], [into, *words])
            first = 1 if 1 in words or (3, 1) in words else 0
            right = np.full(6, 9.0)
            right[first : first + 3] = np.arange(first, first + 3) * comm.size
            found = kinds.values_of(into).astype(float)
            np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_in_place(comm, dtype, place):
    kind = DTYPES[dtype]
    for form in FORMS:
        for name in ("Allreduce", "Scan", "Reduce_scatter_block"):
            mine = make(place, np.ones(4 * comm.size, kind))
            perform(comm, name, form, MPI.IN_PLACE, mine)
            ranks = comm.rank + 1 if name == "Scan" else comm.size
            assert (kinds.values_of(mine)[:4].astype(float) == ranks).all()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_one_rank_has(comm, dtype, place):
    kind = DTYPES[dtype]
    a, b = (make(place, np.full(5, x, kind)) for x in (2, 3))
    INSTALLED[MPI.Op, "Reduce_local"](MPI.PROD, a, b)
    assert (kinds.values_of(b).astype(float) == 6).all()


def test_their_own_name_of_mpi(comm):
    """By whatever name: all ranks give the same to MPI."""
    mine, into = np.ones(3, np.float16), np.zeros(3, np.float16)
    try:
        kind = MPI.Datatype.fromcode("e")
        assert kind.Get_size() == 2
    except (KeyError, ValueError, AssertionError, MPI.Exception):
        pytest.skip("MPI has no such type")
    name = [kind, "e", None][comm.rank % 3]
    for form in FORMS:
        words = [[mine, 3, name], [into, name]] if name else [mine, into]
        perform(comm, "Allreduce", form, *words)
        assert (into == comm.size).all()


def test_an_operation_of_the_program_is_given_their_bytes(comm):
    def largest(read, into, _):
        a, b = (np.frombuffer(x, ml_dtypes.bfloat16) for x in (read, into))
        b[:] = np.maximum(a, b)

    op = MPI.Op.Create(largest, commute=True)
    for place in PLACES:
        mine = make(place, np.full(3, comm.rank, ml_dtypes.bfloat16))
        comm.Allreduce(MPI.IN_PLACE, mine, op)
        found = kinds.values_of(mine).astype(float)
        assert (found == comm.size - 1).all()
    op.Free()


@pytest.mark.parametrize("place", PLACES)
def test_what_they_have_not_is_refused(comm, place):
    mine = make(place, np.ones(3, ml_dtypes.bfloat16))
    for name in ("Allreduce", "Scan", "Iallreduce"):
        with pytest.raises(MPI.Exception) as caught:
            getattr(comm, name)(MPI.IN_PLACE, mine, MPI.BAND)
        assert caught.value.Get_error_class() == MPI.ERR_OP
    settle(comm)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("place", kinds.GPU_KINDS[:1])
@pytest.mark.parametrize("name", ["Allreduce", "Scan"])
def test_ranks_that_disagree(comm, name, place):
    """All raise; what comes next is right."""
    kind = DTYPES["float16" if comm.rank else "bfloat16"]
    mine, into = (make(place, np.ones(3, kind)) for _ in "ab")
    with pytest.raises(TypeError, match="element type"):
        getattr(comm, name)(mine, into)
    check(comm, name, "", "SUM", DTYPES["float16"], 3, [place] * 2)
