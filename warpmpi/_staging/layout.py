# SPDX-License-Identifier: BSD-3-Clause
"""Counts and blocks of buffers, which _core._blocks reads as mpi4py does."""

from __future__ import annotations

import operator
from typing import Any, TypeAlias

from mpi4py import MPI

from .. import _core

# A byte offset, a number of elements from there, and their type: None for
# that of the array.
Block: TypeAlias = tuple[int, int, MPI.Datatype | None]


def times(value: Any, inner: int) -> Any:
    """Multiply a count, or all of a sequence of them; None stays."""
    if value is None:
        return None
    if isinstance(value, tuple):
        return tuple(times(item, inner) for item in value)
    try:
        return operator.index(value) * inner
    except TypeError:
        return [times(item, inner) for item in value]


def recounted(
    value: Any, inner: int, number: int, form: str, count: int
) -> Any:
    """Return a buffer with counts of elements that MPI knows.

    inner: such elements in one element of the array; number: elements of the
    array; form and count as for _core._blocks. A buffer that names a datatype
    stays as it is. So does one that mpi4py refuses.
    """
    listed = isinstance(value, (list, tuple))
    array, *rest = value if listed else (value,)
    if any(isinstance(item, (str, MPI.Datatype)) for item in rest):
        return value
    if len(rest) > 1 and rest.pop() is not None:
        return value
    counts, displs = (*rest, None, None)[:2]
    if len(rest) < 2 and isinstance(
        counts, tuple if form == "v" else (tuple, list)
    ):
        if len(counts) != 2:
            return value
        counts, displs = counts
    if form == "v" and counts is None:
        counts = [own for _, own, _ in _core._blocks(0, "v", count, 1, number)]
    try:
        pair = times(counts, inner), times(displs, inner)
    except TypeError:
        return value
    return [array, pair] if pair != (None, None) else array


# A specification that mpi4py does not understand either raises one of these.
_WRONG = (
    AttributeError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    MPI.Exception,
)


def block_parts(
    name: str, itemsize: int, nbytes: int, value: Any, form: str, count: int
) -> list[Block]:
    """Return the `count` blocks of a buffer.

    Arguments as for _core._blocks; with form "" all are the same block.
    Raises ValueError, which names the argument, if mpi4py would raise, or if
    a block is not within the buffer.
    """
    try:
        blocks = _core._blocks(value, form, count, itemsize, nbytes)
    except _WRONG as error:
        raise ValueError(f"{name}: {error}") from error
    if form == "":
        blocks *= count
    elif form == "n" and count > 0:
        offset, number, kind = blocks[0]
        if number % count != 0:
            raise ValueError(
                f"{name}: {number} elements cannot be divided into {count} "
                "equal blocks"
            )
        number //= count
        step = number * (itemsize if kind is None else kind.Get_extent()[1])
        blocks = [(offset + step * at, number, kind) for at in range(count)]
    elif form == "n":
        blocks = []
    if len(blocks) != count:
        raise ValueError(f"{name}: give {count} blocks, not {len(blocks)}")
    for offset, number, kind in blocks:
        low, extent = 0, itemsize
        span = itemsize
        if kind is not None:
            (low, span), extent = kind.Get_true_extent(), kind.Get_extent()[1]
        end = offset + low + span + (number - 1) * extent
        if number < 0 or (
            number > 0 and nbytes > 0 and (offset + low < 0 or end > nbytes)
        ):
            raise ValueError(
                f"{name}: {number} elements from byte {offset} on do not fit "
                f"in the array of {nbytes} bytes"
            )
    return blocks
