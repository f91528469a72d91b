# SPDX-License-Identifier: BSD-3-Clause
"""What the benchmarks share: starting ranks, describing the machine, output.

A benchmark never runs MPI itself. It starts each implementation in an mpirun
of its own, with a time limit, so that one that crashes or hangs costs its own
figures only; the ranks append their results to a file of JSON lines.
"""

from __future__ import annotations

import argparse
import datetime
import faulthandler
import functools
import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import package  # noqa: F401  # makes _bench
from _bench.timing import play, together  # noqa: F401

Run = Callable[[str, str], None]  # an implementation, a file for its results
Call = Callable[[], Any]

HERE = Path(__file__).resolve().parent
SLOW = 0.3  # seconds: of a call that is timed three times and no more
CUDA_AWARE_MPI = "WARPMPI_BENCH_CUDA_AWARE_MPI"
PACKAGES = ["warpmpi", "mpi4py", "numpy", "warp-lang", "torch", "matplotlib"]
PACKAGES += ["cupy", "cupy-cuda12x", "cupy-cuda13x", "nvidia-nccl-cu12", "nvidia-nccl-cu13"]


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """The environment of the ranks."""
    environ = dict(os.environ)
    environ.update(
        # NVLink multicast can fail where GPUs are shared between hosts.
        NCCL_NVLS_ENABLE="0",
        TORCH_SYMM_MEM_DISABLE_MULTICAST="1",
        NVSHMEM_DISABLE_NVLS="1",
        # What `mpirun --allow-run-as-root --oversubscribe` says, in the form
        # that every launcher either understands or ignores.
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        OMPI_MCA_rmaps_base_oversubscribe="1",
        PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe",
        PYTHONUNBUFFERED="1",
    )
    environ.update(extra or {})
    return environ


def launcher() -> list[str]:
    """mpirun: $MPIRUN, which may hold options, or the one of the PATH."""
    if "MPIRUN" in os.environ:
        return shlex.split(os.environ["MPIRUN"])
    beside = Path(sys.executable).parent
    found = shutil.which("mpirun") or shutil.which("mpirun", path=str(beside))
    if not found:
        raise SystemExit("no mpirun on the PATH: install an MPI or set MPIRUN")
    return [found]


def cuda_aware_launcher() -> tuple[list[str], dict[str, str]]:
    """mpirun and environment of the CUDA-aware Open MPI to compare with.

    Raises RuntimeError where none is named, or nothing is there.
    """
    prefix = os.environ.get(CUDA_AWARE_MPI)
    if not prefix:
        raise RuntimeError(f"{CUDA_AWARE_MPI} names no CUDA-aware Open MPI")
    root = Path(prefix).resolve()
    library = root / "lib" / "libmpi.so.40"
    if not library.exists():
        raise RuntimeError(f"{CUDA_AWARE_MPI}: there is no {library}")

    def ahead(name: str, *folders: Path) -> str:
        return os.pathsep.join([*map(str, folders), os.environ.get(name, "")]).rstrip(os.pathsep)

    environ = {
        "OPAL_PREFIX": str(root),
        "PATH": ahead("PATH", root / "bin"),
        "LD_LIBRARY_PATH": ahead("LD_LIBRARY_PATH", root / "lib", root / "ucx" / "lib"),
        "UCX_MODULE_DIR": str(root / "ucx" / "lib" / "ucx"),
        "MPI4PY_MPIABI": "openmpi",
        "MPI4PY_LIBMPI": str(library),
    }
    command = [str(root / "bin" / "mpirun"), "--mca", "pml", "ob1"]
    for name in environ:
        command += ["-x", name]
    return command, environ


class Failure(Exception):
    """Why an implementation gave no figures, in one line."""


def run_ranks(
    ranks: int,
    arguments: Sequence[str],
    limit: float,
    extra: dict[str, str] | None = None,
    mpirun: list[str] | None = None,
    log: Path | None = None,
) -> None:
    """Run `python arguments` on so many ranks for at most `limit` seconds.

    Output goes to the log. Raises Failure.
    """
    command = [*(mpirun or launcher()), "-n", str(ranks), sys.executable, *arguments]
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            env=environment(extra),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        late = False
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            late = True
            end_group(process)
        except BaseException:
            end_group(process)
            raise
        output.seek(0)
        text = output.read()
    if log:
        with log.open("a") as file:
            file.write(f"$ {shlex.join(command)}\n{text}\n")
    if late:
        raise Failure(f"not done after {limit:.0f} s")
    if process.returncode:
        raise Failure(reason(text) or f"exit status {process.returncode}")


