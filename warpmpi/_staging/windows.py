# SPDX-License-Identifier: BSD-3-Clause
"""MPI.Win: one-sided calls, and the calls that complete them.

These are of windows of host memory; _windows.py has those of GPU memory.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from mpi4py import MPI

from .. import _core, _docs
from . import table
from .call import (
    Call,
    Family,
    by_request,
    host_memory,
    rank_of,
    refusing,
    staged_call,
)
from .table import Buffer, rows_of

# Calls of each window that have not ended, until it is synchronised, with the
# rank they are with.
_open_of_window: dict[int, list[tuple[int, Call]]] = {}


def _until_synchronized(call: Call) -> None:
    call.fetch()
    call.run()
    rank = rank_of(call.argument("target_rank"))
    _open_of_window.setdefault(MPI._handleof(call.owner), []).append(
        (rank, call)
    )


def _synchronizing(method: Any, of_rank: bool) -> Any:
    """Make a call that completes the calls of a window.

    of_rank: only those with the rank that is the first argument.
    """

    @functools.wraps(method)
    def synchronize(self: MPI.Win, *args: Any, **kwargs: Any) -> Any:
        handle = MPI._handleof(self)
        result = method(self, *args, **kwargs)
        if handle not in _open_of_window:
            return result
        rank = rank_of((*args, *kwargs.values())[0]) if of_rank else None
        calls = _open_of_window.pop(handle)
        left = [item for item in calls if of_rank and item[0] != rank]
        if left:
            _open_of_window[handle] = left
        for other, call in calls:
            if not of_rank or other == rank:
                call.store()
        return result

    never = None, (), False, "", False, None, None, False, None, None
    passing = _core._Passing(method, synchronize, *never, _open_of_window)
    return functools.update_wrapper(passing, method)


def _freeing(method: Any) -> Any:
    @functools.wraps(method)
    def free(self: Any) -> Any:
        _open_of_window.pop(MPI._handleof(self), None)
        return method(self)

    return free


class _OfWindow(Family):
    partial = frozenset({"target_rank"})

    def describe(self, name: str) -> str:
        return _docs.WINDOW

    def roles(self, call: Call) -> Iterator[tuple[Buffer, str, int, Any]]:
        if rank_of(call.argument("target_rank")) != MPI.PROC_NULL:
            yield from super().roles(call)


_NO_WINDOW = (
    "mpi4py's own call takes host memory alone: call wm.install() first, or "
    "use wm.Win.Create() for GPU memory"
)


def window_memory(value: Any) -> Any:
    """Return an argument of Win.Create; raise TypeError for GPU memory."""
    return host_memory(value, "Win.Create", _NO_WINDOW)


def window_calls() -> Iterator[tuple[str, Any]]:
    """Give the name and the replacement of each call of a window."""
    family = _OfWindow()
    for row in rows_of(table.WINDOW):
        name, method = row.name, functools.partial(getattr, MPI.Win)
        yield name, staged_call(method(name), row, family, _until_synchronized)
        name = "R" + name[0].lower() + name[1:]
        if hasattr(MPI.Win, name):
            yield name, staged_call(method(name), row, family, by_request)
    for name in "Fence Complete Unlock_all Flush_all Flush_local_all".split():
        yield name, _synchronizing(method(name), False)
    for name in "Unlock Flush Flush_local".split():
        yield name, _synchronizing(method(name), True)
    yield "Free", _freeing(method("Free"))
    for name in ("Attach", "Detach"):
        yield name, refusing(MPI.Win, name, _NO_WINDOW)


# Of mpi4py's own methods, which install() replaces by these.
STAGED: dict[str, Any] = dict(window_calls())
