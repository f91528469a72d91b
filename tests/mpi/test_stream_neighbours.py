# SPDX-License-Identifier: BSD-3-Clause
"""Collectives of neighbours of comm.on(stream), which a stream is given.

Who gets which block is written down here as MPI's standard has it: the blocks
that one rank has for another follow each other, but in a Cartesian topology
what goes down comes from above.
"""

import gc

import numpy as np
import pytest
from mpi4py import MPI

import graphs
import kinds
import warpmpi as wm

pytestmark = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)

FILL = 5
NAMES = [
    f"Neighbor_{form}"
    for form in "allgather allgatherv alltoall alltoallv alltoallw".split()
]
SIZES = [0, 1, 3, 1000, 65_537, 300_001]
DTYPES = ["int8", "uint16", "complex128", "float64", "int64", "float32"]


def line(comm):
    return comm.Create_cart([comm.size], [False])


def ring(comm):
    return comm.Create_cart([comm.size], [True])


def torus(comm):
    """Some are their own neighbours, or another's twice."""
    dims = MPI.Compute_dims(comm.size, 2)
    return comm.Create_cart([*dims, 1], [True, True, True])


def complete(comm):
    """All others, and itself twice, the last first."""
    index, edges = [], []
    for rank in range(comm.size):
        edges += [rank, *range(comm.size)[::-1]]
        index.append(len(edges))
    return comm.Create_graph(index, edges)


def drawn(seed):
    """Any number of edges, in any order, to and from anybody."""

    def make(comm):
        draw = np.random.default_rng([seed, comm.size])
        number = int(draw.integers(0, 4 * comm.size))
        edges = draw.integers(0, comm.size, (number, 2))
        sources = [int(a) for a, b in edges if b == comm.rank]
        dests = [int(b) for a, b in edges if a == comm.rank]
        own = np.random.default_rng([seed, comm.rank])
        own.shuffle(sources)
        own.shuffle(dests)
        return comm.Create_dist_graph_adjacent(sources, dests)

    make.__name__ = f"drawn{seed}"
    return make


TOPOLOGIES = [line, ring, torus, complete, *map(drawn, range(4))]


@pytest.fixture(scope="module", params=TOPOLOGIES, ids=lambda f: f.__name__)
def near(request, connected):
    made = request.param(connected)
    yield made
    made.Free()


@pytest.fixture
def stream():
    return wm.Stream(wm.get_device())


def links(comm):
    """Which block of whom each of this rank's is: (rank, its block)."""
    outs = comm.allgather(comm.outedges)
    ins, crossed = comm.inedges, comm.topology == MPI.CART
    found, met = [None] * len(ins), {}
    for k in range(len(ins)):
        block = k ^ 1 if crossed else k
        source = ins[block]
        if source == MPI.PROC_NULL:
            continue
        turn = met[source] = met.get(source, -1) + 1
        to_me = [a for a, to in enumerate(outs[source]) if to == comm.rank]
        found[block] = source, to_me[turn]
    return found


