# SPDX-License-Identifier: BSD-3-Clause
"""mpi4py's lower-case collectives, where one rank has nothing to send.

An object that cannot be pickled, or a list of the wrong length, raises before
anything is sent, and the others would wait for ever. So a note of it is sent
in the object's place, which raises where it is unpickled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from .. import _core


def _raise(call: str, rank: int, text: str) -> None:
    raise RuntimeError(
        f"rank {rank} could not send its part of this {call}: {text}"
    )


class _Failure:
    """Pickles as what raises at the receiver."""

    def __init__(self, call: str, rank: int, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"[:500]
        self.arguments = call, rank, text

    def __reduce__(self) -> Any:
        return _raise, self.arguments


def _cannot_pickle(obj: Any) -> bool:
    try:
        MPI.pickle.dumps(obj)
    except Exception:
        return True
    return False


def _cannot_share(objects: Any, ranks: int) -> bool:
    try:
        items = list(objects)
    except TypeError:
        return True
    return len(items) != ranks or any(map(_cannot_pickle, items))


def _tell(
    comm: Any, call: Callable[..., Any], error: Exception, root: Any
) -> None:
    """Take part with a note of the error, for all that this rank sends."""
    name = call.__name__
    note: Any = _Failure(name, comm.rank, error)
    if name in ("scatter", "alltoall"):
        note = [note] * comm.size
    with contextlib.suppress(RuntimeError):  # of what it receives itself
        call(note, *root)


class ObjectCollectives:
    """The lower-case collectives that move objects, but do not reduce.

    Signatures and meaning are mpi4py's. Where a rank cannot pickle what it
    sends, or has a list of another length than there are ranks, it raises
    that, and whoever was to receive from it a RuntimeError that names it.
    """

    def bcast(self: Any, obj: Any, root: int = 0) -> Any:
        """Broadcast an object; root's is returned on all ranks."""
        _core._check_running()
        call = super().bcast  # type: ignore[misc]
        try:
            return call(obj, root)
        except Exception as error:
            sends = not self.Is_inter() and self.rank == root
            if sends and _cannot_pickle(obj):
                _tell(self, call, error, (root,))
            raise

    def gather(self: Any, sendobj: Any, root: int = 0) -> Any:
        """Gather objects into a list at root; None elsewhere."""
        _core._check_running()
        call = super().gather  # type: ignore[misc]
        try:
            return call(sendobj, root)
        except Exception as error:
            if not self.Is_inter() and _cannot_pickle(sendobj):
                _tell(self, call, error, (root,))
            raise

    def scatter(self: Any, sendobj: Any, root: int = 0) -> Any:
        """Scatter a list of root's, an object for each rank."""
        _core._check_running()
        call = super().scatter  # type: ignore[misc]
        try:
            return call(sendobj, root)
        except Exception as error:
            sends = not self.Is_inter() and self.rank == root
            if sends and _cannot_share(sendobj, self.size):
                _tell(self, call, error, (root,))
            raise

    def allgather(self: Any, sendobj: Any) -> Any:
        """Gather objects into a list on all ranks."""
        _core._check_running()
        call = super().allgather  # type: ignore[misc]
        try:
            return call(sendobj)
        except Exception as error:
            if not self.Is_inter() and _cannot_pickle(sendobj):
                _tell(self, call, error, ())
            raise

    def alltoall(self: Any, sendobj: Any) -> Any:
        """Send an object to each rank; returns a list of what came."""
        _core._check_running()
        call = super().alltoall  # type: ignore[misc]
        try:
            return call(sendobj)
        except Exception as error:
            if not self.Is_inter() and _cannot_share(sendobj, self.size):
                _tell(self, call, error, ())
            raise
