# SPDX-License-Identifier: BSD-3-Clause
"""`python -m warpmpi bench`: messages and collectives, beside other libraries.

The benchmarks of the source tree load these modules as the package `_bench`,
without warpmpi: ops, nccl, driver, timing and ways import nothing of it.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

_ME = "python -m warpmpi bench"


def _import() -> tuple[Any, str | None]:
    """Import warpmpi, which starts MPI; return it, or why that fails."""
    if not hasattr(sys.modules["warpmpi"], "install"):
        del sys.modules["warpmpi"]  # an empty namespace, which a start left
    try:
        import warpmpi
    except (ImportError, RuntimeError) as error:
        return None, f"{_ME}: warpmpi cannot be imported: {error}"
    return warpmpi, None


def main(words: list[str]) -> int:
    """Time what the words ask for; return the exit status of all ranks."""
    from .._about import show
    from .._doctor.facts import launcher_rank
    from . import options

    is_first = not launcher_rank()
    if not words or {"-h", "--help"} & set(words):
        if is_first:
            show(options.parser().format_help().rstrip())
        return 0 if words else 2
    warpmpi, missing = _import()
    if missing:
        if is_first:
            print(missing, file=sys.stderr)
        return 2
    from mpi4py import MPI

    from .run import run

    world = MPI.COMM_WORLD
    try:
        chosen, refused = None, None
        try:
            chosen = options.parse(words)
        except options.BadOption as error:
            refused = str(error)
        status, refused = (
            (2, refused) if refused else run(chosen, world, warpmpi)
        )
        if refused and world.rank == 0:
            print(f"{_ME}: {refused}", file=sys.stderr, flush=True)
        # A launcher ends all if one rank has a status: rank 0 has printed.
        status = int(world.bcast(status))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        world.Abort(1)
        raise
    return status
