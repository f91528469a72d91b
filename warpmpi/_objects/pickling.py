# SPDX-License-Identifier: BSD-3-Clause
"""Pickles of objects whose GPU arrays are sent separately.

The pickle leaves out the GPU arrays of the object. Each of them is a message
of its own, GPU to GPU, into an array that the receiver makes while it
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


def is_stock() -> bool:
    """Return True if MPI.pickle still has its own pickler."""
    members = gc.get_referents(MPI.pickle)
    return _dumps in members and _loads in members


class _Pickling:
    """One object being pickled, and the arrays found in it."""

    def __init__(self, protocol: int) -> None:
        self.protocol = protocol
        self.known = libraries.known()
        self.embedded: list[libraries.Embedded] = []

    def reduce(self, array: Any) -> Any:
        item = self.known[type(array)](array)
        if item is None:
            return array.__reduce_ex__(self.protocol)
        if not isinstance(item, libraries.Embedded):
            return item
        self.embedded.append(item)
        return _part, (len(self.embedded) - 1,)

    def dump(self, obj: Any) -> bytes:
        file = io.BytesIO()
        pickler = pickle.Pickler(file, self.protocol)
        pickler.dispatch_table = {
            **copyreg.dispatch_table,
            **dict.fromkeys(self.known, self.reduce),
        }
        pickler.dump(obj)
        return file.getvalue()


class _WithEmbedded:
    """An object whose unpickling receives the embedded arrays."""

    def __init__(self, embedded: list[Any], inner: bytes) -> None:
        self.arguments = embedded, inner

    def __reduce__(self) -> Any:
        return _open, self.arguments


def split(obj: Any) -> tuple[bytes, list[libraries.Embedded]]:
    """Pickle an object without its GPU arrays, and return these, too.

    Only for MPI.pickle's own pickler (is_stock).
    """
    protocol = MPI.pickle.PROTOCOL
    if protocol is None or _core._is_plain(obj):
        return MPI.pickle.dumps(obj), []
    pickling = _Pickling(protocol)
    return pickling.dump(obj), pickling.embedded


def dump_again(obj: Any) -> bytes:
    """Pickle the makers of embedded arrays, by the object's protocol."""
    return _dumps(obj, MPI.pickle.PROTOCOL)


def load_again(data: Any) -> Any:
    """Unpickle the data of dump_again, or an object without arrays."""
    return _loads(data)


def dump(comm: Any, obj: Any, dest: int) -> tuple[bytes, list[Any]]:
    """Return the pickle of an object, and (array, number) of each array."""
    if _core._is_plain(obj) or MPI.pickle.PROTOCOL is None or not is_stock():
        return MPI.pickle.dumps(obj), []
    data, embedded = split(obj)
    if not embedded:
        return data, []
    numbers = _core._embedded_numbers(comm, dest, len(embedded))
    makers = [
        (item.make, item.arguments, number)
        for item, number in zip(embedded, numbers, strict=True)
    ]
    sent = [
        (item.buffer, number)
        for item, number in zip(embedded, numbers, strict=True)
    ]
    return _dumps(_WithEmbedded(makers, data), MPI.pickle.PROTOCOL), sent


class _Receiving(threading.local):
    """The message that this thread unpickles."""

    payload: Any = None
    embedded: Sequence[Arriving] = ()


_receiving = _Receiving()


class Arriving:
    """An array whose data is on its way."""

    def __init__(
        self, make: Any, arguments: tuple[Any, ...], call: str = "recv"
    ) -> None:
        self.buffer, self.finish = make(*arguments)
        self.request: Any = None
        self.call = call
        self.array: Any = None

    def wait(self) -> None:
        request, self.request = self.request, None
        if request is not None:
            _core._embedded_wait(request, self.call)

    def get(self) -> Any:
        if self.finish is not None:
            finish, self.finish = self.finish, None
            self.wait()
            self.array = finish()
            self.buffer = None
        return self.array


def rebuild(data: Any, arriving: Sequence[Arriving]) -> Any:
    """Unpickle an object with these embedded arrays."""
    outer, _receiving.embedded = _receiving.embedded, arriving
    try:
        obj = _loads(data)
        for each in arriving:
            each.get()
        return obj
    finally:
        _receiving.embedded = outer


def _open(embedded: list[Any], inner: bytes) -> Any:
    """Unpickle an object whose embedded arrays follow it."""
    payload = _receiving.payload
    if payload is None:
        raise RuntimeError(
            "this pickled object has GPU arrays, which are sent separately: "
            "receive the object with recv or irecv of a wm.Comm, not with Recv"
        )
    arriving: list[Arriving] = []
    try:
        for make, arguments, number in embedded:
            each = Arriving(make, arguments)
            each.request = _core._embedded_receive(
                payload, each.buffer, number
            )
            arriving.append(each)
    except BaseException:
        for *_, number in embedded[len(arriving) :]:
            _core._embedded_receive(payload, None, number)
        raise
    return rebuild(inner, arriving)


def _part(index: int) -> Any:
    """Return an embedded array of the object being unpickled, by index.

    Pickles contain the name of this function.
    """
    return _receiving.embedded[index].get()


def load(payload: Any) -> Any:
    """Unpickle the received bytes; None if there are none."""
    if payload is None or len(payload) == 0:
        return None
    data = payload
    if not is_stock():
        data = MPI.buffer.frombuffer(payload, readonly=True)
    outer, _receiving.payload = _receiving.payload, payload
    try:
        return MPI.pickle.loads(data)
    except Exception as error:
        if payload.pickled:
            raise
        raise TypeError(
            f"recv met Send: the {len(payload)} bytes from rank "
            f"{payload.source} are not a pickled object; receive them by Recv"
        ) from error
    finally:
        _receiving.payload = outer
