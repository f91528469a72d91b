# SPDX-License-Identifier: BSD-3-Clause
"""Collectives and messages: what goes in, what has to come out, the call.

The buffers of a rank are lists of blocks; the values of a block follow from
the ranks they come from. They are small integers, so that every order of
adding them gives the same, and repeat with a prime period, so that no piece
can be mistaken.

`n` is the number of elements of one block. The size of a row, in bytes, is
that of the vector of one rank, as NCCL counts: what each gives to Bcast,
Reduce, Allreduce, Scan, Exscan, Alltoall..., Reduce_scatter..., and the root
to Scatter...; what each gets from Allgather... and its neighbors, and the root
from Gather...; of messages, that of one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

PERIOD = 65521
PAIR = np.dtype([("value", "f4"), ("rank", "i4")])  # MPI.FLOAT_INT
WINDOW, WINDOW_BYTES = 64, 256 << 20  # messages under way, at most

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
Call: TypeAlias = "Callable[[], Any]"


# Buffers, None where nothing is sent or received; rank, size, n.
Ends: TypeAlias = "tuple[Any, Any]"
Place: TypeAlias = "tuple[int, int, int]"


class LeftOut(Exception):
    """Why this library or this machine cannot run it: no failure."""


class Block(NamedTuple):
    """A piece of a buffer."""

    sources: tuple[int, ...]  # the ranks combined; none: it is not looked at
    part: int  # which of the source's parts
    count: int  # type: ignore[assignment]  # elements


class Step(NamedTuple):
    """One call of an operation; most have no more."""

    sends: bool
    receives: bool
    call: Call


Layout: TypeAlias = "tuple[list[Block], list[Block]]"  # gives, gets


def barrier(rank: int, size: int, n: int, root: int) -> Layout:
    """Nothing moves."""
    return [], []


def bcast(rank: int, size: int, n: int, root: int) -> Layout:
    """The root's buffer is everybody's."""
    block = [Block((root,), 0, n)]
    return (block, []) if rank == root else ([], block)


def gather(rank: int, size: int, n: int, root: int) -> Layout:
    """Blocks of all ranks to the root."""
    send, recv = allgather(rank, size, n, root)
    return send, recv if rank == root else []


def scatter(rank: int, size: int, n: int, root: int) -> Layout:
    """A block of the root's to each rank."""
    send = [Block((root,), to, n) for to in range(size)]
    return send if rank == root else [], [Block((root,), rank, n)]


def allgather(rank: int, size: int, n: int, root: int) -> Layout:
    """Blocks of all ranks to all."""
    recv = [Block((source,), 0, n) for source in range(size)]
    return [recv[rank]], recv


def alltoall(rank: int, size: int, n: int, root: int) -> Layout:
    """A block of each rank to each."""
    send = [Block((rank,), to, n) for to in range(size)]
    return send, [Block((source,), rank, n) for source in range(size)]


def reduce(rank: int, size: int, n: int, root: int) -> Layout:
    """The sum of all vectors, to the root."""
    send, recv = allreduce(rank, size, n, root)
    return send, recv if rank == root else []


def allreduce(rank: int, size: int, n: int, root: int) -> Layout:
    """The sum of all vectors, to all."""
    return [Block((rank,), 0, n)], [Block(tuple(range(size)), 0, n)]


def reduce_scatter(rank: int, size: int, n: int, root: int) -> Layout:
    """A block of the sum of all vectors, to each."""
    send = [Block((rank,), to, n) for to in range(size)]
    return send, [Block(tuple(range(size)), rank, n)]


def scan(rank: int, size: int, n: int, root: int) -> Layout:
    """The sum of the vectors up to this rank's."""
    return [Block((rank,), 0, n)], [Block(tuple(range(rank + 1)), 0, n)]


def exscan(rank: int, size: int, n: int, root: int) -> Layout:
    """The sum of the vectors before this rank's."""
    return [Block((rank,), 0, n)], [Block(tuple(range(rank)), 0, n)]


def neighbor_allgather(rank: int, size: int, n: int, root: int) -> Layout:
    """A block of each neighbor in a ring."""
    left, right = (rank - 1) % size, (rank + 1) % size
    recv = [Block((left,), 0, n), Block((right,), 0, n)]
    return [Block((rank,), 0, n)], recv


