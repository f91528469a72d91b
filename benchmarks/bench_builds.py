# SPDX-License-Identifier: BSD-3-Clause
"""Two builds of warpmpi in turn: 53 operations before and after a change, on two ranks.

    python bench_builds.py --before DIR [--after DIR] [--array cupy|wm] [--launches N]
        [--op WORD ...] [--quick] [--out PREFIX]

DIR is a source tree that is built in place; without --after it is this one. Writes
PREFIX.jsonl and PREFIX.log, and prints a table: medians of the launches, and the ratios
after/before of the medians and of the least times. What is slower by more than 3 % has a
star, two where both ratios say so. Bind the ranks (MPIRUN="mpirun --bind-to core").
"""

from __future__ import annotations

import argparse
import functools
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import harness
import numpy as np

KIB, MIB = 1 << 10, 1 << 20
SLOWER = 1.03
BUILDS = "before", "after"


class Timed(NamedTuple):
    """An operation; `calls` are what one call of `run` does."""

    op: str
    bytes: int
    run: Callable[[], Any]
    wait: Callable[[], Any] = lambda: None
    calls: int = 1


class Operations:
    """All of them on one communicator of two ranks, in an order that both keep."""

    def __init__(self, wm: Any, world: Any, array: str):
        self.wm, self.world, self.array = wm, world, array
        self.comm, self.peer = wm.Comm(world), 1 - world.rank
        self.device = wm.get_device()
        self.makers: dict[str, Callable[[int], Any]] = {
            "wm": lambda nbytes: wm.zeros(nbytes // 4, "f4", device=self.device),
            "numpy": lambda nbytes: np.zeros(nbytes // 4, "f4"),
        }
        if array == "cupy":
            cupy = importlib.import_module("cupy")
            cupy.cuda.Device(self.device.ordinal).use()
            self.makers["cupy"] = lambda nbytes: cupy.zeros(nbytes // 4, "f4")

    def all(self) -> Iterator[Timed]:
        array = self.array
        yield from self.messages(array, (8, 4 * KIB, 64 * KIB, MIB))
        yield from self.exchanges(self.comm, array, array)
        yield self.window(array, 64)
        yield self.one_and_wait(array)
        sizes = {
            "Allreduce": (8, 4 * KIB, 64 * KIB, MIB, 16 * MIB),
            "Allgather": (8, 64 * KIB, 16 * MIB),
            "Alltoall": (8, 64 * KIB),
            "Bcast": (8, 64 * KIB),
            "Reduce": (8,),
            "Reduce_scatter_block": (8, 64 * KIB),
            "Gather": (8,),
            "Scatter": (8,),
        }
        yield from self.collectives(self.comm, array, array, sizes)
        yield from self.requests(array)
        stream = self.wm.Stream(self.device)
        on, wait = self.comm.on(stream), stream.synchronize
        sizes = {
            "Allreduce": (8, 64 * KIB, MIB, 16 * MIB),
            "Allgather": (8, 16 * MIB),
            "Alltoall": (16 * MIB,),
            "Reduce_scatter_block": (16 * MIB,),
            "Bcast": (8,),
        }
        yield from self.collectives(on, "stream", array, sizes, wait)
        yield from self.exchanges(on, "stream", array, wait)
        yield from self.messages("wm", (8,))
        yield from self.collectives(self.comm, "wm", "wm", {"Allreduce": (8,)})
        yield from self.collectives(on, "stream wm", "wm", {"Allreduce": (8,)}, wait)
        yield from self.messages("numpy", (8, 64 * KIB))
        yield self.window("numpy", 32)
        sizes = {"Allreduce": (8,), "Bcast": (8,), "Allgather": (8,)}
        yield from self.collectives(self.comm, "numpy", "numpy", sizes)
        yield Timed("Barrier", 0, self.comm.Barrier)
        yield self.one_and_wait("numpy")
        yield from self.objects()

    def messages(self, kind: str, sizes: tuple[int, ...]) -> Iterator[Timed]:
        comm, peer, make = self.comm, self.peer, self.makers[kind]
        for nbytes in sizes:
            calls = [
                functools.partial(comm.Send, make(nbytes), peer),
                functools.partial(comm.Recv, make(nbytes), peer),
            ]
            first, second = calls if self.world.rank == 0 else calls[::-1]
            run = functools.partial(lambda one, two: (one(), two()), first, second)
            yield Timed(f"{kind} Send, Recv", nbytes, run, calls=2)

    def exchanges(
        self, comm: Any, name: str, kind: str, wait: Callable[[], Any] = lambda: None
    ) -> Iterator[Timed]:
        make, peer = self.makers[kind], self.peer
        for nbytes in (8, 64 * KIB):
            a, b = make(nbytes), make(nbytes)
            run = functools.partial(comm.Sendrecv, a, peer, recvbuf=b, source=peer)
            yield Timed(f"{name} Sendrecv", nbytes, run, wait)

    def window(self, kind: str, many: int) -> Timed:
        """Many messages of 8 KiB from each rank."""
        comm, peer, make = self.comm, self.peer, self.makers[kind]
        pairs = [(make(8 * KIB), make(8 * KIB)) for _ in range(many)]
        waitall = self.wm.Request.Waitall

        def run() -> None:
            requests = [comm.Irecv(into, peer) for _, into in pairs]
            requests += [comm.Isend(out, peer) for out, _ in pairs]
            waitall(requests)

        return Timed(f"{kind} {many} Isend, Irecv, Waitall", 8 * KIB, run, calls=many)

    def one_and_wait(self, kind: str) -> Timed:
        comm, peer = self.comm, self.peer
        a, b = (self.makers[kind](8) for _ in range(2))

        def run() -> None:
            request = comm.Irecv(b, peer)
            comm.Send(a, peer)
            request.Wait()

        return Timed(f"{kind} Irecv, Send, Wait", 8, run)

    def collectives(
        self,
        comm: Any,
        name: str,
        kind: str,
        sizes: dict[str, tuple[int, ...]],
        wait: Callable[[], Any] = lambda: None,
    ) -> Iterator[Timed]:
        """Sizes are those of a block."""
        make, whole = self.makers[kind], ("Alltoall", "Reduce_scatter_block", "Scatter")
        for op, each in sizes.items():
            for nbytes in each:
                send = make(nbytes * (2 if op in whole else 1))
                recv = make(nbytes * (2 if op in ("Allgather", "Alltoall", "Gather") else 1))
                ends = (send,) if op == "Bcast" else (send, recv)
                run = functools.partial(getattr(comm, op), *ends)
                yield Timed(f"{name} {op}", nbytes, run, wait)

    def requests(self, kind: str) -> Iterator[Timed]:
        a, b = (self.makers[kind](8) for _ in range(2))
        comm = self.comm
        yield Timed(f"{kind} Iallreduce, Wait", 8, lambda: comm.Iallreduce(a, b).Wait())
        request = comm.Allreduce_init(a, b)
        start, wait = request.Start, request.Wait
        yield Timed(f"{kind} Allreduce_init: Start, Wait", 8, lambda: (start(), wait()))

    def objects(self) -> Iterator[Timed]:
        comm, peer, rank = self.comm, self.peer, self.world.rank
        thing = {"a": 1, "b": [2.0, "three"]}
        yield Timed("bcast of an object", 0, lambda: comm.bcast(thing))
        yield Timed("sendrecv of an object", 0, lambda: comm.sendrecv(thing, peer, source=peer))
        yield Timed("Dup, Free", 0, lambda: comm.Dup().Free())
        yield Timed("Split, Free", 0, lambda: comm.Split(0, rank).Free())


def work(args: argparse.Namespace) -> None:
    """In a rank: one launch of one build."""
    harness.give_up_after(args.timeout - 3)
    from mpi4py import MPI

    wm, world = importlib.import_module("warpmpi"), MPI.COMM_WORLD
    budget, repeats = (0.002, 3) if args.quick else (0.012, 7)
    for each in Operations(wm, world, args.array).all():
        if args.op and not any(word in each.op for word in args.op):
            continue
        found = harness.time_calls(world, each.run, each.wait, budget, repeats, each.calls)
        if world.rank == 0:
            record = {"op": each.op, "bytes": each.bytes, "ranks": 2}
            harness.append(args.results, {**record, **found})
    if world.rank == 0:
        name = Path(wm.__file__).resolve().parent.parent.name
        harness.append(args.results, {"path": {"tree": name, "version": wm.__version__}})


def start(args: argparse.Namespace, build: str, results: str) -> None:
    """Start two ranks with a build."""
    tree = args.before if build == "before" else args.after
    arguments = [__file__, "--worker", build, "--results", results, "--array", args.array]
    arguments += ["--timeout", str(args.timeout), "--before", "."] + ["--quick"] * args.quick
    arguments += ["--op", *args.op] if args.op else []
    environ = {"PYTHONPATH": str(tree.resolve())}
    harness.run_ranks(2, arguments, args.timeout, environ, log=args.log)


def show(results: harness.Results) -> None:
    rows: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
    for record in results.records:
        if "us" in record:
            row = rows.setdefault((record["op"], record["bytes"]), {})
            row[record["impl"]] = record
    lines, slower = [], 0
    for (op, nbytes), row in rows.items():
        if len(row) < 2:
            continue
        before, after = (row[build] for build in BUILDS)
        ratios = [after[key] / before[key] for key in ("us", "us_min")]
        above = sum(ratio > SLOWER for ratio in ratios)
        mark = "**" if above == 2 else "*" if ratios[0] > SLOWER else ""
        slower += bool(mark)
        times = [f"{each[key]:.2f}" for key in ("us", "us_min") for each in (before, after)]
        lines.append(
            [op, harness.size_text(nbytes), *times, *[f"{each:.3f}" for each in ratios], mark]
        )
    titles = ["operation", "of", "before us", "after", "least before", "after"]
    harness.table([*titles, "median", "least", "slower"], lines)
    print(f"\n{len(lines)} operations, {slower} with a median ratio above {SLOWER}")


def parse_arguments() -> argparse.Namespace:
    parser = harness.parser(__doc__.partition("\n")[0], BUILDS)
    parser.set_defaults(timeout=60.0)
    parser.add_argument("--before", type=Path, required=True, metavar="DIR", help="built in place")
    parser.add_argument("--after", type=Path, default=harness.HERE.parent, metavar="DIR")
    parser.add_argument("--op", nargs="+", metavar="WORD", help="those that have such a word")
    parser.add_argument("--array", choices=["cupy", "wm"], default="cupy", help="on GPUs (cupy)")
    return harness.parse(parser)


if __name__ == "__main__":
    harness.run("builds", parse_arguments(), work, start, show)
