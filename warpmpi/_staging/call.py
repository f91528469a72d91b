# SPDX-License-Identifier: BSD-3-Clause
"""One call of MPI's with buffers in GPU memory, from staging to its end."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from mpi4py import MPI

from .. import _core, _docs
from .._raw import memory_of, refuse_bytes
from . import averages, halves, notes, table
from .given import Looked, listed, read_once
from .layout import recounted
from .neighbours import Pairs
from .rehearsal import rehearse
from .staging_copies import Settled, StagingCopy
from .table import Buffer, Row


def rank_of(value: Any) -> Any:
    """Give a rank as mpi4py reads it: floats are truncated."""
    return int(value) if hasattr(value, "__int__") else value


class Call:
    """One call with at least one array in GPU memory."""

    def __init__(
        self,
        family: Family,
        method: Callable[..., Any],
        row: Row,
        owner: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        average: bool = False,
    ) -> None:
        self.family = family
        self.method = method
        self.row = row
        self.owner = owner
        # Whose setting counts; a persistent request stands for its own.
        self.comm: Any = owner
        self.args = args
        self.kwargs = kwargs
        self.average = average
        self.error: Exception | None = None
        self.refusal: Exception | None = None  # raised at the end
        self.copies: list[StagingCopy | Settled] = []
        self._looked: dict[str, Looked] = {}
        for buffer in row.buffers:
            if buffer.form in ("v", "w"):
                value = self.argument(buffer.name)
                given = listed(value, buffer)
                if given is not value:
                    self.replace(buffer, given)
        if "recvcounts" in row.positions:
            refuse_bytes(self.argument("recvcounts"), "recvcounts")

    def look(self, buffer: Buffer) -> Looked:
        """Look at a buffer, once."""
        name = buffer.name
        if name not in self._looked:
            reduces = self.row.name in table.REDUCTIONS
            found = _core._look(
                self.argument(name), buffer.form, name, reduces
            )
            self._looked[name] = Looked(*found)
        return self._looked[name]

    def concerns(self) -> bool:
        """Return True if mpi4py cannot take all buffers as they are."""
        buffers = [*self.row.buffers]
        if self.family.partial & self.row.positions.keys():
            buffers = [buffer for buffer, *_ in self.family.roles(self)]
        looked = list(map(self.look, buffers))
        return self.average or any(
            each.concerns or each.runs_code for each in looked
        )

    def stage(self) -> bool:
        """Make the staging copies; return True if there are any."""
        family, row, owner = self.family, self.row, self.owner
        average = self.average
        arrays: list[Any] = []
        for buffer, role, blocks, datatype in family.roles(self):
            value, looked = self.argument(buffer.name), self.look(buffer)
            if datatype is None:
                value = self.named(value, buffer, role, blocks)
            packs = family.collective or family.of_messages
            kind: int | None = None
            if average and value is not None and value is not MPI.IN_PLACE:
                kind = _core._averaged(row.name, value, buffer.name)
            if role == "<":
                kind = None
            refused = looked.gaps or (family.of_messages and looked.concerns)
            if kind is not None or looked.on_device or (packs and refused):
                copy = StagingCopy(
                    value, buffer, role, blocks, datatype, packs, looked
                )
                if kind is not None:
                    copy.average = kind, averages.ranks_of(owner)
                    copy.written = (
                        averages.result_of(self, copy.role, *copy.used)
                        or copy.written
                    )
                self.copies.append(copy)
                arrays.append(copy.array)
                continue
            if average:
                arrays.append(value[0] if isinstance(value, list) else value)
            given = value
            if looked.runs_code:
                given = read_once(value, buffer, role, not family.takes_lists)
                self.replace(buffer, given)
            if looked.awaited:
                settled = Settled(value, buffer)
                settled.given = given
                self.copies.append(settled)
        # MPI refuses a reduction into the array that it reads. It does not
        # see this if one of the two has a copy.
        aliased = len(arrays) == 2 and arrays[0] is arrays[1] is not None
        if aliased and family.collective and row.name in table.REDUCTIONS:
            raise MPI.Exception(MPI.ERR_BUFFER)
        return bool(self.copies)

    def argument(self, name: str, default: Any = None) -> Any:
        return self.row.argument(self.args, self.kwargs, name, default)

    def named(self, value: Any, buffer: Buffer, role: str, blocks: int) -> Any:
        """Return a buffer, with counts of elements that MPI knows.

        The call then passes this buffer.
        """
        inner, number = _core._inner(value, buffer.name, role != "<")
        half = None
        if inner > 1 and self.family.collective and buffer.form != "w":
            # Open MPI hangs where one rank gives bytes and another one a
            # datatype of two bytes.
            half = _core._half(value, MPI.OP_NULL, buffer.name)
        if half is not None:
            inner = half[2]
        given = value
        if inner > 1:
            value = recounted(value, inner, number, buffer.form, blocks)
        if half is not None:
            value = halves.typed(value, half[0], 1)
        if value is not given:
            self.replace(buffer, value)
        return value

    def replace(self, buffer: Buffer, value: Any) -> None:
        self.args, self.kwargs = self.row.replaced(
            self.args, self.kwargs, buffer.name, value
        )

    def fetch(self) -> None:
        """Copy the data that the call reads to its copies; keep any error."""
        self.error = self.refusal = None
        if any(copy.on_device for copy in self.copies):
            self.refuse()
            _core._count_staged(self.family.collective)
        for copy in self.copies:
            try:
                if copy.error is not None:
                    raise copy.error
                if copy.role != ">":
                    copy.transfer(to_host=True)
            except (_core.CudaError, MemoryError) as error:
                self.error = self.error or error
        if self.error is not None:
            self.family.failed(self)

    def refuse(self) -> None:
        """Raise if GPU memory may not be staged.

        A collective is made for the other ranks, and raises at its end.
        """
        comm = self.comm if self.family.collective else None
        if not _core._requires(comm):
            return
        refusal = _core._staging_error(
            f"{self.row.name}: MPI does it, in host memory",
            "give host memory, such as a copy of the array",
        )
        if self.family.collective:
            self.refusal = refusal
        else:
            self.error = refusal
            self.family.failed(self)

    def run(self, method: Callable[..., Any] | None = None) -> Any:
        """Call mpi4py with staging copies in place of the arrays."""
        args, kwargs = self.args, self.kwargs
        for copy in self.copies:
            name = copy.buffer.name
            args, kwargs = self.row.replaced(args, kwargs, name, copy.given)
        return (method or self.method)(self.owner, *args, **kwargs)

    def store(self) -> None:
        """Copy back the data that the call may have written, or raise."""
        if self.error is not None:
            raise self.error
        for copy in self.copies:
            if copy.role != "<":
                copy.transfer(to_host=False)
        if self.refusal is not None:
            raise self.refusal

    def wrap(
        self,
        inner: MPI.Request,
        into: Any = None,
        kept: Any = None,
        comm: MPI.Comm | None = None,
    ) -> Any:
        """Make a request that ends after `inner`, when the data is stored.

        comm: the communicator of ours that must outlive the request.
        """
        if self.error is not None and isinstance(self.owner, MPI.File):
            inner.Wait()  # the caller has no request, and may close the file
            raise self.error
        name, array, host, runs = "buf", None, None, None
        average = None
        for copy in self.copies:  # one at most is written
            if copy.role != "<" and self.error is None:
                name, array = copy.buffer.name, copy.array
                host, runs = copy.host, copy.written
                average = copy.average
        request = _core._staged(
            inner,
            array,
            host,
            runs,
            (self, inner, kept),
            into,
            name,
            comm,
            self.family.of_messages,
            average,
            self.refusal is not None,
        )
        if self.error is not None:
            raise self.error  # the request ends by itself
        return request


def at_once(call: Call) -> Any:
    """Make a blocking call, and return its result."""
    call.fetch()
    result = call.run()
    call.store()
    return result


def by_request(call: Call) -> Any:
    """Begin a nonblocking call, and return its request."""
    call.fetch()
    return call.wrap(call.run())


class StagedPrequest(_core.Prequest):
    """A persistent collective with an array in GPU memory."""

    __slots__ = ()  # the core moves what it is, and finds it in _kept

    def __new__(cls, call: Call) -> StagedPrequest:
        for copy in call.copies:
            if copy.error is not None:
                raise copy.error
        self = super().__new__(cls)
        self._kept = call, call.run()
        return self

    def _inactive(self, name: str) -> tuple[Call, MPI.Prequest]:
        if self._kept is None:
            raise notes.refused(
                MPI.ERR_REQUEST,
                f"{name}: the persistent collective was freed: make another "
                "one",
            )
        if self._active:
            raise notes.refused(
                MPI.ERR_REQUEST,
                f"{name}: the persistent {self._kept[0].row.name} is active: "
                "wait for it before",
            )
        kept: tuple[Call, MPI.Prequest] = self._kept
        return kept

    def Start(self) -> None:
        """Begin the call again, with the present data of its arrays."""
        call, inner = self._inactive("Start")
        call.fetch()
        inner.Start()
        call.wrap(inner, self)

    def Free(self) -> None:
        """Free the request, which must be inactive."""
        _, inner = self._inactive("Free")
        super().Free()
        inner.Free()


class Family:
    """Calls that have the same rules for which buffers matter."""

    collective = False
    of_messages = False  # between two ranks; MPI_Cancel takes their requests
    direct = False  # GPUs may do them by themselves
    takes_lists = True  # [array, count, datatype], not only an array
    paired = False  # a rank may be a neighbour twice
    # Parameters that tell on which ranks the buffers matter.
    partial: frozenset[str] = frozenset()

    def roles(self, call: Call) -> Iterator[tuple[Buffer, str, int, Any]]:
        """Give (buffer, role, blocks, datatype) of each used buffer."""
        for buffer in call.row.buffers:
            yield buffer, buffer.role, 1, None

    def describe(self, name: str) -> str:
        """Tell what a call of that name does with GPU arrays."""
        return _docs.STAGED

    def failed(self, call: Call) -> None:
        """Raise the error of fetch(), or prepare the call to go on."""
        assert call.error is not None
        raise call.error


# Errors of mpi4py for wrong arguments, and MPI's own.
_EXPLAINED = (
    *(MPI.Exception, TypeError, ValueError),
    *(BufferError, OverflowError),
)


def staged_call(
    method: Callable[..., Any],
    row: Row,
    family: Family,
    end: Callable[[Call], Any],
    nonblocking: Callable[..., Any] | None = None,
    mpis: bool = False,
) -> Any:
    """Make a method of mpi4py's take arrays in GPU memory.

    nonblocking: for a persistent call, mpi4py's nonblocking form. It serves
    a start that GPUs cannot do, and every start if MPI has no persistent
    collectives. mpis: the communicator is host-only; MPI makes every call,
    and only arrays that mpi4py refuses are staged.
    """
    attempt = _core._attempting(method) if family.collective else method
    if nonblocking is not None:
        nonblocking = _core._attempting(nonblocking)
    computes = halves.concerns(row)

    def explain(
        error: Exception, owner: Any, *args: Any, **kwargs: Any
    ) -> None:
        name = method.__name__
        given = {**dict(zip(row.positions, args, strict=False)), **kwargs}
        if isinstance(error, MPI.Exception):
            if family.collective or family.of_messages:
                notes.add(error, name, row, owner, given)
            return
        notes.name_argument(error, name, row, owner, given)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        _core._check_running()
        average = False  # windows have none: mpi4py refuses it
        if family.collective:
            average, args, kwargs = averages.replaced(row, args, kwargs)
        if computes:
            self, args, kwargs = halves.replaced(row, self, args, kwargs)
        try:
            made = Call(family, attempt, row, self, args, kwargs, average)
            if made.concerns() and made.stage():
                return end(made)
            return attempt(self, *made.args, **made.kwargs)
        except _EXPLAINED as error:
            explain(error, self, *args, **kwargs)
            raise

    def again(
        request: _core.Prequest | None, self: Any, *args: Any, **kwargs: Any
    ) -> None:
        assert nonblocking is not None
        if request is None:
            inspect.signature(method).bind(self, *args, **kwargs)
        average, args, kwargs = averages.replaced(row, args, kwargs)
        if computes:
            self, args, kwargs = halves.replaced(row, self, args, kwargs)
        made = Call(family, nonblocking, row, self, args, kwargs, average)
        if request is not None:
            made.comm = request  # `self` is MPI's
        made.concerns()  # refuses what is not reduced
        try:
            staged = made.stage()
            if request is None:
                made.run(functools.partial(rehearse, made))
                return
            if staged:
                made.fetch()
            made.wrap(made.run(), request)
        except _EXPLAINED as error:
            explain(error, self, *args, **kwargs)
            raise

    def begin_paired(
        into: _core.Prequest | None,
        on: MPI.Comm,
        pairs: Pairs,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        comm: MPI.Comm | None = None,
    ) -> Any:
        types: list[Any] = []

        def begin(_: Any, *args: Any, **kwargs: Any) -> Any:
            request, made = pairs.begin(row, on, *args, **kwargs)
            types.append(made)
            return request

        made = Call(family, begin, row, pairs, args, kwargs)
        made.comm = comm
        if made.stage():
            made.fetch()
        return made.wrap(made.run(), into, types, comm)

    def paired(on: MPI.Comm, self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return begin_paired(None, on, Pairs(self), args, kwargs, self)
        except MPI.Exception as error:
            explain(error, self, *args, **kwargs)
            raise

    def paired_again(self: Any) -> Any:
        pairs = Pairs(self)

        def check(_: Any, *args: Any, **kwargs: Any) -> None:
            pairs.merge(row, *args, **kwargs)

        def again(
            request: _core.Prequest | None,
            on: MPI.Comm,
            *args: Any,
            **kwargs: Any,
        ) -> None:
            if request is None:  # refuses what is not understood
                made = Call(family, check, row, pairs, args, kwargs)
                made.stage()
                made.run()
            else:
                begin_paired(request, on, pairs, args, kwargs)

        return again

    by_pairs = None
    if family.paired:
        by_pairs = paired if nonblocking is None else paired_again
    positions = tuple((1 + buf.position, buf.name) for buf in row.buffers)
    op, counts = (
        (1 + row.positions[name], name) if name in row.positions else None
        for name in ("op", "recvcounts")
    )
    passing = _core._Passing(
        method,
        call,
        explain,
        positions,
        end in (by_request, StagedPrequest),
        row.name if family.direct else "",
        computes,
        again if nonblocking is not None else None,
        by_pairs,
        mpis,
        op,
        counts,
    )
    made = functools.update_wrapper(passing, method)
    text = family.describe(method.__name__)
    made.__doc__ = _docs.extended(method.__doc__, text)
    return keeping_datatypes(made, row) if nonblocking is not None else made


class _Copy(MPI.Datatype):
    """A copied datatype, freed with the request that keeps it."""

    def __del__(self) -> None:
        if self != MPI.DATATYPE_NULL and not MPI.Is_finalized():
            self.Free()


def _kept(item: Any, form: str) -> Any:
    """Return copies of the datatypes that the program may free.

    form "w": item may be Alltoallw's list of datatypes.
    """
    if isinstance(item, MPI.Datatype):
        stays = item == MPI.DATATYPE_NULL or item.is_predefined
        return item if stays else _Copy(_core._copy_datatype(item))
    if form == "w" and isinstance(item, (list, tuple)):
        return [_kept(each, "") for each in item]
    return item


def keeping_datatypes(call: Callable[..., Any], row: Row) -> Any:
    """Let a program free the datatypes of a persistent call before Start.

    MPI must keep them until the request is freed, but Open MPI does not.
    """

    @functools.wraps(call)
    def make(self: Any, *args: Any, **kwargs: Any) -> Any:
        for buffer in row.buffers:
            value = row.argument(args, kwargs, buffer.name)
            if isinstance(value, (list, tuple)) and value:
                value = [*value[:-1], _kept(value[-1], buffer.form)]
                args, kwargs = row.replaced(args, kwargs, buffer.name, value)
        return call(self, *args, **kwargs)

    return make


def host_memory(value: Any, name: str, why: str) -> Any:
    """Return what a call of that name gives to MPI for an argument.

    An array is read once, as its code may tell other memory the next time.
    Raises TypeError for GPU memory.
    """
    if not _core.is_on_device(value):
        read = memory_of(value)
        if read is value or not _core.is_on_device(read):
            return read
    raise TypeError(f"{name}: {why}")


def refusing(kind: type, name: str, why: str) -> Any:
    """Make a method of mpi4py's refuse arrays in GPU memory."""
    method = getattr(kind, name)
    bound = isinstance(vars(kind)[name], classmethod)
    method = getattr(method, "__func__", method)

    def checked(value: Any) -> Any:
        read = host_memory(value, f"{kind.__name__}.{name}", why)
        _core._settle(value)
        return read

    @functools.wraps(method)
    def call(first: Any, *args: Any, **kwargs: Any) -> Any:
        given = {key: checked(value) for key, value in kwargs.items()}
        return method(first, *map(checked, args), **given)

    return classmethod(call) if bound else call
