# SPDX-License-Identifier: BSD-3-Clause
"""WARPMPI_CHECK: what the ranks say of one collective is compared.

Before a blocking or persistent collective of a communicator every rank tells
all others what it was asked for, and all raise where that does not fit. The
nonblocking ones must not wait for each other, and go unchecked.
"""

from __future__ import annotations

import functools
import pickle
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

from mpi4py import MPI

from . import _core
from ._staging import table
from ._staging.averages import AVG

# The communicator's own calls are ours: these are mpi4py's.
_Iallgather, _Iallgatherv = MPI.Comm.Iallgather, MPI.Comm.Iallgatherv
_allgather = MPI.Comm.allgather

# Calls in which every rank gives the same number of elements to each.
_EVEN = "Bcast Gather Scatter Allgather Alltoall".split()
_OBJECTS = (
    "bcast gather scatter allgather alltoall reduce allreduce scan exscan"
)


class Block(NamedTuple):
    """Elements that go to one rank, or come from it."""

    element: str | None  # None where it cannot be named
    number: int
    nbytes: int

    def __str__(self) -> str:
        """Tell count and element type."""
        if self.element is None:
            return f"{self.nbytes} bytes"
        return f"{self.number} of {self.element}"

    def fits(self, other: Block) -> bool:
        """Return True if one may be received as the other."""
        names = {self.element, other.element}
        if self.nbytes == other.nbytes == 0:
            return True
        if names & {None, "byte", "packed", "uint8"}:
            return self.nbytes == other.nbytes
        return self == other


Blocks: TypeAlias = "list[Block] | None"  # None: nothing, or not understood


class Said(NamedTuple):
    """The arguments of one rank's call, as the others compare them."""

    call: str
    root: int | None
    op: str | None
    sends: Blocks
    receives: Blocks
    in_place: bool

    def __str__(self) -> str:
        """Tell all of it in a few words."""
        text = self.call
        for given, blocks in (
            ("sending", self.sends),
            ("receiving", self.receives),
        ):
            if blocks:
                text += f", {given} {_tell(blocks)}"
        if self.in_place:
            text += ", in place"
        if self.op is not None:
            text += f", op {self.op}"
        return text if self.root is None else f"{text}, root {self.root}"


def _tell(blocks: list[Block]) -> str:
    if all(block == blocks[0] for block in blocks):
        each = " each" if len(blocks) > 1 else ""
        return f"{blocks[0]}{each}"
    return " and ".join(map(str, blocks[:8])) + " …" * (len(blocks) > 8)


