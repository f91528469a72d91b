# SPDX-License-Identifier: BSD-3-Clause
"""What a program whose arrays are all NumPy's pays: warpmpi beside plain mpi4py.

    python bench_host.py [--quick] [--launches N] [--impl NAME ...] [--out PREFIX]

The same program, once as it is and once after wm.install(): ping-pong, windows of
64 nonblocking messages one way and both ways, and collectives, 8 B to 1 MiB, two
ranks. Writes PREFIX.jsonl and PREFIX.log and prints a table with the goals: windows
at no less than 0.9 of plain mpi4py's rate, collectives at most 0.5 us more.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import harness
import numpy as np

KIB, MIB = 1 << 10, 1 << 20
IMPLS = ("mpi4py", "warpmpi")
WINDOW = 64
SIZES = (8, KIB, 8 * KIB, 64 * KIB, MIB)
COLLECTIVE_SIZES = (8, KIB, 64 * KIB)


class Bench:
    """In a rank: what is measured, and the record of each figure."""

    def __init__(self, args: argparse.Namespace):
        from mpi4py import MPI

        if args.worker == "warpmpi":
            importlib.import_module("warpmpi").install()
        self.mpi = MPI
        self.world = MPI.COMM_WORLD
        self.rank = self.world.rank
        self.peer = 1 - self.rank
        self.args = args

    def measure(self, op: str, nbytes: int, turn: Callable[[], Any], messages: int = 1) -> None:
        """Record the microseconds of one turn, by the number of messages in it."""
        world, budget = self.world, 0.01 if self.args.quick else 0.03
        for _ in range(5):
            turn()
        world.Barrier()
        start = time.perf_counter()
        for _ in range(5):
            turn()
        each = (time.perf_counter() - start) / 5
        rounds = world.bcast(max(1, min(20000, int(budget / each))))
        samples = []
        for _ in range(5 if self.args.quick else 15):
            world.Barrier()
            start = time.perf_counter()
            for _ in range(rounds):
                turn()
            samples.append(1e6 * (time.perf_counter() - start) / rounds / messages)
        if self.rank == 0:
            record = {"op": op, "bytes": nbytes, "us": round(median(samples), 3)}
            record |= {"us_min": round(min(samples), 3), "us_max": round(max(samples), 3)}
            harness.append(self.args.results, record)

    def messages(self, nbytes: int) -> None:
        comm, peer, first = self.world, self.peer, self.rank == 0
        out = np.full(nbytes, self.rank, np.uint8)
        into = [np.zeros(nbytes, np.uint8) for _ in range(WINDOW)]
        token = np.zeros(1, np.uint8)

        def ping_pong() -> None:
            if first:
                comm.Send(out, peer)
                comm.Recv(into[0], peer)
            else:
                comm.Recv(into[0], peer)
                comm.Send(out, peer)

        def one_way() -> None:
            if first:
                self.mpi.Request.Waitall([comm.Isend(out, peer) for _ in into])
                comm.Recv(token, peer)
            else:
                self.mpi.Request.Waitall([comm.Irecv(a, peer) for a in into])
                comm.Send(token, peer)

        def both_ways() -> None:
            requests = [comm.Irecv(a, peer) for a in into]
            requests += [comm.Isend(out, peer) for _ in into]
            self.mpi.Request.Waitall(requests)

        self.measure("ping-pong", nbytes, ping_pong, 2)
        self.measure("window, one way", nbytes, one_way, WINDOW)
        self.measure("window, both ways", nbytes, both_ways, WINDOW)
        assert all((a == peer).all() for a in into)

    def collectives(self, nbytes: int) -> None:
        comm, size = self.world, self.world.size
        one, other = np.zeros(nbytes // 8), np.zeros(nbytes // 8)
        many, others = np.zeros((size, nbytes // 8)), np.zeros((size, nbytes // 8))
        for op, turn in {
            "Bcast": lambda: comm.Bcast(one),
            "Allreduce": lambda: comm.Allreduce(one, other),
            "Reduce": lambda: comm.Reduce(one, other),
            "Gather": lambda: comm.Gather(one, many),
            "Scatter": lambda: comm.Scatter(many, one),
            "Allgather": lambda: comm.Allgather(one, many),
            "Alltoall": lambda: comm.Alltoall(many, others),
        }.items():
            self.measure(op, nbytes, turn)


def work(args: argparse.Namespace) -> None:
    """In a rank: measure all of it."""
    harness.give_up_after(args.timeout - 3)
    bench = Bench(args)
    for nbytes in SIZES:
        bench.messages(nbytes)
    bench.measure("Barrier", 0, bench.world.Barrier)
    for nbytes in COLLECTIVE_SIZES:
        bench.collectives(nbytes)


def start(args: argparse.Namespace, impl: str, results: str) -> None:
    """Start the ranks of one implementation."""
    arguments = [__file__, "--worker", impl, "--results", results, "--timeout", str(args.timeout)]
    if args.quick:
        arguments.append("--quick")
    harness.run_ranks(2, arguments, args.timeout, log=args.log)


def judge(results: harness.Results) -> None:
    """Print both, and the goals, by the figures of this run."""
    found: dict[tuple[str, int], dict[str, float]] = {}
    for record in results.records:
        if "us" in record:
            found.setdefault((record["op"], record["bytes"]), {})[record["impl"]] = record["us"]
    rows = []
    for (op, nbytes), us in found.items():
        if len(us) < len(IMPLS):
            continue
        plain, ours = us["mpi4py"], us["warpmpi"]
        if op.startswith("window"):
            goal = "yes" if plain / ours >= 0.9 else "NO"
        elif op == "ping-pong":
            goal = ""
        else:
            goal = "yes" if ours - plain <= 0.5 else "NO"
        figures = [f"{plain:.2f}", f"{ours:.2f}", f"{ours - plain:+.2f}", f"{plain / ours:.2f}"]
        rows.append([op, harness.size_text(nbytes), *figures, goal])
    harness.table(["what", "size", "mpi4py us", "warpmpi us", "more", "rate", "goal"], rows)


def main() -> int:
    args = harness.parse(harness.parser(__doc__.partition("\n")[0], IMPLS))
    if args.worker:
        work(args)
        return 0
    results = harness.Results(args.out or harness.default_prefix("host"), "host")
    args.log = results.log
    results.collect_all(args.impl, args.launches, functools.partial(start, args))
    results.describe()
    results.failures()
    judge(results)
    print(f"\n{results.path('.jsonl')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
