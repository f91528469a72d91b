# SPDX-License-Identifier: BSD-3-Clause
"""MPI's own calls on GPU memory, through twins in page-locked host memory.

Every uppercase call of mpi4py's that is no point-to-point one is in the table
of calls.py, with what it does to its buffers. Where one of these is in GPU
memory, MPI is given its twin: what the call reads is copied there first, what
it may have written is copied back when it has ended, and not a byte more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from mpi4py import MPI

from . import _core, calls, notes
from .calls import Buffer, Row, rows_of
from .layout import (
    Run,
    absolute_runs_of,
    addresses,
    recounted,
    runs_of,
)


class _Memory:
    """Bytes at an address that a datatype tells, of whoever may write it."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "version": 2,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
        }


def _is_bottom(value: Any) -> bool:
    listed = type(value) in (list, tuple)
    return listed and len(value) > 0 and value[0] is MPI.BOTTOM


def _on_device(value: Any, buffer: Buffer) -> bool:
    """Tell whether a buffer is GPU memory, also by way of MPI.BOTTOM."""
    if not _is_bottom(value):
        return _core.is_on_device(value)
    return any(
        address > 0 and _core.is_on_device(_Memory(address, 1))
        for address in addresses(list(value[1:]), buffer.form)
    )


def _rank(value: Any) -> Any:
    """Give a rank as mpi4py reads it: floats are truncated."""
    return int(value) if hasattr(value, "__int__") else value


def _concerns_us(value: Any, buffer: Buffer) -> bool:
    """Tell whether mpi4py must not have the buffer as it is."""
    if not _is_bottom(value):
        return _core._concerns_us(value)
    return _on_device(value, buffer)


def _on_device_reduced(value: Any, buffer: Buffer) -> bool:
    """Tell likewise; refuse elements that MPI would take for mere bytes."""
    if _is_bottom(value):
        return _on_device(value, buffer)
    return _core._is_on_device_reduced(
        value, buffer.name
    ) or _core._concerns_us(value)


class _Twin:
    """An array in GPU memory and what stands for it in host memory."""

    def __init__(
        self,
        value: Any,
        buffer: Buffer,
        role: str,
        blocks: int,
        datatype: MPI.Datatype | None,
    ) -> None:
        listed = isinstance(value, (list, tuple))
        self.array = value[0] if listed else value
        rest = list(value[1:]) if listed else []
        low, runs = 0, None
        if _is_bottom(value):
            low, high, runs = absolute_runs_of(rest, buffer.form, blocks)
            self.array = _Memory(low, high - low)
        self.buffer = buffer
        self.role = role
        self.error: Exception | None = None
        stage = functools.partial(
            _core._stage, self.array, role != "<", buffer.name
        )
        try:
            self.host = stage()
        except (_core.CudaError, MemoryError) as error:
            self.error = error
            self.host = stage(True)
        self.given = [self.host, *rest] if listed else self.host
        if runs is not None:
            base = MPI.Get_address(self.host) - low
            self.given[0] = MPI.memory.fromaddress(base, 1)
        else:
            runs = runs_of(
                buffer.name, self.host, rest, buffer.form, blocks, datatype
            )
        if runs is None:
            # Not understood: mpi4py raises, or may write all of it.
            runs = [(0, self.host.nbytes, 1, 0)]
            self.role = "<" if role == "<" else "="
        self.runs: list[Run] = runs

    def copy(self, to_host: bool) -> None:
        _core._stage_copy(
            self.array, self.host, self.runs, to_host, self.buffer.name
        )