def _blocks(value: Any, form: str, ranks: int, whole: bool = False) -> Blocks:
    """Describe a buffer: a block, or one for each rank; whole: as one."""
    if value is None or value is MPI.IN_PLACE:
        return None
    listed = isinstance(value, (list, tuple))
    array = value[0] if listed else value
    try:
        name, itemsize, nbytes = None, 1, 0
        if array is not None and array is not MPI.BOTTOM:
            name, itemsize, nbytes = _core._elements(array)
        found = []
        read = _core._blocks(value, form, ranks, itemsize, nbytes)
        for _, count, kind in read:
            of, size, length = name, itemsize, count * itemsize
            if kind is not None:
                length = count * kind.Get_size()
                of, size = _core._element(kind)
            found.append(Block(of, length // (size or 1), length))
    except Exception:
        return None  # the call itself tells what is wrong
    if form != "n" or whole:
        return found
    name, number, nbytes = found[0]
    return [Block(name, number // ranks, nbytes // ranks)] * ranks


_OPS = {
    name: getattr(MPI, name)
    for name in (
        *("SUM", "PROD", "MAX", "MIN", "LAND", "LOR", "LXOR", "BAND", "BOR"),
        *("BXOR", "MAXLOC", "MINLOC", "REPLACE", "NO_OP"),
    )
}


def _op_name(op: Any) -> str:
    if op is AVG:
        return "AVG"
    for name, known in _OPS.items():
        if op == known:
            return name
    return "of the program"


def _exchange(comm: Any, said: Said) -> list[Said]:
    """Tell all ranks; messages go on meanwhile."""
    mine = pickle.dumps(tuple(said))
    told = bytearray(8 * comm.size)
    request = _Iallgather(
        comm, [struct.pack("q", len(mine)), MPI.BYTE], [told, MPI.BYTE]
    )
    _core.Request.Waitall([request])
    lengths = list(struct.unpack(f"{comm.size}q", told))
    everything = bytearray(sum(lengths))
    request = _Iallgatherv(
        comm, [mine, MPI.BYTE], [everything, lengths, None, MPI.BYTE]
    )
    _core.Request.Waitall([request])
    result, at = [], 0
    for length in lengths:
        fields = pickle.loads(everything[at : at + length])
        result.append(Said(*fields))
        at += length
    return result


def _pairs(all_said: list[Said], name: str) -> Iterator[tuple[int, int]]:
    """Give who sends to whom in a collective."""
    ranks = range(len(all_said))
    root = all_said[0].root or 0
    if root not in ranks:
        return  # the call itself tells
    if name in ("Gather", "Gatherv"):
        yield from ((rank, root) for rank in ranks)
    elif name in ("Scatter", "Scatterv"):
        yield from ((root, rank) for rank in ranks)
    else:
        yield from ((source, dest) for source in ranks for dest in ranks)


def _of(blocks: Blocks, rank: int) -> Block | None:
    if not blocks:
        return None
    return blocks[rank] if rank < len(blocks) else blocks[0]


def _misfit(all_said: list[Said], name: str) -> str | None:
    """Tell of the first two ranks whose buffers do not fit each other."""
    if name == "Bcast" or name in table.REDUCTIONS:
        # All ranks give alike. In place they give what they receive.
        given = [said.sends or said.receives for said in all_said]
        for rank, blocks in enumerate(given):
            first = given[0]
            if first and blocks:
                one, other = blocks[0], first[0]
                same = one == other
                if name == "Bcast" or None in (one.element, other.element):
                    same = one.fits(other)
                if not same:
                    return f"ranks 0 and {rank} differ"
        return None
    if name not in _EVEN and name[:-1] not in _EVEN:
        return None  # a collective of neighbours
    for source, dest in _pairs(all_said, name):
        sent = _of(all_said[source].sends, dest)
        taken = _of(all_said[dest].receives, source)
        if sent and taken and not sent.fits(taken):
            return (
                f"rank {source} sends {sent} to rank {dest}, which receives "
                f"{taken}"
            )
    return None


def _judge(all_said: list[Said], name: str) -> None:
    """Raise TypeError where what the ranks say does not fit."""
    first = all_said[0]
    different = None
    for rank, said in enumerate(all_said):
        for what in ("call", "root", "op"):
            if getattr(said, what) != getattr(first, what):
                different = different or f"ranks 0 and {rank} differ in {what}"
    if different is None:
        # The ranks of a scatter or a gather in place are its root alone.
        rooted = first.root is not None
        for rank, said in enumerate(all_said):
            if not rooted and said.in_place != first.in_place:
                different = (
                    different or f"ranks 0 and {rank} differ in MPI.IN_PLACE"
                )
        different = different or _misfit(all_said, name)
    if different is None:
        return
    ranks_of: dict[str, list[int]] = {}
    for rank, said in enumerate(all_said):
        ranks_of.setdefault(str(said), []).append(rank)
    lines = [
        f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:8]))}"
        f"{' …' * (len(ranks) > 8)}: {text}"
        for text, ranks in ranks_of.items()
    ]
    raise TypeError(
        f"WARPMPI_CHECK: {different}. {'; '.join(lines[:8])}"
        f"{' …' * (len(lines) > 8)}"
    )


@functools.cache
def _refused() -> int:
    """Give the attribute of communicators whose last call was refused."""
    return MPI.Comm.Create_keyval()


