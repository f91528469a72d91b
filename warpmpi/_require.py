# SPDX-License-Identifier: BSD-3-Clause
"""The setting that refuses to stage GPU memory through host memory."""

from __future__ import annotations

from mpi4py import MPI

from . import _core
from ._comm import Comm

_allgather = MPI.Comm.allgather  # mpi4py's own, also after install()


def _compare(comm: MPI.Comm, on: bool, wrong: str | None) -> None:
    """Compare what all ranks give, where no rank has a GPU."""
    given = _allgather(comm, (on, wrong))
    for rank, (theirs, their_wrong) in enumerate(given):
        if their_wrong is not None:
            raise ValueError(wrong or f"rank {rank}: {their_wrong}")
        if theirs != given[0][0]:
            first, other = (
                "gpu" if it else "" for it in (given[0][0], theirs)
            )
            raise RuntimeError(
                f'require: rank 0 gives "{first}" and rank {rank} "{other}": '
                "give the same on all ranks"
            )


def require(what: str | None, comm: MPI.Comm | None = None) -> None:
    """Let calls raise where they would stage GPU memory in host memory.

    what: "gpu"; "" or None takes it back. comm: a wm.Comm, whose ranks all
    call this; None: all communicators of this process, and all ranks of
    MPI.COMM_WORLD call it. The environment variable WARPMPI_REQUIRE=gpu does
    the same from the start.

    Such a call raises wm.StagingError, which says why and what to do: a
    message of GPU memory at both its ends, and a collective in which a rank
    gives GPU memory on all ranks. Data that are in host memory when they are
    sent are not concerned. A blocking send of GPU memory waits for its
    receiver. Raises ValueError for another word, and RuntimeError on all
    ranks if they do not give the same.
    """
    on = what == "gpu"
    wrong = None
    if not on and what not in ("", None):
        wrong = f'require: {what!r} is not known: give "gpu", or "" for none'
    asked = Comm(MPI.COMM_WORLD) if comm is None else comm
    if not hasattr(asked, "_transport"):
        kind = type(comm).__name__
        raise TypeError(
            f"comm: {kind} is not a wm.Comm: make one with wm.Comm(comm)"
        )
    if _core._is_attached(asked):
        _core._require(asked, on, comm is None, wrong)
        return
    _compare(asked, on, wrong)
    if comm is None:
        _core._set_required(on)
