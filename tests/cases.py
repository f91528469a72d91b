# SPDX-License-Identifier: BSD-3-Clause
"""One rank's arguments of a collective of any name, and what must come."""

import numpy as np
from mpi4py import MPI

import kinds
import warpmpi as wm

EMPTY = -1.0  # where nothing is received
EACH = 3  # elements of a block, where all are alike
NAMES = """
    Bcast Gather Gatherv Scatter Scatterv Allgather Allgatherv Alltoall
    Alltoallv Alltoallw Reduce Allreduce Reduce_scatter_block Reduce_scatter
    Scan Exscan Neighbor_allgather Neighbor_allgatherv Neighbor_alltoall
    Neighbor_alltoallv Neighbor_alltoallw
""".split()
TO_ROOT = "Reduce", "Gather", "Gatherv"
FROM_ROOT = "Bcast", "Scatter", "Scatterv"
ROOTED = TO_ROOT + FROM_ROOT


def counted(call):
    """Return how many collectives went from GPU to GPU, and by the host."""
    before = wm.stats()
    call()
    after = wm.stats()
    names = "ipc_collectives", "staged_collectives"
    return tuple(after[name] - before[name] for name in names)


def is_direct(comm):
    """Whether payloads go from GPU to GPU here, on all ranks alike."""
    names = {wm.transport(comm, rank).name for rank in range(comm.size)}
    return all(comm.allgather(names <= {"ipc", "self"}))


def takes_in_place(name):
    return name != "Bcast" and not name.startswith("Neighbor")


def write(buffer, values):
    if isinstance(buffer, np.ndarray):
        buffer[...] = values
    else:
        wm.asarray(buffer).assign(values)


def _of_near(ranks, value):
    there = [each != MPI.PROC_NULL for each in ranks]
    values = [value(each) for each in ranks]
    return np.repeat(np.where(there, values, EMPTY), EACH)


def on_device(values):
    return kinds.make("device", values)


def init(comm, name, case):
    """The persistent collective of that name."""
    return getattr(comm, name + "_init")(*case.args)


class Case:
    """A call with sums, whose results are proportional to what is sent.

    comm: a Cartesian one; make: what makes an array of this rank's kind.
    """

    def __init__(self, comm, name, make, root=0, in_place=False):
        self.comm, self.name, self.root = comm, name, root
        self.counts = [2 + each % 2 for each in range(comm.size)]
        self.at = [sum(self.counts[:each]) for each in range(comm.size)]
        self.values, self.want = self.numbers()
        rooted = name in ROOTED
        at_root = comm.rank == root
        self.in_place = in_place and (at_root or not rooted)
        self.empty = np.full(self.want.size, EMPTY)
        if self.in_place:
            self.place()
        elif (name in TO_ROOT and not at_root) or (
            name == "Bcast" and at_root
        ):
            self.want = self.empty
        self.sent, self.into = make(self.values), make(self.empty)
        self.args = self.arguments(rooted, at_root)

    def numbers(self):
        """Give what this rank sends, and what it receives."""
        comm, name = self.comm, self.name
        rank, size = comm.rank, comm.size
        ranks = np.arange(size) + 1.0
        even, ragged = np.repeat(ranks, EACH), np.repeat(ranks, self.counts)
        mine = slice(self.at[rank], self.at[rank] + self.counts[rank])
        block = np.full(EACH, rank + 1.0)
        if name == "Bcast":
            return np.full(EACH, 5.0), np.full(EACH, 5.0)
        if name in ("Gather", "Allgather"):
            return block, even
        if name in ("Gatherv", "Allgatherv"):
            return ragged[mine], ragged
        if name == "Scatter":
            return even, block
        if name == "Scatterv":
            return ragged, ragged[mine]
        if name.startswith("Alltoall"):
            return 10 * (rank + 1.0) + even, 10 * even + rank + 1.0
        if name == "Reduce_scatter_block":
            return even, size * block
        if name == "Reduce_scatter":
            return ragged, size * ragged[mine]
        if name.startswith("Neighbor"):
            ins = comm.inedges
            if "allgather" in name:
                return block, _of_near(ins, lambda other: other + 1)
            return (
                _of_near(comm.outedges, lambda to: 10 * (rank + 1) + to),
                _of_near(ins, lambda other: 10 * (other + 1) + rank),
            )
        summed = {"Scan": ranks[: rank + 1], "Exscan": ranks[:rank]}
        total = summed.get(name, ranks)
        return block, np.full(EACH, total.sum() if total.size else EMPTY)

    def place(self):
        """Have what is sent where it is received."""
        name = self.name
        if "gather" in name.lower():
            own = np.array(self.want == self.comm.rank + 1)
            self.empty = np.where(own, self.want, EMPTY)
        elif name not in FROM_ROOT:
            self.empty = self.values
        if name == "Exscan" and self.comm.rank == 0:
            self.want = self.values
        if name in FROM_ROOT:
            self.want = self.empty  # its own block stays where it is

    def arguments(self, rooted, at_root):
        name = self.name
        if name == "Bcast":
            return [self.sent if at_root else self.into, self.root]
        args = [self.sent, self.into]
        if name.endswith(("v", "w")):
            self.specify(args)
        if self.in_place:
            args[name in FROM_ROOT] = MPI.IN_PLACE
        if name == "Reduce_scatter":
            args.append(self.counts)
        if rooted and not at_root:
            args[name in TO_ROOT] = None
        if name == "Reduce":
            args.append(MPI.SUM)
        return [*args, self.root] if rooted else args

    def specify(self, args):
        """Name the blocks of what has several."""
        name, counts, at = self.name, self.counts, self.at
        gathers, scatters = "gather" in name.lower(), name == "Scatterv"
        if "alltoall" in name.lower() or "Neighbor" in name:
            counts = [EACH] * (self.want.size // EACH)
            at = [EACH * each for each in range(len(counts))]
        for k in [1] if gathers else [0] if scatters else [0, 1]:
            given = args[k]
            args[k] = [given, counts, at, MPI.DOUBLE]
            if name.endswith("w"):
                types = [MPI.DOUBLE] * len(counts)
                args[k] = [given, counts, [8 * each for each in at], types]

    def prepare(self, scale):
        """Write what is to be sent, so many times."""
        write(self.sent, self.values * scale)
        write(self.into, self.times(self.empty, scale))

    def check(self, scale):
        got = kinds.values_of(self.into)[: self.want.size]
        np.testing.assert_array_equal(got, self.times(self.want, scale))

    @staticmethod
    def times(values, scale):
        return np.where(values == EMPTY, EMPTY, values * scale)
