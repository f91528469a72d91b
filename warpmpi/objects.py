# SPDX-License-Identifier: BSD-3-Clause
"""mpi4py's lower-case calls: pickled objects as messages of ours.

An object is one message, the bytes of its pickle. GPU arrays inside it are
left out of the pickle: each follows as a message of its own, GPU to GPU, into
an array that the receiver makes while it unpickles.
"""

from __future__ import annotations

import copyreg
import gc
import io
import pickle
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

from . import _core, devicearrays

_Methods = _core.CommMethods
_dumps, _loads = pickle.dumps, pickle.loads
# Types without anything inside that could be an array of a GPU.
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})


def _is_stock() -> bool:
    """Whether MPI.pickle has the pickler it comes with."""
    parts = gc.get_referents(MPI.pickle)
    return _dumps in parts and _loads in parts


class _Pickling:
    """One object being pickled, and the arrays found in it."""

    def __init__(self, protocol: int) -> None:
        self.protocol = protocol
        self.known = devicearrays.known()
        self.parts: list[devicearrays.Part] = []

    def reduce(self, array: Any) -> Any:
        part = self.known[type(array)](array)
        if part is None:
            return array.__reduce_ex__(self.protocol)
        if not isinstance(part, devicearrays.Part):
            return part
        self.parts.append(part)
        return _part, (len(self.parts) - 1,)

    def dump(self, obj: Any) -> bytes:
        file = io.BytesIO()
        pickler = pickle.Pickler(file, self.protocol)
        pickler.dispatch_table = {
            **copyreg.dispatch_table,
            **dict.fromkeys(self.known, self.reduce),
        }
        pickler.dump(obj)
        return file.getvalue()


class _WithParts:
    """Pickles as the call that receives the parts of an object."""

    def __init__(self, parts: list[Any], inner: bytes) -> None:
        self.arguments = parts, inner

    def __reduce__(self) -> Any:
        return _open, self.arguments


def _dump(comm: Any, obj: Any, dest: int) -> tuple[bytes, list[Any]]:
    """Pickle an object: its bytes, and (array, number) of each part."""
    protocol = MPI.pickle.PROTOCOL
    if type(obj) in _PLAIN or protocol is None or not _is_stock():
        return MPI.pickle.dumps(obj), []
    pickling = _Pickling(protocol)
    data = pickling.dump(obj)
    if not pickling.parts:
        return data, []
    numbers = _core._part_numbers(comm, dest, len(pickling.parts))
    makers = [
        (part.make, part.arguments, number)
        for part, number in zip(pickling.parts, numbers, strict=True)
    ]
    sent = [
        (part.buffer, number)
        for part, number in zip(pickling.parts, numbers, strict=True)
    ]
    return _dumps(_WithParts(makers, data), protocol), sent


class _Receiving(threading.local):
    """What this thread unpickles."""

    payload: Any = None
    parts: Sequence[_Arriving] = ()


_receiving = _Receiving()


class _Arriving:
    """An array whose data is on its way."""

    def __init__(self, payload: Any, part: Any) -> None:
        make, arguments, number = part
        buffer, self.finish = make(*arguments)
        self.request: Any = _core._part_receive(payload, buffer, number)
        self.array: Any = None

    def get(self) -> Any:
        if self.request is not None:
            request, self.request = self.request, None
            _core._part_wait(request)
            self.array = self.finish()
        return self.array


def _open(parts: list[Any], inner: bytes) -> Any:
    """Unpickle an object whose parts follow it."""
    payload = _receiving.payload
    if payload is None:
        raise RuntimeError(
            "this pickled object has GPU arrays, which travel beside it: "
            "receive it with recv or irecv of a wm.Comm, not with Recv"
        )
    arriving: list[_Arriving] = []
    try:
        for part in parts:
            arriving.append(_Arriving(payload, part))
    except BaseException:
        for *_, number in parts[len(arriving) :]:
            _core._part_receive(payload, None, number)
        raise
    outer, _receiving.parts = _receiving.parts, arriving
    try:
        obj = _loads(inner)
        for each in arriving:
            each.get()
        return obj
    finally:
        _receiving.parts = outer