def _make(comm: Any, said: Said, name: str, call: Callable[[], Any]) -> Any:
    """Compare what the ranks say, and make a call.

    If the call is refused, it has not happened. The others have heard of it,
    so this rank's next call is not compared.
    """
    if comm.Get_attr(_refused()) is None:
        _compare(comm, said, name)
    else:
        comm.Delete_attr(_refused())
    try:
        return call()
    except BaseException as error:
        if _core._refuses(error):
            comm.Set_attr(_refused(), True)
        raise


def _compare(comm: Any, said: Said, name: str) -> None:
    comm._wait_for_all(said.call)  # is reported, unlike waits in MPI
    if not comm.Is_inter():
        _judge(_exchange(comm, said), name)
        return
    # Both groups learn what each says; the calls alone are compared.
    theirs = _allgather(comm, said.call)
    ours = _allgather(comm, theirs)[0]
    if len({*ours, *theirs}) > 1:
        raise TypeError(
            "WARPMPI_CHECK: the ranks are in different collectives: one "
            f"group is in {', '.join(ours)}, the other in {', '.join(theirs)}"
        )


def _say(row: table.Row, called: str, comm: Any, args: Any) -> Said:
    """Put in words what a call was asked for."""
    root = args.get("root", 0) if "root" in row.positions else None
    values: dict[str, Blocks] = {"<": None, ">": None}
    inter, size = comm.Is_inter(), comm.size
    mine = root is None or comm.rank == root
    first = args.get("sendbuf")
    in_place = first is MPI.IN_PLACE
    if "sendbuf" in row.positions and root is None and first is None:
        in_place = True
    for buffer in row.buffers:
        if inter or (buffer.at_root and not mine):
            continue
        value = args.get(buffer.name)
        role = ">" if buffer.role == "=" else buffer.role
        form, whole = buffer.form, row.name == "Reduce_scatter_block"
        if whole and in_place:
            form = "n"  # a count is that of a block, as in sendbuf
        values[role] = _blocks(value, form, size, whole)
    if row.name == "Bcast" and mine:
        values = {"<": values[">"], ">": None}
    op = None
    if row.name in table.REDUCTIONS:
        op = _op_name(args.get("op", MPI.SUM))
    return Said(called, root, op, values["<"], values[">"], in_place)


def _checked(method: Any, called: str, row: table.Row) -> Any:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(row.positions, args, strict=False)), **kwargs}
        said = _say(row, called, self, given)
        return _make(
            self, said, row.name, lambda: method(self, *args, **kwargs)
        )

    return call


def _of_objects(method: Any, name: str) -> Any:
    """Make a lower-case collective compare its name, root and op."""
    reduces = "reduce" in name or "scan" in name
    rooted = name in ("bcast", "gather", "scatter", "reduce")

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        rest = list(args[1:])
        op = kwargs.get("op", rest.pop(0) if reduces and rest else MPI.SUM)
        root = kwargs.get("root", rest[0] if rest else 0)
        said = Said(
            name,
            root if rooted else None,
            _op_name(op) if reduces else None,
            None,
            None,
            False,
        )
        return _make(self, said, name, lambda: method(self, *args, **kwargs))

    return call


def _barrier(method: Any) -> Any:
    @functools.wraps(method)
    def Barrier(self: Any) -> None:
        said = Said("Barrier", None, None, None, None, False)
        _make(self, said, "Barrier", lambda: method(self))

    return Barrier


def comm_calls(cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Give the checked forms of a communicator's collectives."""
    for row in table.collectives():
        for name in (row.name, row.name + "_init"):
            if hasattr(cls, name):
                yield name, _checked(getattr(cls, name), name, row)
    for name in _OBJECTS.split():
        if hasattr(cls, name):
            yield name, _of_objects(getattr(cls, name), name)
    yield "Barrier", _barrier(getattr(cls, "Barrier"))  # noqa: B009
