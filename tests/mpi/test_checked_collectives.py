# SPDX-License-Identifier: BSD-3-Clause
"""WARPMPI_CHECK: what the ranks say of one collective is compared."""

import pytest
from mpi4py import MPI

import ranks

pytestmark = pytest.mark.skipif(
    MPI.COMM_WORLD.size > 1, reason="starts its own ranks"
)


def test_it_is_set_on_all_ranks_or_on_none(tmp_path):
    text = """
        import os
        from mpi4py import MPI
        if MPI.COMM_WORLD.rank == 1:
            os.environ["WARPMPI_CHECK"] = "1"
        import warpmpi as wm
        try:
            wm.Comm(MPI.COMM_WORLD)
        except RuntimeError as error:
            print(error)
    """
    printed = ranks.run_text(tmp_path, text, WARPMPI_CHECK="0")
    assert printed.count("WARPMPI_CHECK is set on rank 1 and not on") == 2
