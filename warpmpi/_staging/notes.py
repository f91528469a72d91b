# SPDX-License-Identifier: BSD-3-Clause
"""Notes that explain MPI's errors in collectives."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

_TEXTS = {
    MPI.ERR_OP: (
        "op: MPI does not compute this op with elements of this type; use an "
        "op that MPI has for them (MPI.SUM of numbers, MPI.LAND of bool; "
        "MPI.REPLACE and MPI.NO_OP are for windows), or convert the elements"
    ),
    MPI.ERR_TYPE: (
        "a datatype is MPI.DATATYPE_NULL, was freed, or Commit() was not "
        "called"
    ),
    MPI.ERR_COUNT: "a count is negative, or does not fit a C int",
    MPI.ERR_TRUNCATE: (
        "a rank sends more than another rank receives: counts and datatypes "
        "of all ranks must fit; WARPMPI_CHECK=1 reports which do not"
    ),
    MPI.ERR_ARG: (
        "an argument is out of its range, or a buffer is both sent and "
        "received into: give MPI.IN_PLACE"
    ),
    MPI.ERR_BUFFER: (
        "a buffer is missing, or both sent and received into: give "
        "MPI.IN_PLACE"
    ),
}


def _of_root(comm: Any, root: Any) -> str:
    if comm.Is_inter():
        return (
            f"root={root}: a rank of the other group, MPI.ROOT or "
            "MPI.PROC_NULL is expected"
        )
    return (
        f"root={root} is not a rank of this communicator: use 0 to "
        f"{comm.Get_size() - 1}"
    )


def add(error: MPI.Exception, call: str, owner: Any, root: Any) -> None:
    """Add a note to an error: the call, the likely cause and the cure.

    root: the root of the call; None if it has none.
    """
    kind = error.Get_error_class()
    text = _TEXTS.get(kind)
    if root is not None and kind in (MPI.ERR_ROOT, MPI.ERR_RANK):
        text = _of_root(owner, root)
    if text is not None and hasattr(error, "add_note"):  # Python 3.11
        error.add_note(f"{call}: {text}")
