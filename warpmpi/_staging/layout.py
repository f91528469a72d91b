# SPDX-License-Identifier: BSD-3-Clause
"""The bytes of an array that a call of MPI's reads or writes."""

from __future__ import annotations

import operator
import re
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

from mpi4py import MPI

from .. import _core
from .._core import Array
from .._raw import items
from .table import Buffer

# `rows` rows of `length` bytes, the first at `offset`, each `stride` behind
# the one before: (offset, length, rows, stride).
Run: TypeAlias = tuple[int, int, int, int]

# A byte offset, a number of elements from there, and their type: None for
# that of the array.
Block: TypeAlias = tuple[int, int, MPI.Datatype | None]


def _is_number(value: Any) -> bool:
    return hasattr(value, "__index__") and not hasattr(value, "__len__")


def _numbers(value: Any, count: int) -> list[int]:
    """Give an integer, or a sequence of them, as a list."""
    if _is_number(value):
        return [operator.index(value)] * count
    return [operator.index(item) for item in items(value, "counts")]


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


def _split(number: int, count: int) -> list[int]:
    """Divide elements into blocks, as mpi4py does without counts."""
    return [
        number // count + (number % count > block) for block in range(count)
    ]


def recounted(
    value: Any, inner: int, number: int, form: str, count: int
) -> Any:
    """Return a buffer with counts of elements that MPI knows.

    inner: such elements in one element of the array; number: elements of the
    array; form and count as for runs_of(). A buffer that names a datatype
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
        counts = _split(number, count)
    try:
        pair = times(counts, inner), times(displs, inner)
    except TypeError:
        return value
    return [array, pair] if pair != (None, None) else array


def named(kind: Any) -> Any:
    if isinstance(kind, str):
        return MPI.Datatype.fromcode(kind)
    if kind is not None and not isinstance(kind, MPI.Datatype):
        raise TypeError(
            f"datatype: {kind!r} is not a datatype; give displacements with "
            "their counts, as a tuple: [array, (counts, displs), datatype]"
        )
    return kind


def _typed_blocks(rest: list[Any], count: int) -> Iterator[Block]:
    """Give the blocks of Alltoallw, each with a type."""
    counts = displs = None
    types = rest[-1]
    if len(rest) == 2:
        counts, displs = rest[0]
    elif len(rest) == 3:
        counts, displs = rest[:2]
    if counts is None and displs is None:
        counts, displs = [1] * count, [0] * count
    counts, displs = _numbers(counts, count), _numbers(displs, count)
    yield from zip(displs, counts, map(named, types), strict=True)


def separate_blocks(value: Any, count: int) -> list[Block] | None:
    """Give the blocks of a buffer of Alltoallw; None if it is not valid."""
    if not isinstance(value, (list, tuple)):
        return None
    try:
        blocks = list(_typed_blocks(list(value[1:]), count))
    except _WRONG:
        return None
    return blocks if len(blocks) == count else None


def blocks_of(
    itemsize: int, nbytes: int, rest: list[Any], form: str, count: int
) -> Iterator[Block]:
    """Give the blocks of a buffer as mpi4py reads its specification."""
    if form == "w":
        yield from _typed_blocks(rest, count)
        return
    counts = displs = kind = None
    if len(rest) == 1 and isinstance(rest[0], (str, MPI.Datatype)):
        kind = rest[0]
    elif len(rest) == 1:
        counts = rest[0]
    elif len(rest) == 2:
        counts, kind = rest
    elif rest:
        counts, displs, kind = rest
    pairs = tuple if form == "v" else (tuple, list)
    if len(rest) < 3 and isinstance(counts, pairs):
        counts, displs = counts
    kind = named(kind)
    extent = itemsize if kind is None else kind.Get_extent()[1]
    if form != "v":
        offset = operator.index(displs or 0) * extent
        number = (nbytes - offset) // extent
        if counts is not None:
            number = operator.index(counts) * (count if form else 1)
        yield offset, number, kind
        return
    if counts is None:
        counts = _split(nbytes // extent, count)
    counts = _numbers(counts, count)
    if displs is None:
        displs = [0, *accumulate(counts)][:count]
    elif _is_number(displs):
        displs = [operator.index(displs) * block for block in range(count)]
    for displ, number in zip(_numbers(displs, count), counts, strict=True):
        yield displ * extent, number, kind


def measured(value: list[Any], form: str, count: int) -> list[Any] | None:
    """Return a buffer at an address with memory of the length that is used.

    None if bytes in front of the address are used, or if it is not valid.
    """
    rest, high = list(value[1:]), 0
    if not _has_counts(rest, form):
        return value
    try:
        for offset, number, kind in blocks_of(1, 0, rest, form, count):
            if number <= 0:
                continue
            extent = (kind or MPI.BYTE).Get_extent()[1]
            lower, span = (kind or MPI.BYTE).Get_true_extent()
            last = (number - 1) * extent
            if offset + lower + min(last, 0) < 0:
                return None
            high = max(high, offset + lower + max(last, 0) + span)
    except _WRONG:
        return None
    return [Memory(value[0].address, high), *rest]


def spans_of(
    itemsize: int, nbytes: int, value: Any, count: int
) -> tuple[bytes, list[Any] | None] | None:
    """Return offset and bytes of each block of a v-form, as 64-bit pairs.

    If the blocks have a derived datatype, offsets do not count its gaps, and
    the second result is a buffer that has all blocks; else it is None.
    Returns None if a block is not within the array of `nbytes` bytes.
    """
    inner, number = _core._inner(value, "buffer", False)
    if inner > 1 and number > 0:  # its own elements are counted
        itemsize = nbytes // number
    rest = list(value[1:]) if isinstance(value, (list, tuple)) else []
    spans: list[int] = []
    total, derived = 0, None
    for offset, number, kind in blocks_of(itemsize, nbytes, rest, "v", count):
        size = itemsize if kind is None else kind.Get_size()
        if offset < 0 or number < 0:
            return None
        if kind is not None and (not kind.is_predefined or size != itemsize):
            derived, first = kind, offset // kind.Get_extent()[1]
            spans += [first * size, number * size]
            total = max(total, first + number)
            continue
        if offset + number * size > nbytes:
            return None
        spans += [offset, number * size]
    everything = None if derived is None else [value[0], total, derived]
    return array("Q", spans).tobytes(), everything


def _pieces(kind: MPI.Datatype) -> list[tuple[int, int]]:
    """Give offset and length of each run of bytes in an element.

    Only MPI knows the layout of a datatype, so MPI unpacks into a mask.
    """
    lower, span = kind.Get_true_extent()
    mask = bytearray(span)
    one = kind.Create_resized(0, 1).Commit()
    try:
        origin = MPI.memory.fromaddress(MPI.Get_address(mask) - lower, 1)
        one.Unpack(b"\1" * kind.Get_size(), 0, origin, MPI.COMM_SELF)
    finally:
        one.Free()
    return [
        (lower + piece.start(), len(piece[0]))
        for piece in re.finditer(b"\1+", mask)
    ]


def _rows(offset: int, count: int, kind: MPI.Datatype) -> Iterator[Run]:
    """Give the runs of bytes of `count` elements of a datatype."""
    size, extent = kind.Get_size(), kind.Get_extent()[1]
    lower, span = kind.Get_true_extent()
    if count <= 0 or size <= 0:
        return
    if extent < 0:  # from the last to the first
        offset, extent = offset + (count - 1) * extent, -extent
    if size == span and (count == 1 or size == extent):
        yield offset + lower, size * count, 1, 0
        return
    pieces = [(lower, size)] if size == span else _pieces(kind)
    first, length = pieces[0]
    gap = pieces[-1][0] - pieces[-2][0] if len(pieces) > 1 else 0
    even = [(first + gap * i, length) for i in range(len(pieces))] == pieces
    if even and len(pieces) > count:
        for element in range(count):
            yield offset + element * extent + first, length, len(pieces), gap
    else:
        for at, length in pieces:
            yield offset + at, length, count, extent


class Memory:
    """Writable bytes at an address, which a datatype may have given."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "version": 2,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
        }


