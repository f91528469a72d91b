# SPDX-License-Identifier: BSD-3-Clause
"""Nothing leaks: tests/isolated/ in fresh processes, comparing counts."""

import os
from pathlib import Path

import pytest

import ranks

pytestmark = pytest.mark.skipif(
    ranks.ASAN, reason="AddressSanitizer keeps freed memory for a while"
)

FOLDER = Path(__file__).resolve().parent / "isolated"
RANKS = {
    "arrays.py": 0,
    "communicators.py": 2,
    "cycles.py": 2,
    "interchange.py": 0,
    "messages.py": 2,
    "requests.py": 2,
}


def run(name, **environment):
    path = [str(FOLDER.parent), os.environ.get("PYTHONPATH")]
    return ranks.run(
        FOLDER / name,
        ranks=RANKS[name],
        timeout=120,
        PYTHONPATH=os.pathsep.join(filter(None, path)),
        **environment,
    )


def test_every_program_is_run():
    programs = {path.name for path in FOLDER.glob("*.py")} - {"counts.py"}
    assert programs == RANKS.keys()


@pytest.mark.parametrize("name", RANKS)
def test_nothing_leaks(name):
    run(name)


@pytest.mark.parametrize("name", ["messages.py", "requests.py"])
def test_nothing_leaks_through_the_host(name):
    # A host that watches a word orders nothing: lazy streams would take their
    # longest delay for each of thousands of messages.
    run(name, WARPMPI_TRANSPORT="host", SIMCUDA_MODE="eager")
