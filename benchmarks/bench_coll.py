# SPDX-License-Identifier: BSD-3-Clause
"""Collectives between GPUs, warpmpi beside its rivals.

    python bench_coll.py [--quick] [--ranks N] [--launches N] [--impl NAME ...]
        [--op NAME ...] [--sizes BYTES ...] [--mode NAME ...] [--no-peer]
        [--out PREFIX]

Writes PREFIX.jsonl, PREFIX.png and PREFIX.log, and prints a table for each operation
and mode. The modes: "synced", the call after which the host can use its result;
"stream", calls back to back on a stream and one synchronization at the end; "graph",
a captured graph of such calls. A time is the median over blocks of calls of the
slowest rank's. Each row's data are checked on all ranks before it is timed.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from typing import Any

import bench_p2p
import harness
from _bench.ops import LeftOut
from _bench.ways import graph_calls
from coll_ops import OPS, Op
from coll_paths import WAYS

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = [8, 64, 512, 4 * KIB, 32 * KIB, 64 * KIB, 256 * KIB]
SIZES += [MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB]
QUICK_SIZES = [8, 4 * KIB, 64 * KIB, MIB, 64 * MIB]
LINK_SIZE = 256 * MIB
TOO_SLOW = 2.0  # seconds: a call that is expected to take more is not made
MODES = ["synced", "stream", "graph"]
NO_PEER = {"WARPMPI_TRANSPORT": "host", "NCCL_P2P_DISABLE": "1"}


class WrongData(Exception):
    pass


class Bench:
    """In a rank: one library, operation after operation, size after size."""

    def __init__(self, args: argparse.Namespace, way: Any):
        self.args, self.way, self.world = args, way, way.world
        self.budget, self.repeats = (0.006, 5) if args.quick else (0.02, 9)
        self.ended: set[tuple[Op, str]] = set()  # failed, or too slow from here on
        self.last: dict[tuple[Op, str], tuple[int, float]] = {}  # bytes, us

    def append(self, record: dict[str, Any]) -> None:
        if self.world.rank == 0:
            harness.append(self.args.results, record)

    def measure(self, op: Op, n: int, modes: Sequence[str]) -> None:
        nbytes = op.nbytes(n, self.world.size)
        record = {"op": op.label, "bytes": nbytes, "ranks": self.world.size, "dtype": op.kind}
        modes = [mode for mode in modes if self.is_worth(op, mode, record)]
        if not modes:
            return
        _, unprepared = harness.together(self.world, functools.partial(self.way.prepare, op, n))
        for mode in modes:
            found, error = None, unprepared
            if not error:
                step = functools.partial(self.time, op, n, mode)
                found, error = harness.together(self.world, step)
            if error:
                kind, _, why = error.partition(": ")
                found = {"left_out": why} if kind == LeftOut.__name__ else {"failed": error}
            if "us" not in found:
                self.ended.add((op, mode))
            else:
                self.last[op, mode] = nbytes, found["us"]
                if nbytes:
                    rate = nbytes / found["us"] / 1e3
                    found["GBps"] = round(rate, 4)
                    if op.share:
                        found["bus_GBps"] = round(rate * op.share(self.world.size), 4)
            self.append({**record, "mode": mode, **found})

    def is_worth(self, op: Op, mode: str, record: dict[str, Any]) -> bool:
        """Whether the library has such a mode, and no call would take too long."""
        if mode not in self.way.modes or (op, mode) in self.ended:
            return False
        if (op, mode) not in self.last:
            return True
        nbytes, us = self.last[op, mode]
        if us * 1e-6 < harness.SLOW:
            return True
        seconds = us * 1e-6 * record["bytes"] / max(1, nbytes)
        if seconds < TOO_SLOW:
            return True
        self.ended.add((op, mode))
        why = f"a call is expected to take {seconds:.0f} s"
        self.append({**record, "mode": mode, "left_out": why})
        return False

    def time(self, op: Op, n: int, mode: str) -> dict[str, Any]:
        """Check it, then time it. LeftOut."""
        way, world = self.way, self.world
        call = way.call(op, n, mode)
        wait = (lambda: None) if mode == "synced" else way.wait
        calls = graph_calls(op, n, world.size) if mode == "graph" else 1
        try:
            way.clear()
            world.Barrier()
            harness.play(call, wait, 1)
            if not all(world.allgather(op.is_right(way.received(), *way.place, n))):
                raise WrongData("not what the ranks gave")
            return harness.time_calls(world, call, wait, self.budget, self.repeats, calls)
        finally:
            if hasattr(call, "free"):  # a graph; NCCL's communicator waits for its end
                call.free()


def sizes(args: argparse.Namespace, op: Op) -> list[int]:
    """Vectors of so many bytes; fewer of what is warpmpi's alone."""
    found = args.sizes or (QUICK_SIZES if args.quick else SIZES)
    return found if op.common or args.sizes else found[::2]