class Exchange:
    """A call: what each has, what this rank gets."""

    def __init__(self, comm, name, size, dtype, kind="device", turn=0):
        self.comm, self.name, self.size, self.turn = comm, name, size, turn
        self.dtype, self.width = dtype, np.dtype(dtype).itemsize
        self.element = MPI.Datatype.fromcode(np.dtype(dtype).char)
        self.kind, self.types = kind, []
        self.links, self.degree = links(comm), len(comm.outedges)
        gathers, varies = "allgather" in name, name[-1] in "vw"
        self.into = self.lay(
            [self.length(*link) if link else 2 for link in self.links], varies
        )
        self.out = (
            [slice(0, self.length(comm.rank, 0))]
            if gathers
            else self.lay(
                [self.length(comm.rank, k) for k in range(self.degree)],
                varies,
            )
        )
        self.sent = self.make(self.filled(), varies and not gathers)
        empty = np.full(self.end(self.into), FILL, dtype)
        self.got = self.make(empty, varies)

    def length(self, rank, block):
        """Of the block of a rank's."""
        if self.name.startswith("Neighbor_allgather"):
            return self.size
        return (
            (rank + 2 * block) % 3 * self.size // 2
            if self.name[-1] in "vw"
            else self.size
        )

    def lay(self, lengths, varies):
        """Backwards, and apart, where blocks may lie anywhere."""
        if not varies:
            lengths = [self.size] * len(lengths)
        step = self.step = 2 if self.name[-1] == "w" else 1
        at, made = 0, []
        for length in lengths[::-1] if varies else lengths:
            made.append(slice(at, at + length * step, step))
            at += length * step + varies
        return made[::-1] if varies else made

    def end(self, slices):
        return max([1, *(each.stop + 1 for each in slices)])

    def make(self, values, varies):
        """Of what does not vary all is blocks."""
        return kinds.make(self.kind, values if varies else values[:-1])

    def values(self, rank, block, length):
        if self.name.startswith("Neighbor_allgather"):
            block = 0
        key = np.random.default_rng([rank, block, self.turn])
        return key.integers(0, 100, length).astype(self.dtype)

    def filled(self):
        made = np.full(self.end(self.out), FILL, self.dtype)
        for k, each in enumerate(self.out):
            length = len(made[each])
            made[each] = self.values(self.comm.rank, k, length)
        return made

    def spec(self, array, slices, varies):
        if not varies:
            return array
        lengths = [(s.stop - s.start) // self.step for s in slices]
        at = [s.start for s in slices]
        if self.name[-1] == "v":
            return [array, lengths, at, self.element]
        types = [
            self.element.Create_vector(max(1, n), 1, 2).Commit()
            for n in lengths
        ]
        self.types += types
        ones = [int(n > 0) for n in lengths]
        return [array, ones, [self.width * each for each in at], types]

    def begin(self, channel, prefix=""):
        varies = self.name[-1] in "vw"
        method = prefix + (self.name.lower() if prefix else self.name)
        made = getattr(channel, method)(
            self.spec(self.sent, self.out, varies and "allto" in self.name),
            self.spec(self.got, self.into, varies),
        )
        for each in self.types:
            each.Free()
        self.types.clear()
        return made

    def write(self, turn):
        self.turn = turn
        sent = self.filled()
        size = kinds.values_of(self.sent).size
        wm.asarray(self.sent).assign(sent[:size])

    def check(self):
        got = kinds.values_of(self.got)
        wanted = np.full(self.end(self.into), FILL, self.dtype)
        for each, link in zip(self.into, self.links, strict=True):
            if link is not None:
                wanted[each] = self.values(*link, len(wanted[each]))
        np.testing.assert_array_equal(got, wanted[: got.size], str(self.size))


@pytest.mark.parametrize("name", NAMES)
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


@pytest.mark.parametrize("name", NAMES)
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


@pytest.mark.parametrize("name", NAMES)
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
    if comm.rank == comm.size - 1:
        with pytest.raises(error, match=text):
            call(channel, wm.ones(4, "float32"))
    else:
        channel.Neighbor_alltoall(a, b)
    connected.Barrier()
    stream.synchronize()  # nobody hangs
    with pytest.raises(RuntimeError, match="failed in a collective on a"):
        channel.Barrier()
    comm.Free()


@pytest.mark.ranks(2)
def test_ranks_that_differ(connected, stream):
    comm = ring(connected)
    channel = comm.on(stream)
    a, b = wm.ones(4, "int32"), wm.zeros(4, "int32")
    channel.Neighbor_alltoall(a, b)
    if comm.rank == 0:
        channel.Neighbor_alltoall(a, b)
    else:
        channel.Neighbor_allgather(a[:2], b)
    connected.Barrier()
    stream.synchronize()
    with pytest.raises(TypeError, match=r"called Neighbor_all"):
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
