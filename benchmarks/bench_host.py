# SPDX-License-Identifier: BSD-3-Clause
"""What a program whose arrays are all NumPy's pays: warpmpi beside plain mpi4py.

    python bench_host.py [--quick] [--ranks N] [--launches N] [--out PREFIX] ...

The same program, once as it is and once after wm.install(): ping-pong of pairs of ranks,
windows of 64 nonblocking messages one way and both ways, pickled objects, collectives, and
the making of communicators. Where a GPU is to be out of sight, set CUDA_VISIBLE_DEVICES to
nothing. MPIRUN may name a launcher that puts the ranks on several hosts. Writes PREFIX.jsonl
and PREFIX.log and prints a table with the goals: messages and collectives take at most 1.1
times as long as by plain mpi4py, and communicators are made and freed in twice the time.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import harness
import numpy as np

KIB, MIB = 1 << 10, 1 << 20
IMPLS = ("mpi4py", "warpmpi")
WINDOW = 64
SIZES = (8, 8 * KIB, 64 * KIB, MIB)
COLLECTIVE_SIZES = (8, 2 * KIB, 64 * KIB)
MAKERS = ("Dup, Free", "Split, Free", "Create_cart, Free")


class Bench:
    """In a rank: what is measured, and the record of each figure."""

    def __init__(self, args: argparse.Namespace):
        from mpi4py import MPI

        if args.worker == "warpmpi":
            importlib.import_module("warpmpi").install()
        self.mpi = MPI
        self.world = MPI.COMM_WORLD
        self.rank = self.world.rank
        self.peer = self.rank ^ 1
        self.args = args
        self.turns = 0

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
        comm, peer, first = self.world, self.peer, self.rank % 2 == 0
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
        counts = [nbytes // 8] * size
        for op, turn in {
            "Bcast": lambda: comm.Bcast(one),
            "Allreduce": lambda: comm.Allreduce(one, other),
            "Reduce": lambda: comm.Reduce(one, other),
            "Gather": lambda: comm.Gather(one, many),
            "Gatherv": lambda: comm.Gatherv(one, [others, counts]),
            "Scatter": lambda: comm.Scatter(many, one),
            "Allgather": lambda: comm.Allgather(one, many),
            "Alltoall": lambda: comm.Alltoall(many, others),
            "Reduce_scatter_block": lambda: comm.Reduce_scatter_block(many, other),
            "Scan": lambda: comm.Scan(one, other),
            "Iallreduce": lambda: comm.Iallreduce(one, other).Wait(),
        }.items():
            self.measure(op, nbytes, turn)

        def unequal() -> None:
            until = time.perf_counter() + 20e-6 * ((self.turns + self.rank) % size)
            self.turns += 1
            while time.perf_counter() < until:
                pass
            comm.Gather(one, many)

        self.measure("Gather, one busy", nbytes, unequal)

    def objects(self) -> None:
        comm, peer, first = self.world, self.peer, self.rank % 2 == 0
        small, size = {"a": 1, "b": [2, 3]}, comm.size

        def ping_pong() -> None:
            if first:
                comm.send(small, peer)
                comm.recv(source=peer)
            else:
                comm.recv(source=peer)
                comm.send(small, peer)

        def exchange() -> None:
            request = comm.isend(small, peer)
            comm.recv(source=peer)
            request.wait()

        self.measure("send, recv", 0, ping_pong, 2)
        self.measure(
            "isend", 0, lambda: (comm.isend(small, peer), comm.recv(source=peer))[0].wait()
        )
        self.measure("bcast", 0, lambda: comm.bcast(small))
        self.measure("gather", 0, lambda: comm.gather(small))
        self.measure("allgather", 0, lambda: comm.allgather(small))
        self.measure("allreduce", 0, lambda: comm.allreduce(1))
        for name, make in zip(
            MAKERS,
            (comm.Dup, lambda: comm.Split(self.rank % 2), lambda: comm.Create_cart([size])),
            strict=True,
        ):
            self.measure(name, 0, lambda make=make: make().Free())  # type: ignore[misc]


def work(args: argparse.Namespace) -> None:
    """In a rank: measure all of it."""
    harness.give_up_after(args.timeout - 3)
    bench = Bench(args)
    for nbytes in SIZES:
        bench.messages(nbytes)
    bench.measure("Barrier", 0, bench.world.Barrier)
    for nbytes in COLLECTIVE_SIZES:
        bench.collectives(nbytes)
    bench.objects()
    if bench.rank == 0 and args.worker == "warpmpi":
        path = str(importlib.import_module("warpmpi").transport(bench.world, 0))
        harness.append(args.results, {"path": path})


def start(args: argparse.Namespace, impl: str, results: str) -> None:
    """Start the ranks of one implementation."""
    arguments = [__file__, "--worker", impl, "--results", results, "--timeout", str(args.timeout)]
    if args.quick:
        arguments.append("--quick")
    harness.run_ranks(args.ranks, arguments, args.timeout, log=args.log)


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
        most = 2 if op in MAKERS else 1.1
        goal = "yes" if ours <= most * plain else "NO"
        figures = [f"{plain:.2f}", f"{ours:.2f}", f"{ours / plain:.2f}"]
        rows.append([op, harness.size_text(nbytes), *figures, goal])
    harness.table(["what", "size", "mpi4py us", "warpmpi us", "times", "goal"], rows)


def parse_arguments() -> argparse.Namespace:
    parser = harness.parser(__doc__.partition("\n")[0], IMPLS)
    parser.add_argument("--ranks", type=int, default=2, help="an even number of them (2)")
    args = harness.parse(parser)
    if args.ranks < 2 or args.ranks % 2:
        parser.error(f"--ranks {args.ranks}: ranks come in pairs")
    return args


if __name__ == "__main__":
    harness.run("host", parse_arguments(), work, start, judge)
