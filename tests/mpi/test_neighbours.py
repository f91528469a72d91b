# SPDX-License-Identifier: BSD-3-Clause
"""Collectives of neighbours in a topology, from GPU to GPU."""

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import neighbor_exchange
import warpmpi as wm
from cases import EACH, Case
from cases import NEIGHBORS as NAMES

pytestmark = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)

FILL = -5.0
COUNTED = "ipc_collectives", "staged_collectives"


def line(comm):
    return comm.Create_cart([comm.size], [False])


def ring(comm):
    return comm.Create_cart([comm.size], [True])


def grid(comm):
    return comm.Create_cart(MPI.Compute_dims(comm.size, 2))


def complete(comm):
    """All others, and itself, the last first."""
    order = list(range(comm.size))[::-1]
    index = [comm.size * (rank + 1) for rank in range(comm.size)]
    return comm.Create_graph(index, order * comm.size)


def onward(comm):
    """Each sends to the next, and gets from the one before."""
    before, behind = (comm.rank + shift for shift in (-1, 1))
    return comm.Create_dist_graph_adjacent(
        [before % comm.size], [behind % comm.size]
    )


TOPOLOGIES = line, ring, grid, complete, onward


@pytest.fixture(scope="module", params=TOPOLOGIES, ids=lambda f: f.__name__)
def near(request, connected):
    made = request.param(connected)
    yield made
    made.Free()


def case(comm, name, make):
    """Arguments, what is received into, and what must be there."""

    def value(source, to, n):
        return 100.0 * source + 10 * to + np.arange(n)

    made = Case(comm, name, make, value=value)
    return made.args, made.into, made.want


def blocking(comm, name, args):
    getattr(comm, name)(*args)


def nonblocking(comm, name, args):
    getattr(comm, "In" + name[1:])(*args).Wait()


def call(comm, name, args, how=blocking):
    before = wm.stats()
    how(comm, name, args)
    after = wm.stats()
    return tuple(after[key] - before[key] for key in COUNTED)


each_way = pytest.mark.parametrize(
    "how", [blocking, nonblocking], ids=lambda f: f.__name__
)


@each_way
@pytest.mark.parametrize("name", NAMES)
def test_blocks_of_neighbours(near, name, how):
    for kind in kinds.DEVICE_KINDS:
        args, taken, want = case(
            near, name, lambda a, k=kind: kinds.make(k, a)
        )
        near.Barrier()
        done = call(near, name, args, how)
        assert done == (1, 0), kind
        np.testing.assert_array_equal(kinds.values_of(taken), want)


@each_way
@pytest.mark.parametrize("name", NAMES)
def test_one_rank_is_a_host(near, name, how):
    kind = "host" if near.rank == near.size - 1 else "device"
    args, taken, want = case(near, name, lambda a: kinds.make(kind, a))
    assert call(near, name, args, how)[0] == 0
    np.testing.assert_array_equal(kinds.values_of(taken), want)


@each_way
@pytest.mark.parametrize("name", NAMES)
def test_plain_arrays_are_mpis(near, name, how):
    args, taken, want = case(near, name, np.array)
    assert call(near, name, args, how) == (0, 0)
    np.testing.assert_array_equal(taken, want)


def begin(exchange, comm, form):
    """Do it some times over, as often as another value is sent."""
    if form == "blocking":
        exchange.begin(comm)
    elif form == "nonblocking":
        exchange.begin(comm, "I").Wait()
    else:
        request = exchange.begin(comm, suffix="_init")
        for turn in range(3):
            exchange.write(turn)
            request.Start()
            request.Wait()
            exchange.check()
        request.Free()
        exchange.free()
    exchange.check()


@pytest.fixture(
    scope="module",
    params=[
        *neighbor_exchange.TOPOLOGIES,
        neighbor_exchange.beside_nobody,
        neighbor_exchange.from_first,
    ],
    ids=lambda f: f.__name__,
)
def doubled(request, connected):
    """A topology, in most of which some rank is a neighbour twice."""
    made = request.param(connected)
    yield made
    made.Free()


@pytest.mark.parametrize("form", ["blocking", "nonblocking", "persistent"])
@pytest.mark.parametrize("name", NAMES)
def test_each_block_has_its_place(doubled, name, form):
    """Which is not that of another block of the same rank's."""
    last = doubled.rank == doubled.size - 1
    for kind in ("device", "host", "host" if last else "device"):
        for size, dtype in ((3, "float64"), (2000, "int16")):
            exchange = neighbor_exchange.Exchange(
                doubled, name, size, dtype, kind=kind
            )
            doubled.Barrier()
            before = wm.stats()
            begin(exchange, doubled, form)
            after = wm.stats()
            if doubled.allreduce(kind == "device", MPI.LAND):
                starts = 3 if form == "persistent" else 1
                assert [after[k] - before[k] for k in COUNTED] == [starts, 0]


def test_blocks_of_one_neighbour_beside_other_calls(doubled):
    """Nonblocking ones, which MPI begins in one order on all ranks."""
    made, requests = [], []
    for turn, name in enumerate([*NAMES, *NAMES]):
        host = (doubled.rank + turn) % 3 == 0
        made.append(
            neighbor_exchange.Exchange(
                doubled, name, 5, "int32", "host" if host else "device", turn
            )
        )
        requests.append(made[-1].begin(doubled, "I"))
        if turn % 4 == 1:
            blocking = neighbor_exchange.Exchange(
                doubled, name, 7, "float32", "host"
            )
            blocking.begin(doubled)
            blocking.check()
    MPI.Request.Waitall(requests)
    for each in made:
        each.check()


