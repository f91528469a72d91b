# SPDX-License-Identifier: BSD-3-Clause
"""Frames, which one rank sends another in a lower-case collective.

mpi4py's own call moves a frame. A frame is a plain object, or the bytes of a
pickle. If the object has embedded arrays or a long pickle, the frame is a
tuple that describes the data that follow: the pickle, if it is long, and then
the arrays. If pickling failed, the frame is the text of the error.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import starmap
from typing import Any, TypeAlias

from mpi4py import MPI

from .. import _core, _staging
from .pickling import Arriving, dump_again, load_again, rebuild, split

_broadcast = _staging.comm_calls(MPI.Intracomm)["Bcast"]
_reduce = MPI.Comm.allreduce  # mpi4py's own, which install() replaces

# A shorter pickle travels inside its frame: one more copy at either end costs
# less than a message of its own.
_LONG = 1 << 18
# Types of frames that are no plain object themselves.
_FRAMES = frozenset({bytes, tuple, str})

# Bytes of the pickle; sizes of the arrays; their makers, pickled; the number
# of the messages; the pickle where it is short.
_Telling: TypeAlias = tuple[int, list[int], bytes, int, bytes | None]


class Steps:
    """The steps of a rank in a collective, which other ranks wait for.

    An error stops no step. The first one is kept, and raised at the end.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def note(self, error: BaseException) -> None:
        """Keep an error if it is the first."""
        if self.error is None:
            self.error = error

    def take(self, step: Callable[..., Any], *args: Any) -> Any:
        """Take a step, and return its result; None if it fails."""
        try:
            return step(*args)
        except BaseException as error:
            self.note(error)
            return None

    def call(self, method: Callable[..., Any], *args: Any) -> Any:
        """Make a call that all ranks make; raise its errors at once.

        An exception of a signal handler is kept, as the other ranks go on.
        The handler cannot run before `made` has the result of the call.
        """
        made: list[Any] = []
        try:
            made.extend(starmap(method, (args,)))
        except BaseException as error:
            if not made:
                raise
            self.note(error)
        return made[0]

    def end(self) -> None:
        """Raise the error that was kept, if any."""
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # whose traceback has this frame


class Outgoing:
    """An object that goes to a rank, or to several."""

    def __init__(self, obj: Any) -> None:
        self.data = b""
        self.embedded: list[Any] = []  # without those that are empty
        self.sizes: list[int] = []
        self.makers = b""
        self.frame: Any = obj  # unless something follows
        self.follows = False
        if type(obj) not in _FRAMES and _core._is_plain(obj):
            return
        self.data, embedded = split(obj)
        self.frame = self.data
        if embedded:
            self.sizes = [
                _core._embedded_bytes(each.buffer) for each in embedded
            ]
            self.makers = dump_again([each[1:] for each in embedded])
            self.embedded = [
                each.buffer
                for each, size in zip(embedded, self.sizes, strict=True)
                if size > 0
            ]
        self.follows = bool(embedded) or len(self.data) > _LONG

    def tell(self, number: int) -> _Telling:
        """Return the frame for data that follow under a number."""
        short = self.data if len(self.data) <= _LONG else None
        return len(self.data), self.sizes, self.makers, number, short

    def send(
        self, steps: Steps, comm: Any, dest: int, number: int
    ) -> list[Any]:
        """Begin to send the data that follow; return the requests."""
        sent = self.embedded
        if len(self.data) > _LONG and dest != comm.rank:
            sent = [self.data, *sent]
        begun = (
            steps.take(_core._embedded_send, comm, each, dest, number)
            for each in sent
        )
        return [request for request in begun if request is not None]


def failed(error: Exception) -> Outgoing:
    """Return an Outgoing whose frame is the text of an error."""
    note = Outgoing(None)
    note.frame = f"{type(error).__name__}: {error}"[:500]
    return note