class _Call:
    """One call with at least one array in GPU memory."""

    def __init__(
        self,
        family: _Family,
        method: Callable[..., Any],
        row: Row,
        owner: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.family = family
        self.method = method
        self.row = row
        self.owner = owner
        self.args = args
        self.kwargs = kwargs
        self.error: Exception | None = None
        self.twins: list[_Twin] = []
        for buffer, role, blocks, datatype in family.roles(self):
            value = self.argument(buffer.name)
            inner, number = _core._inner(value, buffer.name)
            if inner > 1 and datatype is None:
                value = recounted(value, inner, number, buffer.form, blocks)
                self.replace(buffer, value)
            if _on_device(value, buffer):
                self.twins.append(_Twin(value, buffer, role, blocks, datatype))

    def argument(self, name: str, default: Any = None) -> Any:
        position = self.row.positions[name]
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)

    def replace(self, buffer: Buffer, value: Any) -> None:
        at = buffer.position
        if at < len(self.args):
            self.args = (*self.args[:at], value, *self.args[at + 1 :])
        else:
            self.kwargs = {**self.kwargs, buffer.name: value}

    def fetch(self) -> None:
        """Copy what the call reads to the twins; notes what went wrong."""
        _core._count_staged(self.family.collective)
        self.error = None
        for twin in self.twins:
            try:
                if twin.error is not None:
                    raise twin.error
                if twin.role != ">":
                    twin.copy(to_host=True)
            except (_core.CudaError, MemoryError) as error:
                self.error = self.error or error
        if self.error is not None:
            self.family.failed(self)

    def run(self, method: Callable[..., Any] | None = None) -> Any:
        """Call mpi4py with the twins in place of the arrays."""
        args, kwargs = list(self.args), dict(self.kwargs)
        for twin in self.twins:
            if twin.buffer.position < len(args):
                args[twin.buffer.position] = twin.given
            else:
                kwargs[twin.buffer.name] = twin.given
        return (method or self.method)(self.owner, *args, **kwargs)

    def store(self) -> None:
        """Copy back what the call may have written, or raise its error."""
        if self.error is not None:
            raise self.error
        for twin in self.twins:
            if twin.role != "<":
                twin.copy(to_host=False)

    def wrap(self, inner: MPI.Request, into: Any = None) -> Any:
        """Make the request whose end is that of `inner` and of store()."""
        if self.error is not None and isinstance(self.owner, MPI.File):
            inner.Wait()  # who has no request may close the file
            raise self.error
        name, array, host, runs = "buf", None, None, []
        for twin in self.twins:  # one at most is written
            if twin.role != "<" and self.error is None:
                name, array = twin.buffer.name, twin.array
                host, runs = twin.host, twin.runs
        request = _core._staged(
            inner, array, host, runs, (self, inner), into, name
        )
        if self.error is not None:
            raise self.error  # the request ends by itself
        return request


def _at_once(call: _Call) -> Any:
    call.fetch()
    result = call.run()
    call.store()
    return result


def _by_request(call: _Call) -> Any:
    call.fetch()
    return call.wrap(call.run())


class _Prequest(_core.Prequest):
    """A persistent collective with an array in GPU memory."""

    _call: _Call
    _inner: MPI.Prequest | None

    def __new__(cls, call: _Call) -> _Prequest:
        for twin in call.twins:
            if twin.error is not None:
                raise twin.error
        self = super().__new__(cls)
        self._call = call
        self._inner = call.run()
        return self

    def Start(self) -> None:
        """Begin the call once more, with what its arrays hold then."""
        if self or self._inner is None:
            raise MPI.Exception(MPI.ERR_REQUEST)
        self._call.fetch()
        self._inner.Start()
        self._call.wrap(self._inner, self)

    def Free(self) -> None:
        """Let go of the request, which must not be under way."""
        if self or self._inner is None:
            raise MPI.Exception(MPI.ERR_REQUEST)
        self._inner.Free()
        self._inner = None


# Calls that have not ended: those of each window until it is synchronised,
# with the rank they are with, and the split one of each file, and the bytes
# that this has moved where it has done it all.
_open_of_window: dict[int, list[tuple[int, _Call]]] = {}
_open_of_file: dict[int, _Call] = {}
_moved_of_file: dict[int, int] = {}


def _until_synchronized(call: _Call) -> None:
    call.fetch()
    call.run()
    rank = _rank(call.argument("target_rank"))
    _open_of_window.setdefault(MPI._handleof(call.owner), []).append(
        (rank, call)
    )


def _synchronizing(method: Any, of_rank: bool) -> Any:
    """Make a call that completes those of a window, or those with a rank."""

    @functools.wraps(method)
    def synchronize(self: MPI.Win, *args: Any, **kwargs: Any) -> Any:
        handle = MPI._handleof(self)
        result = method(self, *args, **kwargs)
        if handle not in _open_of_window:
            return result
        rank = _rank((*args, *kwargs.values())[0]) if of_rank else None
        calls = _open_of_window.pop(handle)
        left = [item for item in calls if of_rank and item[0] != rank]
        if left:
            _open_of_window[handle] = left
        for other, call in calls:
            if not of_rank or other == rank:
                call.store()
        return result

    return synchronize


