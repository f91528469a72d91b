# SPDX-License-Identifier: BSD-3-Clause
"""The call of MPI in which the main thread is, for reports of long waits.

The core's thread (py_watch.c) asks, without the main thread's help: that may
be inside MPI. It asks rarely: after a signal, or if the thread has done
nothing in Python for long.
"""

from __future__ import annotations

import atexit
import dis
import functools
import inspect
import os
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import mpi4py
from mpi4py import MPI

from . import _core

_KINDS = tuple({each for each in vars(MPI).values() if isinstance(each, type)})
# Calls of these packages are told by the line of the program.
_INNER = tuple(
    os.path.dirname(os.path.abspath(str(file))) + os.sep
    for file in (__file__, mpi4py.__file__)
)
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_VARIABLE = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF")
_UNKNOWN = object()


@functools.cache
def _names() -> set[str]:
    """Give names that a program hardly gives to a function of its own."""
    return {
        name
        for kind in _KINDS
        for name in dir(kind)
        if name[0].isupper() and callable(getattr(kind, name, None))
    }


def _start(step: dis.Instruction) -> tuple[int | None, int | None]:
    """Give line and column of an expression; no column before Python 3.11."""
    place = getattr(step, "positions", None)
    return (place.lineno, place.col_offset) if place else (None, None)


def _paths(frame: FrameType) -> Iterator[list[str]]:
    """Give the names by which the present call's function was found.

    First that of a variable, which is "" if it is no variable. A call begins
    where its function does. Without columns each attribute of the line may be
    the function, the last one first.
    """
    steps = [
        step
        for step in dis.get_instructions(frame.f_code)
        if step.offset <= frame.f_lasti
    ]
    last = steps.pop() if steps else None
    if last is None or "CALL" not in last.opname:
        return
    begin, exact = _start(last), None not in _start(last)
    if not exact:
        lines = [  # of each step since Python 3.13
            getattr(step, "line_number", step.starts_line) for step in steps
        ]
        steps = steps[lines.index(frame.f_lineno) :] if lines else []
    while steps:
        names: list[str] = []
        while steps and steps[-1].opname in _ATTRIBUTE:
            step = steps.pop()
            names[:0] = [step.argval] * (_start(step) == begin)
        base = ""
        if steps:
            step = steps.pop()
            name, load = step.argval, "LOAD_FAST" in step.opname
            if load and names and isinstance(name, tuple):
                base = name[-1]  # two steps in one
            elif load or step.opname in _VARIABLE:
                base = name if _start(step) == begin else ""
        if names or (base and exact):
            yield [base, *names]
            if exact:
                return


def _value(frame: FrameType, path: list[str]) -> Any:
    """Find what the names stand for, without running code of the program."""
    for space in (frame.f_locals, frame.f_globals):
        if path[0] in space:
            value = space[path[0]]
            break
    else:
        return _UNKNOWN
    for name in path[1:]:
        value = inspect.getattr_static(value, name, _UNKNOWN)
    return value


def _mpi_call(frame: FrameType, path: list[str]) -> str | None:
    """Name the call of MPI that a frame finds by these names."""
    if len(path) < 2:
        stored = _value(frame, path)
        owner = getattr(stored, "__self__", None)
        kind = getattr(stored, "__objclass__", None)
        found = isinstance(owner, _KINDS) or kind in _KINDS
        return str(stored.__name__) if found else None
    name, owner = path[-1], _value(frame, path[:-1])
    if isinstance(owner, _KINDS) or owner in (MPI, *_KINDS):
        return name
    unknown = owner is _UNKNOWN or hasattr(owner, "__get__")
    return name if unknown and name in _names() else None


def _call_of(frame: FrameType) -> str | None:
    """Name the call of MPI that a frame makes."""
    calls = (_mpi_call(frame, path) for path in _paths(frame))
    return next(filter(None, calls), None)


def tell(seconds: float, asked: bool) -> str | None:
    """Tell in which call of MPI the main thread is.

    seconds: how long, at least; 0: not known. asked: tell also if it is in
    none.
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code.co_filename.startswith(_INNER):
        frame = frame.f_back
    if frame is None:
        return None
    call = _call_of(frame)
    code = frame.f_code
    place = f"{code.co_filename}, line {frame.f_lineno}, in {code.co_name}"
    if call is None:
        none = f" is in no blocking call of warpmpi: it is at {place}"
        return none if asked else None
    if asked and seconds < 1:
        return f": {call} is inside MPI ({place})"
    checks = (
        "; WARPMPI_CHECK=1, set on all ranks, tells for whom a rank waits"
        if not _core._check_wanted()
        else ""
    )
    makers = _core._count_makers(0)
    return (
        f": {call} has waited {seconds:.0f} s inside MPI ({place}). SIGUSR1 "
        f"tells where the other ranks are{checks}"
        + (f"; {makers}" if makers else "")
    )


atexit.register(_core._watch_end)