def _has_counts(rest: Sequence[Any], form: str) -> bool:
    if form == "w":
        return True
    if not rest or isinstance(rest[0], (str, MPI.Datatype)):
        return False
    counts, pairs = rest[0], tuple if form == "v" else (tuple, list)
    if len(rest) < 3 and isinstance(counts, pairs) and counts:
        counts = counts[0]
    return counts is not None


def origin_of(value: Any, form: str) -> int | None:
    """Return the address from which the offsets of a buffer count, or None.

    Buffers with an origin are MPI.BOTTOM, also as None in a list, and an
    address with counts. Counts, displacements and datatypes alone tell their
    bytes. None for all other buffers.
    """
    if not isinstance(value, (list, tuple)) or not value:
        return None
    first = value[0]
    if first is None or first is MPI.BOTTOM:
        return 0
    addressed = _core._is_address(first) and _has_counts(value[1:], form)
    return int(first.address) if addressed else None


# A specification that mpi4py does not understand either raises one of these.
_WRONG = (
    AttributeError,
    TypeError,
    ValueError,
    LookupError,
    ZeroDivisionError,
    MPI.Exception,
)


def _number_of_blocks(rest: list[Any], form: str) -> int:
    """Return the number of blocks in the list; 1 if it is not known."""
    if form == "w":
        return len(rest[-1])
    if form == "v":
        for item in rest:
            for numbers in item if isinstance(item, tuple) else (item,):
                if hasattr(numbers, "__len__"):
                    return len(numbers)
    return 1


