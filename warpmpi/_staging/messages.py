# SPDX-License-Identifier: BSD-3-Clause
"""Messages of host-only communicators with arrays that mpi4py refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mpi4py import MPI

from . import table
from .call import (
    Call,
    Family,
    StagedPrequest,
    at_once,
    by_request,
    rank_of,
    staged_call,
)
from .table import Buffer, rows_of


class _OfMessages(Family):
    of_messages = True
    partial = frozenset({"dest", "source"})

    def roles(self, call: Call) -> Iterator[tuple[Buffer, str, int, Any]]:
        """Leave out the buffers at which mpi4py does not look."""
        replaced = len(call.row.buffers) == 1  # the same one for both ranks
        for each in super().roles(call):
            others = [
                rank_of(call.argument(name))
                for name, sent in (("dest", True), ("source", False))
                if name in call.row.positions
                and (replaced or sent == (each[0].role == "<"))
            ]
            if any(other != MPI.PROC_NULL for other in others):
                yield each


def message_calls(base: type) -> dict[str, Any]:
    """Give the replacements of the messages of a type of mpi4py's, by name."""
    calls = {}
    for row in rows_of(table.MESSAGES):
        name = row.name
        if hasattr(base, name):
            persistent = name.endswith("_init")
            end = by_request if name.startswith("I") else at_once
            calls[name] = staged_call(
                getattr(base, name),
                row,
                _OfMessages(),
                StagedPrequest if persistent else end,
                mpis=True,
            )
    return calls
