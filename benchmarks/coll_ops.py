# SPDX-License-Identifier: BSD-3-Clause
"""The collectives that bench_coll.py measures: what goes in, what has to come out.

The buffers of a rank are lists of blocks; the values of a block follow from the
ranks they come from. They are small integers, so that every order of adding them
gives the same, and repeat with a prime period, so that no piece can be mistaken.

`n` is the number of elements of one block. The size of a row, in bytes, is that of
the vector of one rank, as NCCL counts: what each gives to Bcast, Reduce, Allreduce,
Scan, Exscan, Alltoall..., Reduce_scatter_block, and the root to Scatter; what each
gets from Allgather..., and the root from Gather.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

PERIOD = 65521
PAIR = np.dtype([("value", "f4"), ("rank", "i4")])  # MPI.FLOAT_INT


class Block(NamedTuple):
    sources: tuple[int, ...]  # the ranks whose values are combined; none: not looked at
    part: int  # which of the source's parts
    count: int  # elements


Layout = tuple[list[Block], list[Block]]  # what a rank gives, what it gets


def barrier(rank: int, size: int, n: int) -> Layout:
    return [], []


def bcast(rank: int, size: int, n: int) -> Layout:
    block = [Block((0,), 0, n)]
    return (block, []) if rank == 0 else ([], block)


def gather(rank: int, size: int, n: int) -> Layout:
    send, recv = allgather(rank, size, n)
    return send, recv if rank == 0 else []


def scatter(rank: int, size: int, n: int) -> Layout:
    send = [Block((0,), to, n) for to in range(size)]
    return send if rank == 0 else [], [Block((0,), rank, n)]


def allgather(rank: int, size: int, n: int) -> Layout:
    return [Block((rank,), 0, n)], [Block((source,), 0, n) for source in range(size)]


def alltoall(rank: int, size: int, n: int) -> Layout:
    ranks = range(size)
    return [Block((rank,), to, n) for to in ranks], [Block((s,), rank, n) for s in ranks]


def reduce(rank: int, size: int, n: int) -> Layout:
    send, recv = allreduce(rank, size, n)
    return send, recv if rank == 0 else []


def allreduce(rank: int, size: int, n: int) -> Layout:
    return [Block((rank,), 0, n)], [Block(tuple(range(size)), 0, n)]


def reduce_scatter(rank: int, size: int, n: int) -> Layout:
    send = [Block((rank,), to, n) for to in range(size)]
    return send, [Block(tuple(range(size)), rank, n)]


def scan(rank: int, size: int, n: int) -> Layout:
    return [Block((rank,), 0, n)], [Block(tuple(range(rank + 1)), 0, n)]


def exscan(rank: int, size: int, n: int) -> Layout:
    return [Block((rank,), 0, n)], [Block(tuple(range(rank)), 0, n)]


def uneven(n: int, k: int) -> int:
    """Every other one is three times as long."""
    return n + n // 2 if k % 2 else n - n // 2


def allgatherv(rank: int, size: int, n: int) -> Layout:
    recv = [Block((source,), 0, uneven(n, source)) for source in range(size)]
    return [recv[rank]], recv


def alltoallv(rank: int, size: int, n: int) -> Layout:
    send = [Block((rank,), to, uneven(n, rank + to)) for to in range(size)]
    return send, [Block((s,), rank, uneven(n, s + rank)) for s in range(size)]


def total(blocks: Sequence[Block]) -> int:
    return sum(block.count for block in blocks)


@functools.cache
def period(kind: str, source: int, part: int) -> np.ndarray:
    """One period of what this rank gives in this part."""
    rng = np.random.default_rng([source, part])
    if kind == "band":
        return rng.integers(-(2**31), 2**31, PERIOD).astype("int32")
    # Some MPIs saturate int8: so that up to eight ranks' sums fit.
    values = rng.integers(0, 16 if kind == "int8" else 100, PERIOD)
    if kind == "minloc":
        pairs = np.zeros(PERIOD, PAIR)
        pairs["value"], pairs["rank"] = values, source
        return pairs
    if kind == "complex64":
        return (values + 1j * np.roll(values, 1)).astype(kind)
    return values.astype(kind)


def combined(kind: str, block: Block) -> np.ndarray:
    """One period of a block of several ranks."""
    given = [period(kind, source, block.part) for source in block.sources]
    if kind == "band":
        return np.bitwise_and.reduce(given)
    if kind == "minloc":
        values = np.stack([pairs["value"] for pairs in given])
        return np.stack(given)[np.argmin(values, 0), np.arange(PERIOD)]
    return sum(given[1:], given[0])


class Op:
    """A collective of MPI's on elements of one kind.

    share: bytes over the link by those of the vector, for the bus bandwidth.
    split: whether the vector is as many blocks as there are ranks.
    """

    def __init__(
        self,
        name: str,
        layout: Callable[[int, int, int], Layout],
        share: Callable[[int], float] | None = None,
        split: bool = False,
        kind: str = "float32",
        common: bool = True,
    ):
        self.name, self.layout, self.kind = name, layout, kind
        self.share, self.split, self.common = share, split, common
        self.dtype = np.dtype({"band": "int32", "minloc": "int64"}.get(kind, kind))
        self.label = name if kind == "float32" else f"{name} {kind}"

    def count(self, nbytes: int, size: int) -> int:
        """`n` for a vector of about so many bytes."""
        if self.layout is barrier:
            return 0
        return max(1, nbytes // self.dtype.itemsize // (size if self.split else 1))

    def nbytes(self, n: int, size: int) -> int:
        return n * self.dtype.itemsize * (size if self.split else 1)

    def given(self, rank: int, size: int, n: int) -> np.ndarray | None:
        """What the rank gives, as an array of self.dtype; None where it gives nothing."""
        send, _ = self.layout(rank, size, n)
        if not send:
            return None
        parts = [np.resize(period(self.kind, b.sources[0], b.part), b.count) for b in send]
        return (parts[0] if len(parts) == 1 else np.concatenate(parts)).view(self.dtype)

    def room(self, rank: int, size: int, n: int) -> tuple[int, ...] | None:
        """The shape of what the rank gets; None where it gets nothing."""
        _, recv = self.layout(rank, size, n)
        return (total(recv),) if recv else None

    def is_right(self, received: np.ndarray | None, rank: int, size: int, n: int) -> bool:
        start = 0
        for block in self.layout(rank, size, n)[1]:
            if block.sources:
                expected = combined(self.kind, block)
                values = received[start : start + block.count].view(expected.dtype)
                for at in range(0, block.count, PERIOD):
                    piece = values[at : at + PERIOD]
                    if not np.array_equal(piece, expected[: len(piece)]):
                        return False
            start += block.count
        return True

    def call(
        self, comm: Any, send: Any, recv: Any, rank: int, size: int, n: int
    ) -> Callable[[], Any]:
        """MPI's call of a communicator, ready to be made; 0 is the root."""
        from mpi4py import MPI

        method = getattr(comm, self.name)
        if self.layout is barrier:
            return method
        if self.layout is bcast:
            return functools.partial(method, recv if send is None else send, 0)
        send_blocks, recv_blocks = self.layout(rank, size, n)
        if self.kind == "minloc":
            send = [send, total(send_blocks), MPI.FLOAT_INT]
            recv = [recv, total(recv_blocks), MPI.FLOAT_INT]
        if self.layout is alltoallv:
            send = [send, [block.count for block in send_blocks]]
        if self.layout in (alltoallv, allgatherv):
            recv = [recv, [block.count for block in recv_blocks]]
        arguments = [send, recv]
        if self.layout in (reduce, allreduce, reduce_scatter, scan, exscan):
            arguments.append({"band": MPI.BAND, "minloc": MPI.MINLOC}.get(self.kind, MPI.SUM))
        if self.layout in (gather, scatter, reduce):
            arguments.append(0)
        return functools.partial(method, *arguments)


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

    def call(self, comm, send, recv, rank, size, n):
        from mpi4py import MPI

        part = n // size
        make = MPI.C_FLOAT_COMPLEX.Create_subarray
        out = [make((part, n), (part, part), (0, k * part)).Commit() for k in range(size)]
        into = [make((n, part), (part, part), (k * part, 0)).Commit() for k in range(size)]
        return functools.partial(comm.Alltoallw, [send, out], [recv, into])


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

    def call(self, comm, send, recv, rank, size, n):
        method = getattr(comm, self.name)
        pairs = [(send[part], recv[part]) for part in self.parts(n)]

        def begun() -> None:
            requests = [method(*pair) for pair in pairs]
            requests[0].Waitall(requests)

        if self.name == "Iallreduce":
            return begun
        requests = [method(*pair) for pair in pairs]

        def started() -> None:
            requests[0].Startall(requests)
            requests[0].Waitall(requests)

        return started


