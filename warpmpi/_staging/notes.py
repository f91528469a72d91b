# SPDX-License-Identifier: BSD-3-Clause
"""Notes that explain MPI's errors in collectives."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from .. import _core
from .layout import named
from .table import Row

_TEXTS = {
    MPI.ERR_OP: (
        "op: MPI does not compute this op with elements of this type; use an "
        "op that MPI has for them (MPI.SUM of numbers, MPI.LAND of bool; "
        "MPI.REPLACE and MPI.NO_OP are for windows), or convert the elements"
    ),
    MPI.ERR_TYPE: (
        "a datatype is MPI.DATATYPE_NULL, was freed, or Commit() was not "
        "called"
    ),
    MPI.ERR_COUNT: "a count is negative, or does not fit a C int",
    MPI.ERR_TRUNCATE: (
        "a rank sends more than another rank receives: counts and datatypes "
        "of all ranks must fit; WARPMPI_CHECK=1 reports which do not"
    ),
    MPI.ERR_ARG: (
        "an argument is out of its range, or a buffer is both sent and "
        "received into: give MPI.IN_PLACE"
    ),
    MPI.ERR_BUFFER: (
        "a buffer is missing, or both sent and received into: give "
        "MPI.IN_PLACE"
    ),
}


def _of_root(comm: Any, root: Any) -> str:
    if comm.Is_inter():
        return (
            f"root={root}: a rank of the other group, MPI.ROOT or "
            "MPI.PROC_NULL is expected"
        )
    return (
        f"root={root} is not a rank of this communicator: use 0 to "
        f"{comm.Get_size() - 1}"
    )


def add(error: MPI.Exception, call: str, owner: Any, root: Any) -> None:
    """Add a note to an error: the call, the likely cause and the cure.

    root: the root of the call; None if it has none.
    """
    kind = error.Get_error_class()
    text = _TEXTS.get(kind)
    if root is not None and kind in (MPI.ERR_ROOT, MPI.ERR_RANK):
        text = _of_root(owner, root)
    if text is not None and hasattr(error, "add_note"):  # Python 3.11
        error.add_note(f"{call}: {text}")


def _type_of(value: Any) -> str | None:
    """Name the elements of a buffer, if they have a name."""
    listed = isinstance(value, (list, tuple))
    array, rest = (value[0], value[1:]) if listed else (value, ())
    kinds = [each for each in rest if isinstance(each, (str, MPI.Datatype))]
    if kinds:
        return _core._element(named(kinds[0]))[0]
    return _core._elements(array)[0]


def name_types(
    error: ValueError,
    call: str,
    row: Row,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Name both types in an error of mpi4py's about buffers of two types."""
    if len(row.buffers) != 2:
        return
    given = {**dict(zip(row.positions, args, strict=False)), **kwargs}
    first, second = (buffer.name for buffer in row.buffers)
    try:
        one, other = _type_of(given[first]), _type_of(given[second])
    except Exception:
        return  # not a buffer: mpi4py tells
    if one is not None and other is not None and one != other:
        error.args = (
            f"{call}: {first} is of {one}, and {second} of {other}: give both "
            "the same element type",
        )
