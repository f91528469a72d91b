# SPDX-License-Identifier: BSD-3-Clause
"""mpi4py's lower-case collectives that move objects.

mpi4py's own call moves frames (frames.py). A frame tells both ends which data
follow. bcast broadcasts these data. The other calls send them as messages of
their own, and a rank begins all messages before it waits for one.

If an object cannot be pickled, or a list has the wrong length, the frame
carries the error. A rank that fails later still makes all its calls, because
the other ranks wait for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from .. import _core
from .._raw import items
from .frames import Incoming, Outgoing, Steps, failed, is_all, load_frame
from .pickling import is_stock

# mpi4py's own, which install() replaces.
_STOCK = {
    name: getattr(MPI.Comm, name)
    for name in ("bcast", "gather", "scatter", "allgather", "alltoall")
}


def _stock(comm: Any, name: str) -> Any:
    _core._check_running()
    return _STOCK[name].__get__(comm)


def _items(objects: Any, size: int) -> list[Any]:
    """Return a list with one object for each rank, as mpi4py does."""
    each = [None] * size if objects is None else items(objects, "sendobj")
    if len(each) != size:
        raise ValueError(
            f"sendobj: expecting {size} items, one for each rank, got "
            f"{len(each)}"
        )
    return each


class _Call:
    """One call on an intracommunicator."""

    def __init__(self, comm: Any, stock: Callable[..., Any]) -> None:
        self.comm, self.stock = comm, stock
        self.name: str = stock.__name__
        self.rank: int = comm.rank
        self.steps = Steps()
        self.outgoing: list[tuple[int, Outgoing, int]] = []
        self.incoming: list[Incoming] = []

    def pack(self, obj: Any) -> Outgoing:
        try:
            return Outgoing(obj)
        except Exception as error:
            self.steps.note(error)
            return failed(error)

    def pack_each(self, objects: Any) -> list[Outgoing]:
        try:
            return list(map(Outgoing, _items(objects, self.comm.size)))
        except Exception as error:
            self.steps.note(error)
            return [failed(error)] * self.comm.size

    def number(self, outgoing: Outgoing, dest: int) -> int:
        """Draw the number of the messages that follow a frame to a rank."""
        if not outgoing.follows or not 0 <= dest < self.comm.size:
            return 0
        (number,) = _core._embedded_numbers(self.comm, dest, 1)
        self.outgoing.append((dest, outgoing, number))
        return number

    def frame(self, outgoing: Outgoing, dest: int) -> Any:
        """Give the frame for a rank."""
        if not outgoing.follows:
            return outgoing.frame
        return outgoing.tell(self.number(outgoing, dest))

    def exchange(self, *args: Any) -> Any:
        """Exchange the frames by mpi4py's own call."""
        return self.steps.call(self.stock, *args)

    def is_over(self, frames: list[Any]) -> bool:
        """Return True if no arrays follow the frames."""
        return (
            not self.outgoing
            and self.steps.error is None
            and all(map(is_all, frames))
        )

    def hear(
        self, frames: list[Any], first: int, own: Outgoing | None
    ) -> bool:
        """Read the frames of the ranks from `first` on.

        Return True if data follow any of them.
        """
        for source, frame in enumerate(frames, first):
            mine = own if source == self.rank else None
            self.incoming.append(Incoming(self.name, source, frame, mine))
        return any(each.follows for each in self.incoming)

    def finish(self) -> list[Any]:
        """Move the data that follow the frames, and return the objects."""
        steps, comm = self.steps, self.comm
        for each in self.incoming:
            if steps.error is None:
                steps.take(each.look)
        for each in self.incoming:
            if steps.error is None:
                steps.take(each.begin, comm)
        requests = []
        for dest, outgoing, number in self.outgoing:
            requests += outgoing.send(steps, comm, dest, number)
        for each in self.incoming:
            steps.take(each.throw_rest, comm)
        objects = []
        for each in self.incoming:
            if steps.error is None:
                objects.append(steps.take(each.load))
            each.finish(steps)
        for request in requests:
            steps.take(_core._embedded_wait, request, self.name)
        steps.end()
        return objects


# Calls with a pickler of the program's, which also pickles GPU arrays.


def _raise(call: str, rank: int, text: str) -> None:
    raise RuntimeError(
        f"rank {rank} could not send its part of this {call}: {text}"
    )


