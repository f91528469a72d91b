# SPDX-License-Identifier: BSD-3-Clause
"""Messages of host-only communicators with arrays that mpi4py refuses."""

from __future__ import annotations

from typing import Any

from . import table
from .call import Family, StagedPrequest, at_once, by_request, staged_call
from .table import rows_of


class _OfMessages(Family):
    of_messages = True


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
