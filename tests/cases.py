# SPDX-License-Identifier: BSD-3-Clause
"""The collectives, their arguments and what a rank must receive.

The core's table gives the names. Case makes the arguments of a call, and the
expected values, from the table and from REDUCED.
"""

import functools
import math
import sys
import unittest
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

import kinds
import warpmpi as wm
from warpmpi import _core
from warpmpi._install import CLASS_CALLS

MPICH = MPI.get_vendor()[0] == "MPICH"
EMPTY = -1  # where nothing is received
EACH = 3  # elements of a block, where all are alike
FORMS = "", "I", "_init"
VARYING = "v", "w"  # forms of buffers in which each block has its place


class Row(NamedTuple):
    """A collective in the core's table."""

    name: str
    arguments: tuple
    sends: str  # "": one block; n, v or w: a block for each rank
    receives: str
    from_root: bool
    to_root: bool
    in_part: bool


TABLE = {row[0]: Row(*row) for row in _core._collectives()}
NAMES = list(TABLE)
NEIGHBORS = [name for name in NAMES if name.startswith("Neighbor")]
OF_ALL = [name for name in NAMES if name not in NEIGHBORS]
REDUCTIONS = [name for name in NAMES if "op" in TABLE[name].arguments]
MOVES = [name for name in OF_ALL if name not in REDUCTIONS]
ROOTED = [name for name in NAMES if "root" in TABLE[name].arguments]
IN_PLACE = [name for name in OF_ALL if "recvbuf" in TABLE[name].arguments]
# All names, and once more those that may be in place.
CALLS = [(name, False) for name in NAMES] + [(name, True) for name in IN_PLACE]
# The ranks of which a rank receives the reduction.
REDUCED = {
    "Reduce": lambda ranks, rank: ranks,
    "Allreduce": lambda ranks, rank: ranks,
    "Reduce_scatter_block": lambda ranks, rank: ranks,
    "Reduce_scatter": lambda ranks, rank: ranks,
    "Scan": lambda ranks, rank: ranks[: rank + 1],
    "Exscan": lambda ranks, rank: ranks[:rank],
}
# MPI has none of these between groups.
INTRA_ONLY = [name for name in REDUCED if REDUCED[name]("ab", 0) != "ab"]
# What install() puts in, by type and name.
STAGED = {(kind, name): call for kind, name, call in CLASS_CALLS}
FOLDS = {"SUM": sum, "PROD": math.prod}


def id_of(value):
    """The name of a part of CALLS in the name of a test."""
    return {True: "in_place", False: "apart"}.get(value, value)


def called(name, form):
    """The name of a collective in one of FORMS."""
    if form == "I":
        return "I" + name[0].lower() + name[1:]
    return name + form


def begun(comm, name, form, *args):
    """Make a call; return its request. MPI's lack of it skips the test."""
    try:
        return getattr(comm, called(name, form))(*args)
    except NotImplementedError:
        raise unittest.SkipTest(f"no {called(name, form)} here") from None


def steps(comm, name, form, *args):
    """Give functions that begin a call, wait for its end and free it."""
    if form == "_init":
        request = begun(comm, name, form, *args)
        return request.Start, request.Wait, request.Free
    made = []

    def begin():
        made.append(begun(comm, name, form, *args))

    return begin, lambda: form and made.pop().Wait(), lambda: None


def perform(comm, name, form, *args, starts=1):
    """Make a call and wait for its end; starts: of a persistent one."""
    begin, wait, free = steps(comm, name, form, *args)
    for _ in range(starts if form == "_init" else 1):
        begin()
        wait()
    free()


def reduced(comm, name, parts, fold):
    """The reduction that this rank receives, or None; the root is 0.

    parts: all that each rank sends, in blocks of one length.
    """
    if TABLE[name].to_root and comm.rank:
        return None
    parts = REDUCED[name](parts, comm.rank)
    if "scatter" in name:
        parts = [np.split(part, comm.size)[comm.rank] for part in parts]
    return fold(parts) if parts else None


def counted(call):
    """Return how many collectives went from GPU to GPU, and by the host."""
    before = wm.stats()
    call()
    after = wm.stats()
    names = "ipc_collectives", "staged_collectives"
    return tuple(after[name] - before[name] for name in names)


def settle(comm):
    """Makes the calls that MPI does after one that all ranks refused."""
    mine, all_of = np.zeros(1), np.zeros(comm.size)
    comm.Allgather(mine, all_of)
    comm.Iallgather(mine, all_of).Wait()


def is_direct(comm):
    """Whether payloads go from GPU to GPU here, on all ranks alike."""
    names = {wm.transport(comm, rank).name for rank in range(comm.size)}
    return all(comm.allgather(names <= {"ipc", "self"}))


def write(buffer, values):
    if isinstance(buffer, np.ndarray):
        buffer[...] = values
    else:
        wm.asarray(buffer).assign(values)


def on_device(values):
    return kinds.make("device", values)


def init(comm, name, case):
    """The persistent collective of that name."""
    return getattr(comm, name + "_init")(*case.args)


class Staged:
    """An object of mpi4py's whose calls are those that install() puts in."""

    def __init__(self, thing):
        self.thing = thing

    def __getattr__(self, name):
        for kind in type(self.thing).__mro__:
            if (kind, name) in STAGED:
                return functools.partial(STAGED[kind, name], self.thing)
        return getattr(self.thing, name)


