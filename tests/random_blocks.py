# SPDX-License-Identifier: BSD-3-Clause
"""Blocks for each rank, or each neighbour, of random collectives.

What `a` has as its k-th block goes to one block of one rank, by a table that
all ranks have: of Alltoallv and Alltoallw, or of a communicator's topology.
Those of w-forms are elements with a step between them.
"""

from itertools import accumulate

from mpi4py import MPI

from cases import NEIGHBORS as NEAR

NAMES = "Alltoallv", "Alltoallw", *NEAR


class Near:
    """A communicator's topology, as all ranks know it."""

    def __init__(self, comm):
        crossed = comm.topology == MPI.CART
        self.outs = comm.allgather(comm.outedges)
        ins = comm.allgather(comm.inedges)
        self.ins = [
            self.links(rank, ins[rank], crossed) for rank in range(comm.size)
        ]

    def links(self, rank, ins, crossed):
        """Of each block that a rank gets: of whom it is, and which."""
        found, met = [None] * len(ins), {}
        for k in range(len(ins)):
            block = k ^ 1 if crossed else k
            source = ins[block]
            if source == MPI.PROC_NULL:
                continue
            turn = met[source] = met.get(source, -1) + 1
            there = [a for a, to in enumerate(self.outs[source]) if to == rank]
            found[block] = source, there[turn]
        return found


class Complete:
    """All ranks, in their order."""

    def __init__(self, size):
        self.outs = [range(size)] * size
        self.ins = [[(k, rank) for k in range(size)] for rank in range(size)]


def near(plain, turned, draw):
    """Communicators with topologies: a grid of any kind, and any graph."""
    dims = [*MPI.Compute_dims(plain.size, 2), 1]
    periods = [draw.random() < 0.7 for _ in dims]
    draw.shuffle(dims)
    size, rank = turned.size, turned.rank
    edges = [
        (draw.randrange(size), draw.randrange(size))
        for _ in range(draw.randrange(3 * size))
    ]
    if draw.random() < 0.5:
        edges = sorted({*edges})  # nobody twice
        draw.shuffle(edges)
    ins = [a for a, b in edges if b == rank]
    outs = [b for a, b in edges if a == rank]
    return (
        plain.Create_cart(dims, periods),
        turned.Create_dist_graph_adjacent(ins, outs),
    )


class Blocks:
    """What a call's ranks have as blocks."""

    def __init__(self, name, table, rank, n, draw):
        self.rank, self.table, self.types = rank, table, []
        self.varies = name[-1] in "vw"
        self.gathers, self.typed = "_allgather" in name, name[-1] == "w"
        some = (0, n, n // 2, n + 1) if self.varies else (n,)
        self.counts = [
            [draw.choice(some) for _ in range(1 if self.gathers else len(to))]
            for to in table.outs
        ]
        steps = (1, 1, 2, 3) if self.typed else (1,)
        self.steps = [draw.choice(steps) for _ in table.outs]
        self.nobody = n if not self.varies else 1

    def sent(self, rank):
        """First elements and counts of what a rank has; all elements."""
        counts, step = self.counts[rank], self.steps[rank]
        firsts = [0, *accumulate(count * step for count in counts)]
        return firsts[:-1], counts, firsts[-1]

    def got(self):
        """Likewise of what this rank gets, with one between if it varies."""
        counts = [
            self.counts[link[0]][0 if self.gathers else link[1]]
            if link
            else self.nobody
            for link in self.table.ins[self.rank]
        ]
        step = self.steps[self.rank]
        firsts = [0, *accumulate(n * step + self.varies for n in counts)]
        return firsts[:-1], counts, firsts[-1]

    def lay(self, call, width):
        _, _, total = self.sent(self.rank)
        call.piece("send", total, call.cells(self.rank, total))
        firsts, counts, total = self.got()
        into = call.piece("recv", total)
        links = self.table.ins[self.rank]
        for first, count, link in zip(firsts, counts, links, strict=True):
            if link is None or count == 0:
                continue
            source, block = link
            theirs, _, whole = self.sent(source)
            step = self.steps[source]
            cells = call.cells(source, whole).reshape(-1, width)
            at = theirs[0 if self.gathers else block]
            cells = cells[at : at + count * step : step]
            into.expect(cells.ravel(), first, self.steps[self.rank])

    def words(self, which, width):
        """What tells mpi4py of a side, behind its array."""
        one = not self.varies or (self.gathers and which == "send")
        side = self.sent(self.rank) if which == "send" else self.got()
        firsts, counts, _ = side
        if one or not self.typed:
            return None if one else [(counts, firsts)]
        step = self.steps[self.rank]
        types = [
            MPI.BYTE.Create_vector(max(1, n), width, step * width).Commit()
            for n in counts
        ]
        self.types += types
        ones = [int(n > 0) for n in counts]
        return [(ones, [first * width for first in firsts]), types]

    def free(self):
        for each in self.types:
            each.Free()
        self.types.clear()
