# SPDX-License-Identifier: BSD-3-Clause
"""Objects as the bytes of their pickle, and the GPU arrays beside it.

GPU arrays inside an object are left out of its pickle: each follows as a
message of its own, GPU to GPU, into an array that the receiver makes while it
unpickles.
"""

from __future__ import annotations

import copyreg
import gc
import io
import pickle
import threading
from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from .. import _core
from . import libraries

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
        self.known = libraries.known()
        self.parts: list[libraries.Part] = []

    def reduce(self, array: Any) -> Any:
        part = self.known[type(array)](array)
        if part is None:
            return array.__reduce_ex__(self.protocol)
        if not isinstance(part, libraries.Part):
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


def dump(comm: Any, obj: Any, dest: int) -> tuple[bytes, list[Any]]:
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


def load(payload: Any) -> Any:
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