def end_group(process: subprocess.Popen) -> None:
    """End mpirun, which then ends its ranks, and what may be left of its group."""
    for number, grace in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, number)
            process.wait(grace)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def reason(text: str) -> str:
    """The line of the output that best says why it failed."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = (
        r"^(\w+\.)*\w*(Error|Exception|Failure)\b",
        r"Timeout|[Ss]egmentation fault|Signal: |exited on signal",
        r"[Ee]rror",
    )
    for pattern in telling:
        found = [line for line in lines if re.search(pattern, line)]
        if found:
            return found[0][:300]
    return lines[-1][:300] if lines else ""


def give_up_after(seconds: float) -> None:
    """In a rank: where it still runs then, print where it is and exit."""
    faulthandler.enable()
    faulthandler.dump_traceback_later(seconds, exit=True)


def time_calls(
    world: Any, call: Call, wait: Call, budget: float, repeats: int, calls: int = 1
) -> dict[str, Any]:
    """The microseconds of a call that every rank makes: those of the slowest rank.

    budget: seconds of a block of calls, which `wait` ends. calls: what `call` does at once.
    """
    trial = max(world.allgather(play(call, wait, 1)))
    if trial < budget:
        trial = max(world.allgather(play(call, wait, 10))) / 10
    rounds = max(1, min(2000, int(budget / trial)))
    if trial < SLOW:
        play(call, wait, rounds)  # clocks
    samples = []
    for _ in range(repeats if trial < SLOW else 3):
        world.Barrier()
        samples.append(1e6 * play(call, wait, rounds) / rounds / calls)
    slowest = [max(each) for each in zip(*world.allgather(samples), strict=True)]
    return {
        "us": round(median(slowest), 3),
        "us_min": round(min(slowest), 3),
        "us_max": round(max(slowest), 3),
        "rounds": rounds,
        "repeats": len(samples),
    }


def output_of(*command: str) -> str:
    """A command's output; nothing where it fails or does not exist."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=True, env=environment()
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def machine() -> dict[str, Any]:
    """The machine and its software, for the first line of the results."""
    gpus = output_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    rows = [tuple(map(str.strip, line.split(","))) for line in gpus.splitlines()]
    cuda = re.search(r"CUDA Version: *([\d.]+)", output_of("nvidia-smi"))
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    cpu = ""
    if os.path.exists("/proc/cpuinfo"):
        text = Path("/proc/cpuinfo").read_text()
        cpu = next(iter(re.findall(r"model name\s*: *(.*)", text)), "")
    version = output_of(*launcher(), "--version")
    return {
        "header": True,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "gpus": [row[0] for row in rows],
        "driver": rows[0][1] if rows else None,
        "cuda": cuda.group(1) if cuda else None,
        "mpi": version.splitlines()[0] if version else None,
        "cpu": cpu,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "packages": versions,
        # Its driver is no GPU's, and its figures are not to be reported.
        "simulated": "simcuda" in os.environ.get("WARPMPI_CUDA_DRIVER", ""),
        "command": [word for word in sys.argv[1:] if not word.startswith(("/", "--out"))],
    }


def append(path: str, record: dict[str, Any]) -> None:
    """In rank 0: one more line of results."""
    with open(path, "a") as file:
        file.write(json.dumps(record) + "\n")