def allocations_of(origin: int, rest: list[Any], buffer: Buffer) -> set[int]:
    """Return the GPU allocations that a buffer with an origin is in.

    Each by its base, host memory as 0, and -1 for a datatype that leads to
    several of these.
    """
    form = buffer.form
    try:
        blocks = blocks_of(1, 0, rest, form, _number_of_blocks(rest, form))
        return {
            _core._allocation(
                origin + offset, number, kind or MPI.BYTE, buffer.name
            )
            for offset, number, kind in blocks
            if number > 0
        }
    except _WRONG:
        return set()


def absolute_runs_of(
    origin: int, rest: list[Any], form: str, count: int
) -> tuple[int, int, list[Run]]:
    """Return the bytes of a buffer with an origin.

    The result has the lowest address, the end address, and the runs with
    offsets from the lowest address.
    """
    runs = [
        run
        for offset, number, kind in blocks_of(1, 0, rest, form, count)
        for run in _rows(origin + offset, number, kind or MPI.BYTE)
    ]
    low = min(offset for offset, _, _, _ in runs)
    high = max(
        offset + length + (rows - 1) * stride
        for offset, length, rows, stride in runs
    )
    return low, high, [(run[0] - low, *run[1:]) for run in runs]


def block_parts(
    name: str,
    itemsize: int,
    nbytes: int,
    rest: list[Any],
    form: str,
    count: int,
) -> list[Block]:
    """Return the `count` blocks of a buffer.

    Arguments as for blocks_of() and runs_of(); with form "" all are the same
    block. Raises ValueError, which names the argument, if mpi4py would
    raise, or if a block is not within the buffer.
    """
    try:
        blocks = list(blocks_of(itemsize, nbytes, rest, form, count))
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


def runs_of(
    name: str,
    host: Array,
    rest: list[Any],
    form: str,
    count: int,
    datatype: MPI.Datatype | None,
) -> list[Run] | None:
    """Return the runs of bytes of a buffer that a call may access.

    host: an array like the buffer; rest: the items after the buffer in its
    list; form: "" for one block, n, v or w for `count` blocks; datatype: the
    type of all elements, or None. Returns None if the list is not valid, so
    that mpi4py raises. Raises ValueError, which names the argument, if the
    runs are not within the buffer.
    """
    try:
        blocks = list(blocks_of(host.itemsize, host.nbytes, rest, form, count))
        if datatype is not None:
            number = host.nbytes // datatype.Get_extent()[1]
            blocks = [(0, number, datatype)]
        found: list[Run] = []
        for offset, number, kind in blocks:
            if kind is not None:
                found += _rows(offset, number, kind)
            elif number > 0:
                found.append((offset, number * host.itemsize, 1, 0))
    except _WRONG:
        return None
    runs: list[Run] = []
    for offset, length, rows, stride in found:
        end = offset + length + (rows - 1) * stride
        if offset < 0 or end > host.nbytes:
            raise ValueError(
                f"{name}: bytes {offset} to {end} are not all in the array of "
                f"{host.nbytes} bytes"
            )
        if runs and rows == 1 and runs[-1][2] == 1:
            begin, before, _, _ = runs[-1]
            if begin + before == offset:
                runs[-1] = begin, before + length, 1, 0
                continue
        runs.append((offset, length, rows, stride))
    return runs
