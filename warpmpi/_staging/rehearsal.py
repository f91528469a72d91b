# SPDX-License-Identifier: BSD-3-Clause
"""Asks MPI which arguments of a collective it refuses, without a call of it.

An MPI without persistent collectives hears of a call at its first start, when
the other ranks are in it.
"""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from .. import _core
from . import notes
from .given import is_type
from .layout import block_parts
from .neighbours import item_of
from .table import Buffer

# mpi4py's own, also after install().
_SEND, _RECEIVE = MPI.Comm.Send_init, MPI.Comm.Recv_init
_REDUCE = MPI.Op.Reduce_local


def _split(value: Any) -> tuple[Any, list[Any]]:
    """Give the array of a buffer, and the items after it."""
    if isinstance(value, (list, tuple)) and value:
        return value[0], list(value[1:])
    return value, []


def _typed(value: Any) -> list[Any]:
    """Give the buffer with no elements, of the same type."""
    array, rest = _split(value)
    return [array, 0, *filter(is_type, rest[-1:])]


def _check_buffer(
    comm: MPI.Comm, value: Any, buffer: Buffer, role: str, blocks: int
) -> None:
    """Raise what mpi4py and MPI have against a buffer.

    The messages that judge it are never started.
    """
    init = _SEND if role == "<" else _RECEIVE
    array, rest = _split(value)
    specs = [value]
    if buffer.form == "w":
        specs = [[array, 0, kind] for kind in (rest[-1] if rest else ())]
    elif buffer.form == "v":
        specs = [_typed(value)]
    for spec in specs:
        init(comm, spec, 0).Free()
    if buffer.form == "n" and _core._origin(value, "n") is None:
        size = item_of(array, buffer.name, role == "<")
        block_parts(buffer.name, *size, value, "n", blocks)
    elif buffer.form in ("v", "w"):  # MPI does not look at their places
        block_parts(buffer.name, 1, 0, value, buffer.form, blocks)


def rehearse(call: Any, comm: MPI.Comm, *args: Any, **kwargs: Any) -> None:
    """Raise what a collective would raise about the arguments of this rank.

    Not a root out of range or buffers that overlap, which the core refuses.
    """
    row = call.row
    given = {**dict(zip(row.positions, args, strict=False)), **kwargs}
    root = given.get("root", 0)
    MPI.Status().Set_source(root)  # is it an int of C's?
    spare = None  # the buffer that may be missing
    if not (len(row.buffers) == 1 or call.family.paired or comm.Is_inter()):
        spare = row.buffers[row.buffers[0].at_root].name
    if "root" in row.positions and int(root) != comm.rank:
        spare = None
    op = given.get("op", MPI.SUM)
    if not isinstance(op, MPI.Op):
        raise TypeError(notes.wrong_op(op))
    for buffer, role, blocks, _ in call.family.roles(call):
        value = given[buffer.name]
        if value is None or value is MPI.IN_PLACE:
            if buffer.name == spare:
                continue
            value = None  # as a buffer MPI would take IN_PLACE
        _check_buffer(comm, value, buffer, role, blocks)
        if "op" in row.positions and op.is_predefined:
            _REDUCE(op, _typed(value), _typed(value))