def work(args: argparse.Namespace) -> None:
    """In a rank: measure one implementation."""
    harness.give_up_after(args.timeout - 3)
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if args.worker == "link":
        measure_link(args, world)
        return
    kind, _ = WAYS[args.worker]
    assert kind is not None
    try:
        way = kind(world)
    except LeftOut as why:
        if world.rank == 0:
            harness.append(args.results, {"left_out": str(why)})
        return
    bench = Bench(args, way)
    chosen = [op for op in OPS if not args.op or op.name in args.op]
    # Graphs last: what captures them brings a stream of its own.
    for modes in (MODES[:2], MODES[2:]):
        wanted = [mode for mode in modes if mode in args.mode]
        for op in chosen:
            if op.common or (way.everything and modes == MODES[:2]):
                # By what they are rounded to; each once.
                for n in dict.fromkeys(op.count(nbytes, world.size) for nbytes in sizes(args, op)):
                    bench.measure(op, n, wanted)
    bench.append({"path": way.about()})
    way.close()


def measure_link(args: argparse.Namespace, world: Any) -> None:
    """A bare copy from GPU to GPU, or with --no-peer by way of the host."""
    kind = bench_p2p.PATHS["pinned-limit" if args.no_peer else "peer-copy"][0]
    try:
        path = kind(world)
    except RuntimeError as why:
        harness.append(args.results, {"left_out": str(why)})
        return
    record = bench_p2p.measure(path, LINK_SIZE, 0.02, 5)
    harness.append(args.results, {**record, "op": "link"})


def start(args: argparse.Namespace, impl: str, results: str) -> None:
    """Start the ranks of one implementation."""
    mpirun, environ = None, {}
    if impl == "cuda-aware-mpi":
        mpirun, environ = harness.cuda_aware_launcher()
    if args.no_peer:
        environ = {**environ, **NO_PEER}
    arguments = [__file__, "--worker", impl, "--results", results, "--timeout", str(args.timeout)]
    for name in ("quick", "no_peer"):
        if getattr(args, name):
            arguments.append(f"--{name.replace('_', '-')}")
    for name in ("op", "sizes", "mode"):
        if getattr(args, name):
            arguments += [f"--{name}", *map(str, getattr(args, name))]
    ranks = 1 if impl == "link" else args.ranks
    harness.run_ranks(ranks, arguments, args.timeout, environ, mpirun, args.log)


# By operation and mode, then by size, then by implementation.
Figures = dict[tuple[str, str], dict[int, dict[str, dict[str, Any]]]]


def figures(results: harness.Results) -> Figures:
    found: Figures = {}
    for record in results.records:
        if "us" in record and "mode" in record:
            rows = found.setdefault((record["op"], record["mode"]), {})
            rows.setdefault(record["bytes"], {})[record["impl"]] = record
    return found


def link_rate(results: harness.Results) -> float | None:
    """GB/s of the link in one direction, where it was measured."""
    rates = [
        record["GBps"]
        for record in results.records
        if record.get("op") == "link" and "GBps" in record
    ]
    return rates[0] if rates else None


def show(found: Figures, link: float | None) -> None:
    """Times, NCCL's time over warpmpi's, and warpmpi's bandwidths."""
    for (op, mode), rows in sorted(found.items(), key=order):
        impls = [name for name in WAYS if any(name in each for each in rows.values())]
        titles = [f"{op}, {mode}", *[f"{WAYS[name][1]} us" for name in impls]]
        titles += ["NCCL/warpmpi", "GB/s", "bus GB/s", "NCCL bus GB/s", "of the link"]
        lines = []
        for nbytes, row in sorted(rows.items()):
            ours, nccl = row.get("warpmpi", {}), row.get("nccl", {})
            line = [harness.size_text(nbytes)]
            line += [cell(row.get(name, {}).get("us"), ".1f") for name in impls]
            both = ours and nccl
            line.append(cell(nccl["us"] / ours["us"] if both else None, ".2f"))
            line += [cell(ours.get(key), ".1f") for key in ("GBps", "bus_GBps")]
            bus = ours.get("bus_GBps")
            line.append(cell(nccl.get("bus_GBps"), ".1f"))
            line.append(cell(bus / link if bus and link else None, ".2f"))
            lines.append(line)
        print()
        harness.table(titles, lines)
    if link:
        print(f"\nThe link, one way: {link:.0f} GB/s")


