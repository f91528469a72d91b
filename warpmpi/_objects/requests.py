# SPDX-License-Identifier: BSD-3-Clause
"""The lower-case waits and tests, which return the objects of irecv.

This file also has the lower-case calls of matched messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

from .. import _core, _docs
from .pickling import load

_Methods = _core.CommMethods


# Messages that a probe has matched.

_message_recv, _message_irecv = MPI.Message.recv, MPI.Message.irecv


def _recv(self: _core.Message, status: MPI.Status | None = None) -> Any:
    """Receive this message; return its object, with its GPU arrays."""
    if not _core._object_matched(self):
        return _message_recv(self, status)
    return load(_core._object_receive(self, None, 0, 0, status))


def _irecv(self: _core.Message) -> MPI.Request:
    """Begin to receive this message; the request's wait returns it.

    GPU arrays inside the object come from GPU to GPU.
    """
    if not _core._object_matched(self):
        return _message_irecv(self)
    return _core._object_ireceive(self, None, 0, 0)


# Requests.


def _wait(self: Any, status: MPI.Status | None = None) -> Any:
    """Wait for the end, and return the received object, or None.

    GPU arrays inside the object are on the current device of their library.
    """
    payload = _core._object_payload(self)
    self.Wait(status)
    return load(payload)


def _test(
    self: Any, status: MPI.Status | None = None
) -> tuple[bool, Any | None]:
    """Return (ended, object); the object is None unless one was received.

    GPU arrays inside the object are as after wait().
    """
    payload = _core._object_payload(self)
    ended = self.Test(status)
    return ended, load(payload) if ended else None


class _Requests:
    """Several requests in one call, and the objects that ours receive."""

    def __init__(self, name: str, requests: Any, other: Any) -> None:
        taken = tuple(requests)
        self.payloads = [_core._object_payload(each) for each in taken]
        self.result = _core._object_requests(name, taken, other)

    def fill(self, indices: Any, objects: list[Any]) -> list[Any]:
        """Unpickle our objects into the list, all of them even if one fails.

        Raises the first error.
        """
        failure: BaseException | None = None
        for place, index in enumerate(indices):
            if self.payloads[index] is None:
                continue
            try:
                objects[place] = load(self.payloads[index])
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return objects


def _waitall(
    requests: Sequence[MPI.Request],
    statuses: list[MPI.Status] | None = None,
) -> list[Any]:
    """Wait for all requests, ours and MPI's; return objects, or None."""
    ended = _Requests("waitall", requests, statuses)
    return ended.fill(range(len(ended.payloads)), ended.result)


def _testall(
    requests: Sequence[MPI.Request],
    statuses: list[MPI.Status] | None = None,
) -> tuple[bool, list[Any] | None]:
    """Return (all have ended, their objects)."""
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


def _any(name: str, told: int) -> Callable[..., Any]:
    """Make the call that returns so much of (index, flag), and the object."""

    def call(
        requests: Sequence[MPI.Request], status: MPI.Status | None = None
    ) -> tuple[Any, ...]:
        ended = _Requests(name, requests, status)
        return *ended.result[:told], _one(ended)

    return call


def _some(name: str) -> Callable[..., Any]:
    """Make the call that returns (indices, objects)."""

    def call(
        requests: Sequence[MPI.Request],
        statuses: list[MPI.Status] | None = None,
    ) -> tuple[list[int] | None, list[Any] | None]:
        ended = _Requests(name, requests, statuses)
        indices, objects = ended.result
        if indices:
            ended.fill(indices, objects)
        return indices, objects

    return call


def _probing(name: str, ours: str) -> Callable[..., Any]:
    stock = getattr(MPI.Message, name)

    def call(
        comm: MPI.Comm,
        source: int = MPI.ANY_SOURCE,
        tag: int = MPI.ANY_TAG,
        status: MPI.Status | None = None,
    ) -> Any:
        if isinstance(comm, _Methods) or _core._is_attached(comm):
            return getattr(comm, ours)(source, tag, status)
        return stock(comm, source, tag, status)

    return call


_REQUESTS: dict[str, Callable[..., Any]] = {
    "waitall": _waitall,
    "waitany": _any("waitany", 1),
    "waitsome": _some("waitsome"),
    "testall": _testall,
    "testany": _any("testany", 2),
    "testsome": _some("testsome"),
}
_MESSAGES: dict[str, Callable[..., Any]] = {
    "probe": _probing("probe", "mprobe"),
    "iprobe": _probing("iprobe", "improbe"),
    "Probe": _probing("Probe", "Mprobe"),
    "Iprobe": _probing("Iprobe", "Improbe"),
}


def _in_place(
    owner: type, name: str, call: Callable[..., Any]
) -> tuple[type, str, Any]:
    """Return a static method with the name and docstring of mpi4py's."""
    call.__name__ = name
    call.__doc__ = getattr(owner, name).__doc__
    _docs.add(call, name)
    return owner, name, staticmethod(call)


# Methods of types written in C, and what install() makes mpi4py's own.
CLASS_CALLS: list[tuple[type, str, Any]] = [
    *(_in_place(MPI.Request, *each) for each in _REQUESTS.items()),
    *(_in_place(MPI.Message, *each) for each in _MESSAGES.items()),
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
        ours_of = _core.Request if owner is MPI.Request else _core.Message
        setattr(ours_of, name, static)
    for kind in ("", "_all", "_any", "_some"):  # there are no objects to give
        same = vars(_core.Request)[f"Get_status{kind}"]
        setattr(_core.Request, f"get_status{kind}", same)


_add_methods()
_core._watch_copies()