def _part(index: int) -> Any:
    """Give the array of that number of the object being unpickled."""
    return _receiving.parts[index].get()


def _load(payload: Any) -> Any:
    """Unpickle what was received; None where that is nothing."""
    if payload is None or len(payload) == 0:
        return None
    data = payload
    if not _is_stock():
        data = MPI.buffer.frombuffer(payload, readonly=True)
    outer, _receiving.payload = _receiving.payload, payload
    try:
        return MPI.pickle.loads(data)
    except Exception as error:
        if payload.pickled:
            raise
        raise TypeError(
            f"recv met Send: the {len(payload)} bytes from rank "
            f"{payload.source} are no pickled object; receive them by Recv"
        ) from error
    finally:
        _receiving.payload = outer


def _send(
    comm: Any, obj: Any, dest: int, tag: int, mode: str, blocking: bool
) -> Any:
    data = b""
    parts: list[Any] = []
    if dest != MPI.PROC_NULL:
        try:
            data, parts = _dump(comm, obj, dest)
        except Exception as error:
            if devicearrays.is_failure(error):
                _core._object_failure(comm, dest, tag, mode, str(error))
            raise
    return _core._object_send(comm, data, dest, tag, mode, blocking, parts)


class ObjectMessages:
    """The lower-case messages of a communicator: any object, pickled.

    Signatures and meaning are mpi4py's. GPU arrays inside an object travel
    GPU to GPU and arrive on the current device of their library.
    """

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send an object.

        Raises what pickling raises, in which case nothing was sent, unless
        memory ran out or CUDA failed: of these the receiver is told.
        MPI.Exception (rank, tag), wm.CudaError.
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
        return _load(_core._object_receive(self, buf, source, tag, status))

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
            return _load(payload)
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


# Messages that a probe has matched.

_message_recv, _message_irecv = MPI.Message.recv, MPI.Message.irecv


def _recv(self: _core.Message, status: MPI.Status | None = None) -> Any:
    """Receive this message and return its object."""
    if not _core._object_matched(self):
        return _message_recv(self, status)
    return _load(_core._object_receive(self, None, 0, 0, status))


def _irecv(self: _core.Message) -> MPI.Request:
    """Begin to receive this message; the request gives the object."""
    if not _core._object_matched(self):
        return _message_irecv(self)
    return _core._object_ireceive(self, None, 0, 0)


# Requests.


def _wait(self: Any, status: MPI.Status | None = None) -> Any:
    """Wait for the end; the object that was received, else None."""
    payload = _core._object_payload(self)
    self.Wait(status)
    return _load(payload)


def _test(
    self: Any, status: MPI.Status | None = None
) -> tuple[bool, Any | None]:
    """Whether it has ended, and the object that was received, or None."""
    payload = _core._object_payload(self)
    ended = self.Test(status)
    return ended, _load(payload) if ended else None


class _Requests:
    """Several requests in one call, and what those of ours receive."""

    def __init__(self, name: str, requests: Any, other: Any) -> None:
        taken = tuple(requests)
        self.payloads = [_core._object_payload(each) for each in taken]
        self.result = _core._object_requests(name, taken, other)

    def fill(self, indices: Any, objects: list[Any]) -> list[Any]:
        """Put our objects in; all of them are unpickled, also after one fails.

        Raises the first error.
        """
        failure: BaseException | None = None
        for place, index in enumerate(indices):
            if self.payloads[index] is None:
                continue
            try:
                objects[place] = _load(self.payloads[index])
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return objects


def _waitall(
    requests: Sequence[MPI.Request],
    statuses: list[MPI.Status] | None = None,
) -> list[Any]:
    """Wait for all requests, ours and MPI's; their objects, or None."""
    ended = _Requests("waitall", requests, statuses)
    return ended.fill(range(len(ended.payloads)), ended.result)


def _testall(
    requests: Sequence[MPI.Request],
    statuses: list[MPI.Status] | None = None,
) -> tuple[bool, list[Any] | None]:
    """Whether all requests have ended, and their objects."""
    ended = _Requests("testall", requests, statuses)
    flag, objects = ended.result
    if flag:
        ended.fill(range(len(ended.payloads)), objects)
    return flag, objects


