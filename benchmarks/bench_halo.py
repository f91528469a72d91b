# SPDX-License-Identifier: BSD-3-Clause
"""Halo exchanges, wm.Halo beside what users write today and beside bare copies.

    python bench_halo.py [--quick] [--ranks N] [--points N ...] [--widths W ...]
        [--corners] [--impl NAME ...] [--out PREFIX]

Each rank has a cube of so many points a side, of float32, in a periodic grid of
ranks of three dimensions; and, as the solver of bench_jacobi.py, its rows of 4096 x
4096 in a ring. Writes PREFIX.jsonl and PREFIX.log, and prints the times, and ratios
beside what is asked for.
Every ghost is checked on all ranks before an exchange is timed. The modes: "synced",
the exchange and the wait for it; "stream", exchanges back to back and one wait;
"graph", a captured graph of 20.
"""

from __future__ import annotations

import argparse
import functools
import re
from typing import Any

import harness
from coll_paths import GRAPH_CALLS, LeftOut
from halo_paths import WAYS, Case, Way

MODES = ["synced", "stream", "graph"]
# Cases, way and mode, over way and mode (None: microseconds), and what is asked for.
ASKED = [
    ("64x64x64, width 1", ("warpmpi", "stream"), None, "at most 12"),
    ("64x64x64, width 1", ("warpmpi", "graph"), None, "at most 6"),
    ("512x512x512, width 1", ("warpmpi", "graph"), ("bare", "graph"), "at most 1.15"),
    (r"\d+x4096, width 1", ("warpmpi", "graph"), None, "at most 8"),
    (".*", ("packed", "synced"), ("warpmpi", "synced"), "at least 3"),
]
POINTS, QUICK_POINTS = [64, 128, 256, 512], [64, 256]
ROWS = 4096


def cases(args: argparse.Namespace) -> list[Case]:
    from mpi4py import MPI

    dims = tuple(MPI.Compute_dims(args.ranks, 3))
    found = [
        Case((n,) * 3, dims, (), w, corners)
        for n in args.points
        for w in args.widths
        for corners in ([False, True] if args.corners else [False])
    ]
    if args.rows >= args.ranks:
        found.append(Case((args.rows // args.ranks,), (args.ranks,), (args.rows,), 1, False))
    return found


def measure(args: argparse.Namespace, way: Way, case: Case) -> None:
    """All modes of a case."""
    world = way.world
    record = {
        "op": "halo",
        "case": case.name,
        "bytes": case.nbytes(),
        "ranks": world.size,
        "dtype": "float32",
    }
    _, unprepared = harness.together(world, functools.partial(way.prepare, case))
    for mode in way.modes:
        found, error = None, unprepared
        if not error:
            found, error = harness.together(world, functools.partial(time, args, way, case, mode))
        if error:
            kind, _, why = error.partition(": ")
            found = {"left_out": why} if kind == LeftOut.__name__ else {"failed": error}
        elif found:
            found["GBps"] = round(case.nbytes() / found["us"] / 1e3, 3)
        if world.rank == 0:
            harness.append(args.results, {**record, "mode": mode, **(found or {})})
    if not unprepared:
        way.finish()


def time(args: argparse.Namespace, way: Way, case: Case, mode: str) -> dict[str, Any]:
    """Check it, then time it."""
    calls = {"synced": way.synced, "stream": way.exchange}
    call = calls[mode] if mode in calls else way.captured()
    wait = (lambda: None) if mode == "synced" else way.wait
    way.world.Barrier()
    harness.play(call, way.wait, 1)
    if not all(way.world.allgather(way.is_right(case))):
        raise RuntimeError("wrong ghosts")
    budget, repeats = (0.006, 5) if args.quick else (0.02, 9)
    return harness.time_calls(
        way.world, call, wait, budget, repeats, GRAPH_CALLS if mode == "graph" else 1
    )


def work(args: argparse.Namespace) -> None:
    """In a rank: one way, all cases."""
    harness.give_up_after(args.timeout - 3)
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    try:
        way = WAYS[args.worker][0](world)
    except LeftOut as why:
        if world.rank == 0:
            harness.append(args.results, {"left_out": str(why)})
        return
    for case in cases(args):
        measure(args, way, case)
    if world.rank == 0:
        harness.append(args.results, {"path": way.about()})


def start(args: argparse.Namespace, impl: str, results: str) -> None:
    """Start the ranks of one way."""
    arguments = [__file__, "--worker", impl, "--results", results, "--timeout", str(args.timeout)]
    for name in ("quick", "corners"):
        if getattr(args, name):
            arguments.append(f"--{name}")
    for name in ("ranks", "rows"):
        arguments += [f"--{name}", str(getattr(args, name))]
    for name in ("points", "widths"):
        arguments += [f"--{name}", *map(str, getattr(args, name))]
    harness.run_ranks(args.ranks, arguments, args.timeout, log=args.log)


Figures = dict[str, dict[tuple[str, str], float]]  # by case, then by way and mode


def show(results: harness.Results) -> None:
    """Times by case, and what is asked for of them."""
    found: Figures = {}
    for record in results.records:
        if "us" in record:
            found.setdefault(record["case"], {})[record["impl"], record["mode"]] = record["us"]
    columns = [
        (impl, mode)
        for impl in WAYS
        for mode in MODES
        if any((impl, mode) in row for row in found.values())
    ]
    titles = ["us", *(f"{WAYS[impl][1]}, {mode}" for impl, mode in columns)]
    rows = [
        [case, *(f"{row[key]:.1f}" if key in row else "-" for key in columns)]
        for case, row in found.items()
    ]
    print()
    harness.table(titles, rows)
    lines = asked(found)
    if lines:
        print()
        harness.table(["ratio, or us", "is", "asked for"], lines)


def asked(found: Figures) -> list[list[str]]:
    """What is asked for, and what was reached."""
    lines = []
    for pattern, way, rival, text in ASKED:
        for case, row in found.items():
            if not re.fullmatch(pattern, case) or way not in row or rival not in (None, *row):
                continue
            names = [f"{WAYS[impl][1]}, {mode}" for impl, mode in filter(None, (way, rival))]
            value = row[way] / row[rival] if rival else row[way]
            lines.append([f"{case}: {' / '.join(names)}", f"{value:.2f}", text])
    return lines


def parse_arguments() -> argparse.Namespace:
    parser = harness.parser(__doc__.partition("\n")[0], WAYS)
    parser.add_argument("--ranks", type=int, default=2, help="of each implementation (2)")
    parser.add_argument("--points", type=int, nargs="+", help="a side of a rank's cube")
    parser.add_argument("--widths", type=int, nargs="+", help="of the ghosts (1 2)")
    parser.add_argument("--rows", type=int, default=ROWS, help="of Jacobi's square; 0: none")
    parser.add_argument("--corners", action="store_true", help="measure corners, too")
    args = harness.parse(parser)
    args.points = args.points or (QUICK_POINTS if args.quick else POINTS)
    args.widths = args.widths or ([1] if args.quick else [1, 2])
    return args


if __name__ == "__main__":
    args = parse_arguments()
    harness.run("halo", args, work, start, show, ranks=args.ranks)
