# SPDX-License-Identifier: BSD-3-Clause
"""Collectives of neighbours in which a rank is another's neighbour twice.

MPIs disagree on the order of such blocks: some swap left and right in a
periodic dimension of one or two ranks. So all data of one rank for another is
one block, with a datatype that is made of the blocks. Ineighbor_alltoallw
moves it on a communicator that has each neighbour once
(src/comm/comm/neighbor.h).
"""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from .. import _core
from .layout import Block, block_parts
from .table import Row

# mpi4py's own, also after install().
_alltoallw = _core._attempting(MPI.Distgraphcomm.Ineighbor_alltoallw)

_MOST = 2**31 - 1  # bytes that MPI counts as such


class _Types(list[MPI.Datatype]):
    """Datatypes that are freed with this list."""

    def new(self, made: MPI.Datatype) -> MPI.Datatype:
        self.append(made.Commit())
        return made

    def __del__(self) -> None:
        if not MPI.Is_finalized():
            for kind in self:
                kind.Free()


def _by_rank(ranks: list[int], crossed: bool) -> list[list[int]]:
    """Give the indices of each neighbour's blocks, alike at both ends.

    crossed: in a Cartesian topology a block that one rank sends down is
    received from above.
    """
    found: dict[int, list[int]] = {}
    for at in range(len(ranks)):
        block = at ^ 1 if crossed else at
        if ranks[block] != MPI.PROC_NULL:
            found.setdefault(ranks[block], []).append(block)
    return [found[rank] for rank in sorted(found)]


def item_of(value: Any, name: str, sends: bool) -> tuple[int, int]:
    """Return the bytes of an element that mpi4py counts, and of the array."""
    memory = MPI.memory(value)
    inner, number = _core._inner(value, name, not sends)
    each = memory.nbytes // (inner * number) if number else memory.itemsize
    return each, memory.nbytes


def _element(itemsize: int, count: int, types: _Types) -> tuple[int, Any]:
    """Return count and datatype for elements of an array, as bytes."""
    if itemsize * count <= _MOST:
        return itemsize * count, MPI.BYTE
    return count, types.new(MPI.BYTE.Create_contiguous(itemsize))


def _merged(
    name: str, blocks: list[Block], itemsize: int, types: _Types
) -> tuple[int, int, MPI.Datatype]:
    """Merge blocks into one: count, byte offset and datatype.

    Raises MPI.Exception for a datatype that MPI would refuse.
    """
    parts = []
    for offset, count, kind in blocks:
        if kind is None:
            count, kind = _element(itemsize, count, types)
        else:
            _core._check_datatype(kind, name)
        if count > 0:
            parts.append((count, offset, kind))
    if not parts:
        return 0, 0, MPI.BYTE
    if len(parts) == 1:
        return parts[0]
    counts, offsets, kinds = map(list, zip(*parts, strict=True))
    made = MPI.Datatype.Create_struct(counts, offsets, kinds)
    return 1, 0, types.new(made)


class Pairs:
    """The neighbours of this rank in a communicator, and their blocks.

    A Call has it in place of the communicator, which may be freed before the
    last start of a persistent call.
    """

    def __init__(self, comm: MPI.Topocomm) -> None:
        sources, destinations = list(comm.inedges), list(comm.outedges)
        self.indegree, self.outdegree = len(sources), len(destinations)
        self._sources = _by_rank(sources, comm.topology == MPI.CART)
        self._destinations = _by_rank(destinations, False)

    def _merged(
        self, value: Any, name: str, form: str, sends: bool, types: _Types
    ) -> list[Any]:
        """Return a buffer for Alltoallw, with a block for each neighbour."""
        array = value[0] if isinstance(value, (list, tuple)) else value
        itemsize, nbytes = 1, 0
        if _core._origin(value, form) is None:
            itemsize, nbytes = item_of(array, name, sends)
        number = self.outdegree if sends else self.indegree
        blocks = block_parts(name, itemsize, nbytes, value, form, number)
        ranks = self._destinations if sends else self._sources
        each = [
            _merged(name, [blocks[at] for at in own], itemsize, types)
            for own in ranks
        ]
        counts, offsets, kinds = (
            map(list, zip(*each, strict=True)) if each else ([], [], [])
        )
        return [array, (counts, offsets), kinds]

    def merge(
        self, row: Row, *args: Any, **kwargs: Any
    ) -> tuple[list[list[Any]], _Types]:
        """Return both buffers of a call for Alltoallw, and their datatypes."""
        names = [one.name for one in row.buffers]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if len(args) + len(kwargs) != len(names) or given.keys() != {*names}:
            raise TypeError(f"{row.name} takes {' and '.join(names)}")
        types = _Types()
        return [
            self._merged(
                given[one.name], one.name, one.form, one.role == "<", types
            )
            for one in row.buffers
        ], types

    def begin(self, row: Row, on: MPI.Comm, *args: Any, **kwargs: Any) -> Any:
        """Begin a call on a communicator that has each neighbour once.

        Returns the request, and the datatypes, which must outlive it.
        """
        buffers, types = self.merge(row, *args, **kwargs)
        return _alltoallw(MPI.Distgraphcomm(on), *buffers), types