@pytest.mark.ranks(2)
def test_several_are_under_way(near):
    """Of each kind, beside others, by GPUs and by MPI in turn."""
    host = near.size - 1
    requests, given = [], []
    for turn, name in enumerate([*NAMES, *NAMES[::-1]]):
        kind = "host" if near.rank == host and turn % 3 == 1 else "device"
        args, taken, want = case(
            near, name, lambda a, kind=kind: kinds.make(kind, a)
        )
        total = kinds.make("device", np.zeros(2))
        requests += [
            getattr(near, "In" + name[1:])(*args),
            near.Iallreduce(kinds.make("device", np.ones(2)), total),
        ]
        given += [(taken, want), (total, np.full(2, near.size))]
    MPI.Request.Waitall(requests)
    for taken, want in given:
        np.testing.assert_array_equal(kinds.values_of(taken), want)


@pytest.mark.ranks(2)
def test_a_handle_is_freed_meanwhile(connected):
    """MPI does it where one rank has host memory."""
    comm = ring(connected)
    kind = "host" if comm.rank == 0 else "device"
    args, taken, want = case(
        comm, "Neighbor_allgather", lambda a: kinds.make(kind, a)
    )
    request = comm.Ineighbor_allgather(*args)
    comm.Free()
    request.Wait()
    np.testing.assert_array_equal(kinds.values_of(taken), want)


def test_a_halo_of_subarrays(connected):
    """Rows and columns at the edges of a field, into the halo around it."""
    comm = connected.Create_cart(MPI.Compute_dims(connected.size, 2))
    n, m = 6, 5
    field = np.full((n + 2, m + 2), FILL)
    field[1:-1, 1:-1] = 100 * comm.rank + np.arange(n * m).reshape(n, m)

    def part(rows, columns):
        made = MPI.DOUBLE.Create_subarray(
            field.shape,
            [len(range(*each)) for each in (rows, columns)],
            [rows[0], columns[0]],
        )
        return made.Commit()

    middle = (1, n + 1), (1, m + 1)
    sends = [part((at, at + 1), middle[1]) for at in (1, n)]
    sends += [part(middle[0], (at, at + 1)) for at in (1, m)]
    halos = [part((at, at + 1), middle[1]) for at in (0, n + 1)]
    halos += [part(middle[0], (at, at + 1)) for at in (0, m + 1)]
    want = field.copy()
    edges = (
        (np.s_[0, 1:-1], lambda f: f[-1]),
        (np.s_[-1, 1:-1], lambda f: f[0]),
        (np.s_[1:-1, 0], lambda f: f[:, -1]),
        (np.s_[1:-1, -1], lambda f: f[:, 0]),
    )
    for rank, (halo, edge) in zip(comm.inedges, edges, strict=True):
        if rank != MPI.PROC_NULL:
            theirs = 100 * rank + np.arange(n * m).reshape(n, m)
            want[halo] = edge(theirs)
    array = wm.array(field)
    comm.Barrier()
    ones, nowhere = [1] * 4, [0] * 4
    done = call(
        comm,
        "Neighbor_alltoallw",
        ([array, (ones, nowhere), sends], [array, (ones, nowhere), halos]),
    )
    assert done == (1, 0)
    np.testing.assert_array_equal(array.numpy(), want)
    comm.Free()


@pytest.mark.ranks(2)
def test_other_lengths_are_an_error_on_all(connected):
    comm = line(connected)
    sent, into = wm.ones(2 * EACH), wm.zeros(2 * EACH)
    count = EACH - 1 if comm.rank == 0 else EACH
    args = [sent, ([count] * 2, [0, EACH])], [into, ([EACH] * 2, [0, EACH])]
    with pytest.raises(MPI.Exception, match="rank 0 sends 16 bytes to rank 1"):
        comm.Neighbor_alltoallv(*args)
    comm.Neighbor_alltoall(sent, into)
    comm.Free()


def test_a_communicator_without_a_topology(connected):
    with pytest.raises((AttributeError, MPI.Exception)):
        connected.Neighbor_alltoall(wm.ones(2), wm.zeros(2))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_blocks_with_gaps_of_a_neighbour_that_is_there_twice(world, kind):
    """Blocks of a datatype with gaps, from one rank twice and from itself."""
    comm = wm.Comm(world)
    near = {0: ([1, 1, 0], [1, 0]), 1: ([0], [0, 0])}
    graph = comm.Create_dist_graph_adjacent(*near.get(comm.rank, ([], [])))
    pairs = MPI.DOUBLE.Create_vector(2, 1, 3).Create_resized(0, 40).Commit()
    want = into = np.full(200, FILL)
    if comm.rank == 0:
        given, sent = np.arange(100.0), ([0, 64], [0, 0])
        blocks = [3, 3, 32], [0, 4, 8]
        want = into.copy()
        for block, data in zip(
            blocks[1], (np.r_[7:13], np.r_[40:46], np.r_[:64]), strict=True
        ):
            starts = 5 * (block + np.arange(len(data) // 2))
            want[starts], want[starts + 3] = data[::2], data[1::2]
    elif comm.rank == 1:
        given, sent = np.arange(50.0), ([6, 6], [7, 40])
        blocks = [0], [0]
    else:  # next to nobody
        given, sent, blocks = np.zeros(1), ([], []), ([], [])
    into = kinds.make(kind, into)
    graph.Neighbor_alltoallv(
        [kinds.make(kind, given), *sent, MPI.DOUBLE], [into, *blocks, pairs]
    )
    np.testing.assert_array_equal(kinds.values_of(into), want)
    graph.Free()
    pairs.Free()
