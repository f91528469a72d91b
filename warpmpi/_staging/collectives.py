# SPDX-License-Identifier: BSD-3-Clause
"""The collectives of communicators, in all their forms."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from mpi4py import MPI

from .. import _docs
from . import table
from .call import (
    Call,
    Family,
    StagedPrequest,
    at_once,
    by_request,
    rank_of,
    staged_call,
)
from .table import Buffer, Row, rows_of


class _OfComm(Family):
    """Collectives: a rank that fails still makes the call of MPI."""

    collective = direct = True
    partial = frozenset({"root"})

    def describe(self, name: str) -> str:
        return _docs.of_collective(name)

    def roles(self, call: Call) -> Iterator[tuple[Buffer, str, int, Any]]:
        comm = call.owner
        inter = comm.Is_inter()
        name = call.row.name
        across = inter and name != "Reduce_scatter_block"
        size = comm.Get_remote_size() if across else comm.Get_size()
        itself = MPI.ROOT if inter else comm.Get_rank()
        rooted = "root" in call.row.positions
        root = rank_of(call.argument("root", 0)) if rooted else None
        given = call.args[0] if call.args else call.kwargs.get("sendbuf")
        in_place = given is None or given is MPI.IN_PLACE
        for buffer in call.row.buffers:
            role = buffer.role
            ignored = buffer.at_root and root != itself
            if in_place and role != "<":
                ignored = False  # MPI refuses it, unless we know the reason
            if rooted and (ignored or (inter and root == MPI.PROC_NULL)):
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

    def failed(self, call: Call) -> None:
        pass  # with bytes of 255, which are NaN


class _OfNeighbours(_OfComm):
    paired = True

    def roles(self, call: Call) -> Iterator[tuple[Buffer, str, int, Any]]:
        for buffer in call.row.buffers:
            sends = buffer.role == "<"
            degree = call.owner.outdegree if sends else call.owner.indegree
            yield buffer, buffer.role, degree, None


@functools.cache
def lacks_persistent() -> bool:
    """Tell whether MPI has no persistent collectives."""
    try:
        MPI.COMM_SELF.Barrier_init().Free()
    except (AttributeError, NotImplementedError):
        return True
    return False


def _nonblocking(name: str) -> str:
    return "I" + name[0].lower() + name[1:]


def _forms() -> Iterator[tuple[str, Row, Family, Callable[[Call], Any]]]:
    """Give every collective in its three forms, and MPI's agreement."""
    for row in table.collectives():
        near = row.name.startswith("Neighbor")
        family = _OfNeighbours() if near else _OfComm()
        name = row.name
        yield name, row, family, at_once
        yield _nonblocking(name), row, family, by_request
        yield name + "_init", row, family, StagedPrequest
    for row in rows_of(table.AGREEMENT):
        yield row.name, row, _OfComm(), by_request


def comm_calls(base: type, mpis: bool = False) -> dict[str, Any]:
    """Give the replacements of the collectives of a type of mpi4py's, by name.

    mpis: for host-only communicators.
    """
    return {
        name: staged_call(
            getattr(base, name),
            row,
            family,
            end,
            getattr(base, _nonblocking(row.name))
            if end is StagedPrequest
            else None,
            mpis,
        )
        for name, row, family, end in _forms()
        if hasattr(base, name)
    }