def _freeing(method: Any) -> Any:
    @functools.wraps(method)
    def free(self: Any) -> Any:
        _open_of_window.pop(MPI._handleof(self), None)
        return method(self)

    return free


@functools.cache
def _no_file_requests() -> bool:
    """Tell whether MPI must not have requests of files.

    Open MPI 4 and 5 keep them, and those of their collective writes, in a
    list without a lock, which every thread that calls MPI goes through, and
    the progress thread is one.
    """
    return (
        "Open MPI" in MPI.Get_library_version()
        and MPI.Query_thread() == MPI.THREAD_MULTIPLE
    )


_stock_world = MPI.COMM_WORLD


def _in_turn(self: MPI.File, *args: Any, **kwargs: Any) -> None:
    """Write_ordered without a collective write: one rank after the other."""
    group, everybody = self.Get_group(), _stock_world.Get_group()
    known = MPI.Group.Intersection(group, everybody)
    if known.Get_size() < group.Get_size():
        _write_ordered(self, *args, **kwargs)  # with another program
        return
    comm = _stock_world.Create_group(group)
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
    """Give a blocking method that makes no requests and waits for nobody.

    Reads that are to wait, and do not have to be without the others, are
    MPI's collective ones.
    """
    if name == "Write_ordered":
        return _in_turn
    return getattr(MPI.File, name.replace("_all", ""))


def _blocking(name: str) -> Any:
    """Make a blocking method of a file that MPI can do in our company."""
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
    """Make a blocking method that returns the bytes that it has moved."""
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


def _nonblocking(name: str) -> tuple[Any, Callable[[_Call], Any]]:
    """Make a nonblocking method of a file, and its end where it is staged.

    Without the other ranks, whom a nonblocking call must not wait for.
    """
    method = getattr(MPI.File, "I" + name[0].lower() + name[1:])
    move = _moving(name)

    @functools.wraps(method)
    def call(self: MPI.File, *args: Any, **kwargs: Any) -> Any:
        if _no_file_requests():
            return _ended(move(self, *args, **kwargs))
        return method(self, *args, **kwargs)

    def end(call: _Call) -> Any:
        if not _no_file_requests():
            return _by_request(call)
        call.fetch()
        moved = call.run(move)
        call.store()
        return _ended(moved)

    return call, end


def _check_no_split_call(file: MPI.File) -> None:
    handle = MPI._handleof(file)
    if handle in _open_of_file or handle in _moved_of_file:
        raise MPI.Exception(MPI.ERR_REQUEST)  # MPI: one at a time


def _splitting(name: str) -> tuple[Any, Callable[[_Call], Any]]:
    """Make the first half of a split call, and that where it is staged."""
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

    def begin_staged(call: _Call) -> None:
        _check_no_split_call(call.owner)
        call.fetch()
        call.run(run)
        _open_of_file[MPI._handleof(call.owner)] = call

    return begin, begin_staged


def _ending(method: Any) -> Any:
    """Make the second half of a split call on a file."""

    @functools.wraps(method)
    def end(self: MPI.File, buf: Any, status: Any = None) -> None:
        handle = MPI._handleof(self)
        if handle not in _open_of_file and _core.is_on_device(buf):
            raise ValueError(
                f"{method.__name__}: buf: no split call was begun with "
                "this array"
            )
        if _no_file_requests() and handle not in _moved_of_file:
            raise MPI.Exception(MPI.ERR_REQUEST)  # none was begun
        call = _open_of_file.pop(handle, None)
        moved = _moved_of_file.pop(handle, None)
        if moved is None:
            method(self, buf if call is None else call.twins[0].given, status)
        elif status is not None:
            _fill(status, moved)
        if call is not None:
            call.store()

    return end


def _packing(call: _Call) -> int:
    call.fetch()
    end: int = call.run()
    for twin in call.twins:
        if twin.role != "<":
            begin = call.argument("position")
            twin.runs = [(begin, end - begin, 1, 0)]
    call.store()
    return end


