# SPDX-License-Identifier: BSD-3-Clause
"""The end of this rank: its exception, for the ranks that wait, or a fault.

Also the exit status of a forked child, which ends before MPI_Finalize.
"""

from __future__ import annotations

import atexit
import faulthandler
import functools
import os
import sys
import traceback
from typing import Any, NoReturn

from . import _core


def _tell() -> None:
    """Tell the exception that Python has printed; then MPI_Finalize comes."""
    error = getattr(sys, "last_value", None)
    if error is None or hasattr(sys, "ps1") or sys.flags.interactive:
        return
    _core._child_status(1)
    text = "".join(traceback.format_exception_only(error)[:1])
    whole = " ".join(text.split()).encode(errors="backslashreplace")
    _core._raised(whole.decode())  # a name of a file may be no UTF-8


def note_status(status: Any) -> None:
    """Keep the status of sys.exit() for the case that this is a child."""
    if not isinstance(status, int):
        status = 0 if status is None else 1
    _core._child_status(status)


def _in_child() -> None:
    leave = sys.exit

    def leave_child(status: Any = None, /) -> NoReturn:
        note_status(status)
        leave(status)

    sys.exit = leave_child


atexit.register(_tell)
os.register_at_fork(after_in_child=_in_child)


def _under(call: Any) -> Any:
    """Make a call install its handler of faults below ours.

    A handler above ours raises the signal again, without the address.
    """

    @functools.wraps(call)
    def install(*args: Any, **kwargs: Any) -> Any:
        watched = _core._watch_faults(False)
        try:
            return call(*args, **kwargs)
        finally:
            if watched:
                _core._watch_faults(True)

    return install


for _name in ("enable", "disable"):
    setattr(faulthandler, _name, _under(getattr(faulthandler, _name)))
_core._watch_faults(True)
