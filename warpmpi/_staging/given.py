# SPDX-License-Identifier: BSD-3-Clause
"""Buffers as mpi4py is given them: memory that was looked at.

mpi4py reads an array again after we have. The code of the array's class may
then tell another address, so mpi4py is given what it has read before.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mpi4py import MPI

from .. import _core
from .._raw import has_bytes, read, refuse_bytes
from .table import Buffer


class Looked(NamedTuple):
    """Facts that _core._look has found of a buffer."""

    origin: int | None
    on_device: bool
    concerns: bool
    awaited: bool
    gaps: bool
    runs_code: bool


def is_type(item: Any) -> bool:
    return isinstance(item, (str, MPI.Datatype))


def listed(value: Any, buffer: Buffer) -> Any:
    """Return a buffer whose list, counts and displacements are on the host.

    mpi4py takes any sequence for a list of Alltoallw. Raises TypeError or
    ValueError for one in GPU memory.
    """
    if buffer.form == "w" and not isinstance(value, (list, tuple)):
        if value is None or value is MPI.IN_PLACE:
            return value
        if _core.is_on_device(value):
            if has_bytes(value):  # mpi4py would read them as a list
                raise ValueError(
                    f"{buffer.name}: give [array, (counts, displacements), "
                    "datatypes], not the array alone"
                )
            return value
        if hasattr(value, "__len__") and 2 <= len(value) <= 4:
            value = list(value)
    if buffer.form in ("v", "w") and isinstance(value, (list, tuple)):
        for item in value[1:]:
            for numbers in item if isinstance(item, tuple) else (item,):
                refuse_bytes(numbers, buffer.name)
    return value


def _read(array: Any, typed: bool, role: str) -> Any:
    # Some calls want memory that can be written and do not write it.
    try:
        return read(array, typed, True, True)
    except (BufferError, ValueError):
        if role != "<":
            raise
    return read(array, typed, False, True)


def read_once(value: Any, buffer: Buffer, role: str, alone: bool) -> Any:
    """Return a buffer in host memory as mpi4py reads it, which is once.

    Only the code of the array's class tells its memory. alone: the call takes
    memory, and no list. Raises what mpi4py raises, and TypeError for GPU
    memory.
    """
    in_list = isinstance(value, (list, tuple)) and value
    array, *rest = value if in_list else (value,)
    typed = buffer.form == "w" or any(map(is_type, rest))
    memory, datatype = _read(array, typed or alone, role)
    if _core.is_on_device(memory):
        raise TypeError(
            f"{buffer.name}: the array is GPU memory now, and was host memory "
            "before: its interface must always name the same memory"
        )
    if alone:
        return memory
    if typed:
        return [memory, *rest]
    if len(rest) > 1 and rest[-1] is None:
        rest.pop()
    return [memory, *rest, datatype or MPI.BYTE]
