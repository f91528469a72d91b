# SPDX-License-Identifier: BSD-3-Clause
"""How the ranks of a communicator get to know each other."""

import os

import pytest

import compiled
import ranks

# Preloaded: tells of collectives on other communicators than the program's.
TOLD = """
    #include <mpi.h>
    #include <stdio.h>

    #define TELL(name, params, args)                                       \\
        int MPI_##name params                                              \\
        {                                                                  \\
            if (comm != MPI_COMM_WORLD)                                    \\
                fprintf(stdout, "MPI_" #name "\\n");                        \\
            return PMPI_##name args;                                       \\
        }

    TELL(Allgather, (const void *from, int n, MPI_Datatype a, void *into,
                     int m, MPI_Datatype b, MPI_Comm comm),
         (from, n, a, into, m, b, comm))
    TELL(Alltoall, (const void *from, int n, MPI_Datatype a, void *into,
                    int m, MPI_Datatype b, MPI_Comm comm),
         (from, n, a, into, m, b, comm))
"""

PROGRAM = """
    from mpi4py import MPI
    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    assert comm.sendrecv(comm.rank, after, source=before) == before
"""


@pytest.mark.programs
@pytest.mark.parametrize("number", [2, 3])
def test_ranks_meet_by_messages(tmp_path, number):
    """Open MPI makes others behind a communicator of several hosts in its
    first collective."""
    preloaded = compiled.library(tmp_path, TOLD)
    preload = f"{os.environ.get('LD_PRELOAD', '')} {preloaded}".strip()
    printed = ranks.run_text(
        tmp_path, PROGRAM, ranks=number, LD_PRELOAD=preload
    )
    assert printed == ""
