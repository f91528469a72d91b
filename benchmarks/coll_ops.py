# SPDX-License-Identifier: BSD-3-Clause
"""The collectives that bench_coll.py measures: those of `bench`, and more."""

from __future__ import annotations

import functools
import math

import numpy as np
import package  # noqa: F401  # makes _bench
from _bench.ops import (
    COLLECTIVES,
    LeftOut,
    Op,
    Step,
    allreduce,
    alltoall,
    others,
    twice,
)


class Pencils(Op):
    """The transposition of a distributed Fourier transform, by Alltoallw.

    A matrix of n x n complex64 is cut into slabs of rows before, of columns after;
    the types are subarrays of the slabs. An element is its row and its column.
    """

    def count(self, nbytes, size):
        edge = math.isqrt(nbytes * size // self.dtype.itemsize)
        return max(1, edge // size) * size

    def nbytes(self, n, size):
        return n * n // size * self.dtype.itemsize

    def given(self, rank, size, n):
        data = np.empty((n // size, n), self.dtype)
        data.real = np.arange(rank * n // size, (rank + 1) * n // size)[:, None]
        data.imag = np.arange(n)
        return data

    def room(self, rank, size, n):
        return n, n // size

    def is_right(self, received, rank, size, n):
        received = received.reshape(n, n // size)
        columns = np.arange(rank * n // size, (rank + 1) * n // size)
        return all(
            (received[at : at + 1024].real == np.arange(at, min(n, at + 1024))[:, None]).all()
            and (received[at : at + 1024].imag == columns).all()
            for at in range(0, n, 1024)
        )

    def steps(self, comm, ends, place, average=None):
        from mpi4py import MPI

        (send, recv), (_, size, n) = ends, place
        part = n // size
        make = MPI.C_FLOAT_COMPLEX.Create_subarray
        out = [make((part, n), (part, part), (0, k * part)).Commit() for k in range(size)]
        into = [make((n, part), (part, part), (k * part, 0)).Commit() for k in range(size)]
        call = functools.partial(comm.Alltoallw, [send, out], [recv, into])
        return [Step(True, True, call)]


class Many(Op):
    """Allreduces of MANY arrays that are begun together, as of a network's gradients.

    Where there is enough for it, each is longer than the one before by about the same
    ratio, from one WIDTH on; in mixed order.
    """

    MANY, WIDTH = 160, 4  # arrays; elements that each is a multiple of

    def count(self, nbytes, size):
        return max(self.MANY, nbytes // self.dtype.itemsize // self.WIDTH) * self.WIDTH

    def parts(self, n: int) -> list[slice]:
        """Where each array is in the vector."""
        weights = np.geomspace(1, max(1, n / 50), self.MANY)
        left = n // self.WIDTH - self.MANY
        units = 1 + (left * weights / weights.sum()).astype(int)
        units[-1] += left + self.MANY - units.sum()
        np.random.default_rng(0).shuffle(units)
        widths = self.WIDTH * units
        ends = np.cumsum(widths)
        return [slice(int(end - k), int(end)) for end, k in zip(ends, widths, strict=True)]

    def steps(self, comm, ends, place, average=None):
        (send, recv), (_, _, n) = ends, place
        if not hasattr(comm, "Get_rank"):
            raise LeftOut("one Allreduce after the other is on the stream already")
        method = getattr(comm, self.name)
        pairs = [(send[part], recv[part]) for part in self.parts(n)]
        try:
            requests = [] if self.name == "Iallreduce" else [method(*pair) for pair in pairs]
        except NotImplementedError:  # mpi4py's, where MPI has no persistent collectives
            raise LeftOut("there is no such call") from None

        def run() -> None:
            if requests:
                requests[0].Startall(requests)
            begun = requests or [method(*pair) for pair in pairs]
            begun[0].Waitall(begun)

        return [Step(True, True, run)]


OPS = [
    COLLECTIVES["barrier"](),
    *[COLLECTIVES[name]() for name in ("bcast", "gather", "scatter", "allgather", "alltoall")],
    *[COLLECTIVES[name]() for name in ("reduce", "allreduce", "reduce_scatter")],
    Many("Iallreduce", allreduce, twice),
    Many("Allreduce_init", allreduce, twice),
    # Not compared with NCCL: it has no call for it, but for int8.
    *[COLLECTIVES[name](common=False) for name in ("scan", "exscan", "allgatherv", "alltoallv")],
    Pencils("Alltoallw", alltoall, others, kind="complex64", common=False),
    *[COLLECTIVES["allreduce"](kind=k, common=False) for k in ("complex64", "int16", "int8")],
    COLLECTIVES["allreduce"](kind="int64", op="minloc", common=False),
    COLLECTIVES["allreduce"](kind="int32", op="band", common=False),
]
