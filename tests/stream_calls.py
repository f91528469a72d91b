# SPDX-License-Identifier: BSD-3-Clause
"""The collectives of comm.on(stream), and what they are to give."""

import numpy as np
from mpi4py import MPI

import cases
import kinds

RANKS = MPI.COMM_WORLD.size
# The last goes in several pieces.
SIZES = [0, 1, 3, 1000, 65_537, 2_200_001 if RANKS < 3 else 560_001]
DTYPES = ["int8", "uint16", "complex128", "float64", "int64", "float32"]


def values(rank, size, dtype, to=0):
    """What a rank has, small enough that sums are exact."""
    generator = np.random.default_rng([rank, to, size])
    return generator.integers(0, 7, size).astype(dtype)


class Call:
    """One collective: what a rank gives and what it gets."""

    def __init__(self, comm, size, dtype, kind, root):
        self.size, self.dtype, self.kind, self.root = size, dtype, kind, root
        self.comm, self.rank, self.ranks = comm, comm.rank, comm.size
        self.wide = [
            values(k, size * comm.size, dtype) for k in range(comm.size)
        ]

    def make(self, array):
        return kinds.make(self.kind, array)


def of_case(
    name, in_place, counts=lambda k, n: (k % 3 + 1) * n // 2, title=""
):
    """Make a call of the case of a name: sums, or products in place."""

    def call(c, comm):
        case = cases.Case(
            c.comm,
            name,
            c.make,
            c.root,
            in_place,
            each=c.size,
            counts=counts,
            value=lambda rank, to, n: values(rank, n, c.dtype, to),
            op="PROD" if in_place else "SUM",
        )
        getattr(comm, name)(*case.args)
        behind = case.empty[case.want.size :]  # the result: it stays
        return case.into, np.append(case.want, behind)

    call.__name__ = name + "_in_place" * in_place + title
    return call


def counts_of(c, rank):
    """How much a rank has for each: 0 for some."""
    return [(rank + k) % 3 * c.size // 2 for k in range(c.ranks)]


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


CALLS = [
    *(of_case(*call) for call in cases.CALLS if call[0] in cases.OF_ALL),
    of_case("Reduce_scatter", False, lambda k, n: (k + 2) * n // 3, "_of_all"),
    # Over elements that others read, and over those of this rank.
    of_case("Reduce_scatter", True, lambda k, n: (k % 2 + 1) * n, "_of_all"),
    alltoallw_out_of_gaps,
    alltoallw_with_gaps,
    alltoallw_in_place,
    alltoallw_of_columns,
]
