# SPDX-License-Identifier: BSD-3-Clause
"""Collectives of neighbours of comm.on(stream), which a stream is given."""

import gc

import numpy as np
import pytest
from mpi4py import MPI

import graphs
import warpmpi as wm
from cases import NEIGHBORS
from neighbor_exchange import TOPOLOGIES, Exchange, ring

pytestmark = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)

SIZES = [0, 1, 3, 1000, 65_537, 300_001]
DTYPES = ["int8", "uint16", "complex128", "float64", "int64", "float32"]


@pytest.fixture(scope="module", params=TOPOLOGIES, ids=lambda f: f.__name__)
def near(request, connected):
    made = request.param(connected)
    yield made
    made.Free()


@pytest.mark.parametrize("name", NEIGHBORS)
@pytest.mark.parametrize("kind", ["device", "foreign"])
def test_values(near, stream, name, kind):
    """All sizes and types under way at once."""
    channel, made = near.on(stream), []
    for size, dtype in zip(SIZES, DTYPES, strict=True):
        made.append(Exchange(near, name, size, dtype, kind))
        made[-1].begin(channel)
    stream.synchronize()
    for each in made:
        each.check()


@pytest.mark.parametrize("name", NEIGHBORS)
def test_nonblocking(near, stream, name):
    channel, made, requests = near.on(stream), [], []
    for size, dtype in zip(SIZES[:-1], DTYPES[:-1], strict=True):
        made.append(Exchange(near, name, size, dtype))
        requests.append(made[-1].begin(channel, "I"))
        gc.collect()
    MPI.Request.Waitall(requests)
    assert stream.is_complete
    for each in made:
        each.check()


@pytest.mark.parametrize("name", NEIGHBORS)
def test_in_a_graph(near, stream, name):
    channel = near.on(stream)
    made = [
        Exchange(near, name, size, dtype)
        for size, dtype in zip(SIZES, DTYPES, strict=True)
    ]
    with graphs.capture(stream) as captured:
        for each in made:
            each.begin(channel)
    for turn in range(3):
        for each in made:
            each.write(turn)
        captured[0].launch(stream)
        beside = Exchange(near, name, 777, "int32")
        beside.begin(channel)  # which is not in it
        stream.synchronize()
        for each in [*made, beside]:
            each.check()
    captured[0].free()


def test_halos_of_a_field(connected, stream):
    """As the guide has it: edges of an array into the halo around it."""
    comm = connected.Create_cart([connected.size, 1], [True, True])
    n = 20
    column = MPI.DOUBLE.Create_subarray([n + 2, n + 2], [n, 1], [1, 0])
    row = MPI.DOUBLE.Create_subarray([n + 2, n + 2], [1, n], [0, 1])
    column.Commit()
    row.Commit()
    rows, columns = 8 * (n + 2), 8
    types, ones = [row, row, column, column], [1] * 4
    edges = [1 * rows, n * rows, 1 * columns, n * columns]
    halos = [0, (n + 1) * rows, 0, (n + 1) * columns]
    field = np.zeros((n + 2, n + 2))
    field[1:-1, 1:-1] = np.arange(n * n).reshape(n, n) + 1000 * comm.rank
    array = wm.array(field)
    comm.on(stream).Neighbor_alltoallw(
        [array, ones, edges, types], [array, ones, halos, types]
    )
    above, below = ((comm.rank + k) % comm.size - comm.rank for k in (-1, 1))
    field[0, 1:-1] = field[n, 1:-1] + 1000 * above
    field[-1, 1:-1] = field[1, 1:-1] + 1000 * below
    field[1:-1, 0], field[1:-1, -1] = field[1:-1, n], field[1:-1, 1]
    stream.synchronize()
    np.testing.assert_array_equal(array.numpy(), field)
    comm.Free()


def test_without_a_topology(connected, stream):
    comm = wm.Comm(MPI.COMM_WORLD.Dup())
    a = wm.ones(4)
    with pytest.raises(MPI.Exception, match="Create_cart"):
        comm.on(stream).Neighbor_allgather(a, a)
    comm.on(stream).Allreduce(MPI.IN_PLACE, a)  # it was on all, the first
    assert (a.numpy() == comm.size).all()
    comm.Free()