def neighbor_alltoall(rank: int, size: int, n: int, root: int) -> Layout:
    """A block to each neighbor in a ring."""
    left, right = (rank - 1) % size, (rank + 1) % size
    recv = [Block((left,), 1, n), Block((right,), 0, n)]
    return [Block((rank,), 0, n), Block((rank,), 1, n)], recv


def uneven(layout: Callable[[int, int, int, int], Layout]) -> Any:
    """Make every other block three times as long; the sum stays the same."""

    def made(rank: int, size: int, n: int, root: int) -> Layout:
        def stretched(block: Block) -> Block:
            k = 0 if layout in ONE_SOURCE else block.sources[0]
            k = (k + (block.part if layout in CUT else 0)) % size
            if k == size - 1 and size % 2:
                return block
            return block._replace(count=n + n // 2 if k % 2 else n - n // 2)

        send, recv = layout(rank, size, n, root)
        return [*map(stretched, send)], [*map(stretched, recv)]

    return made


def ring(rank: int, size: int, n: int, root: int) -> Layout:
    """To the right, from the left."""
    return [Block((rank,), 0, n)], [Block(((rank - 1) % size,), 0, n)]


def there_and_back(rank: int, size: int, n: int, root: int) -> Layout:
    """Between the first rank and the last one."""
    if rank not in (0, size - 1):
        return [], []
    return [Block((rank,), 0, n)], [Block((size - 1 - rank,), 0, n)]


def flight(rank: int, size: int, n: int, root: int) -> Layout:
    """From the first rank to the last one, n in many messages."""
    blocks = [Block((0,), 0, n)]
    return (
        blocks if rank == 0 else [],
        blocks if rank == size - 1 else [],
    )


def total(blocks: Sequence[Block]) -> int:
    """Return the elements of a buffer."""
    return sum(block.count for block in blocks)


@functools.cache
def dtype_of(kind: str) -> np.dtype[Any]:
    """Return NumPy's type; bfloat16 is of ml_dtypes. LeftOut."""
    if kind == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            raise LeftOut(
                "bfloat16 needs ml_dtypes: `pip install ml_dtypes`"
            ) from None
        kind = ml_dtypes.bfloat16
    made: np.dtype[Any] = np.dtype(kind)
    return made


@functools.cache
def period(kind: str, op: str, source: int, part: int) -> Array:
    """Return one period of what this rank gives in this part."""
    rng, dtype = np.random.default_rng([source, part]), dtype_of(kind)
    if op == "band":
        return rng.integers(-(2**31), 2**31, PERIOD).astype(dtype)
    if op == "prod":  # fits into an int8
        return rng.integers(1, 3 if source < 6 else 2, PERIOD).astype(dtype)
    # Some MPIs saturate int8; and 16 bits have few digits.
    small = dtype.itemsize == 1 or kind in ("float16", "bfloat16")
    values = rng.integers(0, 4 if small else 100, PERIOD)
    if op == "minloc":
        pairs = np.zeros(PERIOD, PAIR)
        pairs["value"], pairs["rank"] = values, source
        return pairs
    if dtype.kind == "c":
        values = values + 1j * np.roll(values, 1)
    found: Array = values.astype(dtype)
    return found


def combined(kind: str, op: str, block: Block) -> Array:
    """Return one period of a block of several ranks."""
    given = [period(kind, op, source, block.part) for source in block.sources]
    if op == "minloc":
        values = np.stack([pairs["value"] for pairs in given])
        least = np.argmin(values, 0), np.arange(PERIOD)
        pairs: Array = np.stack(given)[least]
        return pairs
    how = {
        "band": np.bitwise_and,
        "prod": np.multiply,
        "max": np.maximum,
        "min": np.minimum,
    }.get(op, np.add)
    found: Array = functools.reduce(how, given)
    if op == "avg":
        return (wide(found) / len(given)).astype(found.dtype)
    return found


def wide(values: Array) -> Array:
    """Return the values in double precision."""
    return values.astype("c16" if values.dtype.kind == "c" else "f8")


def differ(got: Array, expected: Array, op: str) -> int:
    """Return the number of elements that are wrong."""
    if op != "avg":
        return int(np.count_nonzero(got != expected))
    # A library may divide before it adds.
    digits = {"float16": 9, "bfloat16": 6, "float32": 21}
    close = 2.0 ** -digits.get(expected.dtype.name, 50)
    off = np.abs(wide(got) - wide(expected))
    return int(np.count_nonzero(~(off <= close * 100)))


class Op:
    """A collective of MPI's, or messages, on elements of one kind.

    share: bytes over the link by those of the vector, for the bus bandwidth.
    split: the vector is as many blocks as there are ranks.
    """

    def __init__(
        self,
        name: str,
        layout: Callable[[int, int, int, int], Layout],
        share: Callable[[int], float] | None = None,
        split: bool = False,
        kind: str = "float32",
        common: bool = True,
        op: str = "sum",
        root: int = 0,
    ) -> None:
        self.name, self.layout, self.kind = name, layout, kind
        self.share, self.split, self.common = share, split, common
        self.op, self.root, self.dtype = op, root, dtype_of(kind)
        self.label = name if kind == "float32" else f"{name} {kind}"
        if op != "sum":
            self.label += f" {op}"

    @property
    def reduces(self) -> bool:
        """True if it combines what ranks give."""
        return self.name in REDUCING

    @property
    def rooted(self) -> bool:
        """True if it has a root."""
        return self.name in ROOTED

    @property
    def on_ring(self) -> bool:
        """True if it is between neighbors."""
        return self.name.startswith("Neighbor")

    def count(self, nbytes: int, size: int) -> int:
        """Return `n` for a vector of about so many bytes."""
        if self.layout is barrier:
            return 0
        parts = 2 if self.on_ring else size if self.split else 1
        return max(1, nbytes // self.dtype.itemsize // parts)

    def nbytes(self, n: int, size: int) -> int:
        """Return the bytes of the vector."""
        parts = 2 if self.on_ring else size if self.split else 1
        return n * self.dtype.itemsize * parts

    def calls(self, n: int) -> int:
        """Return the number of messages of a call, one after the other."""
        return 1

    def blocks(self, rank: int, size: int, n: int) -> Layout:
        """Return the blocks that a rank gives and gets."""
        return self.layout(rank, size, n, self.root)

    def given(self, rank: int, size: int, n: int) -> Array | None:
        """Return what the rank gives; None where it gives nothing."""
        send, _ = self.blocks(rank, size, n)
        if not send:
            return None
        parts = [
            np.resize(
                period(self.kind, self.op, b.sources[0], b.part), b.count
            )
            for b in send
        ]
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return whole.view(self.dtype)

    def room(self, rank: int, size: int, n: int) -> tuple[int, ...] | None:
        """Return the shape of what it gets; None where it gets nothing."""
        _, recv = self.blocks(rank, size, n)
        return (total(recv),) if recv else None

    def wrong(self, received: Any, rank: int, size: int, n: int) -> int:
        """Return the number of wrong elements."""
        start = bad = 0
        for block in self.blocks(rank, size, n)[1]:
            if block.sources:
                expected = combined(self.kind, self.op, block)
                values = received[start : start + block.count]
                values = values.view(expected.dtype)
                for at in range(0, block.count, PERIOD):
                    piece = values[at : at + PERIOD]
                    bad += differ(piece, expected[: len(piece)], self.op)
            start += block.count
        return bad

    def is_right(self, received: Any, rank: int, size: int, n: int) -> bool:
        """Return True if no element is wrong."""
        return self.wrong(received, rank, size, n) == 0

    def moves(
        self, rank: int, size: int, n: int
    ) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
        """Return what is sent and received: peers, first elements, elements.

        Of operations that reduce nothing. Those to one peer are in its order.
        """
        send, recv = self.blocks(rank, size, n)
        places, start = {}, 0
        for block in send:
            places[block.part] = start
            start += block.count
        sent = [
            (peer, places[block.part], block.count)
            for peer in range(size)
            for block in self.blocks(peer, size, n)[1]
            if block.sources == (rank,)
        ]
        got, start = [], 0
        for block in recv:
            got.append((block.sources[0], start, block.count))
            start += block.count
        return sent, got

    def steps(
        self, comm: Any, ends: Ends, place: Place, average: Any = None
    ) -> list[Step]:
        """Return MPI's calls of a communicator, ready to be made.

        average: the communicator's operation for averages. LeftOut.
        """
        from mpi4py import MPI

        (send, recv), (rank, size, n) = ends, place
        method = getattr(comm, self.name, None)
        if method is None:
            raise LeftOut(f"there is no {self.name} for it")
        if self.layout is barrier:
            return [Step(False, False, method)]
        if self.layout is bcast:
            buffer = recv if send is None else send
            step = functools.partial(method, buffer, self.root)
            return [Step(rank == self.root, rank != self.root, step)]
        counts = [
            [b.count for b in each] for each in self.blocks(rank, size, n)
        ]
        if self.op == "minloc":
            send = [send, sum(counts[0]), MPI.FLOAT_INT]
            recv = [recv, sum(counts[1]), MPI.FLOAT_INT]
        if self.name in ("Alltoallw", "Neighbor_alltoallw"):
            send, recv = (
                with_types(each, self.dtype, count)
                for each, count in zip((send, recv), counts, strict=True)
            )
        if self.name in SENDS_COUNTS and send is not None:
            send = [send, counts[0]]
        if self.name in TAKES_COUNTS and recv is not None:
            recv = [recv, counts[1]]
        arguments = [send, recv]
        if self.name == "Reduce_scatter":
            arguments.append(counts[0])
        if self.reduces:
            if self.op == "avg" and average is None:
                raise LeftOut("MPI has no average")
            known = {"avg": average, "sum": MPI.SUM, "prod": MPI.PROD}
            known |= {"max": MPI.MAX, "min": MPI.MIN}
            known |= {"band": MPI.BAND, "minloc": MPI.MINLOC}
            arguments.append(known[self.op])
        if self.rooted:
            arguments.append(self.root)
        return [Step(True, True, functools.partial(method, *arguments))]

    def call(
        self,
        comm: Any,
        send: Any,
        recv: Any,
        rank: int,
        size: int,
        n: int,
    ) -> Call:
        """Return all steps as one call."""
        steps = self.steps(comm, (send, recv), (rank, size, n))
        return chained([step.call for step in steps])


def chained(calls: Sequence[Call]) -> Call:
    """Return the calls as one."""
    if len(calls) == 1:
        return calls[0]

    def run() -> None:
        for call in calls:
            call()

    return run


def with_types(buffer: Any, dtype: Any, counts: Sequence[int]) -> list[Any]:
    """Return the buffer of an Alltoallw; displacements are in bytes."""
    from mpi4py import MPI

    ends = np.cumsum([0, *counts])[:-1] * dtype.itemsize
    kind = MPI.Datatype.fromcode(dtype.char)
    places = [int(end) for end in ends]
    return [buffer, (list(counts), places), [kind] * len(counts)]


class Exchange(Op):
    """Sendrecv with both neighbors in a ring."""

    def steps(
        self, comm: Any, ends: Ends, place: Place, average: Any = None
    ) -> list[Step]:
        """Return the one call."""
        (send, recv), (rank, size, _) = ends, place
        right, left = (rank + 1) % size, (rank - 1) % size
        both = functools.partial(comm.Sendrecv, send, right, 0, recv, left, 0)
        return [Step(True, True, both)]


class PingPong(Op):
    """A message from the first rank to the last one, and back."""

    def calls(self, n: int) -> int:
        """Return the number of messages."""
        return 2

    def steps(
        self, comm: Any, ends: Ends, place: Place, average: Any = None
    ) -> list[Step]:
        """Return a Send and a Recv; nothing on ranks between."""
        (send, recv), (rank, size, _) = ends, place
        peer = size - 1 - rank
        if send is None:
            return [Step(False, False, lambda: None)]
        steps = [
            Step(True, False, functools.partial(comm.Send, send, peer)),
            Step(False, True, functools.partial(comm.Recv, recv, peer)),
        ]
        return steps if rank == 0 else steps[::-1]


class Bandwidth(Op):
    """Many messages under way from the first rank to the last one.

    The vector is what all of them carry; the last one is acknowledged.
    """

    def window(self, n: int) -> int:
        """Return the messages under way."""
        nbytes = n * self.dtype.itemsize
        return max(1, min(WINDOW, WINDOW_BYTES // max(1, nbytes)))

    def blocks(self, rank: int, size: int, n: int) -> Layout:
        """Return a block for each message."""
        return self.layout(rank, size, n * self.window(n), 0)

    def calls(self, n: int) -> int:
        """Return the number of messages."""
        return self.window(n)

    def moves(self, rank: int, size: int, n: int) -> Any:
        """Return each message."""
        sent, got = super().moves(rank, size, n)
        return tuple(
            [
                (each[0], k * n, n)
                for each in moved
                for k in range(self.window(n))
            ]
            for moved in (sent, got)
        )

    def steps(
        self, comm: Any, ends: Ends, place: Place, average: Any = None
    ) -> list[Step]:
        """Return the calls of all messages as one."""
        (send, recv), (rank, size, n) = ends, place
        sends, buffer = send is not None, recv if send is None else send
        if buffer is None:
            return [Step(False, False, lambda: None)]
        peer, method = size - 1 - rank, comm.Isend if sends else comm.Irecv
        parts = [buffer[k * n : (k + 1) * n] for k in range(self.window(n))]
        ended = np.zeros(1, "u1")
        end = getattr(comm, "Recv" if sends else "Send")

        def run() -> None:
            requests = [method(part, peer) for part in parts]
            requests[0].Waitall(requests)
            if hasattr(comm, "Get_rank"):  # no stream keeps the order
                end(ended, peer, 1)

        return [Step(sends, not sends, run)]


def once(size: int) -> float:
    """Return the share of a vector that passes a link whole."""
    return 1.0


def others(size: int) -> float:
    """Return the share of what goes to other ranks, or comes from them."""
    return (size - 1) / size


def twice(size: int) -> float:
    """Return the share of a sum that all get."""
    return 2 * (size - 1) / size


CUT = scatter, alltoall, reduce_scatter  # by receiver
ONE_SOURCE = scatter, reduce_scatter  # of all blocks, or all ranks are
REDUCING = (
    "Allreduce",
    "Exscan",
    "Iallreduce",
    "Allreduce_init",
    "Reduce",
    "Reduce_scatter",
    "Reduce_scatter_block",
    "Scan",
)
ROOTED = "Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Reduce"
SENDS_COUNTS = "Alltoallv", "Scatterv", "Neighbor_alltoallv"
TAKES_COUNTS = (
    "Allgatherv",
    "Alltoallv",
    "Gatherv",
    "Neighbor_allgatherv",
    "Neighbor_alltoallv",
)
Maker: TypeAlias = "Callable[..., Op]"


def _row(name: str, *facts: Any, **more: Any) -> Maker:
    return functools.partial(Op, name, *facts, **more)


COLLECTIVES: dict[str, Maker] = {
    "allreduce": _row("Allreduce", allreduce, twice),
    "allgather": _row("Allgather", allgather, others, split=True),
    "alltoall": _row("Alltoall", alltoall, others, split=True),
    "bcast": _row("Bcast", bcast, once),
    "reduce": _row("Reduce", reduce, once),
    "reduce_scatter": _row(
        "Reduce_scatter_block", reduce_scatter, others, split=True
    ),
    "gather": _row("Gather", gather, others, split=True),
    "scatter": _row("Scatter", scatter, others, split=True),
    "scan": _row("Scan", scan, once),
    "exscan": _row("Exscan", exscan, once),
    "reduce_scatterv": _row(
        "Reduce_scatter", uneven(reduce_scatter), others, split=True
    ),
    "allgatherv": _row("Allgatherv", uneven(allgather), others, split=True),
    "alltoallv": _row("Alltoallv", uneven(alltoall), others, split=True),
    "alltoallw": _row("Alltoallw", uneven(alltoall), others, split=True),
    "gatherv": _row("Gatherv", uneven(gather), others, split=True),
    "scatterv": _row("Scatterv", uneven(scatter), others, split=True),
    "neighbor_allgather": _row("Neighbor_allgather", neighbor_allgather, once),
    "neighbor_alltoall": _row("Neighbor_alltoall", neighbor_alltoall, once),
    "neighbor_allgatherv": _row(
        "Neighbor_allgatherv", neighbor_allgather, once
    ),
    "neighbor_alltoallv": _row("Neighbor_alltoallv", neighbor_alltoall, once),
    "neighbor_alltoallw": _row("Neighbor_alltoallw", neighbor_alltoall, once),
    "barrier": _row("Barrier", barrier),
}
MESSAGES: dict[str, Maker] = {
    "pingpong": functools.partial(PingPong, "Send", there_and_back, once),
    "bandwidth": functools.partial(Bandwidth, "Isend", flight, once),
    "sendrecv": functools.partial(Exchange, "Sendrecv", ring, once),
}