def _one(ended: _Requests) -> Any:
    index, obj = ended.result[0], ended.result[-1]
    if index != MPI.UNDEFINED:
        (obj,) = ended.fill([index], [obj])
    return obj


def _waitany(
    requests: Sequence[MPI.Request], status: MPI.Status | None = None
) -> tuple[int, Any]:
    """Wait for one of the requests: (index, object)."""
    ended = _Requests("waitany", requests, status)
    return ended.result[0], _one(ended)


def _testany(
    requests: Sequence[MPI.Request], status: MPI.Status | None = None
) -> tuple[int, bool, Any | None]:
    """Whether one of the requests has ended: (index, flag, object)."""
    ended = _Requests("testany", requests, status)
    return *ended.result[:2], _one(ended)


def _some(
    name: str, requests: Any, statuses: Any
) -> tuple[list[int] | None, list[Any] | None]:
    ended = _Requests(name, requests, statuses)
    indices, objects = ended.result
    if indices:
        ended.fill(indices, objects)
    return indices, objects


def _waitsome(
    requests: Sequence[MPI.Request],
    statuses: list[MPI.Status] | None = None,
) -> tuple[list[int] | None, list[Any] | None]:
    """Wait until some requests have ended: (indices, objects)."""
    return _some("waitsome", requests, statuses)


def _testsome(
    requests: Sequence[MPI.Request],
    statuses: list[MPI.Status] | None = None,
) -> tuple[list[int] | None, list[Any] | None]:
    """Which requests have ended: (indices, objects)."""
    return _some("testsome", requests, statuses)


def _message_probe(
    comm: MPI.Comm,
    source: int = MPI.ANY_SOURCE,
    tag: int = MPI.ANY_TAG,
    status: MPI.Status | None = None,
) -> Any:
    """Wait for a message of any communicator and match it."""
    if isinstance(comm, _Methods):
        return comm.Mprobe(source, tag, status)
    return _stock_probe(comm, source, tag, status)


def _message_iprobe(
    comm: MPI.Comm,
    source: int = MPI.ANY_SOURCE,
    tag: int = MPI.ANY_TAG,
    status: MPI.Status | None = None,
) -> Any:
    """Match a message of any communicator that has come, or None."""
    if isinstance(comm, _Methods):
        return comm.Improbe(source, tag, status)
    return _stock_iprobe(comm, source, tag, status)


_stock_probe, _stock_iprobe = MPI.Message.probe, MPI.Message.iprobe

_REQUESTS: dict[str, Callable[..., Any]] = {
    "waitall": _waitall,
    "waitany": _waitany,
    "waitsome": _waitsome,
    "testall": _testall,
    "testany": _testany,
    "testsome": _testsome,
}
_MESSAGES: dict[str, Callable[..., Any]] = {
    "probe": _message_probe,
    "iprobe": _message_iprobe,
}

# Methods of types written in C, and what install() makes mpi4py's own.
CLASS_CALLS: list[tuple[type, str, Any]] = [
    *((MPI.Request, name, staticmethod(f)) for name, f in _REQUESTS.items()),
    *((MPI.Message, name, staticmethod(f)) for name, f in _MESSAGES.items()),
]


def _add_methods() -> None:
    ours: list[tuple[type, str, Callable[..., Any]]] = [
        (_core.Request, "wait", _wait),
        (_core.Request, "test", _test),
        (_core.Message, "recv", _recv),
        (_core.Message, "irecv", _irecv),
    ]
    for owner, name, call in ours:
        call.__name__ = name
        setattr(owner, name, call)
    for owner, name, static in CLASS_CALLS:
        static.__func__.__name__ = name
        ours_of = _core.Request if owner is MPI.Request else _core.Message
        setattr(ours_of, name, static)
    for kind in ("", "_all", "_any", "_some"):  # there are no objects to give
        same = vars(_core.Request)[f"Get_status{kind}"]
        setattr(_core.Request, f"get_status{kind}", same)


_add_methods()
