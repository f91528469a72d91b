# SPDX-License-Identifier: BSD-3-Clause
"""Windows over GPU memory, beside messages, bare copies, NVSHMEM and NCCL.

    python bench_rma.py [--quick] [--ranks N] [--sizes BYTES ...] [--impl NAME ...]
        [--out PREFIX]

Rank 0 reads and writes the memory of rank 1; all ranks make the calls that synchronize.
Writes PREFIX.jsonl and PREFIX.log, and prints a table of each operation, and ratios. A
time is that of the call and of all that is waited for in it, the median over blocks of
calls; of a message, and of a put with a signal, one way of a ping-pong; where kernels
signal, a turn of many in one launch. The data of each row are checked before they are
timed, where the operation shows them.
"""

from __future__ import annotations

import argparse
import functools
import sys
from typing import Any

import harness
from coll_paths import LeftOut
from rma_paths import KERNEL_COPY, LARGEST, WAYS, Row, Way, nothing

KIB, MIB = 1 << 10, 1 << 20
SIZES = [8, 4 * KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB]
QUICK_SIZES = [8, 64 * KIB, 256 * MIB]
# Operation and way over operation and way (None: microseconds), bytes, and what is asked for.
RATIOS: list[tuple[str, str, str | None, str | None, int, str]] = [
    ("Put, Flush", "warpmpi", "Send", "warpmpi", 8, "at most 1.0"),
    ("Get, Flush", "warpmpi", "Send", "warpmpi", 8, "at most 1.0"),
    ("copy", "bare", "Put, Flush", "warpmpi", 256 * MIB, "at least 0.97"),
    ("copy", "bare", "Get, Flush", "warpmpi", 256 * MIB, "at least 0.97"),
    ("add", "bare", "Accumulate, Flush", "warpmpi", 256 * MIB, "at least 0.8"),
    ("Fence", "warpmpi", "Barrier", "warpmpi", 0, "at most 1.2"),
    ("Lock, Unlock", "warpmpi", "Barrier", "warpmpi", 0, "at most 1.2"),
    ("put, signal, wait, and back, in kernels", "warpmpi-shared", None, None, 8, "at most 3 us"),
    ("copy", "bare", "copy to the peer", "warpmpi-shared", 256 * MIB, "at least 0.97"),
    (KERNEL_COPY, "bare", KERNEL_COPY, "warpmpi-shared", 256 * MIB, "at least 0.97"),
    ("Put, Flush", "warpmpi", "Put, Flush", "nvshmem", 8, "below 1"),
    ("put, signal, wait", "warpmpi-shared", "put, signal, wait", "nvshmem", 8, "below 1"),
    ("put, signal, wait", "warpmpi-shared", "put, signal, wait", "nccl", 8, "below 1"),
    ("Barrier of a stream", "warpmpi-shared", "Barrier of a stream", "nvshmem", 0, "below 1"),
]
HOST_RATIO = "at most 1.1"


def measure(args: argparse.Namespace, way: Way, row: Row, nbytes: int) -> None:
    """Check a call, then time it."""
    world = way.world

    def timed() -> dict[str, Any]:
        world.Barrier()
        row.call()
        world.Barrier()
        if not all(world.allgather(bool(row.right()))):
            raise RuntimeError("wrong data")
        budget, repeats = (0.006, 5) if args.quick else (0.02, 9)
        return harness.time_calls(world, row.call, nothing, budget, repeats, row.messages)

    found, error = harness.together(world, timed)
    found = found if found and not error else {"failed": error}
    if "us" in found and nbytes:
        found["GBps"] = round(nbytes / found["us"] / 1e3, 4)
    if world.rank == 0:
        record = {"op": row.op, "bytes": nbytes, "ranks": world.size}
        harness.append(args.results, {**record, **found})


