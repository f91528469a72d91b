# SPDX-License-Identifier: BSD-3-Clause
"""Collectives of neighbours: topologies, and what each rank gets.

Who gets which block is written down here as MPI's standard has it: the blocks
that one rank has for another follow each other, but in a Cartesian topology
what goes down comes from above.
"""

import numpy as np
from mpi4py import MPI

import kinds
import warpmpi as wm
from random_blocks import Near

FILL = 5


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


def beside_nobody(comm):
    """A line of ranks as a distributed graph, with nobody at its ends."""
    ends = [comm.rank - 1, comm.rank + 1]
    near = [k if 0 <= k < comm.size else MPI.PROC_NULL for k in ends]
    return comm.Create_dist_graph_adjacent(near, near[::-1])


def from_first(comm):
    """The first rank sends to the others, which send to nobody."""
    others = list(range(1, comm.size))
    if comm.rank == 0:
        return comm.Create_dist_graph_adjacent([], others)
    return comm.Create_dist_graph_adjacent([0], [])


TOPOLOGIES = [line, ring, torus, complete, *map(drawn, range(4))]


class Exchange:
    """A call: what each has, what this rank gets."""

    def __init__(self, comm, name, size, dtype, kind="device", turn=0):
        self.comm, self.name, self.size, self.turn = comm, name, size, turn
        self.dtype, self.width = dtype, np.dtype(dtype).itemsize
        self.element = MPI.Datatype.fromcode(np.dtype(dtype).char)
        self.kind, self.types = kind, []
        self.links = Near(comm).ins[comm.rank]
        self.degree = len(comm.outedges)
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

    def begin(self, channel, prefix="", suffix=""):
        varies = self.name[-1] in "vw"
        method = prefix + (self.name.lower() if prefix else self.name) + suffix
        made = getattr(channel, method)(
            self.spec(self.sent, self.out, varies and "allto" in self.name),
            self.spec(self.got, self.into, varies),
        )
        if not method.endswith("_init"):
            self.free()
        return made

    def free(self):
        """Of the datatypes, which MPI's persistent calls may still use."""
        for each in self.types:
            each.Free()
        self.types.clear()

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