class _Family:
    """Calls that have the same rules for which buffers matter."""

    collective = False

    def roles(self, call: _Call) -> Iterator[tuple[Buffer, str, int, Any]]:
        """Give the buffers that are looked at, role, blocks and datatype."""
        for buffer in call.row.buffers:
            yield buffer, buffer.role, 1, None

    def failed(self, call: _Call) -> None:
        """Raise what went wrong, or prepare to take part nevertheless."""
        assert call.error is not None
        raise call.error


class _OfComm(_Family):
    """Collectives: the others must not wait for a rank that fails."""

    collective = True

    def roles(self, call: _Call) -> Iterator[tuple[Buffer, str, int, Any]]:
        comm = call.owner
        inter = comm.Is_inter()
        name = call.row.name
        across = inter and name != "Reduce_scatter_block"
        size = comm.Get_remote_size() if across else comm.Get_size()
        itself = MPI.ROOT if inter else comm.Get_rank()
        rooted = "root" in call.row.positions
        root = _rank(call.argument("root", 0)) if rooted else None
        given = call.args[0] if call.args else call.kwargs.get("sendbuf")
        in_place = given is None or given is MPI.IN_PLACE
        for buffer in call.row.buffers:
            role = buffer.role
            if rooted and (
                (buffer.at_root and root != itself)
                or (inter and root == MPI.PROC_NULL)
            ):
                continue
            if rooted and root == itself and not buffer.at_root:
                if len(call.row.buffers) == 1:
                    role = "<"
                elif inter:
                    continue
            if in_place and role == ">":
                role = "="
                if name == "Reduce_scatter_block":
                    buffer = buffer._replace(form="n")
            yield buffer, role, size, None

    def failed(self, call: _Call) -> None:
        pass  # with bytes of 255, which are NaN


class _OfNeighbours(_OfComm):
    def roles(self, call: _Call) -> Iterator[tuple[Buffer, str, int, Any]]:
        for buffer in call.row.buffers:
            sends = buffer.role == "<"
            degree = call.owner.outdegree if sends else call.owner.indegree
            yield buffer, buffer.role, degree, None


class _OfFile(_Family):
    def failed(self, call: _Call) -> None:
        name = call.row.name
        if "_all" not in name and "_ordered" not in name:
            super().failed(call)
        for twin in call.twins:
            twin.given = [bytearray(), 0, MPI.BYTE]


class _OfWindow(_Family):
    def roles(self, call: _Call) -> Iterator[tuple[Buffer, str, int, Any]]:
        if _rank(call.argument("target_rank")) != MPI.PROC_NULL:
            yield from super().roles(call)


class _OfDatatype(_Family):
    def roles(self, call: _Call) -> Iterator[tuple[Buffer, str, int, Any]]:
        for buffer in call.row.buffers:
            typed = buffer.role != "<" and call.row.name.startswith("Unpack")
            yield buffer, buffer.role, 1, call.owner if typed else None


