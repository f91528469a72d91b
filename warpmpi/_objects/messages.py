# SPDX-License-Identifier: BSD-3-Clause
"""mpi4py's lower-case messages: pickled objects.

The pickle of an object is one message of ours. Its GPU arrays are others.
"""

from __future__ import annotations

import warnings
from typing import Any

from mpi4py import MPI

from .. import _core
from . import libraries
from .pickling import dump, load

_Methods = _core.CommMethods


def _send(
    comm: Any, obj: Any, dest: int, tag: int, mode: str, blocking: bool
) -> Any:
    data = b""
    embedded: list[Any] = []
    if dest != MPI.PROC_NULL:
        try:
            data, embedded = dump(comm, obj, dest)
        except Exception as error:
            if libraries.is_failure(error):
                _core._object_failure(comm, dest, tag, mode, str(error))
            raise
    return _core._object_send(comm, data, dest, tag, mode, blocking, embedded)


class ObjectMessages:
    """The lower-case messages of a communicator: any object, pickled.

    Signatures and meaning are mpi4py's. GPU arrays inside an object travel
    GPU to GPU and arrive on the current device of their library.
    """

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send an object.

        Raises the exceptions of pickling; nothing was sent then, unless
        memory ran out or CUDA failed, which the receiver raises as well.
        Raises MPI.Exception (rank, tag), wm.CudaError.
        """
        _send(self, obj, dest, tag, "", True)

    def bsend(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send a copy, whose bytes count against the attached buffer."""
        _send(self, obj, dest, tag, "b", True)

    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send an object; returns when its receive has begun."""
        _send(self, obj, dest, tag, "s", True)

    def isend(self, obj: Any, dest: int, tag: int = 0) -> _core.Request:
        """Begin to send an object as it is now; returns a wm.Request."""
        request: _core.Request = _send(self, obj, dest, tag, "", False)
        return request

    def ibsend(self, obj: Any, dest: int, tag: int = 0) -> _core.Request:
        """Begin a buffered send; returns a wm.Request that has ended."""
        request: _core.Request = _send(self, obj, dest, tag, "b", False)
        return request

    def issend(self, obj: Any, dest: int, tag: int = 0) -> _core.Request:
        """Begin a synchronous send; returns a wm.Request."""
        request: _core.Request = _send(self, obj, dest, tag, "s", False)
        return request

    def recv(
        self,
        buf: Any = None,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        """Receive an object and return it; None from PROC_NULL.

        buf: deprecated by mpi4py; host memory for the bytes of the pickle, or
        their greatest number. status: its count is in bytes of the pickle.
        Raises what unpickling raises, MPI.Exception, wm.CudaError.
        """
        if buf is not None:
            _warn_of_buf(3)
        return load(_core._object_receive(self, buf, source, tag, status))

    def irecv(
        self,
        buf: Any = None,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
    ) -> _core.Request:
        """Begin to receive an object, of any size unless buf limits it.

        The object is what wait() or test() of the wm.Request returns, or
        the lower-case waits and tests of wm.Request.
        """
        return _core._object_ireceive(self, buf, source, tag)

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = MPI.ANY_SOURCE,
        recvtag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        """Send one object and receive another, which is returned."""
        if recvbuf is not None:
            _warn_of_buf(3)
        request = _send(self, sendobj, dest, sendtag, "", False)
        payload = _core._object_receive(self, recvbuf, source, recvtag, status)
        try:
            return load(payload)
        finally:
            request.Wait()

    probe = _Methods.Probe
    iprobe = _Methods.Iprobe
    mprobe = _Methods.Mprobe
    improbe = _Methods.Improbe


def _warn_of_buf(level: int) -> None:
    warnings.warn(
        "the 'buf' argument is deprecated", UserWarning, stacklevel=level
    )