class _Failure:
    """An object whose unpickling raises the sender's error."""

    def __init__(self, call: str, rank: int, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"[:500]
        self.arguments = call, rank, text

    def __reduce__(self) -> Any:
        return _raise, self.arguments


def _as_ever(
    comm: Any, stock: Callable[..., Any], sent: Any, *root: Any
) -> Any:
    """Make mpi4py's call; if pickling fails, send a _Failure instead."""
    try:
        return stock(sent, *root)
    except Exception as error:
        name = stock.__name__
        rooted = name in ("bcast", "scatter")
        if comm.Is_inter() or (rooted and comm.rank != root[0]):
            raise
        try:
            each = name in ("scatter", "alltoall")
            for obj in _items(sent, comm.size) if each else [sent]:
                MPI.pickle.dumps(obj)
        except Exception:
            note: Any = _Failure(name, comm.rank, error)
            with contextlib.suppress(RuntimeError):  # it comes here, too
                stock([note] * comm.size if each else note, *root)
        raise


class ObjectCollectives:
    """The lower-case collectives that move objects, but do not reduce.

    Signatures and meaning are mpi4py's. GPU arrays inside an object travel
    GPU to GPU and arrive on the current device of their library. If a rank
    cannot pickle its object, or its list does not have one object for each
    rank, the rank raises that error. The ranks that should receive from it
    raise RuntimeError, which names that rank. A rank without memory for an
    array raises MemoryError or wm.CudaError.
    """

    def bcast(self: Any, obj: Any, root: int = 0) -> Any:
        """Broadcast an object; root's is returned on all ranks."""
        stock = _stock(self, "bcast")
        if self.Is_inter() or not is_stock():
            return _as_ever(self, stock, obj, root)
        call = _Call(self, stock)
        own = call.pack(obj) if call.rank == root else None
        frame = None if own is None else call.frame(own, root)
        frame = call.exchange(frame, root)
        if call.is_over([frame]):
            return load_frame(frame)
        if call.hear([frame], root, own) and self.size > 1:
            call.incoming[0].broadcast(call.steps, self, own)
        return call.finish()[0]

    def gather(self: Any, sendobj: Any, root: int = 0) -> Any:
        """Gather objects into a list at root; None elsewhere."""
        stock = _stock(self, "gather")
        if self.Is_inter() or not is_stock():
            return _as_ever(self, stock, sendobj, root)
        call = _Call(self, stock)
        own = call.pack(sendobj)
        frames = call.exchange(call.frame(own, root), root)
        if call.is_over(frames or []):
            return frames and list(map(load_frame, frames))
        call.hear(frames or [], 0, own)
        objects = call.finish()
        return None if frames is None else objects

    def scatter(self: Any, sendobj: Any, root: int = 0) -> Any:
        """Scatter a list of root's, an object for each rank."""
        stock = _stock(self, "scatter")
        if self.Is_inter() or not is_stock():
            return _as_ever(self, stock, sendobj, root)
        call = _Call(self, stock)
        frames = own = None
        if call.rank == root:
            sent = call.pack_each(sendobj)
            frames = [call.frame(each, i) for i, each in enumerate(sent)]
            own = sent[root]
        frame = call.exchange(frames, root)
        if call.is_over([frame]):
            return load_frame(frame)
        call.hear([frame], root, own)
        return call.finish()[0]

    def allgather(self: Any, sendobj: Any) -> Any:
        """Gather objects into a list on all ranks."""
        stock = _stock(self, "allgather")
        if self.Is_inter() or not is_stock():
            return _as_ever(self, stock, sendobj)
        call = _Call(self, stock)
        own = call.pack(sendobj)
        frames = call.exchange(own.tell(0) if own.follows else own.frame)
        if call.is_over(frames):
            return list(map(load_frame, frames))
        if call.hear(frames, 0, own):
            mine = [call.number(own, dest) for dest in range(self.size)]
            stock = _stock(self, "alltoall")
            numbers = call.steps.call(stock, mine)
            for each, number in zip(call.incoming, numbers, strict=True):
                each.number = number
        return call.finish()

    def alltoall(self: Any, sendobj: Any) -> Any:
        """Send an object to each rank; return the list of received ones."""
        stock = _stock(self, "alltoall")
        if self.Is_inter() or not is_stock():
            return _as_ever(self, stock, sendobj)
        call = _Call(self, stock)
        sent = call.pack_each(sendobj)
        frames = [call.frame(each, i) for i, each in enumerate(sent)]
        frames = call.exchange(frames)
        if call.is_over(frames):
            return list(map(load_frame, frames))
        call.hear(frames, 0, sent[call.rank])
        return call.finish()