def work(args: argparse.Namespace) -> None:
    """In a rank: one way, all sizes."""
    harness.give_up_after(args.timeout - 3)
    from mpi4py import MPI

    world, Way.room = MPI.COMM_WORLD, max(args.sizes)
    way, error = harness.together(world, functools.partial(WAYS[args.worker][0], world))
    if error:
        kind, _, why = error.partition(": ")
        if world.rank == 0:
            name = "left_out" if kind == LeftOut.__name__ else "failed"
            harness.append(args.results, {name: why or error})
        world.Barrier()
        sys.stdout.flush()
        return
    for nbytes in args.sizes:
        for row in way.calls(nbytes):
            measure(args, way, row, nbytes)
    for row in way.synchronizations():
        measure(args, way, row, 0)
    if world.rank == 0:
        harness.append(args.results, {"path": way.about()})
    way.close()


def start(args: argparse.Namespace, impl: str, results: str) -> None:
    """Start the ranks of one way."""
    arguments = [__file__, "--worker", impl, "--results", results, "--timeout", str(args.timeout)]
    if args.quick:
        arguments.append("--quick")
    arguments += ["--sizes", *map(str, args.sizes)]
    harness.run_ranks(args.ranks, arguments, args.timeout, WAYS[impl][1], log=args.log)


Figures = dict[tuple[str, int], dict[str, float]]  # by operation and bytes, then by way


def figures(results: harness.Results) -> Figures:
    found: Figures = {}
    for record in results.records:
        if "us" in record:
            found.setdefault((record["op"], record["bytes"]), {})[record["impl"]] = record["us"]
    return found


def show(found: Figures) -> None:
    """Times, a line for each operation and size."""
    impls = [impl for impl in WAYS if any(impl in row for row in found.values())]
    rows = [
        [
            f"{op}, {harness.size_text(nbytes)}" if nbytes else op,
            *(f"{row[impl]:.1f}" if impl in row else "-" for impl in impls),
        ]
        for (op, nbytes), row in sorted(found.items())
    ]
    print()
    harness.table(["us", *(WAYS[impl][2] for impl in impls)], rows)


def ratios(found: Figures) -> None:
    """What is asked for, and what was reached."""
    rows = []
    for op, impl, other, rival, nbytes, asked in RATIOS:
        a, b = (found.get((name, nbytes), {}) for name in (op, other or op))
        size = f", {harness.size_text(nbytes)}" if nbytes else ""
        if impl in a and rival is None:
            rows.append([f"{op} of {impl}{size}", f"{a[impl]:.2f}", asked])
        elif impl in a and rival in b:
            text = f"{op} of {impl} / {other} of {rival}{size}"
            rows.append([text, f"{a[impl] / b[rival]:.2f}", asked])
    for (op, nbytes), row in sorted(found.items()):
        if "warpmpi-host" in row and "mpi4py" in row:
            size = f", {harness.size_text(nbytes)}" if nbytes else ""
            ratio = row["warpmpi-host"] / row["mpi4py"]
            rows.append([f"NumPy: {op}{size}: warpmpi / mpi4py", f"{ratio:.2f}", HOST_RATIO])
    if rows:
        print()
        harness.table(["ratio, or us", "is", "asked for"], rows)


def parse_arguments() -> argparse.Namespace:
    parser = harness.parser(__doc__.partition("\n")[0], WAYS)
    parser.add_argument("--ranks", type=int, default=2, help="of each implementation (2)")
    parser.add_argument("--sizes", type=int, nargs="+", metavar="BYTES", help="in place of ours")
    args = harness.parse(parser)
    args.sizes = args.sizes or (QUICK_SIZES if args.quick else SIZES)
    if args.ranks < 2 or not 4 <= min(args.sizes) <= max(args.sizes) <= LARGEST:
        parser.error("--ranks: 2 at least; --sizes: 4 bytes to 256 MiB")
    return args


def report(results: harness.Results) -> None:
    found = figures(results)
    show(found)
    ratios(found)


if __name__ == "__main__":
    args = parse_arguments()
    harness.run("rma", args, work, start, report, ranks=args.ranks)