def vector(stride=2):
    return MPI.FLOAT.Create_vector(2, 1, stride).Commit()


WRONG = {
    "in place": (
        lambda ch, a: ch.Neighbor_alltoall(MPI.IN_PLACE, a),
        TypeError,
        "Neighbor_alltoall on a stream",
    ),
    "nothing": (
        lambda ch, a: ch.Neighbor_allgather(a, None),
        TypeError,
        "Neighbor_allgather on a stream",
    ),
    "host memory": (
        lambda ch, a: ch.Neighbor_alltoall(np.ones(4, "float32"), a),
        TypeError,
        r"sendbuf.*without\s+on\(stream\)",
    ),
    "blocks": (
        lambda ch, a: ch.Neighbor_alltoall(a[:3], a),
        TypeError,
        "Neighbor_alltoall on a stream",
    ),
    "beyond the end": (
        lambda ch, a: ch.Neighbor_alltoallw(
            [a, [1, 1], [0, 8], [vector(), vector()]],
            [a, [1, 1], [0, 8], [vector(), vector()]],
        ),
        TypeError,
        "within the array",
    ),
    "over itself": (
        lambda ch, a: ch.Neighbor_alltoallw(
            [a, [1, 1], [0, 0], [vector(), vector()]],
            [a, [1, 1], [0, 0], [vector(0), vector(0)]],
        ),
        TypeError,
        "in strides",
    ),
    "types": (
        lambda ch, a: ch.Neighbor_alltoallw(
            [a, [1], [0], [vector()]], [a, [1, 1], [0, 0], [vector()] * 2]
        ),
        TypeError,
        "a datatype in\\s+strides",
    ),
    "gaps": (
        lambda ch, a: ch.Neighbor_alltoall(wm.zeros((4, 4))[:, 1], a),
        BufferError,
        "contiguous",
    ),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_who_is_wrong_is_told_and_so_are_the_others(connected, stream, name):
    comm = ring(connected)
    channel, (call, error, text) = comm.on(stream), WRONG[name]
    a, b = wm.ones(4, "float32"), wm.zeros(4, "float32")
    channel.Neighbor_alltoall(a, b)
    last = comm.rank == comm.size - 1
    if not last:
        channel.Neighbor_alltoall(a, b)
    connected.Barrier()
    if last:
        with pytest.raises(error, match=text):
            call(channel, wm.ones(4, "float32"))
    connected.Barrier()
    if not last:
        with pytest.raises(RuntimeError, match="failed in a collective on a"):
            stream.synchronize()  # nobody hangs
    b.fill_(0)
    channel.Neighbor_alltoall(a, b)
    assert (b.numpy() == 1).all()
    comm.Free()


@pytest.mark.ranks(2)
def test_ranks_that_differ(connected, stream):
    comm = ring(connected)
    channel = comm.on(stream)
    a, b = wm.ones(4, "int32"), wm.zeros(4, "int32")
    channel.Neighbor_alltoall(a, b)
    differ = pytest.raises(TypeError, match=r"called Neighbor_all")
    if comm.rank == 0:
        channel.Neighbor_alltoall(a, b)
    connected.Barrier()
    if comm.rank != 0:
        with differ:
            channel.Neighbor_allgather(a[:2], b)
    connected.Barrier()
    if comm.rank == 0:
        with differ:
            stream.synchronize()
    channel.Barrier()
    comm.Free()


@pytest.mark.ranks(2)
def test_captures_that_differ(connected, stream):
    comm = ring(connected)
    channel = comm.on(stream)
    a, b = wm.ones(4, "int32"), wm.zeros(4, "int32")
    name = "alltoall" if comm.rank == 0 else "alltoallv"
    with (
        graphs.capture(stream) as captured,
        pytest.raises(TypeError, match="capture different collectives"),
    ):
        getattr(channel, f"Neighbor_{name}")(a, b)
    captured[0].free()
    comm.Free()
