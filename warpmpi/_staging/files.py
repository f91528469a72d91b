# SPDX-License-Identifier: BSD-3-Clause
"""MPI.File: blocking, nonblocking and split reads and writes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from mpi4py import MPI

from .. import _core
from . import notes, table
from .call import Call, Family, at_once, by_request, staged_call
from .table import rows_of

# The split call of each file that has not ended, and the bytes that it has
# moved where it has done it all.
_open_of_file: dict[int, Call] = {}
_moved_of_file: dict[int, int] = {}


@functools.cache
def _no_file_requests() -> bool:
    """Return True if file calls must not make requests of MPI.

    Open MPI 4 and 5 keep requests of files, and of collective writes, in a
    list without a lock. Every thread that calls MPI reads this list, and
    so does the progress thread.
    """
    return (
        "Open MPI" in MPI.Get_library_version()
        and MPI.Query_thread() == MPI.THREAD_MULTIPLE
    )


_stock_world, _create_group = MPI.COMM_WORLD, MPI.Intracomm.Create_group


def _in_turn(self: MPI.File, *args: Any, **kwargs: Any) -> None:
    """Do Write_ordered by Write_shared, one rank after the other."""
    group, everybody = self.Get_group(), _stock_world.Get_group()
    known = MPI.Group.Intersection(group, everybody)
    if known.Get_size() < group.Get_size():
        _write_ordered(self, *args, **kwargs)  # with another program
        return
    comm = _create_group(_stock_world, group)
    rank, token = comm.Get_rank(), bytearray(1)
    if rank > 0:
        comm.Recv(token, rank - 1)
    try:
        _write_shared(self, *args, **kwargs)
    finally:
        if rank + 1 < comm.Get_size():
            comm.Send(token, rank + 1)
        comm.Barrier()
        comm.Free()


_write_ordered, _write_shared = MPI.File.Write_ordered, MPI.File.Write_shared


def _without_requests(name: str) -> Any:
    """Give a method that makes no requests and waits for no other rank.

    Write_ordered waits for the ranks before.
    """
    if name == "Write_ordered":
        return _in_turn
    return getattr(MPI.File, name.replace("_all", ""))


def _blocking(name: str) -> Any:
    """Make a blocking method that is safe beside the progress thread."""
    method = getattr(MPI.File, name)
    if name not in ("Write_all", "Write_at_all", "Write_ordered"):
        return method
    instead = _without_requests(name)

    @functools.wraps(method)
    def call(self: MPI.File, *args: Any, **kwargs: Any) -> None:
        write = instead if _no_file_requests() else method
        write(self, *args, **kwargs)

    return call


def _moving(name: str) -> Any:
    """Make a blocking method that returns the number of bytes moved."""
    method = _without_requests(name)

    def call(self: MPI.File, *args: Any, **kwargs: Any) -> int:
        status = MPI.Status()
        method(self, *args, status=status, **kwargs)
        return status.Get_elements(MPI.BYTE)

    return call


def _fill(status: MPI.Status, nbytes: int) -> None:
    status.Set_elements(MPI.BYTE, nbytes)
    status.Set_cancelled(False)


def _ended(nbytes: int) -> MPI.Request:
    request = MPI.Grequest.Start(_fill, args=(nbytes,))
    request.Complete()
    return request


def _nonblocking(name: str) -> tuple[Any, Callable[[Call], Any]]:
    """Make a nonblocking method of a file, and its end for staged calls.

    If MPI must not make requests, the method moves the data at once. It
    does so without the other ranks, which it must not wait for.
    """
    method = getattr(MPI.File, "I" + name[0].lower() + name[1:])
    move = _moving(name)

    @functools.wraps(method)
    def call(self: MPI.File, *args: Any, **kwargs: Any) -> Any:
        if _no_file_requests():
            return _ended(move(self, *args, **kwargs))
        return method(self, *args, **kwargs)

    def end(call: Call) -> Any:
        if not _no_file_requests():
            return by_request(call)
        call.fetch()
        moved = call.run(move)
        call.store()
        return _ended(moved)

    return call, end


def _check_no_split_call(file: MPI.File) -> None:
    handle = MPI._handleof(file)
    if handle in _open_of_file or handle in _moved_of_file:
        raise notes.refused(
            MPI.ERR_REQUEST,
            "a split call of this file has not ended: call its _end method "
            "before another _begin",
        )


def _splitting(name: str) -> tuple[Any, Callable[[Call], Any]]:
    """Make the begin method of a split call, and its form for staged calls."""
    method = getattr(MPI.File, name + "_begin")
    move = _moving(name)

    def run(self: MPI.File, *args: Any, **kwargs: Any) -> None:
        if _no_file_requests():
            moved = move(self, *args, **kwargs)
            _moved_of_file[MPI._handleof(self)] = moved
        else:
            method(self, *args, **kwargs)

    @functools.wraps(method)
    def begin(self: MPI.File, *args: Any, **kwargs: Any) -> None:
        _check_no_split_call(self)
        run(self, *args, **kwargs)

    def begin_staged(call: Call) -> None:
        _check_no_split_call(call.owner)
        call.fetch()
        call.run(run)
        _open_of_file[MPI._handleof(call.owner)] = call

    return begin, begin_staged


def _ending(method: Any) -> Any:
    """Make the end method of a split call on a file."""

    @functools.wraps(method)
    def end(self: MPI.File, buf: Any, status: Any = None) -> None:
        handle = MPI._handleof(self)
        if handle not in _open_of_file and _core.is_on_device(buf):
            raise ValueError(
                f"{method.__name__}: buf: no split call was begun with "
                "this array; give the array of the begin call"
            )
        if _no_file_requests() and handle not in _moved_of_file:
            raise notes.refused(
                MPI.ERR_REQUEST,
                f"{method.__name__}: no split call of this file is under way: "
                "call its _begin method before",
            )
        call = _open_of_file.pop(handle, None)
        moved = _moved_of_file.pop(handle, None)
        if moved is None:
            method(self, buf if call is None else call.copies[0].given, status)
        elif status is not None:
            _fill(status, moved)
        if call is not None:
            call.store()

    return end


class _OfFile(Family):
    def failed(self, call: Call) -> None:
        name = call.row.name
        if "_all" not in name and "_ordered" not in name:
            super().failed(call)
        for copy in call.copies:
            copy.given = [bytearray(), 0, MPI.BYTE]


def file_calls() -> Iterator[tuple[str, Any]]:
    """Give the name and the replacement of each call of a file."""
    family = _OfFile()
    for row in rows_of(table.FILE):
        name = row.name
        yield name, staged_call(_blocking(name), row, family, at_once)
        if "_all" in name or "_ordered" in name:
            begin, end = _splitting(name)
            yield name + "_begin", staged_call(begin, row, family, end)
            name += "_end"
            yield name, _ending(getattr(MPI.File, name))
        if "_ordered" not in row.name:
            begin, end = _nonblocking(row.name)
            yield begin.__name__, staged_call(begin, row, family, end)
