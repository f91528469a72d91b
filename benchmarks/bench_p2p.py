# SPDX-License-Identifier: BSD-3-Clause
"""One-way latency and bandwidth between two GPUs, warpmpi beside its rivals.

    python bench_p2p.py [--quick] [--launches N] [--impl NAME ...] [--out PREFIX]

Writes PREFIX.jsonl, PREFIX.png and PREFIX.log, and prints a table. Times are
those of a ping-pong, halved; the median, least and greatest of several
repeats and launches. Each size's data are checked, once it is warm.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import harness
import numpy as np
from p2p_paths import PATHS, Path

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = sorted({8**k for k in range(1, 11)} | {64 * KIB, MIB, 256 * MIB})
QUICK_SIZES = [8, 4 * KIB, 64 * KIB, MIB, 256 * MIB]
SMALL = 64 * KIB  # up to here latency is what counts
LARGE = 256 * MIB  # and here bandwidth


def pattern(nbytes: int, rank: int) -> np.ndarray:
    """Bytes that repeat with a prime period, so that no piece can be mistaken."""
    period = np.random.default_rng(rank).integers(0, 256, 65521, dtype=np.uint8)
    return np.resize(period, nbytes)


def play(path: Path, rank: int, rounds: int) -> float:
    """Seconds for so many rounds of ping-pong."""
    send, recv = path.send, path.recv
    start = time.perf_counter()
    if rank == 0:
        for _ in range(rounds):
            send()
            recv()
    else:
        for _ in range(rounds):
            recv()
            send()
    path.finish()
    return time.perf_counter() - start


def measure(path: Path, nbytes: int, seconds: float, repeats: int) -> dict[str, Any]:
    """One size; a repeat takes about so many seconds."""
    world = path.world
    path.prepare(pattern(nbytes, world.rank))
    play(path, world.rank, 2)  # connections, mappings
    trial = min(play(path, world.rank, 2) / 2 for _ in range(3))
    rounds = world.bcast(max(1, min(1000, int(seconds / trial))))
    play(path, world.rank, rounds)  # clocks
    path.clear()
    world.Barrier()
    play(path, world.rank, 1)
    expected = pattern(nbytes, (world.rank + 1) % world.size)
    if not np.array_equal(path.received(), expected):
        raise RuntimeError(f"wrong data in a message of {nbytes} bytes")
    del expected
    samples = []
    for _ in range(repeats):
        world.Barrier()
        seconds_a_round = play(path, world.rank, rounds) / rounds
        samples.append(1e6 * seconds_a_round / path.messages_a_round)
    us = median(samples)
    return {
        "op": "sendrecv",
        "dtype": "uint8",
        "bytes": nbytes,
        "ranks": world.size,
        "us": round(us, 3),
        "us_min": round(min(samples), 3),
        "us_max": round(max(samples), 3),
        "GBps": round(nbytes / us / 1e3, 4),
        "rounds": rounds,
        "repeats": repeats,
    }


def work(args: argparse.Namespace) -> None:
    """In a rank: measure one implementation, size after size."""
    harness.give_up_after(args.timeout - 3)
    from mpi4py import MPI

    path = PATHS[args.worker][0](MPI.COMM_WORLD)
    for nbytes in sizes(args.quick):
        record = measure(path, nbytes, 0.005 if args.quick else 0.02, 5 if args.quick else 9)
        if path.world.rank == 0:
            harness.append(args.results, record)
    if path.world.rank == 0:
        harness.append(args.results, {"path": path.about()})
    path.close()


def sizes(quick: bool) -> list[int]:
    return QUICK_SIZES if quick else SIZES


def start(args: argparse.Namespace, impl: str, results: str) -> None:
    """Start the ranks of one implementation."""
    _, ranks, environ, _ = PATHS[impl]
    mpirun = None
    if impl == "cuda-aware-mpi":
        mpirun, environ = harness.cuda_aware_launcher()
    arguments = [__file__, "--worker", impl, "--results", results, "--timeout", str(args.timeout)]
    if args.quick:
        arguments.append("--quick")
    harness.run_ranks(ranks, arguments, args.timeout, environ, mpirun, args.log)


Figures = dict[str, dict[int, dict[str, Any]]]


def figures(results: harness.Results) -> Figures:
    """The records by implementation and size."""
    found: Figures = {}
    for record in results.records:
        if "us" in record:
            found.setdefault(record["impl"], {})[record["bytes"]] = record
    return found


def show(found: Figures) -> None:
    columns = sorted({nbytes for records in found.values() for nbytes in records})
    for title, key, small in (("us, one way", "us", ".1f"), ("GB/s", "GBps", ".3g")):
        rows = [
            [PATHS[impl][3]]
            + [format(records[n][key], small) if n in records else "-" for n in columns]
            for impl, records in found.items()
        ]
        print()
        harness.table([title, *map(harness.size_text, columns)], rows)


def judge(found: Figures, results: harness.Results) -> None:
    """Print the goals and whether they were reached, by ratios of this run."""
    if len(results.header["gpus"]) < 2:
        print("\nThe goals are for two GPUs.")
        return

    def us(impl: str, largest: int = SMALL) -> dict[int, float]:
        return {n: record["us"] for n, record in found.get(impl, {}).items() if n <= largest}

    def rate(impl: str) -> float | None:
        record = found.get(impl, {}).get(LARGE)
        return record["GBps"] if record else None

    def ratio(text: str, ours: str, other: str, least: float) -> None:
        a, b = rate(ours), rate(other)
        share = a / b if a and b else None
        said = f"{text}: {share:.2f}, at least {least}" if share else text
        harness.verdict(said, None if share is None else share >= least)

    ours, cupy, nccl = us("warpmpi"), us("warpmpi-cupy"), us("nccl-synced")
    print("\nGoals")
    worst = max(ours.values(), default=None)
    text = "8 B to 64 KiB in at most 9 us"
    harness.verdict(f"{text}: {worst}" if worst else text, worst <= 9.0 if worst else None)
    both = sorted(ours.keys() & nccl.keys())
    slower = [harness.size_text(n) for n in both if ours[n] >= nccl[n]]
    text = "and faster than NCCL, synced" + (f"; not at {', '.join(slower)}" if slower else "")
    harness.verdict(text, not slower if both else None)
    more = max((cupy[n] - ours[n] for n in ours.keys() & cupy.keys()), default=None)
    text = "CuPy's arrays at most 1.5 us more"
    harness.verdict(
        f"{text}: {more:.2f}" if more is not None else text, None if more is None else more <= 1.5
    )
    ratio("256 MiB against the bare peer copy", "warpmpi", "peer-copy", 0.97)
    said = results.header["paths"].get("warpmpi")
    staged = said["staged_bytes"] if said else None
    harness.verdict(f"nothing staged: {staged} bytes", None if staged is None else staged == 0)
    ratio("256 MiB through the host against the pinned limit", "warpmpi-host", "pinned-limit", 0.6)
    ratio("256 MiB through the host against staged by hand", "warpmpi-host", "staged", 5.0)


def plot(found: Figures, results: harness.Results) -> None:
    """Latency and bandwidth over size."""
    try:
        from matplotlib import pyplot
    except ImportError:
        print("no picture: matplotlib is not installed")
        return
    figure, (latency, bandwidth) = pyplot.subplots(1, 2, figsize=(13, 5.5))
    for impl, records in found.items():
        sizes = sorted(records)
        style = "-" if impl.startswith("warpmpi") else "--"
        for axes, key in ((latency, "us"), (bandwidth, "GBps")):
            values = [records[n][key] for n in sizes]
            axes.plot(sizes, values, style, marker=".", label=PATHS[impl][3])
    latency.set(xscale="log", yscale="log", xlabel="bytes", ylabel="one way, us")
    bandwidth.set(xscale="log", yscale="log", xlabel="bytes", ylabel="GB/s")
    latency.grid(alpha=0.3)
    bandwidth.grid(alpha=0.3)
    latency.legend(fontsize="small")
    gpus = results.header["gpus"]
    figure.suptitle(f"{', '.join(sorted(set(gpus))) or 'no GPU'}; {results.header['mpi']}")
    figure.savefig(results.path(".png"), dpi=130, bbox_inches="tight")


def parse_arguments() -> argparse.Namespace:
    return harness.parse(harness.parser(__doc__.partition("\n")[0], PATHS))


def report(results: harness.Results) -> None:
    found = figures(results)
    if found:
        show(found)
    judge(found, results)
    plot(found, results)


if __name__ == "__main__":
    harness.run("p2p", parse_arguments(), work, start, report)