class Case:
    """A call with sums, whose results are proportional to what is sent.

    comm: neighbors need a Cartesian one. make: makes an array of this rank's
    kind; a pair of them makes what is sent and what is received. each:
    elements of a block; counts: those of the k-th where lengths vary. value:
    n elements that a rank sends to another one, or to all.
    """

    gap = 1  # elements between blocks that have their places

    def __init__(
        self,
        comm,
        name,
        make,
        root=0,
        in_place=False,
        each=EACH,
        counts=lambda k, each: each - 1 + k % 2,
        value=lambda source, to, n: 10.0 * to + source + 1 + np.arange(n) % 7,
        op="SUM",
    ):
        self.comm, self.name, self.root, self.op = comm, name, root, op
        self.row, self.at_root = TABLE[name], comm.rank == root
        self.each, self.counts, self.value = each, counts, value
        self.in_place = in_place and (self.at_root or name not in ROOTED)
        self.dtype = value(0, 0, 1).dtype
        sent, got = self.blocks()
        self.values, *self.out = self.lay(self.row.sends, sent)
        self.want, *self.back = self.lay(self.row.receives, got)
        self.empty = self.nothing(self.want.size)
        if self.in_place:
            self.place()
        elif (self.row.to_root and not self.at_root) or (
            name == "Bcast" and self.at_root
        ):
            self.want = self.empty
        makes = make if isinstance(make, tuple) else (make, make)
        self.sent, self.into = makes[0](self.values), makes[1](self.empty)
        if self.in_place and self.row.from_root:
            self.into = self.sent  # its own block stays where it is
        self.args = self.arguments()

    def nothing(self, n):
        return np.full(n, EMPTY).astype(self.dtype)

    def blocks(self):
        """Give the blocks that this rank sends, and those that it receives."""
        comm, row = self.comm, self.row
        outs = ins = range(comm.size)
        several = row.sends or "recvcounts" in row.arguments
        if self.name in NEIGHBORS:
            outs, ins = comm.outedges, comm.inedges
        elif self.name in REDUCTIONS:
            ins = REDUCED[self.name](ins, comm.rank)
        elif row.from_root:
            ins = [self.root]
        sent = [self.block(comm.rank, to) for to in (outs if several else [0])]
        got = [self.block(each, comm.rank if several else 0) for each in ins]
        if self.name in REDUCTIONS:
            got = [FOLDS[self.op](got) if got else self.nothing(self.each)]
        return sent, got

    def block(self, source, to):
        row, n = self.row, self.each
        by_source = row.receives in VARYING
        by_rank = row.sends in VARYING or "recvcounts" in row.arguments
        if (by_source or by_rank) and self.name not in NEIGHBORS:
            n = self.counts(source * by_source + to * by_rank, n)
        if source == MPI.PROC_NULL:
            return self.nothing(n)
        return self.value(source, to, n)

    def lay(self, form, blocks):
        """Give all elements, and counts and places of the blocks.

        The last comes first, and others lie apart, where MPI is told.
        """
        told = form in VARYING
        at, end = [0] * len(blocks), 0
        for k in range(len(blocks))[:: -1 if told else 1]:
            at[k] = end
            end += blocks[k].size + self.gap * told
        whole = self.nothing(end)
        for block, first in zip(blocks, at, strict=True):
            whole[first : first + block.size] = block
        return whole, [block.size for block in blocks], at

    def place(self):
        """Have what is sent where it is received."""
        rank, row = self.comm.rank, self.row
        if row.from_root:
            self.empty = self.want = self.values
        elif row.receives and not row.sends:
            first = self.back[1][rank]
            own = slice(first, first + self.back[0][rank])
            self.empty[own] = self.want[own]
        else:
            self.empty = self.values
        if self.name == "Exscan" and rank == 0:
            self.want = self.values

    def arguments(self):
        row = self.row
        args = [
            self.spec(row.sends, self.sent, *self.out),
            self.spec(row.receives, self.into, *self.back),
        ]
        if self.in_place:
            args[row.from_root] = MPI.IN_PLACE
        if row.arguments[0] == "buf":
            args = [args[not self.at_root]]
        elif (row.from_root or row.to_root) and not self.at_root:
            args[row.to_root] = None
        others = {"recvcounts": self.out[0], "root": self.root}
        others["op"] = getattr(MPI, self.op)
        return args + [others[each] for each in row.arguments[len(args) :]]

    def spec(self, form, array, counts, at):
        """The array as the call takes it, with the blocks that it has."""
        kind = MPI.Datatype.fromcode(self.dtype.char)
        if form == "v":
            return [array, counts, at, kind]
        if form == "w":
            at = [self.dtype.itemsize * each for each in at]
            return [array, counts, at, [kind] * len(counts)]
        return array

    def prepare(self, scale):
        """Write what is to be sent, so many times."""
        write(self.sent, self.times(self.values, scale))
        write(self.into, self.times(self.empty, scale))

    def check(self, scale=1):
        got = kinds.values_of(self.into)[: self.want.size]
        np.testing.assert_array_equal(got, self.times(self.want, scale))

    @staticmethod
    def times(values, scale):
        if scale == 1:
            return values
        return np.where(values == EMPTY, EMPTY, values * scale)


def codes_run(call):
    """The Python functions that run within a call."""
    names = []

    def note(frame, event, _):
        if event == "call":
            names.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return names
