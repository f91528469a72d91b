# SPDX-License-Identifier: BSD-3-Clause
"""Processes that multiprocessing starts anew: spawn and forkserver.

They import the main module again, and have the environment of the rank that
started them: MPI would take them for that rank. A forked process is told by
the core.
"""

from __future__ import annotations

import sys


def _is_worker() -> bool:
    """Tell by the command line whether multiprocessing has started this.

    While it imports the main module it has no parent_process() yet.
    """
    return any(
        word == "--multiprocessing-fork"
        or word.startswith("from multiprocessing.forkserver import main")
        for word in sys.orig_argv
    )


def keep_mpi_out() -> None:
    """Keep mpi4py from initializing MPI where it must not be used.

    MPI_Init waits there for ranks that do not come.
    """
    if _is_worker() and "mpi4py.MPI" not in sys.modules:
        import mpi4py

        mpi4py.rc.initialize = False


def refuse(what: str) -> None:
    """Raise RuntimeError in such a process; what: the call."""
    if _is_worker():
        raise RuntimeError(
            f"{what}: this process is a child of multiprocessing, which MPI "
            "would take for the rank that started it. It imports the main "
            "module again: put the import of mpi4py.MPI and all code that "
            'uses MPI below `if __name__ == "__main__":`, or set '
            'mpi4py.rc.initialize = __name__ == "__main__" before the import'
        )
