# SPDX-License-Identifier: BSD-3-Clause
"""MPI's own calls on GPU memory, through copies in page-locked host memory.

table.py lists mpi4py's uppercase calls and what they do to their buffers. The
rows of collectives come from the C table. The rows of messages serve host-only
communicators alone. MPI gets a staging copy of each buffer in GPU memory
(staging_copies.py). given.py looks at what mpi4py itself is given. layout.py
finds the bytes to copy, call.py makes the call,
halves.py replaces element types that MPI cannot reduce, and averages.py the
operation that it does not have. The modules named after MPI's classes have the
rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mpi4py import MPI

from .averages import object_call
from .call import refusing
from .collectives import comm_calls
from .datatypes import datatype_calls
from .files import file_calls
from .messages import message_calls
from .windows import STAGED, window_memory

__all__ = [
    "class_calls",
    "comm_calls",
    "message_calls",
    "object_call",
    "window_memory",
]

_NO_ATTACH = "MPI itself copies messages into the buffer; attach host memory"


def class_calls() -> Iterator[tuple[type, str, Any]]:
    """Give (type, name, replacement) of calls without a communicator."""
    for name, call in file_calls():
        yield MPI.File, name, call
    for name, call in STAGED.items():
        yield MPI.Win, name, call
    if hasattr(MPI.Session, "Attach_buffer"):
        refusal = refusing(MPI.Session, "Attach_buffer", _NO_ATTACH)
        yield MPI.Session, "Attach_buffer", refusal
    yield from datatype_calls()
