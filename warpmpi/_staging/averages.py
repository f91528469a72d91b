# SPDX-License-Identifier: BSD-3-Clause
"""wm.AVG in calls of MPI's, which computes the sum; the result is divided."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from .. import _core
from .._raw import items
from . import notes
from .table import Row

AVG = _core._Average()


def replaced(
    row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[bool, tuple[Any, ...], dict[str, Any]]:
    """Tell whether a call asks for wm.AVG, and give it MPI.SUM instead."""
    if "op" in row.positions and row.argument(args, kwargs, "op") is AVG:
        return True, *row.replaced(args, kwargs, "op", MPI.SUM)
    return False, args, kwargs


def ranks_of(comm: Any) -> int:
    """Give the number of ranks of which a rank receives the average."""
    size = comm.Get_remote_size() if comm.Is_inter() else comm.Get_size()
    return int(size)


def result_of(call: Any, role: str, first: int, nbytes: int) -> Any:
    """Give the bytes of a scattered result over the sums; None: all are."""
    if role != "=" or "scatter" not in call.row.name or not nbytes:
        return None
    parts, rank = [1] * call.owner.Get_size(), call.owner.Get_rank()
    if "recvcounts" in call.row.positions:
        parts = items(call.argument("recvcounts"), "recvcounts")
    return first, nbytes * parts[rank] // sum(parts)


def object_call(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Make a reduction of pickled objects take wm.AVG; other calls stay."""
    if name not in ("reduce", "allreduce", "scan", "exscan"):
        return method

    @functools.wraps(method)
    def call(
        self: Any, sendobj: Any, op: Any = MPI.SUM, *args: Any, **kwargs: Any
    ) -> Any:
        if op is not AVG:
            if not callable(op):
                raise TypeError(f"{name}: {notes.wrong_op(op)}")
            return method(self, sendobj, op, *args, **kwargs)
        if "scan" in name:
            raise TypeError(
                f"op: {name} has no wm.AVG, as each rank reduces another "
                "number of ranks: give MPI.SUM, and divide the result"
            )
        total = method(self, sendobj, MPI.SUM, *args, **kwargs)
        return None if total is None else total / ranks_of(self)

    return call
