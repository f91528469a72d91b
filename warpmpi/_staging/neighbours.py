# SPDX-License-Identifier: BSD-3-Clause
"""Collectives of neighbours where a rank is another's neighbour twice.

MPIs disagree on which block is which there: left and right are swapped in a
periodic dimension of one or two ranks. So what a rank has for another goes as
one block, of a datatype that is made of its blocks, by Ineighbor_alltoallw on
a communicator that has each neighbour once (src/comm/comm/neighbor.h).
"""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from .. import _core
from .layout import Block, block_parts, origin_of
from .table import Row

# mpi4py's own, also after install().
_alltoallw = MPI.Distgraphcomm.Ineighbor_alltoallw

_MOST = 2**31 - 1  # bytes that MPI counts as such


class _Types(list[MPI.Datatype]):
    """Datatypes that were made, which live as long as this."""

    def new(self, made: MPI.Datatype) -> MPI.Datatype:
        self.append(made.Commit())
        return made

    def __del__(self) -> None:
        if not MPI.Is_finalized():
            for kind in self:
                kind.Free()


def _by_rank(ranks: list[int], crossed: bool) -> list[list[int]]:
    """Give the blocks of each neighbour, in the order that both ends have.

    In a Cartesian topology what is sent down is received from above.
    """
    found: dict[int, list[int]] = {}
    for at in range(len(ranks)):
        block = at ^ 1 if crossed else at
        if ranks[block] != MPI.PROC_NULL:
            found.setdefault(ranks[block], []).append(block)
    return [found[rank] for rank in sorted(found)]


def _item_of(value: Any, name: str, sends: bool) -> tuple[int, int]:
    """Give the bytes of what mpi4py counts in an array, and of all."""
    memory = MPI.memory(value)
    inner, number = _core._inner(value, name, not sends)
    each = memory.nbytes // (inner * number) if number else memory.itemsize
    return each, memory.nbytes


def _element(itemsize: int, count: int, types: _Types) -> tuple[int, Any]:
    """Give what counts the elements of an array, and their count."""
    if itemsize * count <= _MOST:
        return itemsize * count, MPI.BYTE
    return count, types.new(MPI.BYTE.Create_contiguous(itemsize))


def _merged(
    blocks: list[Block], itemsize: int, types: _Types
) -> tuple[int, int, MPI.Datatype]:
    """Give one block that is some: count, byte offset and datatype."""
    parts = []
    for offset, count, kind in blocks:
        if kind is None:
            count, kind = _element(itemsize, count, types)
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
    """The neighbours of each rank in a communicator, and their blocks.

    Stands for the communicator in a Call, as it may be freed before the last
    start of a persistent one.
    """

    def __init__(self, comm: MPI.Topocomm) -> None:
        sources, destinations = list(comm.inedges), list(comm.outedges)
        self.indegree, self.outdegree = len(sources), len(destinations)
        self._sources = _by_rank(sources, comm.topology == MPI.CART)
        self._destinations = _by_rank(destinations, False)

    def _merged(
        self, value: Any, name: str, form: str, sends: bool, types: _Types
    ) -> list[Any]:
        """Give a buffer as Alltoallw takes it, a block for each neighbour."""
        array, *rest = value if isinstance(value, (list, tuple)) else (value,)
        itemsize, nbytes = 1, 0
        if origin_of(value, form) is None:
            itemsize, nbytes = _item_of(array, name, sends)
        number = self.outdegree if sends else self.indegree
        blocks = block_parts(name, itemsize, nbytes, rest, form, number)
        ranks = self._destinations if sends else self._sources
        each = [
            _merged([blocks[at] for at in own], itemsize, types)
            for own in ranks
        ]
        counts, offsets, kinds = (
            map(list, zip(*each, strict=True)) if each else ([], [], [])
        )
        return [array, (counts, offsets), kinds]

    def merge(
        self, row: Row, *args: Any, **kwargs: Any
    ) -> tuple[list[list[Any]], _Types]:
        """Give both buffers of a call so, and the datatypes made for them."""
        given = dict(
            zip((one.name for one in row.buffers), args, strict=False)
        )
        given |= kwargs
        types = _Types()
        return [
            self._merged(
                given[one.name], one.name, one.form, one.role == "<", types
            )
            for one in row.buffers
        ], types

    def begin(self, row: Row, on: MPI.Comm, *args: Any, **kwargs: Any) -> Any:
        """Begin a call on a communicator that has each neighbour once.

        Returns its request, and what must live until that has ended.
        """
        buffers, types = self.merge(row, *args, **kwargs)
        return _alltoallw(MPI.Distgraphcomm(on), *buffers), types
