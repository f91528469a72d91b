# SPDX-License-Identifier: BSD-3-Clause
"""Runs mpi4py's own test suite on warpmpi's communicators.

    python tests/mpi4py_suite.py [--ranks 1 2 4 | --hosts 2 2]
        [--backend none host stand-in]
        [--modules p2p_buf cco_buf ...] [--source DIR] [--limit SECONDS]

Each module of the suite runs under mpirun, `python -m warpmpi`, in a process
group of its own; a table of what passed, failed and was skipped ends it. The
suite is that of the installed mpi4py: its source distribution is taken from
--source, else fetched by pip into build/. A test counts once: failed where it
failed on any rank, skipped where it was skipped on all.

Backends: none (in a job without GPUs, whichever driver there is), host (lists,
array, NumPy, DLPack and pretended GPU arrays in host memory), stand-in
(tests/cupy_stand_in on the simulated driver, beside them) and cupy (the
installed CuPy on real GPUs, beside them). Needs nothing but what runs a
program of mpi4py's.

--stock runs them without warpmpi, to tell whose a failure is.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path

from hosts import launch
from run import ROOT, heading, mpirun, run, toolchain

BUILD = ROOT / "build"
SIMCUDA = BUILD / "simcuda" / "libsimcuda.so"
PROGRAM = str(ROOT / "tests" / "mpi4py_main.py")
STAND_IN = str(ROOT / "tests" / "cupy_stand_in")
GRACE = 30  # seconds beyond the limit, in which ranks end by themselves
BACKENDS = ("none", "host", "stand-in", "cupy")
# Tests of what a wm.Comm does otherwise, and why.
DIFFERENT = {
    "testNonContiguous": "it takes arrays with strides, which mpi4py refuses",
    "testNotContiguous": "likewise",
    "testCAPI": "mpi4py's interface for C makes objects of its own types",
}
# They make datatypes, which are mpi4py's own, and take long.
TYPES_ALONE = {"datatype", "util_dtlib"}
# What tests/run.py runs of it on 2 ranks, beside all of backend none.
CHOSEN = {
    "host": """
        cco_buf cco_vec comm comm_inter comm_topo doc msgspec msgzero op
        p2p_buf_matched p2p_obj_matched request status threads util_pkl5
    """.split(),
    "stand-in": "msgzero p2p_buf_matched request status".split(),
}
# And between two hosts of two ranks.
CHOSEN_BETWEEN_HOSTS = "cco_obj msgzero p2p_buf_matched p2p_obj".split()

_fetching = threading.Lock()


def source(given):
    """The folder of mpi4py's sources; fetched once where none is given."""
    with _fetching:
        return _source(given)


def _source(given):
    if given:
        folder = Path(given).resolve()
        if not (folder / "test" / "main.py").is_file():
            sys.exit(f"warpmpi: --source {given}: it has no test/main.py")
        return folder
    name = f"mpi4py-{version('mpi4py')}"
    folder = BUILD / name
    if not (folder / "test" / "main.py").is_file():
        BUILD.mkdir(exist_ok=True)
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet"),
                *("--disable-pip-version-check", "--no-deps"),
                *("--no-binary", "mpi4py", "--dest", str(BUILD)),
                name.replace("-", "=="),
            ],
            check=True,
            stdin=subprocess.DEVNULL,
        )
        with tarfile.open(BUILD / f"{name}.tar.gz") as archive:
            archive.extractall(BUILD, **safely())
    return folder