def ratios(found: Figures) -> None:
    """NCCL's time over warpmpi's, of all operations."""
    for wanted in MODES:
        rows: dict[str, dict[int, str]] = {}
        for (op, mode), sizes in sorted(found.items(), key=order):
            for nbytes, row in sizes.items():
                if mode == wanted and "warpmpi" in row and "nccl" in row:
                    ratio = row["nccl"]["us"] / row["warpmpi"]["us"]
                    rows.setdefault(op, {})[nbytes] = f"{ratio:.2f}"
        if rows:
            columns = sorted({nbytes for row in rows.values() for nbytes in row})
            titles = [f"NCCL/warpmpi, {wanted}", *map(harness.size_text, columns)]
            lines = [[op, *[row.get(n, "-") for n in columns]] for op, row in rows.items()]
            print()
            harness.table(titles, lines)


def order(item: tuple[tuple[str, str], Any]) -> tuple[int, str]:
    labels = [op.label for op in OPS]
    return labels.index(item[0][0]), item[0][1]


def cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def plot(found: Figures, results: harness.Results) -> None:
    """Time over size, a picture for each operation."""
    try:
        from matplotlib import pyplot
    except ImportError:
        print("no picture: matplotlib is not installed")
        return
    ops = [op.label for op in OPS if any(op.label == key[0] for key in found)]
    ops = [op for op in ops if op != "Barrier"]
    if not ops:
        return
    columns = min(3, len(ops))
    lines = -(-len(ops) // columns)
    size = (5.5 * columns, 4.0 * lines)
    figure, grid = pyplot.subplots(lines, columns, figsize=size, squeeze=False)
    colours = {name: f"C{k}" for k, name in enumerate(WAYS)}
    for axes in grid.flat[len(ops) :]:
        axes.axis("off")
    for op, axes in zip(ops, grid.flat, strict=False):
        for mode, style in (("synced", "-"), ("stream", "--"), ("graph", ":")):
            rows = found.get((op, mode), {})
            for name, (_, caption) in WAYS.items():
                points = [(n, row[name]["us"]) for n, row in sorted(rows.items()) if name in row]
                if points:
                    x, y = zip(*points, strict=True)
                    label = f"{caption}, {mode}"
                    axes.plot(x, y, style, marker=".", color=colours[name], label=label)
        axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="us", title=op)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")
    gpus = results.header["gpus"]
    ranks = results.header["ranks"]
    title = f"{ranks} ranks; {', '.join(sorted(set(gpus))) or 'no GPU'}; {results.header['mpi']}"
    figure.suptitle(title + ("; SIMULATED" if results.header["simulated"] else ""))
    figure.tight_layout()
    figure.savefig(results.path(".png"), dpi=110, bbox_inches="tight")


def parse_arguments() -> argparse.Namespace:
    parser = harness.parser(__doc__.partition("\n")[0], WAYS)
    parser.set_defaults(timeout=600.0)
    names = list(dict.fromkeys(op.name for op in OPS))
    parser.add_argument("--ranks", type=int, default=2, help="of each implementation (2)")
    parser.add_argument("--op", nargs="+", choices=names, metavar="OP", help="these alone")
    parser.add_argument("--sizes", nargs="+", type=int, metavar="BYTES", help="in place of ours")
    parser.add_argument("--mode", nargs="+", choices=MODES, default=MODES, help="these alone")
    parser.add_argument(
        "--no-peer", action="store_true", help="as if no GPU could reach another's memory"
    )
    parser.epilog += "; OP: " + ", ".join(names)
    return harness.parse(parser)


def report(results: harness.Results) -> None:
    found = figures(results)
    show(found, link_rate(results))
    ratios(found)
    plot(found, results)


if __name__ == "__main__":
    args = parse_arguments()
    harness.run("coll", args, work, start, report, ranks=args.ranks, peer=not args.no_peer)