class Incoming:
    """An object that comes from a rank."""

    def __init__(
        self, call: str, source: int, frame: Any, own: Outgoing | None
    ) -> None:
        """Read a frame. own: the object, if this rank has sent it."""
        self.call, self.source, self.frame = call, source, frame
        self.sizes: list[int] = []
        self.arriving: list[Arriving] = []
        self.requests: list[Any] = []  # messages that hold no array of ours
        self.left = 0  # messages that are to come
        self.follows = type(frame) is tuple
        if self.follows:
            self.length, self.sizes, self.makers, self.number, self.data = (
                frame
            )
            if own is not None:
                self.data = own.data
            self.left = sum(size > 0 for size in self.sizes)
            self.left += self.data is None

    def look(self) -> None:
        """Raise the error that the sender reports, if any."""
        if type(self.frame) is str:
            raise RuntimeError(
                f"rank {self.source} could not send its part of this "
                f"{self.call}: {self.frame}"
            )

    def _receive(self, comm: Any, buffer: Any) -> Any:
        request = _core._embedded_receive(
            comm, buffer, self.number, self.source
        )
        self.left -= 1
        return request

    def _make(self) -> None:
        """Make all of its embedded arrays, or none."""
        if self.sizes:
            self.arriving = [
                Arriving(make, arguments, self.call)
                for make, arguments in load_again(self.makers)
            ]

    def begin(self, comm: Any) -> None:
        """Begin to receive the data that follow."""
        if not self.follows:
            return
        if self.data is None:
            data = MPI.buffer.allocate(self.length)
            self.requests.append(self._receive(comm, data))
            self.data = data
        if not self.arriving:
            self._make()
        for each, size in zip(self.arriving, self.sizes, strict=True):
            if size > 0 and self.left > 0:  # not broadcast
                each.request = self._receive(comm, each.buffer)

    def throw_rest(self, comm: Any) -> None:
        """Receive and discard the other data: their sender waits for it."""
        while self.left > 0:
            self.requests.append(self._receive(comm, bytearray()))

    def broadcast(self, steps: Steps, comm: Any, own: Outgoing | None) -> None:
        """Broadcast the data that follow, from the root's arrays into ours.

        First all ranks tell each other whether they have memory for them.
        """
        if own is None:
            self.left = 0
            embedded = steps.take(self._make_room, steps)
        else:
            embedded = own.embedded
        lacking = -1 if embedded is not None else comm.rank
        lacking = steps.call(_reduce, comm, lacking, MPI.MAX)
        if lacking >= 0:
            text = f"rank {lacking} failed in this {self.call}"
            steps.note(RuntimeError(f"{text}: its error tells why"))
            return
        if self.length > _LONG:
            embedded = [self.data, *embedded]
        for buffer in embedded:
            steps.take(_broadcast, comm, [buffer, MPI.BYTE], self.source)

    def _make_room(self, steps: Steps) -> list[Any]:
        """Return the embedded arrays, or host memory if making them fails."""
        if self.data is None:
            self.data = MPI.buffer.allocate(self.length)
        steps.take(self._make)
        made = [each.buffer for each in self.arriving]
        made = made or list(map(MPI.buffer.allocate, self.sizes))
        pairs = zip(made, self.sizes, strict=True)
        return [buffer for buffer, size in pairs if size > 0]

    def _wait(self) -> None:
        while self.requests:
            _core._embedded_wait(self.requests.pop(0), self.call)

    def load(self) -> Any:
        """Wait for the data, and return the object."""
        if not self.follows:
            return load_frame(self.frame)
        self._wait()
        return rebuild(self.data, self.arriving)

    def finish(self, steps: Steps) -> None:
        """Wait for all requests that are left."""
        for each in self.arriving:
            steps.take(each.wait)
        while self.requests:
            steps.take(self._wait)


def is_all(frame: Any) -> bool:
    """Return True if a frame is a whole object: no data follow, no error."""
    return type(frame) not in (tuple, str)


def load_frame(frame: Any) -> Any:
    """Return the object of a frame for which is_all() is true."""
    return load_again(frame) if type(frame) is bytes else frame
