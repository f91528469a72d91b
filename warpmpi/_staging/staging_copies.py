# SPDX-License-Identifier: BSD-3-Clause
"""Staging copies: host memory for MPI, of an array on a GPU, or with gaps.

The copy of GPU memory is page-locked; no copy has gaps. Data that the call
reads is copied before the call. Bytes that the call may have written, and no
others, are copied back when the call has ended.
"""

from __future__ import annotations

import functools
from typing import Any

from mpi4py import MPI

from .. import _core
from .given import Looked
from .table import Buffer


class Memory:
    """Writable bytes at an address, which a datatype may have given."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "version": 2,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
        }


def _has_gaps(item: Any) -> bool:
    """Return True if an item is a datatype with gaps, or a list with one."""
    if isinstance(item, MPI.Datatype) and not item.is_predefined:
        dense = 0, item.Get_size()
        return item.Get_extent() != dense or item.Get_true_extent() != dense
    return isinstance(item, (list, tuple)) and any(map(_has_gaps, item))


class Settled:
    """Host memory that a device may still use: MPI gets it after that.

    It stands among the staging copies of a call, and is copied nowhere.
    """

    role = "<"
    on_device = False
    error: Exception | None = None
    host: Any = None
    written: Any = None
    average: tuple[int, int] | None = None

    def __init__(self, value: Any, buffer: Buffer) -> None:
        self.given = self.array = value
        self.buffer = buffer

    def transfer(self, to_host: bool) -> None:
        _core._settle(self.array)


class StagingCopy:
    """An array on a GPU or with gaps, and the copy that MPI gets."""

    def __init__(
        self,
        value: Any,
        buffer: Buffer,
        role: str,
        blocks: int,
        datatype: MPI.Datatype | None,
        strided: bool,
        looked: Looked,
    ) -> None:
        listed = isinstance(value, (list, tuple))
        self.array = value[0] if listed else value
        rest = list(value[1:]) if listed else []
        told, origin = None, looked.origin
        if origin is not None:
            told = _core._runs(value, origin, buffer.form, blocks, buffer.name)
            assert told is not None  # its addresses were found
            self.array = Memory(*told[:2])
        self.buffer = buffer
        self.role = role
        self.error: Exception | None = None
        stage = functools.partial(
            _core._stage,
            self.array,
            role != "<",
            buffer.name,
            strided and buffer.form != "w" and not _has_gaps(rest),
        )
        try:
            self.host = stage()
        except (_core.CudaError, MemoryError) as error:
            self.error = error
            self.host = stage(True)
        self.given = [self.host, *rest] if listed else self.host
        if origin is None:
            whole = value if datatype is None else [value, datatype]
            told = _core._runs(
                whole, self.host, buffer.form, blocks, buffer.name
            )
        elif told is not None:
            base = MPI.Get_address(self.host) + origin - told[0]
            self.given[0] = MPI.memory.fromaddress(base, 1)
        if told is None:
            # Not understood: mpi4py raises, or may write all of it.
            told = 0, self.host.nbytes, (0, self.host.nbytes), False
        *self.used, self.runs, exact = told  # first byte and number of bytes
        if not exact and role == ">":
            self.role = "="
        self.written: Any = self.runs  # what of them is copied back
        # The element type and the number of ranks of an average.
        self.average: tuple[int, int] | None = None
        self.on_device = looked.on_device

    def transfer(self, to_host: bool) -> None:
        _core._stage_copy(
            self.array,
            self.host,
            self.runs if to_host else self.written,
            to_host,
            self.buffer.name,
            None if to_host else self.average,
        )
