# SPDX-License-Identifier: BSD-3-Clause
"""Buffered sends: how much the attached buffer has room for.

Copies are made in memory of our own, those of GPU arrays on their GPU; the
attached buffer only limits them, as MPI says it does.
"""

from __future__ import annotations

import contextlib
from typing import Any

from mpi4py import MPI

from . import _core

_attached: dict[int, Any] = {}  # by a communicator's handle, 0: the process


def _read(buf: Any) -> Any:
    """Read a buffer once, as its code may tell other memory the next time."""
    automatic = getattr(MPI, "BUFFER_AUTOMATIC", None)
    if buf is None or (automatic is not None and buf is automatic):
        return buf
    return MPI.buffer.frombuffer(buf)


def _size(memory: Any) -> int:
    """Return the bytes of what was read; -1: without limit."""
    if isinstance(memory, MPI.buffer):
        return memory.nbytes
    return 0 if memory is None else -1


class BufferedSends:
    """Attach_buffer and its companions of a communicator (MPI 4.1)."""

    def Attach_buffer(self, buf: Any) -> None:
        """Attach a buffer whose size limits this communicator's Bsend.

        The limit is for GPU arrays and host arrays together. buf: host memory,
        or ``MPI.BUFFER_AUTOMATIC`` for no limit. Each message takes its bytes
        and ``MPI.BSEND_OVERHEAD``. Raises MPI.Exception if one is attached
        already.
        """
        _core._buffer_attach(self, _size(_read(buf)))
        _attached[MPI._handleof(self)] = buf

    def Detach_buffer(self) -> Any:
        """Wait until all messages have left the buffer, and return it.

        Messages of GPU arrays, too.
        """
        _core._buffer_wait(self, True)
        _core._buffer_detach(self)
        return _attached.pop(MPI._handleof(self), None)

    def Flush_buffer(self) -> None:
        """Wait until all messages have left the buffer."""
        _core._buffer_wait(self, False)

    def Iflush_buffer(self) -> _core.Request:
        """Return a request that ends when all messages have left it."""
        return _core._buffer_flush(self)


_stock_attach = MPI.Attach_buffer
_stock_detach = MPI.Detach_buffer


def attach_buffer(buf: Any) -> None:
    """Attach a buffer to the process: MPI's own, whose size limits ours.

    Only the size of GPU memory is used: MPI gets host memory of this size.
    """
    memory = _read(buf)
    size, on_device = _size(memory), _core.is_on_device(memory)
    _stock_attach(bytearray(size) if on_device else memory)
    _core._buffer_attach(None, size)
    if on_device:
        _attached[0] = buf


def detach_buffer() -> Any:
    """Detach the process's buffer.

    Waits until all buffered messages have left, and returns what was attached.
    """
    _core._buffer_wait(None, True)
    _core._buffer_detach(None)
    host = _stock_detach()
    return _attached.pop(0, host)


def flush_buffer() -> None:
    """Wait for buffered messages.

    Returns when those of every communicator have left the buffer.
    """
    _core._buffer_wait(None, False)
    _stock_flush()


def _stock_flush() -> None:
    with contextlib.suppress(NotImplementedError):  # before MPI 4.1
        _flush()


_flush = getattr(MPI, "Flush_buffer", lambda: None)


def iflush_buffer() -> _core.Request:
    """Begin to wait for buffered messages.

    Returns a request that ends when those of every communicator have left.
    """
    return _core._buffer_flush(None)


# install() puts these into mpi4py.MPI.
FUNCTIONS = {
    "Attach_buffer": attach_buffer,
    "Detach_buffer": detach_buffer,
    "Flush_buffer": flush_buffer,
    "Iflush_buffer": iflush_buffer,
}
