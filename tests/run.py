# SPDX-License-Identifier: BSD-3-Clause
"""Runs the suites, and prints one closing line over all of them.

    python tests/run.py [unit] [mpi] [mpi4py] [lint] [--ranks 1 2 4]
        [-- pytest's own]
    python tests/run.py mpi --ranks 2 -- tests/mpi/test_probe.py -k dropped

unit: everything outside tests/mpi, in one process; mpi: tests/mpi under
mpirun, once for each number of ranks; mpi4py: a part of mpi4py's own tests
(mpi4py_suite.py has the whole); lint: formatters and type checkers, each
counted as one test. Without a name, all of them. The simulated driver
serves unless --gpu. Exits with 1 if anything failed or hung.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "build_tools"))

import mpirun  # noqa: E402
import toolchain  # noqa: E402

PYTEST_MAIN = str(ROOT / "tests" / "pytest_main.py")
LOG_TAIL = 200  # lines of each other rank's log that are shown
TEXT_TAIL = 30  # lines of a failure that are said once more at the end


def run(command, limit, environment=None):
    """Runs it in a process group of its own, which ends when it is late.

    Returns the exit status, or None after a hang.
    """
    env = dict(os.environ, **(environment or {}))
    child = subprocess.Popen(
        command,
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return child.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if child.poll() is None:
                kill_group(child, number)
                wait(child, 10)
        kill_group(child, signal.SIGKILL)  # what it left behind


def kill_group(child, number):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)


def wait(child, seconds):
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(seconds)


def pytest_suite(title, ranks, arguments, limit):
    """One pytest run on some ranks (0: without mpirun).

    Returns the counts of its outcomes, and its failures in words.
    """
    heading(title)
    with tempfile.TemporaryDirectory(prefix="warpmpi-test-") as folder:
        words = [sys.executable, PYTEST_MAIN, folder, *arguments]
        environment = {}
        if ranks:
            words, environment = mpirun.command(ranks, *words)
        status = run(words, limit, environment)
        counts = Counter()
        bad = []
        dead = []
        for rank in range(max(ranks, 1)):
            path = Path(folder, f"rank{rank}.json")
            if rank == 0 and path.is_file():
                kept = json.loads(path.read_text())
                counts.update(kept["outcomes"].values())
                for name, text in kept["texts"].items():
                    lines = text.splitlines()[-TEXT_TAIL:]
                    bad.append("\n  ".join([f"{title}: {name}", *lines]))
            current = path.with_suffix(".current")
            if current.is_file():
                where = current.read_text()
                dead.append(f"rank {rank} did not end: it was in {where}")
            elif not path.is_file():
                dead.append(f"rank {rank} ended before its first test")
        if status != 0 and not dead:
            dead.append(f"exit status {status}")
        if dead or counts["failed"]:
            show_logs(folder)
        if dead:
            how = "hung" if status is None else f"ended with {status}"
            print(f"\n{title}: {how}", *dead, sep="\n  ", flush=True)
            counts["failed"] += 1
            bad.append("\n  ".join([f"{title}: {how}", *dead]))
    return counts, bad


def show_logs(folder):
    for log in sorted(Path(folder).glob("rank*.log")):
        lines = log.read_text(errors="replace").splitlines()
        print(f"\n----- {log.stem}", *lines[-LOG_TAIL:], sep="\n", flush=True)


def heading(title):
    print(f"\n===== {title}", flush=True)


def beside_python(program):
    path = os.path.dirname(sys.executable)
    return shutil.which(program, path=path) or shutil.which(program)


def lints():
    """Name and command of every lint."""
    python = sys.executable
    sources = sorted(
        str(path.relative_to(ROOT))
        for folder in ("src", "tests/simcuda")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".c", ".h", ".cu", ".cpp", ".cc")
    )
    ruff = beside_python("ruff") or "ruff"
    clang_format = beside_python("clang-format") or "clang-format"
    return {
        "ruff check": [ruff, "check", "."],
        "ruff format": [ruff, "format", "--check", "."],
        "mypy": [python, "-m", "mypy"],
        "stubtest": [python, "-m", "mypy.stubtest", "warpmpi._core"],
        "types": [python, "tests/check_types.py"],
        "clang-format": [clang_format, "--dry-run", "-Werror", *sources],
    }


def lint_suite():
    heading("lint")
    counts, bad = Counter(), []
    for name, command in lints().items():
        print(f"{name}:", flush=True)
        if shutil.which(command[0]) is None:
            bad.append(f"lint: {command[0]} is not installed")
        elif run(command, 300) != 0:
            bad.append(f"lint: {name}")
        else:
            counts["passed"] += 1
    counts["failed"] = len(bad)
    return counts, bad


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ("unit", "mpi", "mpi4py", "lint")
    parser.add_argument("suites", nargs="*", metavar="suite", default=[])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--gpu", action="store_true", help="real GPUs")
    parser.add_argument(
        "--limit", type=float, default=1500, help="seconds for one suite"
    )
    arguments = sys.argv[1:]
    own, passed_on = arguments, []
    if "--" in arguments:
        cut = arguments.index("--")
        own, passed_on = arguments[:cut], arguments[cut + 1 :]
    options = parser.parse_args(own)
    suites = options.suites or names
    if not set(suites) <= set(names):
        parser.error(f"a suite is one of {', '.join(names)}")
    if options.gpu:
        os.environ["WARPMPI_TEST_GPU"] = "1"
    started = time.monotonic()
    done = []
    color = "yes" if sys.stdout.isatty() else "no"  # mpirun hides that
    named = any(word.startswith("tests/") for word in passed_on)
    common = ["-q", "-p", "no:cacheprovider", f"--color={color}", *passed_on]
    if "unit" in suites:
        paths = [] if named else ["tests", "--ignore=tests/mpi"]
        done.append(pytest_suite("unit", 0, [*common, *paths], options.limit))
    if "mpi" in suites:
        # For tests that start ranks of their own.
        words, environment = mpirun.launcher(max(options.ranks))
        os.environ["WARPMPI_TEST_MPIRUN"] = " ".join(words)
        os.environ.update(environment)
        for ranks in options.ranks:
            title = f"mpi, {ranks} rank{'s' if ranks > 1 else ''}"
            words = [*common, *([] if named else ["tests/mpi"])]
            done.append(pytest_suite(title, ranks, words, options.limit))
    if "mpi4py" in suites:
        import mpi4py_suite

        done.append(mpi4py_suite.chosen())
    if "lint" in suites:
        done.append(lint_suite())
    total = sum((counts for counts, _ in done), Counter())
    for text in (text for _, bad in done for text in bad):
        print(f"\nFAILED {text}", flush=True)
    print(
        f"\n{total['passed']} passed, {total['failed']} failed, "
        f"{total['skipped']} skipped in {time.monotonic() - started:.0f} s",
        flush=True,
    )
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except toolchain.ToolchainError as error:
        sys.exit(f"warpmpi: {error}")
