# SPDX-License-Identifier: BSD-3-Clause
"""wm.AVG: the sum divided by the number of ranks, in all forms and memory."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest
from mpi4py import MPI

import graphs
import kinds
import warpmpi as wm
from cases import FORMS, REDUCED, perform, reduced, settle
from warpmpi._install import CLASS_CALLS

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32)]
INTEGERS += ["int64", "uint64"]
FLOATS = ["float16", "float32", "float64", "complex64", "complex128"]
NAMES = [name for name in REDUCED if REDUCED[name]("ab", 0) == "ab"]
PREFIXES = [name for name in REDUCED if name not in NAMES]
PLACES = ["host", "pinned"] + ["device"] * wm.is_cuda_available()
# Elements of a rank's share, for every way in which GPUs reduce.
LENGTHS = 1, 100, 3000, 40_000, 600_000

gpus = pytest.mark.skipif(not wm.is_cuda_available(), reason="no GPU")


@pytest.fixture(scope="module")
def comm(world):
    comm = wm.Comm(world)
    settle(comm)
    return comm


def make(place, values):
    if place == "host" or not wm.is_cuda_available():
        return values.copy()
    if place == "pinned":
        return wm.array(values, device="cpu", pinned=True)
    return wm.array(values, device=wm.get_device())


def given(comm, dtype, length):
    """What each rank gives: sums that are exact, also below zero."""
    kind, every = np.dtype(dtype).kind, []
    for rank in range(comm.size):
        part = (np.arange(length) * (3 + rank)) % 29
        part = part - 15 * (kind != "u")
        every.append((part * (1 + 1j if kind == "c" else 1)).astype(dtype))
    return every


def average(parts):
    """What NumPy says: integers truncated, others times 1 / n in float64."""
    total, n = sum(parts[1:], parts[0]), len(parts)
    if total.dtype.kind in "iu":
        return (np.sign(total) * (np.abs(total) // n)).astype(total.dtype)
    numbers = total.view(total.real.dtype)
    numbers = (numbers * np.float64(1 / n)).astype(numbers.dtype)
    return numbers.view(total.dtype)


def check(comm, name, form, dtype, length, place, in_place=False):
    parts = given(comm, dtype, length * comm.size)
    right = reduced(comm, name, parts, average)
    share = length if "scatter" in name else length * comm.size
    sent = make(place, parts[comm.rank])
    into = make(place, np.full(share, 9, dtype))
    words = [sent, into, wm.AVG]
    if in_place:
        words[:2] = MPI.IN_PLACE, sent
        if name == "Reduce" and comm.rank:
            words[:2] = sent, None
    if name == "Reduce_scatter":
        words.insert(2, [share] * comm.size)
    perform(comm, name, form, *words, starts=1 if in_place else 2)
    if right is not None:
        found = kinds.values_of(sent if in_place else into)
        np.testing.assert_array_equal(found[: right.size], right)
        if in_place:  # the rest is as it was
            rest = parts[comm.rank][right.size :]
            np.testing.assert_array_equal(found[right.size :], rest)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", INTEGERS + FLOATS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_it_is_what_numpy_says(comm, name, form, dtype, place):
    for length in LENGTHS[:3]:
        check(comm, name, form, dtype, length, place)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_in_place_only_the_result_changes(comm, name, form, place):
    for dtype in ("int32", "float32"):
        check(comm, name, form, dtype, 50, place, in_place=True)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", NAMES)
def test_of_every_length(comm, name, length):
    check(comm, name, "", "float32", length, PLACES[-1])


@gpus
@pytest.mark.parametrize("dtype", INTEGERS + FLOATS)
@pytest.mark.parametrize("name", NAMES)
def test_on_a_stream(comm, name, dtype):
    stream = wm.Stream(wm.get_device())
    for length in LENGTHS if dtype in ("int8", "float32") else LENGTHS[:2]:
        parts = given(comm, dtype, length * comm.size)
        right = reduced(comm, name, parts, average)
        share = length if "scatter" in name else length * comm.size
        words = [make("device", parts[comm.rank])]
        words += [make("device", np.full(share, 9, dtype)), wm.AVG]
        if name == "Reduce_scatter":
            words.insert(2, [share] * comm.size)
        getattr(comm.on(stream), name)(*words)
        stream.synchronize()
        if right is not None:
            np.testing.assert_array_equal(kinds.values_of(words[1]), right)


@gpus
@pytest.mark.parametrize("length", LENGTHS)
def test_in_a_graph(comm, length):
    stream = wm.Stream(wm.get_device())
    total = make("device", np.zeros(length, "f4"))
    comm.on(stream).Allreduce(MPI.IN_PLACE, total, wm.AVG)  # prepares
    stream.synchronize()
    with graphs.capture(stream) as captured:
        comm.on(stream).Allreduce(MPI.IN_PLACE, total, wm.AVG)
    for turn in range(3):
        total.fill_(comm.rank + turn)
        wm.synchronize()
        captured[0].launch(stream)
        stream.synchronize()
        mean = np.float32((comm.size - 1) / 2 + turn)
        assert (kinds.values_of(total) == mean).all()
    captured[0].free()


def test_a_long_mean_of_random_numbers(comm):
    """All ranks get the same bits, in whatever order MPI adds."""
    rng = np.random.default_rng(comm.rank)
    mine = rng.standard_normal(10_000).astype("f4")
    total = make(PLACES[-1], mine)
    comm.Allreduce(MPI.IN_PLACE, total, op=wm.AVG)
    found = kinds.values_of(total)
    every = comm.allgather(found.tobytes())
    assert len(set(every)) == 1
    right = np.mean(comm.allgather(mine.astype("f8")), axis=0)
    np.testing.assert_allclose(found, right, atol=1e-6)


def test_integers_are_truncated(comm):
    mine = np.array([-7, 7, -1, 1, 0], "i8") if comm.rank == 0 else None
    mine = np.zeros(5, "i8") if mine is None else mine
    for place in PLACES:
        into = make(place, np.zeros(5, "i8"))
        comm.Allreduce(make(place, mine), into, wm.AVG)
        right = [int(x / comm.size) for x in (-7, 7, -1, 1, 0)]
        assert kinds.values_of(into).tolist() == right


def test_arrays_with_gaps(comm):
    for place in PLACES:
        field = make(place, np.full((6, 4), comm.rank, "f8"))
        comm.Allreduce(MPI.IN_PLACE, field[:, 1], op=wm.AVG)
        found = kinds.values_of(field)
        assert (found[:, 1] == (comm.size - 1) / 2).all()
        assert (found[:, [0, 2, 3]] == comm.rank).all()


def test_a_datatype_and_a_place_in_the_buffer(comm):
    buffer = np.full(8, comm.rank, "i4")
    spec = [buffer, (3, 2), MPI.INT]
    comm.Allreduce(MPI.IN_PLACE, spec, op=wm.AVG)
    middle = [(comm.size - 1) // 2] * 3
    assert buffer.tolist() == [comm.rank] * 2 + middle + [comm.rank] * 3


def test_pickled_objects(comm):
    mean = (comm.size - 1) / 2
    assert comm.allreduce(comm.rank, op=wm.AVG) == mean
    last = comm.size - 1
    got = comm.reduce(float(comm.rank), wm.AVG, root=last)
    assert got == (mean if comm.rank == last else None)
    for name in ("scan", "exscan"):
        with pytest.raises(TypeError, match=f"{name} has no wm"):
            getattr(comm, name)(1, op=wm.AVG)


def test_between_groups(comm):
    if comm.size < 2:
        pytest.skip("two groups")
    first = comm.rank < comm.size // 2
    half = comm.Split(int(not first))
    inter = half.Create_intercomm(0, comm, comm.size // 2 if first else 0)
    mine = np.full(100, comm.rank, "f8")
    ranks = np.arange(comm.size)
    others = ranks[comm.size // 2 :] if first else ranks[: comm.size // 2]
    for place in PLACES:
        into = make(place, np.zeros(100))
        inter.Allreduce(make(place, mine), into, op=wm.AVG)
        assert (kinds.values_of(into) == np.mean(others)).all()
    inter.Free()
    half.Free()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", PREFIXES)
def test_prefixes_have_none(comm, name, form, place):
    words = make(place, np.ones(3)), make(place, np.ones(3)), wm.AVG
    with pytest.raises(TypeError, match=f"op: {name} has no wm"):
        perform(comm, name, form, *words)
    settle(comm)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", FORMS)
def test_truth_values_have_none(comm, form, place):
    words = make(place, np.ones(3, bool)), make(place, np.ones(3, bool))
    with pytest.raises(
        TypeError, match=r"op: wm\.AVG averages integers.*bool"
    ):
        perform(comm, "Allreduce", form, *words, wm.AVG)
    settle(comm)


def test_pairs_have_none(comm):
    kind = np.dtype([("value", "f8"), ("index", "i4")], align=True)
    pair = np.zeros(2, kind)
    words = [pair.copy(), MPI.DOUBLE_INT], [pair.copy(), MPI.DOUBLE_INT]
    with pytest.raises(TypeError, match=r"op: wm\.AVG averages"):
        comm.Allreduce(*words, op=wm.AVG)
    settle(comm)


def test_mpi4py_refuses_it():
    if not isinstance(MPI.COMM_SELF, wm.Comm):
        with pytest.raises(TypeError, match="op"):
            MPI.COMM_SELF.Allreduce(np.ones(1), np.ones(1), op=wm.AVG)


@gpus
def test_windows_refuse_it():
    """MPI accumulates, also from GPU memory: there is no result to divide."""
    window = MPI.Win.Allocate(8, 8, comm=MPI.COMM_SELF)
    one, result = (wm.ones(1, device=wm.get_device()) for _ in range(2))
    calls = {call[:2]: call[2] for call in CLASS_CALLS}
    window.Lock(0)
    for name in ("Accumulate", "Raccumulate", "Get_accumulate"):
        buffers = (one, result) if name == "Get_accumulate" else (one,)
        with pytest.raises(TypeError, match="op"):
            calls[MPI.Win, name](window, *buffers, 0, op=wm.AVG)
    window.Unlock(0)
    window.Free()


def test_there_is_one():
    assert repr(wm.AVG) == "warpmpi.AVG"
    assert copy.deepcopy(wm.AVG) is wm.AVG
    assert pickle.loads(pickle.dumps(wm.AVG)) is wm.AVG


@gpus
def test_ranks_must_agree(comm):
    if comm.size < 2:
        pytest.skip("two ranks")
    op = wm.AVG if comm.rank else MPI.SUM
    make_all = partial(wm.ones, 4, "float32", device=wm.get_device())
    with pytest.raises(MPI.Exception) as caught:
        comm.Allreduce(make_all(), make_all(), op=op)
    assert caught.value.Get_error_class() == MPI.ERR_OP
    settle(comm)


@pytest.mark.parametrize("place", PLACES)
def test_an_array_is_not_averaged_into_itself(comm, place):
    mine = make(place, np.ones(4))
    with pytest.raises(MPI.Exception) as caught:
        comm.Allreduce(mine, mine, op=wm.AVG)
    assert caught.value.Get_error_class() == MPI.ERR_BUFFER
    settle(comm)
