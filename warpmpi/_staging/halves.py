# SPDX-License-Identifier: BSD-3-Clause
"""float16 and bfloat16 in reductions, with which MPI may not compute.

MPI is given a datatype and an operation of ours, in all forms of the calls:
each rank has the same ones, whatever memory its elements are in.
"""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from .. import _core
from .layout import times
from .table import Row


def concerns(row: Row) -> bool:
    """Tell whether a call computes with elements by an op that it is given."""
    return "op" in row.positions or row.name == "Reduce_local"


def typed(value: Any, datatype: MPI.Datatype, inner: int) -> Any:
    """Give a buffer with a datatype for the one that it names, if any.

    inner: how many such elements one of the array's is, which a count counts.
    """
    if not isinstance(value, (list, tuple)):
        return [value, datatype]
    array, *rest = value
    while rest and (
        rest[-1] is None or isinstance(rest[-1], (str, MPI.Datatype))
    ):
        rest.pop()
    if inner > 1:
        rest = [times(item, inner) for item in rest]
    return [array, *rest, datatype]


def replaced(
    row: Row, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Give owner and arguments of a reduction as MPI is to have them."""
    at = row.positions.get("op")
    if at is None:
        op = owner
    else:
        op = args[at] if at < len(args) else kwargs.get("op", MPI.SUM)
    if not isinstance(op, MPI.Op):
        return owner, args, kwargs  # mpi4py refuses it
    words, named, computed = list(args), dict(kwargs), None
    for buffer in row.buffers:
        there = buffer.position < len(words)
        value = words[buffer.position] if there else named.get(buffer.name)
        if value is None or value is MPI.IN_PLACE:
            continue
        half = _core._half(value, op, buffer.name)
        computed = computed or (half[1] if half else op)
        if half is None:
            continue
        value = typed(value, half[0], half[2])
        if there:
            words[buffer.position] = value
        else:
            named[buffer.name] = value
    if computed is None or computed is op:
        return owner, tuple(words), named
    if at is None:
        return computed, tuple(words), named
    if at < len(words):
        words[at] = computed
    else:
        named["op"] = computed
    return owner, tuple(words), named
