# SPDX-License-Identifier: BSD-3-Clause
"""Ranks that a test starts itself, with settings or an end of their own."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAUNCH = ROOT / "tests" / "hosts" / "launch.py"
# These processes run with AddressSanitizer (`make test-asan`).
ASAN = "asan" in os.environ.get("LD_PRELOAD", "")

sys.path.insert(0, str(ROOT / "build_tools"))
import mpirun  # noqa: E402

# What a launcher leaves in its ranks' environment, and would take for its own.
_LAUNCHERS = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "HYDRA")
# What says that this is such a rank, and what its user may have set.
_RANK = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}
_USERS = ("OMPI_ALLOW_RUN", "OMPI_MCA_btl", "OMPI_MCA_plm")


def clean_environment(**changes):
    """This process's environment, as if no launcher had started it."""
    kept = dict(os.environ)
    if not _RANK.isdisjoint(kept):
        for key in os.environ:
            if key.startswith(_LAUNCHERS) and not key.startswith(_USERS):
                del kept[key]
    return {**kept, **changes}


def run(
    *program,
    ranks=2,
    timeout=80,
    wrapper=(),
    flags=(),
    hosts=(),
    died=False,
    status=0,
    **environment,
):
    """Runs a Python program and its arguments on so many ranks.

    The program can import the modules of tests/.
    program: a file's path, or a text that "-c" runs. ranks: 0 starts it
    without a launcher. wrapper: a command before Python. flags: the
    launcher's own. died: one of them will, and its status tells nothing.
    status: with which it must end. Returns what was printed; asserts that all
    went well.
    """
    words = [*wrapper, sys.executable, *map(str, program)]
    paths = *filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT / "tests")
    environment = {"PYTHONPATH": os.pathsep.join(paths), **environment}
    if hosts:
        launch = [sys.executable, str(LAUNCH), "--ranks", *map(str, hosts)]
        words = [*launch, *flags, "--", *words]
    elif ranks:
        told = os.environ.get("WARPMPI_TEST_MPIRUN")
        launch, extra = (told.split(), {}) if told else mpirun.launcher(ranks)
        environment = {**extra, **environment}
        words = [*launch, *flags, "-n", str(ranks), *words]
    # A launcher's folder has its process's number, and one that was killed
    # leaves it behind: the next of that number would not start.
    temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    child = subprocess.Popen(
        words,
        cwd=ROOT,
        env=clean_environment(**{"TMPDIR": temporary.name, **environment}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, errors = child.communicate(timeout=timeout)
    finally:
        if child.poll() is None:
            child.terminate()  # a launcher ends its ranks
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.communicate(timeout=5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        temporary.cleanup()
    assert died or child.returncode == status, printed + errors
    sys.stderr.write(errors)  # pytest shows it where the caller fails
    return printed


def run_text(folder, text, *words, **options):
    """run() on a program given as an indented text, and its arguments."""
    script = folder / "program.py"
    script.write_text(textwrap.dedent(text))
    return run(script, *words, **options)


def run_tests_between_hosts(file, *words, count=2, timeout=80):
    """Runs tests of a file on some ranks, each on a host of its own.

    words: pytest's, which choose the tests.
    """
    text = """
        import os, sys
        rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
        os.environ["WARPMPI_HOST"] = f"host {rank}"
        sys.path[:0] = ["tests", "tests/mpi"]
        import pytest
        sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
    """
    chosen = "-c", textwrap.dedent(text), file, *words
    printed = run(*chosen, ranks=count, timeout=timeout)
    assert " passed" in printed and " failed" not in printed
