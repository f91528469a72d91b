# SPDX-License-Identifier: BSD-3-Clause
"""The MPI library that mpi4py runs; called by the core as it is imported."""

from mpi4py import MPI


def check(ours: str, compiler: str) -> None:
    """Two MPI libraries in one process crash: better told at import.

    ours: what the one says that the core is linked with.
    """
    text = MPI.Get_library_version().partition("\0")[0]  # some count it, too
    theirs = text.rstrip("\n ")
    if not ours.startswith(theirs):
        raise ImportError(
            "warpmpi was built for another MPI than the one mpi4py runs: "
            f"built with {compiler} for '{ours:.80}', mpi4py runs "
            f"'{theirs:.80}'. Rebuild it with the MPI in use: "
            "MPICC=/path/to/mpicc pip install --force-reinstall --no-binary "
            "warpmpi warpmpi, or start the program with the mpirun it was "
            "built for"
        )
