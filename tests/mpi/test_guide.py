# SPDX-License-Identifier: BSD-3-Clause
"""The programs in README.md and docs/guide.md: each block runs by itself."""

import re
from pathlib import Path

import pytest
from mpi4py import MPI

import ranks
import warpmpi as wm

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


def test_the_readme_s_program_prints_what_it_says(tmp_path, world):
    """Ranks print in any order; the devices are those of two GPUs."""
    program, output = re.search(
        r"^```python\n(.*?)^```.*?^```text\n\$ mpirun .*?\n(.*?)^```",
        (ROOT / "README.md").read_text(),
        re.MULTILINE | re.DOTALL,
    ).groups()
    if wm.get_cuda_device_count() < 2:
        pytest.skip("needs two GPUs")
    printed = None
    if world.rank == 0:
        printed = ranks.run_text(tmp_path, program, ranks=2)
    printed = world.bcast(printed)
    assert sorted(printed.splitlines()) == sorted(output.splitlines())


def test_there_are_programs():
    assert len(PROGRAMS) > 15