def _staging(
    method: Callable[..., Any],
    row: Row,
    family: _Family,
    end: Callable[[_Call], Any],
) -> Any:
    """Make a method of mpi4py's take arrays in GPU memory."""
    reduces = row.name in calls.REDUCTIONS
    look = _on_device_reduced if reduces else _concerns_us

    def explain(
        error: MPI.Exception,
        owner: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        if family.collective:
            root = row.positions.get("root")
            if root is not None:
                given = args[root] if root < len(args) else 0
                root = kwargs.get("root", given)
            notes.add(error, method.__name__, owner, root)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        _core._check_running()
        found = False
        for buffer in row.buffers:
            value = (
                args[buffer.position]
                if buffer.position < len(args)
                else kwargs.get(buffer.name)
            )
            found = look(value, buffer) or found
        try:
            if not found:
                return method(self, *args, **kwargs)
            staged = _Call(family, method, row, self, args, kwargs)
            if not staged.twins:  # none of them matters on this rank
                return method(self, *staged.args, **staged.kwargs)
            return end(staged)
        except MPI.Exception as error:
            explain(error, self, args, kwargs)
            raise

    positions = tuple(1 + buffer.position for buffer in row.buffers)
    begins = end in (_by_request, _Prequest)
    passing = _core._Passing(method, call, explain, positions, begins)
    return functools.update_wrapper(passing, method)


def _forms() -> Iterator[tuple[str, Row, _Family, Callable[[_Call], Any]]]:
    """Give every collective under all its names."""
    for row in rows_of(calls.COLLECTIVES):
        near = row.name.startswith("Neighbor")
        family = _OfNeighbours() if near else _OfComm()
        name = row.name
        yield name, row, family, _at_once
        yield "I" + name[0].lower() + name[1:], row, family, _by_request
        yield name + "_init", row, family, _Prequest
    for row in rows_of(calls.AGREEMENT):
        yield row.name, row, _OfComm(), _by_request


def comm_calls(base: type) -> dict[str, Any]:
    """Give what takes the place of the calls of a communicator of mpi4py's."""
    return {
        name: _staging(getattr(base, name), row, family, end)
        for name, row, family, end in _forms()
        if hasattr(base, name)
    }


def _file_calls() -> Iterator[tuple[str, Any]]:
    family = _OfFile()
    for row in rows_of(calls.FILE):
        name = row.name
        yield name, _staging(_blocking(name), row, family, _at_once)
        if "_all" in name or "_ordered" in name:
            begin, end = _splitting(name)
            yield name + "_begin", _staging(begin, row, family, end)
            name += "_end"
            yield name, _ending(getattr(MPI.File, name))
        if "_ordered" not in row.name:
            begin, end = _nonblocking(row.name)
            yield begin.__name__, _staging(begin, row, family, end)


def _window_calls() -> Iterator[tuple[str, Any]]:
    family = _OfWindow()
    for row in rows_of(calls.WINDOW):
        name, method = row.name, functools.partial(getattr, MPI.Win)
        yield name, _staging(method(name), row, family, _until_synchronized)
        name = "R" + name[0].lower() + name[1:]
        if hasattr(MPI.Win, name):
            yield name, _staging(method(name), row, family, _by_request)
    for name in "Fence Complete Unlock_all Flush_all Flush_local_all".split():
        yield name, _synchronizing(method(name), False)
    for name in "Unlock Flush Flush_local".split():
        yield name, _synchronizing(method(name), True)
    yield "Free", _freeing(method("Free"))


_NO_WINDOW = (
    "GPU memory cannot be a window: other ranks would write to it without a "
    "call of this rank that could stage the data; use host memory "
    "(wm.empty(..., device='cpu')), or Send and Recv of a wm.Comm"
)
_NO_ATTACH = "MPI itself copies messages into the buffer; attach host memory"


def refuse_window(arguments: tuple[Any, ...]) -> None:
    """Raise TypeError where memory of a GPU is to be exposed by a window."""
    if any(map(_core.is_on_device, arguments)):
        raise TypeError(f"Win.Create: {_NO_WINDOW}")


def _refusing(kind: type, name: str, why: str) -> Any:
    method = getattr(kind, name)
    bound = isinstance(vars(kind)[name], classmethod)
    method = getattr(method, "__func__", method)

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        for value in (*args[1:], *kwargs.values()):
            if _core.is_on_device(value):
                raise TypeError(f"{kind.__name__}.{name}: {why}")
        return method(*args, **kwargs)

    return classmethod(call) if bound else call


def class_calls() -> Iterator[tuple[type, str, Any]]:
    """Give what takes the place of calls that belong to no communicator."""
    for name, call in _file_calls():
        yield MPI.File, name, call
    for name, call in _window_calls():
        yield MPI.Win, name, call
    for name in ("Create", "Attach", "Detach"):
        yield MPI.Win, name, _refusing(MPI.Win, name, _NO_WINDOW)
    if hasattr(MPI.Session, "Attach_buffer"):
        refusal = _refusing(MPI.Session, "Attach_buffer", _NO_ATTACH)
        yield MPI.Session, "Attach_buffer", refusal
    for row in rows_of(calls.OP):
        call = _staging(getattr(MPI.Op, row.name), row, _Family(), _at_once)
        yield MPI.Op, row.name, call
    for row in rows_of(calls.DATATYPE):
        method = getattr(MPI.Datatype, row.name)
        end = _packing if row.name.startswith("Pack") else _at_once
        call = _staging(method, row, _OfDatatype(), end)
        yield MPI.Datatype, row.name, call