class Results:
    """The records of a run, on disk after each implementation."""

    def __init__(self, benchmark: str, args: argparse.Namespace, **header: Any):
        prefix = args.out or default_prefix(benchmark)
        prefix.parent.mkdir(parents=True, exist_ok=True)
        self.args = args
        self.prefix = prefix
        self.log = prefix.with_name(prefix.name + ".log")
        self.log.unlink(missing_ok=True)
        args.log = self.log
        self.header = {"benchmark": benchmark, **machine(), "paths": {}, **header}
        self.records: list[dict[str, Any]] = []

    def path(self, suffix: str) -> Path:
        return self.prefix.with_name(self.prefix.name + suffix)

    def collect(self, impl: str, run: Callable[[str], None]) -> None:
        """Call run with a file for the ranks to fill; failures are a record."""
        print(f"{impl} ...", end=" ", flush=True)
        failed = None
        with tempfile.TemporaryDirectory() as folder:
            lines = Path(folder) / "results.jsonl"
            try:
                run(str(lines))
            except (Failure, RuntimeError, OSError) as error:
                failed = str(error)
            text = lines.read_text() if lines.exists() else ""
        found = [json.loads(line) for line in text.splitlines()]
        for record in found:
            if "path" in record:  # what the implementation says of itself
                self.header["paths"][impl] = record["path"]
            else:
                self.records.append({"impl": impl, **record})
        if failed:
            self.records.append({"impl": impl, "failed": failed})
        print("failed" if failed else "done", flush=True)
        self.write()

    def collect_all(self, impls: Sequence[str], launches: int, run: Run) -> None:
        """Launch each implementation so often, all of them in turn."""
        for _ in range(launches):
            for impl in impls:
                self.collect(impl, functools.partial(run, impl))
        self.records = merged(self.records)
        self.write()

    def write(self) -> None:
        with self.path(".jsonl").open("w") as file:
            for record in (self.header, *self.records):
                file.write(json.dumps(record) + "\n")

    def describe(self) -> None:
        header = self.header
        gpus = header["gpus"]
        print(f"\n{header['date']}  {len(gpus)} GPU(s) {', '.join(sorted(set(gpus)))}")
        print(f"driver {header['driver']}, CUDA {header['cuda']}, {header['mpi']}")
        print(f"Python {header['python']}; {header['packages']}")
        if header["simulated"]:
            print("SIMULATED driver: these figures say nothing")
        for impl, said in header["paths"].items():
            print(f"  {impl}: {said}")

    def omissions(self) -> None:
        """Print what was left out, and why."""
        found: dict[str, list[str]] = {}
        for record in self.records:
            if "left_out" in record:
                names = [record[name] for name in ("impl", "mode") if name in record]
                what = found.setdefault(f"{', '.join(names)}: left out: {record['left_out']}", [])
                what += [record.get("case", record["op"])] if "op" in record else []
        for text, ops in found.items():
            print(f"{text}: {', '.join(ops)}" if ops else text)

    def failures(self) -> None:
        for record in self.records:
            if "failed" in record:
                names = [record[name] for name in ("impl", "op", "case", "mode") if name in record]
                print(f"{', '.join(names)}: failed: {record['failed']}")


MEASURED = ("impl", "op", "mode", "bytes", "ranks", "nx", "case", "failed", "left_out")


def merged(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One record of each measurement: that of the launch in the middle.

    `us_min` and `us_max` are over all of them, `us_launches` lists each one's median.
    """
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for record in records:
        key = tuple(record.get(name) for name in MEASURED)
        groups.setdefault(key, []).append(record)
    result = []
    for group in groups.values():
        if "us" not in group[0]:
            result.append(group[0])
            continue
        group.sort(key=lambda record: record["us"])
        chosen = dict(group[(len(group) - 1) // 2])
        chosen["us_min"] = min(record["us_min"] for record in group)
        chosen["us_max"] = max(record["us_max"] for record in group)
        chosen["us_launches"] = [record["us"] for record in group]
        result.append(chosen)
    return result


def parser(description: str, impls: Collection[str]) -> argparse.ArgumentParser:
    """The options that all benchmarks have."""
    result = argparse.ArgumentParser(description=description)
    result.add_argument("--quick", action="store_true", help="one launch, few sizes and repeats")
    result.add_argument("--launches", type=int, help="of each implementation, in turn (3)")
    result.add_argument("--impl", nargs="+", choices=impls, default=list(impls), metavar="NAME")
    result.add_argument("--out", type=Path, metavar="PREFIX", help="of the files to write")
    result.add_argument("--timeout", type=float, default=150.0, help="seconds for each launch")
    result.add_argument("--worker", choices=impls, help=argparse.SUPPRESS)
    result.add_argument("--results", help=argparse.SUPPRESS)
    result.epilog = "NAME: " + ", ".join(impls)
    return result


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    args = parser.parse_args()
    if not args.worker:  # run_ranks ends the ranks on its way out
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    args.launches = args.launches or (1 if args.quick else 3)
    return args


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns, the first to the left and the others to the right."""
    widths = [max(len(row[i]) for row in (titles, *rows)) for i in range(len(titles))]
    for row in (titles, *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join(cells).rstrip())


def verdict(text: str, holds: bool | None) -> None:
    """Print one goal and whether it was reached; None: not measured."""
    answer = {True: "yes", False: "NO", None: "not measured"}[holds]
    print(f"  {answer:>12}  {text}")


def size_text(nbytes: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit and nbytes % unit == 0:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"


def default_prefix(benchmark: str) -> Path:
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return HERE / "results" / f"{benchmark}-{now}"


def run(
    benchmark: str,
    args: argparse.Namespace,
    work: Callable[[argparse.Namespace], None],
    start: Callable[[argparse.Namespace, str, str], None],
    report: Callable[[Results], None],
    **header: Any,
) -> None:
    """Be a rank of an implementation; or launch all of them, and report."""
    if args.worker:
        work(args)
        return
    results = Results(benchmark, args, **header)
    results.collect_all(args.impl, args.launches, functools.partial(start, args))
    results.describe()
    report(results)
    results.omissions()
    results.failures()
    print(f"\n{results.path('.jsonl')}")
