# SPDX-License-Identifier: BSD-3-Clause
"""Reductions of float16 and bfloat16, which MPI may be unable to compute.

MPI gets a datatype and an operation of ours, in all forms of the calls. All
ranks use the same ones, for GPU and host memory.
"""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from .. import _core
from .layout import times
from .table import Row


def concerns(row: Row) -> bool:
    """Return True if a call reduces elements by an op."""
    return "op" in row.positions or row.name == "Reduce_local"


def typed(value: Any, datatype: MPI.Datatype, inner: int) -> Any:
    """Return a buffer with this datatype in place of the one that it names.

    inner: elements of the datatype in one element of the array; counts are
    multiplied by it.
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
    """Return owner and arguments of a reduction, as passed to MPI."""
    computes = "op" in row.positions  # else by its owner
    op = row.argument(args, kwargs, "op", MPI.SUM) if computes else owner
    if not isinstance(op, MPI.Op):
        return owner, args, kwargs  # mpi4py refuses it
    computed = None
    for buffer in row.buffers:
        value = row.argument(args, kwargs, buffer.name)
        if value is None or value is MPI.IN_PLACE:
            continue
        half = _core._half(value, op, buffer.name)
        computed = computed or (half[1] if half else op)
        if half is not None:
            value = typed(value, half[0], half[2])
            args, kwargs = row.replaced(args, kwargs, buffer.name, value)
    if computed is None or computed is op:
        return owner, args, kwargs
    if not computes:
        return computed, args, kwargs
    return owner, *row.replaced(args, kwargs, "op", computed)
