# SPDX-License-Identifier: BSD-3-Clause
"""The programs in README.md and docs/guide.md: each block runs by itself."""

import re
from pathlib import Path

import pytest
from mpi4py import MPI

import ranks

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.skipif(
    MPI.COMM_WORLD.size != 2, reason="programs of two ranks"
)


def programs(name):
    """The blocks marked as Python, by file and line; others are fragments."""
    text = (ROOT / name).read_text()
    found = re.finditer(
        r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL
    )
    return [
        pytest.param(
            each[1], id=f"{name}:{text.count(chr(10), 0, each.start(1)) + 1}"
        )
        for each in found
    ]


PROGRAMS = [*programs("README.md"), *programs("docs/guide.md")]


@pytest.mark.parametrize("text", PROGRAMS)
def test_program_of_the_documents(text, tmp_path, monkeypatch, world):
    """Nothing is left of the block before: it has a namespace of its own."""
    for library in re.findall(r"^import (warp|cupy|torch)\b", text, re.M):
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    if "wm.install()" not in text:
        exec(compile(text, "<guide>", "exec"), {"__name__": "__main__"})
    elif world.rank == 0:  # it would change the tests that come after
        ranks.run_text(tmp_path, text, ranks=2)
    world.Barrier()


def test_there_are_programs():
    assert len(PROGRAMS) > 15
