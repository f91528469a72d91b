# SPDX-License-Identifier: BSD-3-Clause
"""Local calls: MPI.Datatype's packing, and MPI.Op.Reduce_local."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from mpi4py import MPI

from .. import _core, _docs
from . import table
from .call import Call, Family, at_once, staged_call
from .table import Buffer, rows_of


def _packing(call: Call) -> int:
    call.fetch()
    end: int = call.run()
    for copy in call.copies:
        if copy.role != "<":
            begin = call.argument("position")
            copy.written = begin, end - begin
    call.store()
    return end


class _OfDatatype(Family):
    takes_lists = False

    def roles(self, call: Call) -> Iterator[tuple[Buffer, str, int, Any]]:
        for buffer in call.row.buffers:
            typed = buffer.role != "<" and call.row.name.startswith("Unpack")
            yield buffer, buffer.role, 1, call.owner if typed else None


class _OfOp(Family):
    def describe(self, name: str) -> str:
        return _docs.LOCAL


def _on_the_gpu(staged: Any) -> Any:
    """Make a Reduce_local that runs on the GPU if both buffers are there."""

    @functools.wraps(staged)
    def Reduce_local(self: MPI.Op, inbuf: Any, inoutbuf: Any) -> None:
        _core._check_running()
        if not _core._reduce_local(self, inbuf, inoutbuf):
            staged(self, inbuf, inoutbuf)

    return Reduce_local


def datatype_calls() -> Iterator[tuple[type, str, Any]]:
    """Give (type, name, replacement) of these calls."""
    for row in rows_of(table.OP):
        call = staged_call(getattr(MPI.Op, row.name), row, _OfOp(), at_once)
        yield MPI.Op, row.name, _on_the_gpu(call)
    for row in rows_of(table.DATATYPE):
        method = getattr(MPI.Datatype, row.name)
        end = _packing if row.name.startswith("Pack") else at_once
        call = staged_call(method, row, _OfDatatype(), end)
        yield MPI.Datatype, row.name, call
