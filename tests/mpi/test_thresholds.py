# SPDX-License-Identifier: BSD-3-Clause
"""Switch points: they say which way is taken, alike on all ranks."""

import ctypes
import os
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import ranks
import warpmpi as wm
from stream_calls import CALLS, Call
from warpmpi import _core, _points

pytestmark = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)
traced = pytest.mark.skipif(kinds.is_real(), reason="the driver is to tell")

HERE = Path(__file__).resolve().parent
MOST = _points.MOST


def force(**points):
    """The points of this rank, whatever the GPUs and the links."""
    found = _core._points(wm.get_device(), True, 2)
    row = tuple({**found, **points}.values())
    _core._set_points([(0, linked, 0, *row) for linked in (False, True)])


@pytest.fixture(autouse=True)
def built_in():
    _core._set_points([])
    yield
    _core._set_points([])


@pytest.fixture
def make():
    """Makes communicators, which take the points of their first calls."""
    made = []

    def new():
        made.append(MPI.COMM_WORLD.Dup())
        return wm.Comm(made[-1])

    yield new
    for plain in made:
        plain.Free()


def kernels(call):
    """The names of those that a call launches, and how many copies."""
    library = kinds.driver()
    library.simcuda_trace.restype = ctypes.c_char_p
    library.simcuda_trace(1)
    call()
    lines = library.simcuda_trace(0).decode().split("\n")
    named = [line.strip() for line in lines if line.startswith("  wm_")]
    return named, sum(line.startswith("cuMemcpy") for line in lines)


@traced
@pytest.mark.ranks(2)
@pytest.mark.skipif(MPI.COMM_WORLD.size > 2, reason="a GPU for each rank")
@pytest.mark.parametrize(
    ("points", "kernel"),
    [
        ({}, "wm_ll_move"),
        ({"lines": 3999}, "wm_ll128_move"),
        ({"lines": 4000}, "wm_ll_move"),
        ({"lines": 0, "wide": 4000}, "wm_ll128_move"),
        ({"lines": 0, "wide": 3999}, "wm_simple_move"),
        ({"lines": 0, "wide": 4000}, "wm_ll128_float32"),
        ({"lines": 0, "wide": 3999}, "wm_ll128_parts_float32"),
        (
            {"lines": 0, "wide": 0, "wide_parts": 2000},
            "wm_ll128_parts_float32",
        ),
        ({"lines": 0, "wide": 0, "wide_parts": 1999}, "wm_simple_float32"),
    ],
)
def test_rank_0s_say_how_a_stream_goes(make, points, kernel):
    if MPI.COMM_WORLD.rank == 0:
        force(**points)
    else:  # which nobody asks for
        force(lines=MOST - points.get("lines", MOST), wide=0)
    stream = wm.Stream(wm.get_device())
    channel = make().on(stream)
    a = wm.ones(1000, "float32")
    channel.Bcast(a[:0])
    calls = {
        "move": lambda: channel.Bcast(a),
        "float32": lambda: channel.Allreduce(MPI.IN_PLACE, a),
    }
    assert kernels(calls[kernel.split("_")[-1]])[0] == [kernel]
    stream.synchronize()


PARTS = """
    import test_thresholds
    from mpi4py import MPI

    import warpmpi as wm

    # Who folds: the root alone, or all but it, each a part.
    root = MPI.COMM_WORLD.rank == 0
    folds = "wm_simple_move", "wm_simple_float32"
    for parts, number in (4000, root), (3999, not root):
        test_thresholds.force(lines=0, wide=0, wide_parts=0, parts=parts)
        stream = wm.Stream(wm.get_device())
        channel = wm.Comm(MPI.COMM_WORLD.Dup()).on(stream)
        a = wm.full(1000, MPI.COMM_WORLD.rank + 7, "float32")
        b = wm.zeros(1000, "float32") if root else None
        channel.Bcast(a[:0])
        named, _ = test_thresholds.kernels(lambda: channel.Reduce(a, b))
        assert named == [folds[number]], named
        channel.Bcast(a)
        assert not root or (b.numpy() == 7 + 8 + 9).all()
        assert (a.numpy() == 7).all()
    print("right")
"""


@traced
@pytest.mark.programs
def test_parts(tmp_path):
    printed = ranks.run_text(
        tmp_path,
        PARTS,
        ranks=3,
        SIMCUDA_DEVICES="3",
        PYTHONPATH=os.pathsep.join(
            [str(HERE), str(HERE.parent), str(ranks.ROOT)]
        ),
    )
    assert printed.count("right") == 3


@traced
@pytest.mark.ranks(3)
@pytest.mark.parametrize(
    ("points", "ways"),
    [
        ({"meeting": 2 * 4000 - 1}, (1, 0)),  # written into all others'
        ({"meeting": MOST, "phase": 3999}, (1, 1)),  # a part, then the others
        ({"meeting": MOST, "phase": 4000}, (0, 1)),
    ],
)
def test_rank_0s_say_how_a_blocking_call_goes(make, points, ways):
    comm = make()
    if comm.size != 4:
        pytest.skip("its numbers are of 4 ranks")
    force(**(points if comm.rank == 0 else {"meeting": 0}))
    a = wm.ones(1000, "float32")
    comm.Bcast(a)
    named, copies = kernels(lambda: comm.Bcast(a))
    told = MPI.COMM_WORLD.allgather((len(named), copies))
    assert told[1:] == [ways] * 3


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("values", list(product((0, MOST), repeat=4)), ids=str)
def test_whatever_they_are_values_are_right(make, values, first):
    names = "lines", "wide", "wide_parts", "parts"
    lines, wide, *_ = values
    if MPI.COMM_WORLD.rank == 0 or not first:
        named = dict(zip(names, values, strict=True))
        force(**named, meeting=lines, phase=wide)
    comm, stream = make(), wm.Stream(wm.get_device())
    made = []
    for turn, call in enumerate(CALLS):
        for size, channel in product((0, 3, 20_001), (comm, comm.on(stream))):
            c = Call(comm, size, "float32", "device", turn % comm.size)
            made.append((call.__name__, call(c, channel)))
    stream.synchronize()
    for name, result in made:
        out, wanted = result
        np.testing.assert_array_equal(out.numpy(), wanted, err_msg=name)


def test_sums_are_the_same_by_all_ways(make):
    mine = np.random.default_rng(MPI.COMM_WORLD.rank).normal(size=30_011)
    sums, stream = set(), wm.Stream(wm.get_device())
    for way in "lines", "wide", "wide_parts", "parts":
        points = {"lines": 0, "wide": 0, "wide_parts": 0, way: MOST}
        force(**points, meeting=points["lines"])
        comm = make()
        for channel in comm, comm.on(stream):
            a = wm.array(mine, "float32")
            channel.Allreduce(MPI.IN_PLACE, a)
            stream.synchronize()
            sums.add(a.numpy().tobytes())
    assert len(sums) == 1
