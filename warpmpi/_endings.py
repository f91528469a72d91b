# SPDX-License-Identifier: BSD-3-Clause
"""The exception that ends this rank, for the ranks that wait for it."""

from __future__ import annotations

import atexit
import sys
import traceback

from . import _core


def _tell() -> None:
    """Tell the exception that Python has printed; then MPI_Finalize comes."""
    error = getattr(sys, "last_value", None)
    if error is None or hasattr(sys, "ps1") or sys.flags.interactive:
        return
    text = "".join(traceback.format_exception_only(error)[:1])
    whole = " ".join(text.split()).encode(errors="backslashreplace")
    _core._raised(whole.decode())  # a name of a file may be no UTF-8


atexit.register(_tell)