def once(size: int) -> float:
    return 1.0


def others(size: int) -> float:
    return (size - 1) / size


def twice(size: int) -> float:
    return 2 * (size - 1) / size


OPS = [
    Op("Barrier", barrier),
    Op("Bcast", bcast, once),
    Op("Gather", gather, others, split=True),
    Op("Scatter", scatter, others, split=True),
    Op("Allgather", allgather, others, split=True),
    Op("Alltoall", alltoall, others, split=True),
    Op("Reduce", reduce, once),
    Op("Allreduce", allreduce, twice),
    Op("Reduce_scatter_block", reduce_scatter, others, split=True),
    Many("Iallreduce", allreduce, twice),
    Many("Allreduce_init", allreduce, twice),
    # Not compared with NCCL: it has no call for it, but for int8.
    Op("Scan", scan, common=False),
    Op("Exscan", exscan, common=False),
    Op("Allgatherv", allgatherv, others, split=True, common=False),
    Op("Alltoallv", alltoallv, others, split=True, common=False),
    Pencils("Alltoallw", alltoall, others, kind="complex64", common=False),
    Op("Allreduce", allreduce, twice, kind="complex64", common=False),
    Op("Allreduce", allreduce, twice, kind="int16", common=False),
    Op("Allreduce", allreduce, twice, kind="int8", common=False),
    Op("Allreduce", allreduce, twice, kind="minloc", common=False),
    Op("Allreduce", allreduce, twice, kind="band", common=False),
]
