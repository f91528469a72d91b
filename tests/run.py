# SPDX-License-Identifier: BSD-3-Clause
"""Runs the suites, and prints one closing line over all of them.

    python tests/run.py [unit] [mpi] [hosts] [mpi4py] [host-only] [lint]
        [--ranks 1 2 4] [-- pytest's own]
    python tests/run.py mpi --ranks 2 -- tests/mpi/test_probe.py -k dropped

unit: everything outside tests/mpi and tests/hosts, in one process; mpi:
tests/mpi under mpirun, once for each number of ranks; hosts: tests/hosts, and
a part of mpi4py's own, in jobs on several hosts, which are namespaces;
mpi4py: more of these (mpi4py_suite.py has the whole); host-only: all of them,
in a job without GPUs; lint: formatters, type checkers and the documentation
site, each counted as one test. Without a name, all of them. The simulated
driver serves unless --gpu.
Exits with 1 if anything failed or hung.

A sample runs, unless pytest is given arguments, WARPMPI_TEST_FULL is set, or
the GPUs are real: one in eight of a test's parameters (WARPMPI_TEST_EVERY
says another number), a third of the tests that start programs, no test that is
marked `long`, and, as 2 ranks run all others, a quarter of these on another
number of ranks. With --share N one in N of these.

Three suites run at a time, the longest first. A line is printed every 20
seconds and as each suite ends, and the output of one that failed. Tests that
start programs mostly wait for these: they are suites of their own, on one
rank. On real GPUs, and where files are named, one comes after the other.
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
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "build_tools"))

import mpirun  # noqa: E402
import toolchain  # noqa: E402

PYTEST_MAIN = str(ROOT / "tests" / "pytest_main.py")
LOG_TAIL = 200  # lines of each other rank's log that are shown
TEXT_TAIL = 12  # lines of a failure that are said once more at the end
ERROR_LINES = 5  # of its error, which are said before them
LANES = 3  # of two cores: there is always one that waits
# What writes the documentation site.
SITE = "-m sphinx -q -W --keep-going -d build/doctrees docs build/docs".split()
FAILURES = "===== what failed"  # before the last list of failures
EVERY = 8  # one in so many of a test's parameters runs, unless asked for
PROGRAMS = 3  # parts of the tests that start programs
# One in so many of the tests, unless asked for.
PROGRAMS_SHARE = 3
OTHER_RANKS_SHARE = 4  # of those that 2 ranks run

_running = set()  # what run() waits for, in all threads
_results = set()  # files with a line for each test that has ended


def make_starts_cheap():
    """Sets what each of the thousand processes that tests start would redo."""
    # Compiled once, also for one who wants no bytecode in the tree.
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        os.environ["PYTHONPYCACHEPREFIX"] = str(ROOT / "build" / "pycache")
    # Two ranks' lines are told apart only where each is one write.
    os.environ.pop("PYTHONUNBUFFERED", None)
    # Its threads begin with a spin, and no test multiplies matrices.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("WARPMPI_TUNED", "")  # nor is one's own file meant
    for name, value in mpirun.ON_ONE_HOST.items():
        os.environ.setdefault(name, value)


def run(command, limit, environment=None, out=None):
    """Runs it in a process group of its own, which ends when it is late.

    out: a file for what it prints. Returns the exit status, or None after a
    hang.
    """
    env = dict(os.environ, **(environment or {}))
    child = subprocess.Popen(
        command,
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=out and subprocess.STDOUT,
        start_new_session=True,
    )
    _running.add(child)
    try:
        return child.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _running.discard(child)
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


def pytest_suite(title, ranks, arguments, limit, told, out=None):
    """One pytest run on some ranks (0: without mpirun).

    told: its environment. Returns the counts of its outcomes, and its
    failures in words.
    """
    heading(title, out)
    with tempfile.TemporaryDirectory(
        prefix="warpmpi-test-", ignore_cleanup_errors=True
    ) as folder:
        words = [sys.executable, PYTEST_MAIN, folder, *arguments]
        # Nobody meets what the killed ones of other suites left.
        told = {**told, "TMPDIR": folder}
        if ranks:
            words, added = mpirun.command(ranks, *words)
            told = {**told, **added}
        results = Path(folder, "rank0.jsonl")
        _results.add(results)
        status = run(words, limit, told, out)
        _results.discard(results)
        counts = Counter()
        bad = []
        dead = []
        for rank in range(max(ranks, 1)):
            path = Path(folder, f"rank{rank}.jsonl")
            if rank == 0 and path.is_file():
                for line in path.read_text().splitlines():
                    name, outcome, text = json.loads(line)
                    counts[outcome] += 1
                    if text:
                        lines = shortened(text.splitlines())
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
            show_logs(folder, out)
        if dead:
            how = "hung" if status is None else f"ended with {status}"
            print(f"\n{title}: {how}", *dead, sep="\n  ", file=out, flush=True)
            counts["failed"] += 1
            bad.append("\n  ".join([f"{title}: {how}", *dead]))
    return counts, bad


def shortened(lines):
    """The lines of a failure that tell most: its error, and then its end."""
    errors = [line for line in lines if line.startswith("E  ")]
    return [*errors[:ERROR_LINES], "[...]", *lines[-TEXT_TAIL:]]


def show_logs(folder, out):
    for log in sorted(Path(folder).glob("rank*.log")):
        lines = log.read_text(errors="replace").splitlines()
        print(f"\n----- {log.stem}", *lines[-LOG_TAIL:], sep="\n", file=out)


def heading(title, out=None):
    print(f"\n===== {title}", file=out, flush=True)


def beside_python(program):
    path = os.path.dirname(sys.executable)
    return shutil.which(program, path=path) or shutil.which(program)


def lints():
    """Name and command of every lint."""
    python = sys.executable
    sources = sorted(
        str(path.relative_to(ROOT))
        for folder in ("src", "tests/simcuda", "tests/simnccl", "tests/simucx")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".c", ".h", ".cu", ".cpp", ".cc")
    )
    ruff = beside_python("ruff") or "ruff"
    clang_format = beside_python("clang-format") or "clang-format"
    return {
        "ruff check": [ruff, "check", "."],
        "ruff format": [ruff, "format", "--check", "."],
        "stubs": [python, "build_tools/stubs.py", "--check"],
        "mypy": [python, "-m", "mypy"],
        "stubtest": [python, "-m", "mypy.stubtest", "warpmpi._core"],
        "types": [python, "tests/check_types.py"],
        "clang-format": [clang_format, "--dry-run", "-Werror", *sources],
        "documents": [python, *SITE],
    }


def lint(name, command, out=None):
    """One of them, which counts as one test."""
    heading(f"lint: {name}", out)
    if shutil.which(command[0]) is None:
        return Counter(failed=1), [f"lint: {command[0]} is not installed"]
    if run(command, 300, out=out) != 0:
        return Counter(failed=1), [f"lint: {name}"]
    return Counter(passed=1), []


def in_turn(suites):
    """Runs one suite after the other, whose output is seen as it comes."""
    return [run(None) for _, run in suites]


class Lanes:
    """Runs several suites at a time; says one line as each ends.

    Every SECONDS a line tells how many tests have ended. The output of a
    suite that failed is shown when it has ended.
    """

    SECONDS = 10

    def __init__(self, suites):
        self.left = list(suites)
        self.total = len(suites)
        self.done = []
        self.started = time.monotonic()
        self.lock = threading.Lock()
        self.ended = threading.Event()

    def run(self):
        with ThreadPoolExecutor(LANES + 1) as pool:
            tells = pool.submit(self.tell)
            try:
                lanes = [pool.submit(self.lane) for _ in range(LANES)]
                for lane in as_completed(lanes):
                    lane.result()
            except BaseException:
                self.left.clear()  # the pool waits for what runs
                for child in list(_running):
                    kill_group(child, signal.SIGTERM)
                raise
            finally:
                self.ended.set()
            tells.result()
        return self.done

    def lane(self):
        while suite := self.next():
            self.suite(*suite)

    def next(self):
        with self.lock:
            return self.left.pop(0) if self.left else None

    def suite(self, title, run):
        started = time.monotonic()
        with tempfile.TemporaryFile("w+", errors="replace") as out:
            try:
                counts, bad = run(out)
            except BaseException:
                with self.lock:
                    show(out)
                raise
            with self.lock:
                self.done.append((counts, bad))
                if bad:
                    show(out)
                print(
                    f"[{len(self.done)}/{self.total}] {title}: "
                    f"{summary(counts, time.monotonic() - started)}",
                    flush=True,
                )

    def tell(self):
        while not self.ended.wait(self.SECONDS):
            with self.lock:
                ended = sum(sum(counts.values()) for counts, _ in self.done)
                ended += sum(map(lines_of, list(_results)))
                seconds = time.monotonic() - self.started
                print(f"{seconds:5.0f} s: {ended} tests", flush=True)


def show(file):
    """Copies what was written to a file."""
    file.seek(0)
    shutil.copyfileobj(file, sys.stdout)
    sys.stdout.flush()


def lines_of(path):
    """The number of lines that a file has by now."""
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0


def summary(counts, seconds):
    return (
        f"{counts['passed']} passed, {counts['failed']} failed, "
        f"{counts['skipped']} skipped in {seconds:.0f} s"
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ("unit", "mpi", "hosts", "mpi4py", "host-only", "lint")
    parser.add_argument("suites", nargs="*", metavar="suite", default=[])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--gpu", action="store_true", help="real GPUs")
    parser.add_argument(
        "--limit", type=float, default=1500, help="seconds for one suite"
    )
    parser.add_argument(
        "--share", type=int, default=1, metavar="N", help="one test in N"
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
    full = os.environ.get("WARPMPI_TEST_FULL") == "1"
    asked = passed_on or options.gpu or full
    os.environ.setdefault("WARPMPI_TEST_EVERY", "1" if asked else str(EVERY))
    make_starts_cheap()
    started = time.monotonic()
    color = "yes" if sys.stdout.isatty() else "no"  # mpirun hides that
    named = any(word.startswith("tests/") for word in passed_on)
    common = ["-q", "-p", "no:cacheprovider", f"--color={color}", *passed_on]
    limit = options.limit
    chosen = []  # how long it takes, about, and what runs it
    if "mpi" in suites:
        paths = [] if named else ["tests/mpi"]
        # For tests that start ranks of their own.
        words, told = mpirun.launcher(max(options.ranks))
        told["WARPMPI_TEST_MPIRUN"] = " ".join(words)

        def mpi(seconds, title, ranks, share, *words):
            share *= options.share
            words = ["--share", "1" if asked else str(share), *words]
            words += [*common, *paths]
            title = f"mpi, {title}"
            run = partial(pytest_suite, title, ranks, words, limit, told)
            chosen.append((seconds, title, run))

        for ranks in options.ranks:
            title = f"{ranks} rank{'s' if ranks > 1 else ''}"
            seconds = {1: 50, 2: 250}.get(ranks, 120)
            share = 1 if ranks == 2 else OTHER_RANKS_SHARE
            mpi(seconds / share, title, ranks, share, "-m", "not programs")
        parts = 1 if options.gpu or named else PROGRAMS
        for part in range(1, parts + 1) if 1 in options.ranks else ():
            which = f"{part}/{parts}"
            title = f"programs, part {which}" if parts > 1 else "programs"
            words = ("-m", "programs", "--part", which)
            seconds = 450 / PROGRAMS_SHARE / parts
            mpi(seconds, title, 1, PROGRAMS_SHARE, *words)
    if "unit" in suites:
        ignored = ["--ignore=tests/mpi", "--ignore=tests/hosts"]
        paths = [] if named else ["tests", *ignored]
        share = "1" if asked else str(options.share)
        words = ["--share", share, *common, *paths]
        run = partial(pytest_suite, "unit", 0, words, limit, {})
        chosen.append((100, "unit", run))
    here = any(word.startswith("tests/hosts") for word in passed_on)
    if "hosts" in suites and (here or not named):
        words = [*common, *([] if named else ["tests/hosts"])]
        run = partial(pytest_suite, "hosts", 0, words, limit, {})
        chosen.append((60, "hosts", run))
    if {"hosts", "mpi4py", "host-only"} & set(suites):
        import mpi4py_suite

        if "hosts" in suites and not passed_on:
            title = "mpi4py's own, between hosts"
            chosen.append((40, title, mpi4py_suite.between_hosts))
        if "mpi4py" in suites:
            chosen.append((50, "mpi4py's own", mpi4py_suite.chosen))
        if "host-only" in suites:
            title = "mpi4py's own, without GPUs"
            chosen.append((90, title, mpi4py_suite.host_only))
    if "lint" in suites:
        for name, command in lints().items():
            chosen.append((5, f"lint: {name}", partial(lint, name, command)))
    chosen.sort(key=lambda each: each[0], reverse=True)
    runs = [(title, run) for _, title, run in chosen]
    done = in_turn(runs) if options.gpu or named else Lanes(runs).run()
    total = sum((counts for counts, _ in done), Counter())
    failures = [text for _, bad in done for text in bad]
    if failures:
        print(f"\n{FAILURES}", *failures, sep="\n\n", flush=True)
    print(f"\n{summary(total, time.monotonic() - started)}", flush=True)
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except toolchain.ToolchainError as error:
        sys.exit(f"warpmpi: {error}")
