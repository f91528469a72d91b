# SPDX-License-Identifier: BSD-3-Clause
"""pytest on one rank, as tests/run.py starts it: `pytest_main.py DIR …`.

Rank 0 prints; each other rank writes DIR/rankN.log. Every rank leaves its
outcomes in DIR/rankN.jsonl. A program, not `-m pytest`, so that the package
that is installed is tested, and not the one in the current folder.
"""

import os
import sys
import zlib

import pytest


def rank():
    """This process's rank as its launcher told it, before MPI starts."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"):
        if name in os.environ:
            return int(os.environ[name])
    return 0


class Parts:
    """--part K/N: every N-th of the tests, from the K-th on.

    --share N: before that, one in N of the test functions, which the name of
    each decides, with all their parameters; and all that need more than two
    ranks, as they run on no other number.
    """

    def pytest_addoption(self, parser):
        parser.addoption("--part", default="1/1", metavar="K/N")
        parser.addoption("--share", default=1, type=int, metavar="N")

    # After all that choose among them, on which ranks must agree.
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        share = config.getoption("--share")
        which, parts = map(int, config.getoption("--part").split("/"))
        kept = [
            item
            for item in items
            if number_of(item) % share == 0 or needs_many(item)
        ]
        kept = kept[which - 1 :: parts]
        stay = set(kept)
        config.hook.pytest_deselected(
            items=[item for item in items if item not in stay]
        )
        items[:] = kept


def needs_many(item):
    return any(mark.args[0] > 2 for mark in item.iter_markers("ranks"))


def number_of(item):
    """A number of its test function, the same on all ranks."""
    name = getattr(item, "originalname", None) or item.name
    return zlib.crc32(f"{item.path.stem}::{name}".encode())


def main():
    folder, arguments = sys.argv[1], sys.argv[2:]
    me = rank()
    if me > 0:
        log = os.open(
            os.path.join(folder, f"rank{me}.log"),
            os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
            0o644,
        )
        os.dup2(log, 1)
        os.dup2(log, 2)
    os.environ["WARPMPI_TEST_RESULTS"] = os.path.join(
        folder, f"rank{me}.jsonl"
    )
    # Not one of all suites: each clears away what the others have left.
    temporary = os.path.join(folder, f"tmp{me}")
    os.mkdir(temporary)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = temporary
    # For what must be said even when pytest, which captures 2, is killed.
    os.environ["WARPMPI_TEST_STDERR"] = str(os.dup(2))
    status = pytest.main(arguments, plugins=[Parts()])
    # The outcomes tell; a status would make mpirun report every rank's.
    good = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    return 0 if status in (*good, pytest.ExitCode.NO_TESTS_COLLECTED) else 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.exit(code)
