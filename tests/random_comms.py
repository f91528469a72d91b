# SPDX-License-Identifier: BSD-3-Clause
"""Communicators of every kind for random collectives, from a seed alone."""

import random
from dataclasses import dataclass

from mpi4py import MPI

# name: (intra, inter or neighbours, how often)
KINDS = {
    "world": ("intra", 6),
    "dup": ("intra", 3),
    "reversed": ("intra", 3),
    "parts": ("intra", 3),
    "self": ("intra", 1),
    "inter": ("inter", 3),
    "ring": ("neighbours", 1.5),
    "grid": ("neighbours", 1.5),
    "graph": ("neighbours", 1.5),
    "dist graph": ("neighbours", 2),
}


@dataclass(slots=True)
class Place:
    """A communicator, and who is on it."""

    comm: MPI.Comm
    sizes: tuple[int, ...]  # of its groups
    me: int  # this rank's index
    ranks: list[int]  # of the world, by index
    near: list | None = None  # by index: sources and destinations
    part: int = 0


def names(size, chosen):
    """Those that so many ranks can make, or of them the chosen ones."""
    return {
        name: value
        for name, value in KINDS.items()
        if (size > 1 or name not in ("inter", "graph"))
        and (not chosen or name in chosen)
    }


class Comms:
    """One of each, made by all ranks of a communicator together."""

    def __init__(self, world, seed, wrap):
        self.draw = random.Random(f"comms {seed}")
        self.world = world
        self.size, self.rank = world.size, world.rank
        everyone = list(range(self.size))
        me = self.rank, everyone
        self.places = {
            "world": self.place(world, *me),
            "dup": self.place(world.Dup(), *me),
            "reversed": self.place(
                world.Split(0, -self.rank),
                self.size - 1 - self.rank,
                everyone[::-1],
            ),
            "self": self.place(wrap(MPI.COMM_SELF), 0, [self.rank]),
            "parts": self.parts(),
            "ring": self.cart([self.size]),
            "grid": self.cart(MPI.Compute_dims(self.size, 2)),
            "dist graph": self.dist_graph(),
        }
        if self.size > 1:
            self.places["graph"] = self.graph()
            self.places["inter"] = self.inter()

    def place(self, comm, me, ranks, near=None, part=0):
        return Place(comm, (len(ranks),), me, ranks, near, part)

    def parts(self):
        count = self.draw.randrange(1, self.size + 1)
        colors = [self.draw.randrange(count) for _ in range(self.size)]
        mine = colors[self.rank]
        ranks = [r for r in range(self.size) if colors[r] == mine]
        comm = self.world.Split(mine, self.rank)
        return self.place(comm, ranks.index(self.rank), ranks, None, mine)

    def cart(self, dims):
        # Around a ring of two both neighbours are one, and MPIs differ in
        # which block is whose.
        periods = [n > 2 and self.draw.random() < 0.6 for n in dims]
        near = []
        for rank in range(self.size):
            coords, rest = [], rank
            for n in reversed(dims):
                coords.insert(0, rest % n)
                rest //= n
            beside = []
            for d, n in enumerate(dims):
                for step in (-1, 1):
                    there = list(coords)
                    there[d] += step
                    if periods[d]:
                        there[d] %= n
                    if not 0 <= there[d] < n:
                        beside.append(-1)
                        continue
                    found = 0
                    for c, m in zip(there, dims, strict=True):
                        found = found * m + c
                    beside.append(found)
            near.append((beside, beside))
        comm = self.world.Create_cart(dims, periods)
        return self.place(comm, self.rank, list(range(self.size)), near)

    def graph(self):
        beside = [[] for _ in range(self.size)]
        for a in range(self.size):
            for b in range(a):
                # Without an edge Open MPI does not take it for a graph.
                if a + b == 1 or self.draw.random() < 0.7:
                    beside[a].append(b)
                    beside[b].append(a)
        index, edges = [], []
        for each in beside:
            self.draw.shuffle(each)
            edges += each
            index.append(len(edges))
        comm = self.world.Create_graph(index, edges)
        near = [(each, each) for each in beside]
        return self.place(comm, self.rank, list(range(self.size)), near)

    def dist_graph(self):
        near = [([], []) for _ in range(self.size)]
        for _ in range(self.draw.randrange(3 * self.size)):
            source = self.draw.randrange(self.size)
            dest = self.draw.randrange(self.size)
            near[dest][0].append(source)
            near[source][1].append(dest)
        comm = self.world.Create_dist_graph_adjacent(*near[self.rank])
        return self.place(comm, self.rank, list(range(self.size)), near)

    def inter(self):
        colors = [self.draw.randrange(2) for _ in range(self.size)]
        colors[0], colors[-1] = 0, 1
        groups = [
            [r for r in range(self.size) if colors[r] == g] for g in (0, 1)
        ]
        mine = colors[self.rank]
        local = self.world.Split(mine, self.rank)
        leader = groups[1 - mine][0]
        comm = local.Create_intercomm(0, self.world, leader, 9)
        local.Free()
        ranks = groups[0] + groups[1]
        sizes = len(groups[0]), len(groups[1])
        return Place(comm, sizes, ranks.index(self.rank), ranks)

    def free(self):
        for name, place in self.places.items():
            if name not in ("world", "self"):
                place.comm.Free()