def safely():
    """What keeps an archive inside of its folder, where Python has it."""
    return {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def modules_of(folder, wanted):
    """The names of the modules, without test_ and .py."""
    names = sorted(
        path.stem[len("test_") :]
        for path in (folder / "test").glob("test_*.py")
    )
    unknown = set(wanted or ()) - set(names)
    if unknown:
        sys.exit(f"warpmpi: no such module: {', '.join(sorted(unknown))}")
    return [name for name in names if not wanted or name in wanted]


def environment(backend):
    """What the ranks need to know beyond what is set already."""
    paths = [str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    added = {
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONSAFEPATH": "1",  # an installed warpmpi, not that of the tree
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    if backend == "none":
        added |= {"WARPMPI_CUDA_DRIVER": "", "CUDA_VISIBLE_DEVICES": ""}
    if backend == "stand-in" or (backend == "host" and SIMCUDA.is_file()):
        if not SIMCUDA.is_file() and "WARPMPI_CUDA_DRIVER" not in os.environ:
            sys.exit("warpmpi: no simulated driver: build it: make simcuda")
        for name, value in (
            ("WARPMPI_CUDA_DRIVER", str(SIMCUDA)),
            ("SIMCUDA_DEVICES", "2"),
            ("SIMCUDA_MODE", "lazy"),
        ):
            added[name] = os.environ.get(name, value)
    return added


class Job:
    """One run of some modules on some ranks."""

    def __init__(self, options, folder, backend, ranks, modules):
        self.options, self.folder, self.ranks = options, folder, ranks
        self.backend, self.modules = backend, modules
        self.title = modules[0] if len(modules) == 1 else "all"
        kind = "stock" if options.stock else backend
        self.logs = BUILD / "mpi4py-suite" / f"{kind}-{ranks}" / self.title
        self.outcomes = {}
        self.times = {}
        self.ends = []  # what ended early, in words

    def command(self):
        names = "|".join(self.modules)
        arguments = [f"-itest_({names})[.]py$"]
        if self.backend in ("stand-in", "cupy"):
            arguments.append("--cupy")
        if self.backend == "stand-in":
            arguments.append(f"--path={STAND_IN}")
        arguments += [f"-x{pattern}" for pattern in self.options.exclude]
        if self.options.failfast:
            arguments.append("-f")
        package = "mpi4py" if self.options.stock else "warpmpi"
        hosts = [str(number) for number in self.options.hosts or ()]
        words, added = mpirun.command(self.ranks)
        if hosts:
            words, added = [sys.executable, launch.__file__, "--ranks"], {}
            words += [*hosts, "--"]
        words += (
            *(sys.executable, "-m", package, PROGRAM, str(self.logs)),
            *(str(self.options.limit), str(self.folder / "test" / "main.py")),
            *("-v", *arguments),
        )
        return words, added

    def run(self, out=None):
        shutil.rmtree(self.logs, ignore_errors=True)
        self.logs.mkdir(parents=True)
        words, added = self.command()
        limit = self.options.limit * len(self.modules) + GRACE
        added = {**added, **environment(self.backend)}
        status = run(words, limit, added, out)
        for rank in range(self.ranks):
            self.read(rank)
        if status is None:
            self.ends.append(f"late: more than {limit:.0f} s")
        elif status != 0 and not self.ends:
            self.ends.append(f"ended with status {status}")

    def read(self, rank):
        """What a rank's journal tells: outcomes, seconds, an early end."""
        path = self.logs / f"rank{rank}.tests"
        lines = path.read_text().splitlines() if path.is_file() else []
        current = "its start"
        for line in lines:
            moment, event, *name = line.split(" ", 2)
            if event == "end":
                return
            current = name[0]
            module = module_of(current)
            first, _ = self.times.get((rank, module), (float(moment), 0))
            self.times[rank, module] = first, float(moment)
            before = self.outcomes.setdefault(current, {}).get(rank, "")
            if event in ("failed", "skipped") or not before:
                self.outcomes[current][rank] = max(before, event, key=worth)
        self.ends.append(f"rank {rank} did not end: it was in {current}")

    def row(self, module):
        """Counts of one module, its seconds, and its failures in words."""
        counts, bad = Counter(), []
        for name, outcomes in self.outcomes.items():
            if module_of(name) != module:
                continue
            if "failed" in outcomes.values():
                counts["failed"] += 1
                bad.append(name.removeprefix(f"test_{module}."))
            elif set(outcomes.values()) == {"skipped"}:
                counts["skipped"] += 1
            else:
                counts["passed"] += 1
        spans = [
            last - first
            for (_, other), (first, last) in self.times.items()
            if other == module
        ]
        return counts, max(spans, default=0), bad


def worth(event):
    return ("", "begin", "stop", "skipped", "failed").index(event)


def module_of(test):
    """The module of a test by its full name, or of a failed import."""
    words = test.split(".")
    name = words[2] if words[0] == "unittest" else words[0]
    return name.removeprefix("test_")


def suite(options, folder, out=None):
    """Every run that was asked for; counts, and failures in words."""
    total, bad = Counter(), []
    modules = modules_of(folder, options.modules)
    width = max(map(len, modules))
    for backend in options.backend:
        for ranks in [sum(options.hosts)] if options.hosts else options.ranks:
            heading(
                f"mpi4py {folder.name.split('-')[-1]}, {backend}, "
                f"{ranks} rank{'s' if ranks > 1 else ''}"
                + (f" on hosts {options.hosts}" if options.hosts else "")
                + (", without warpmpi" if options.stock else ""),
                out,
            )
            groups = [[name] for name in modules]
            for group in [modules] if options.together else groups:
                job = Job(options, folder, backend, ranks, group)
                job.run(out)
                where = f"{backend}, {ranks} ranks"
                for name in group:
                    counts, seconds, wrong = job.row(name)
                    if not sum(counts.values()) and not job.ends:
                        job.ends.append(f"no test of {name} ran")
                    print(
                        f"{name:{width}} {counts['passed']:5} passed "
                        f"{counts['failed']:3} failed "
                        f"{counts['skipped']:3} skipped "
                        f"{seconds:5.1f} s",
                        *(job.ends[:1] if len(group) == 1 else ()),
                        file=out,
                        flush=True,
                    )
                    total += counts
                    if wrong:
                        bad.append(f"{where}: {name}: {' '.join(wrong)}")
                if job.ends:
                    total["failed"] += 1
                    bad += [f"{where}, {job.title}: {e}" for e in job.ends]
    if bad:
        told = "\nfailed (logs: build/mpi4py-suite):"
        print(told, *bad, sep="\n  ", file=out)
    return total, bad


def chosen(out=None):
    """The part that every test run has; counts, and failures in words."""
    total, bad = Counter(), []
    folder = source(None)
    for backend, modules in CHOSEN.items():
        options = arguments([*at_once(backend), "--modules", *modules])
        counts, wrong = suite(options, folder, out)
        total += counts
        bad += [f"mpi4py: {text}" for text in wrong]
    return total, bad


def host_only(out=None):
    """All of it in a job without GPUs: what passes there without warpmpi."""
    folder = source(None)
    options = arguments(at_once("none"))
    options.modules = set(modules_of(folder, None)) - TYPES_ALONE
    total, bad = suite(options, folder, out)
    named = {text.split(": ")[1] for text in bad}
    options.modules = named & set(modules_of(folder, None))
    if options.modules:
        options.stock = True
        _, stock = suite(options, folder, out)
        bad = [text for text in bad if text not in stock]
        total["failed"] = len(bad)
    return total, [f"mpi4py: {text}" for text in bad]


def between_hosts(out=None):
    """A smaller part on two hosts; counts, and failures in words."""
    lacks = launch.missing()
    if lacks:
        print(f"skipped: {lacks}", file=out)
        return Counter(skipped=1), []
    words = [*at_once("host"), "--hosts", "2", "2", "--modules"]
    options = arguments([*words, *CHOSEN_BETWEEN_HOSTS])
    total, bad = suite(options, source(None), out)
    return total, [f"mpi4py, between hosts: {text}" for text in bad]


def at_once(backend):
    """The options of a run on 2 ranks, one process each for all modules."""
    words = ["--backend", backend, "--ranks", "2", "--together"]
    return [*words, "--limit", "120"]


def arguments(words=None):
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument(
        "--hosts", type=int, nargs="+", help="ranks of each (hosts/launch.py)"
    )
    parser.add_argument(
        "--backend", nargs="+", choices=BACKENDS, default=["host", "stand-in"]
    )
    parser.add_argument("--modules", nargs="+", help="default: all of them")
    parser.add_argument("--source", help="mpi4py's unpacked sources")
    parser.add_argument(
        "--limit", type=float, default=120, help="seconds for one module"
    )
    parser.add_argument(
        "--together", action="store_true", help="all modules in one process"
    )
    parser.add_argument(
        "--exclude",
        nargs="+",
        default=list(DIFFERENT),
        help="names of tests to leave out (default: DIFFERENT of this file)",
    )
    parser.add_argument("--failfast", action="store_true")
    parser.add_argument("--stock", action="store_true", help="not on warpmpi")
    return parser.parse_args(words)


def main():
    options = arguments()
    started = time.monotonic()
    total, _ = suite(options, source(options.source))
    print(
        f"\n{total['passed']} passed, {total['failed']} failed, "
        f"{total['skipped']} skipped in {time.monotonic() - started:.0f} s",
        flush=True,
    )
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except toolchain.ToolchainError as error:
        sys.exit(f"warpmpi: {error}")
