# SPDX-License-Identifier: BSD-3-Clause
"""The collectives of comm.on(stream), and what they are to give."""

import operator
from functools import reduce

import numpy as np
from mpi4py import MPI

import kinds

RANKS = MPI.COMM_WORLD.size
# The last goes in several pieces.
SIZES = [0, 1, 3, 1000, 65_537, 2_200_001 if RANKS < 3 else 560_001]
DTYPES = ["int8", "uint16", "complex128", "float64", "int64", "float32"]


def values(rank, size, dtype):
    """What a rank has, small enough that sums are exact."""
    generator = np.random.default_rng([rank, size])
    return generator.integers(0, 7, size).astype(dtype)


class Call:
    """One collective: what a rank gives and what it gets."""

    def __init__(self, comm, size, dtype, kind, root):
        self.size, self.dtype, self.kind, self.root = size, dtype, kind, root
        self.rank, self.ranks = comm.rank, comm.size
        self.parts = [values(k, size, dtype) for k in range(comm.size)]
        self.wide = [
            values(k, size * comm.size, dtype) for k in range(comm.size)
        ]

    def make(self, array):
        return kinds.make(self.kind, array)

    def zeros(self, blocks=1):
        return self.make(np.zeros(blocks * self.size, self.dtype))

    def block(self, array, index):
        return array[index * self.size : (index + 1) * self.size]


def allreduce(c, comm):
    out = c.zeros()
    comm.Allreduce(c.make(c.parts[c.rank]), out)
    return out, sum(c.parts)


def allreduce_in_place(c, comm):
    out = c.make(c.parts[c.rank])
    comm.Allreduce(MPI.IN_PLACE, out, op=MPI.PROD)
    return out, reduce(operator.mul, c.parts)


def bcast(c, comm):
    out = c.make(c.parts[c.rank])
    comm.Bcast(out, root=c.root)
    return out, c.parts[c.root]


def rooted(name, c, comm, blocks, wanted):
    """At root alone there is a result, and the others may give None."""
    out = c.zeros(blocks) if c.rank == c.root else None
    getattr(comm, name)(c.make(c.parts[c.rank]), out, root=c.root)
    return (out, wanted) if out is not None else None


def reduce_(c, comm):
    return rooted("Reduce", c, comm, 1, sum(c.parts))


def gather(c, comm):
    return rooted("Gather", c, comm, c.ranks, np.concatenate(c.parts))


def gather_in_place(c, comm):
    if c.rank != c.root:
        comm.Gather(c.make(c.parts[c.rank]), None, root=c.root)
        return None
    start = np.zeros(c.ranks * c.size, c.dtype)
    c.block(start, c.rank)[:] = c.parts[c.rank]
    out = c.make(start)
    comm.Gather(MPI.IN_PLACE, out, root=c.root)
    return out, np.concatenate(c.parts)


def scatter(c, comm):
    out = c.zeros()
    send = c.make(c.wide[c.rank]) if c.rank == c.root else None
    comm.Scatter(send, out, root=c.root)
    return out, c.block(c.wide[c.root], c.rank)


def scatter_in_place(c, comm):
    if c.rank == c.root:
        comm.Scatter(c.make(c.wide[c.rank]), MPI.IN_PLACE, root=c.root)
        return None
    out = c.zeros()
    comm.Scatter(None, out, root=c.root)
    return out, c.block(c.wide[c.root], c.rank)


def allgather(c, comm):
    out = c.zeros(c.ranks)
    comm.Allgather(c.make(c.parts[c.rank]), out)
    return out, np.concatenate(c.parts)


def allgather_in_place(c, comm):
    start = np.zeros(c.ranks * c.size, c.dtype)
    c.block(start, c.rank)[:] = c.parts[c.rank]
    out = c.make(start)
    comm.Allgather(MPI.IN_PLACE, out)
    return out, np.concatenate(c.parts)


def alltoall(c, comm):
    out = c.zeros(c.ranks)
    comm.Alltoall(c.make(c.wide[c.rank]), out)
    return out, np.concatenate([c.block(wide, c.rank) for wide in c.wide])


def alltoall_in_place(c, comm):
    out = c.make(c.wide[c.rank])
    comm.Alltoall(MPI.IN_PLACE, out)
    return out, np.concatenate([c.block(wide, c.rank) for wide in c.wide])


def reduce_scatter_block(c, comm):
    out = c.zeros()
    comm.Reduce_scatter_block(c.make(c.wide[c.rank]), out)
    return out, c.block(sum(c.wide), c.rank)


