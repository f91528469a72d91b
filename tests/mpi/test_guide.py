# SPDX-License-Identifier: BSD-3-Clause
"""The programs in README.md and docs/: each block runs by itself."""

import pytest
from mpi4py import MPI

import pages
import ranks

pytestmark = pytest.mark.skipif(
    MPI.COMM_WORLD.size != 2, reason="programs of two ranks"
)
# Those marked as Python, by file and line; others are fragments.
PROGRAMS = [
    pytest.param(text, id=f"{page}:{line}")
    for page in pages.PAGES
    for info, text, line in pages.blocks(page)
    if info == "python"
]


@pytest.mark.parametrize("text", PROGRAMS)
def test_program_of_the_documents(text, tmp_path, monkeypatch, world):
    """Nothing is left of the block before: it has a namespace of its own."""
    for library in pages.libraries(text):
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    if "wm.install()" not in text and "warpmpi" in text:
        exec(compile(text, "<guide>", "exec"), {"__name__": "__main__"})
    elif world.rank == 0:  # it would change the tests that come after
        ranks.run_text(tmp_path, text, ranks=2)
    world.Barrier()


def test_there_are_programs():
    assert len(PROGRAMS) > 15