def reduce_scatter_block_in_place(c, comm):
    out = c.make(c.wide[c.rank])
    comm.Reduce_scatter_block(MPI.IN_PLACE, out)
    wanted = c.wide[c.rank].copy()  # behind the first block it stays
    wanted[: c.size] = c.block(sum(c.wide), c.rank)
    return out, wanted


def reduce_scatter(c, comm):
    counts = [(k + 2) * c.size // 3 for k in range(c.ranks)]
    given = [np.resize(wide, sum(counts)) for wide in c.wide]
    out = c.make(np.zeros(counts[c.rank], c.dtype))
    comm.Reduce_scatter(c.make(given[c.rank]), out, counts)
    at = sum(counts[: c.rank])
    return out, sum(given)[at : at + counts[c.rank]]


def reduce_scatter_in_place(c, comm):
    counts = [(k + 1) % 2 * c.size for k in range(c.ranks)]
    given = [np.resize(wide, sum(counts)) for wide in c.wide]
    out = c.make(given[c.rank])
    comm.Reduce_scatter(MPI.IN_PLACE, out, counts)
    at = sum(counts[: c.rank])
    wanted = given[c.rank].copy()
    wanted[: counts[c.rank]] = sum(given)[at : at + counts[c.rank]]
    return out, wanted


def reduce_scatter_over_others(c, comm):
    """In place, over what the others are to get and what is its own."""
    counts = [(k % 2 + 1) * c.size for k in range(c.ranks)]
    given = [np.resize(wide, sum(counts)) for wide in c.wide]
    out = c.make(given[c.rank])
    comm.Reduce_scatter(MPI.IN_PLACE, out, counts)
    at = sum(counts[: c.rank])
    wanted = given[c.rank].copy()
    wanted[: counts[c.rank]] = sum(given)[at : at + counts[c.rank]]
    return out, wanted


def scan(c, comm):
    out = c.zeros()
    comm.Scan(c.make(c.parts[c.rank]), out)
    return out, sum(c.parts[: c.rank + 1])


def exscan(c, comm):
    out = c.make(c.parts[c.rank])
    comm.Exscan(MPI.IN_PLACE, out)
    before = c.parts[: c.rank]
    return out, sum(before) if before else c.parts[0]


def counts_of(c, rank):
    """How much a rank has for each: 0 for some."""
    return [(rank + k) % 3 * c.size // 2 for k in range(c.ranks)]


def alltoallv(c, comm):
    counts = counts_of(c, c.rank)
    wanted = [counts_of(c, k)[c.rank] for k in range(c.ranks)]
    out = c.make(np.zeros(max(1, sum(wanted)), c.dtype))
    send = c.make(np.resize(c.wide[c.rank], max(1, sum(counts))))
    comm.Alltoallv([send, counts], [out, wanted])
    parts = []
    for k in range(c.ranks):
        there = counts_of(c, k)
        whole = np.resize(c.wide[k], max(1, sum(there)))
        at = sum(there[: c.rank])
        parts.append(whole[at : at + there[c.rank]])
    whole = np.concatenate(parts)
    return out, whole if whole.size else np.zeros(1, c.dtype)


def strided(c, counts, step):
    """Blocks of elements with a step between them, as Alltoallw has them.

    Gives counts, places in bytes and types, and as slices.
    """
    width = np.dtype(c.dtype).itemsize
    element = MPI.Datatype.fromcode(np.dtype(c.dtype).char)
    each = [count * step for count in counts]
    places = [sum(each[:k]) for k in range(len(counts))]
    types = [
        element.Create_vector(max(1, count), 1, step).Commit()
        for count in counts
    ]
    ones = [int(count > 0) for count in counts]
    slices = [
        slice(at, at + length, step)
        for at, length in zip(places, each, strict=True)
    ]
    return (ones, [at * width for at in places], types), slices


def by_w(c, comm, out_step, in_step):
    """Alltoallw of blocks that are apart."""
    counts = [counts_of(c, k) for k in range(c.ranks)]
    wanted = [counts[k][c.rank] for k in range(c.ranks)]
    sent = [
        np.resize(c.wide[k], max(1, sum(counts[k]) * out_step))
        for k in range(c.ranks)
    ]
    start = np.full(max(1, sum(wanted) * in_step), 5, c.dtype)
    out, given = c.make(start), c.make(sent[c.rank])
    (ones, places, types), _ = strided(c, counts[c.rank], out_step)
    (all_, there, kinds_), into = strided(c, wanted, in_step)
    comm.Alltoallw([given, ones, places, types], [out, all_, there, kinds_])
    for kind in types + kinds_:
        kind.Free()
    for k in range(c.ranks):
        start[into[k]] = sent[k][strided(c, counts[k], out_step)[1][c.rank]]
    return out, start


def alltoallw(c, comm):
    return by_w(c, comm, 1, 1)


def alltoallw_out_of_gaps(c, comm):
    return by_w(c, comm, 2, 1)


def alltoallw_with_gaps(c, comm):
    return by_w(c, comm, 3, 2)


def alltoallw_in_place(c, comm):
    step = 2
    whole = [np.resize(wide, c.size * c.ranks * step) for wide in c.wide]
    (ones, places, types), at = strided(c, [c.size] * c.ranks, step)
    out = c.make(whole[c.rank])
    comm.Alltoallw(MPI.IN_PLACE, [out, ones, places, types])
    start = whole[c.rank].copy()
    for k in range(c.ranks):
        start[at[k]] = whole[k][at[c.rank]]
    return out, start


def alltoallw_of_columns(c, comm):
    """A field's columns become rows."""
    rows, columns = c.size, 2 * c.ranks + 1
    element = MPI.Datatype.fromcode(np.dtype(c.dtype).char)
    types = [
        element.Create_subarray(
            [rows, columns], [rows, 2], [0, 2 * k + 1]
        ).Commit()
        if rows
        else element
        for k in range(c.ranks)
    ]
    fields = [
        np.resize(c.wide[k], rows * columns).reshape(rows, columns)
        for k in range(c.ranks)
    ]
    some = [int(rows > 0)] * c.ranks
    nbytes = 2 * rows * np.dtype(c.dtype).itemsize
    out = c.make(np.zeros(2 * rows * c.ranks, c.dtype))
    comm.Alltoallw(
        [c.make(fields[c.rank].ravel()), some, [0] * c.ranks, types],
        [
            out,
            [2 * rows] * c.ranks,
            [k * nbytes for k in range(c.ranks)],
            [element] * c.ranks,
        ],
    )
    first = 2 * c.rank + 1
    parts = [field[:, first : first + 2].ravel() for field in fields]
    return out, np.concatenate(parts)


def allgatherv(c, comm):
    counts = [(k + 1) * c.size // 2 for k in range(c.ranks)]
    displs = [sum(counts[:k]) + k for k in range(c.ranks)]  # with gaps
    start = np.full(sum(counts) + c.ranks, 5, c.dtype)
    out = c.make(start)
    mine = np.resize(c.wide[c.rank], counts[c.rank])
    comm.Allgatherv(c.make(mine), [out, (counts, displs)])
    for k in range(c.ranks):
        start[displs[k] : displs[k] + counts[k]] = np.resize(
            c.wide[k], counts[k]
        )
    return out, start


def gatherv(c, comm):
    counts = [(k + 1) * c.size // 3 for k in range(c.ranks)]
    mine = c.make(np.resize(c.parts[c.rank], counts[c.rank]))
    if c.rank != c.root:
        comm.Gatherv(mine, None, root=c.root)
        return None
    out = c.make(np.zeros(max(1, sum(counts)), c.dtype))
    comm.Gatherv(mine, [out, counts], root=c.root)
    parts = [np.resize(c.parts[k], counts[k]) for k in range(c.ranks)]
    whole = np.concatenate(parts)
    return out, whole if whole.size else np.zeros(1, c.dtype)


def scatterv(c, comm):
    counts = [(k + 2) * c.size // 3 for k in range(c.ranks)]
    out = c.make(np.zeros(counts[c.rank], c.dtype))
    whole = np.resize(c.wide[c.root], max(1, sum(counts)))
    send = [c.make(whole), counts] if c.rank == c.root else None
    comm.Scatterv(send, out, root=c.root)
    at = sum(counts[: c.rank])
    return out, whole[at : at + counts[c.rank]]


CALLS = [
    allreduce,
    allreduce_in_place,
    bcast,
    reduce_,
    gather,
    gather_in_place,
    scatter,
    scatter_in_place,
    allgather,
    allgather_in_place,
    alltoall,
    alltoall_in_place,
    reduce_scatter_block,
    reduce_scatter_block_in_place,
    reduce_scatter,
    reduce_scatter_in_place,
    reduce_scatter_over_others,
    scan,
    exscan,
    alltoallv,
    alltoallw,
    alltoallw_out_of_gaps,
    alltoallw_with_gaps,
    alltoallw_in_place,
    alltoallw_of_columns,
    allgatherv,
    gatherv,
    scatterv,
]
