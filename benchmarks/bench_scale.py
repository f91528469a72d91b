# SPDX-License-Identifier: BSD-3-Clause
"""What grows with the number of ranks, and messages that all of them send at once.

    python bench_scale.py [--quick] [--ranks N ...] [--launches N] [--impl NAME ...]
        [--out PREFIX]

For each number of ranks, which share GPUs where they are more: the time from MPI's
start, with CUDA's context there, to a first message and to a first collective, the
GPU's and the host's memory that they take, the mappings; then 8 B by Send there and
back in pairs, Barrier and Allreduce. At once: pairs, both ways; a ring, both ways; each
with all others. Writes PREFIX.jsonl, PREFIX.png and PREFIX.log. A time is the median of
the slowest rank's. The data of each exchange are checked.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import importlib
import os
import time
from collections.abc import Callable, Sequence
from ctypes import c_void_p
from statistics import median
from typing import Any

import harness
import numpy as np
from _bench import nccl as nccl_ctypes
from _bench.driver import Driver
from p2p_paths import cupy_on_own_gpu, local_rank

MIB = 1 << 20
RANKS = [1, 2, 4, 8, 16, 32]
SIZES = [8, MIB, 64 * MIB]  # from a rank to another, at once
MOST = 512 * MIB  # that a rank receives at once
CALLS = ["Send", "Barrier", "Allreduce"]

Turn = Callable[[], Any]


class LeftOut(Exception):
    """Why this machine cannot run it: no failure."""


def resident() -> int:
    """Bytes of host memory that this process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Warpmpi:
    """Its own arrays, in blocking and nonblocking calls."""

    def __init__(self, world: Any, gpu: Driver):
        self.wm = importlib.import_module("warpmpi")
        self.world, self.comm = world, self.wm.Comm(world)
        self.device = self.wm.get_device(f"cuda:{gpu.ordinal}")
        self.a, self.b = (self.array(8, world.rank) for _ in "ab")

    def array(self, nbytes: int, value: int) -> Any:
        return self.wm.full(nbytes, value, np.uint8, device=self.device)

    def send(self, peer: int, first: bool) -> None:
        if first:
            self.comm.Send(self.a, peer)
            self.comm.Recv(self.b, peer)
        else:
            self.comm.Recv(self.b, peer)
            self.comm.Send(self.a, peer)

    def barrier(self) -> None:
        self.comm.Barrier()

    def allreduce(self) -> None:
        self.comm.Allreduce(self.a, self.b)

    def first_collective(self) -> None:
        """Also the first on a stream, which have memory of their own."""
        self.comm.Allreduce(self.a, self.b)
        stream = self.wm.Stream(self.device)
        self.comm.on(stream).Allreduce(self.a, self.b)
        stream.synchronize()

    def exchange(self, peers: Sequence[int], froms: Sequence[int], nbytes: int) -> Turn:
        out = self.array(nbytes, self.world.rank)
        self.into = [self.array(nbytes, 255) for _ in froms]
        into = self.into

        def turn() -> None:
            requests = [
                self.comm.Irecv(b, who, k)
                for k, (b, who) in enumerate(zip(into, froms, strict=True))
            ]
            requests += [self.comm.Isend(out, peer, k) for k, peer in enumerate(peers)]
            self.wm.Request.Waitall(requests)

        return turn

    def received(self) -> list[tuple[int, int]]:
        found = [each.numpy() for each in self.into]
        return [(int(each.min()), int(each.max())) for each in found]

    def about(self) -> dict[str, Any]:
        stats = self.wm.stats()
        return {name: stats[name] for name in ("mappings_open", "mapped_bytes")}


class Nccl:
    """CuPy's arrays and one stream, for which the host waits after each call."""

    def __init__(self, world: Any, gpu: Driver):
        try:
            self.cupy = cupy_on_own_gpu(world)
            nccl_ctypes.load()
        except (ImportError, OSError) as error:
            raise LeftOut(str(error)) from None
        if any(world.allgather(gpu.local >= gpu.count)):
            raise LeftOut("ranks share a GPU, which NCCL refuses")
        self.world, self.nccl = world, nccl_ctypes.Communicator(world)
        self.stream = self.cupy.cuda.Stream(non_blocking=True)
        self.a, self.b = (self.cupy.zeros(2, self.cupy.float32) for _ in "ab")
        self.cupy.cuda.runtime.deviceSynchronize()

    def group(self, moves: Sequence[tuple[str, Any, int]]) -> Turn:
        """Sends and receives as one group, and the wait for it."""
        kind = ctypes.c_int(nccl_ctypes.UINT8)
        calls = [
            self.nccl.prepared(
                name,
                c_void_p(self.stream.ptr),
                c_void_p(array.data.ptr),
                ctypes.c_size_t(array.nbytes),
                kind,
                ctypes.c_int(peer),
            )
            for name, array, peer in moves
        ]
        run = self.nccl.grouped(calls)

        def turn() -> None:
            run()
            self.stream.synchronize()

        return turn

    def send(self, peer: int, first: bool) -> None:
        order = ("ncclSend", self.a, peer), ("ncclRecv", self.b, peer)
        for move in order if first else order[::-1]:
            self.group([move])()

    def allreduce(self) -> None:
        word = c_void_p(self.a.data.ptr), c_void_p(self.b.data.ptr), ctypes.c_size_t(2)
        kind, add = ctypes.c_int(nccl_ctypes.FLOAT32), ctypes.c_int(nccl_ctypes.SUM)
        stream = c_void_p(self.stream.ptr)
        self.nccl.checked(self.nccl.prepared("ncclAllReduce", stream, *word, kind, add))()
        self.stream.synchronize()

    barrier = allreduce  # it has no other
    first_collective = allreduce

    def exchange(self, peers: Sequence[int], froms: Sequence[int], nbytes: int) -> Turn:
        cupy = self.cupy
        self.out = cupy.full(nbytes, self.world.rank, cupy.uint8)
        self.into = [cupy.full(nbytes, 255, cupy.uint8) for _ in froms]
        cupy.cuda.runtime.deviceSynchronize()
        moves = [("ncclSend", self.out, peer) for peer in peers]
        moves += [("ncclRecv", b, who) for b, who in zip(self.into, froms, strict=True)]
        return self.group(moves)

    def received(self) -> list[tuple[int, int]]:
        return [(int(each.min()), int(each.max())) for each in self.into]

    def about(self) -> dict[str, Any]:
        return {}


IMPLS: dict[str, type[Warpmpi] | type[Nccl]] = {"warpmpi": Warpmpi, "nccl": Nccl}


def patterns(rank: int, size: int) -> dict[str, tuple[list[int], list[int]]]:
    """Whom a rank sends to, and whom it receives from, in matching order."""
    right, left = (rank + 1) % size, (rank - 1) % size
    pair = [rank ^ 1] if rank ^ 1 < size else []
    others = [(rank + k) % size for k in range(1, size)]
    return {
        "pairs": (pair, pair),
        "ring": ([right, left], [left, right]),
        "all": (others, [(rank - k) % size for k in range(1, size)]),
    }


class Bench:
    """In a rank: one implementation on so many ranks."""

    def __init__(self, args: argparse.Namespace, world: Any):
        self.args, self.world = args, world
        self.budget, self.repeats = (0.005, 5) if args.quick else (0.02, 9)

    def append(self, op: str, nbytes: int, samples: list[float], **more: Any) -> None:
        if self.world.rank == 0:
            us = median(samples)
            record = {"op": op, "ranks": self.world.size, "bytes": nbytes, "us": round(us, 3)}
            record |= {"us_min": round(min(samples), 3), "us_max": round(max(samples), 3)}
            harness.append(self.args.results, record | more)

    def slowest(self, sample: float) -> float:
        return max(self.world.allgather(sample))

    def time(self, turn: Turn, parts: int = 1) -> list[float]:
        """Microseconds of the slowest rank, for each of several repeats."""
        for _ in range(3):
            turn()
        self.world.Barrier()
        start = time.perf_counter()
        turn()
        trial = self.slowest(time.perf_counter() - start)
        rounds = max(1, min(2000, int(self.budget / trial)))
        samples = []
        for _ in range(self.repeats):
            self.world.Barrier()
            start = time.perf_counter()
            for _ in range(rounds):
                turn()
            spent = time.perf_counter() - start
            samples.append(1e6 * self.slowest(spent / rounds / parts))
        return samples

    def start(self, kind: type[Warpmpi] | type[Nccl], gpu: Driver) -> Warpmpi | Nccl:
        """To a first message, and a first collective."""
        world = self.world
        peer = world.rank ^ 1
        sharing = sum(each == gpu.ordinal for each in world.allgather(gpu.ordinal))
        world.Barrier()
        free, host = gpu.free(), resident()
        for step in ("message", "collective"):
            world.Barrier()
            start = time.perf_counter()
            if step == "message":
                impl = kind(world, gpu)
                if peer < world.size:
                    impl.send(peer, world.rank < peer)
            else:
                impl.first_collective()
            spent = self.slowest(time.perf_counter() - start)
            world.Barrier()
            taken = self.slowest((free - gpu.free()) / sharing)
            more = {
                "gpu_mib": round(taken / MIB, 1),
                "host_mib": round(self.slowest(resident() - host) / MIB, 1),
            }
            self.append(f"first {step}", 0, [1e6 * spent], **more, **impl.about())
        return impl

    def calls(self, impl: Warpmpi | Nccl) -> None:
        world = self.world
        peer = world.rank ^ 1
        paired = peer < world.size
        send = functools.partial(impl.send, peer, world.rank < peer) if paired else lambda: None
        turns = {"Send": (send, 2), "Barrier": (impl.barrier, 1), "Allreduce": (impl.allreduce, 1)}
        for name in CALLS:
            if name != "Send" or world.size > 1:
                self.append(name, 8, self.time(*turns[name]))

    def at_once(self, impl: Warpmpi | Nccl) -> None:
        world = self.world
        for name, (peers, froms) in patterns(world.rank, world.size).items():
            for nbytes in SIZES:
                if nbytes * (world.size - 1 if name == "all" else 2) > MOST:
                    continue
                turn = impl.exchange(peers, froms, nbytes)
                samples = self.time(turn)
                if impl.received() != [(each, each) for each in froms]:
                    raise RuntimeError(f"wrong data: {name}, {nbytes} bytes")
                rate = len(peers) * nbytes / median(samples) / 1e3  # of the rank with most
                self.append(f"at once: {name}", nbytes, samples, GBps=round(rate, 3))


def work(args: argparse.Namespace) -> None:
    """In a rank: measure one implementation."""
    harness.give_up_after(args.timeout - 3)
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    bench = Bench(args, world)
    try:
        impl = bench.start(IMPLS[args.worker], Driver(local_rank(world)))
    except LeftOut as why:
        if world.rank == 0:
            harness.append(
                args.results, {"ranks": world.size, "left_out": f"{world.size} ranks: {why}"}
            )
        return
    bench.calls(impl)
    if 1 < world.size <= args.crowd:
        bench.at_once(impl)


def start(args: argparse.Namespace, impl: str, results: str) -> None:
    """Start one implementation on each number of ranks."""
    words = [__file__, "--worker", impl, "--results", results, "--timeout", str(args.timeout)]
    words += ["--crowd", str(args.crowd)]
    if args.quick:
        words.append("--quick")
    failed = []
    for ranks in args.ranks:
        try:
            harness.run_ranks(ranks, words, args.timeout, log=args.log)
        except harness.Failure as failure:
            failed.append(f"{ranks} ranks: {failure}")
    if failed:
        raise harness.Failure("; ".join(failed))


Figures = dict[tuple[str, int], dict[tuple[str, int], dict[str, Any]]]


def figures(results: harness.Results) -> Figures:
    """By operation and size, then by implementation and number of ranks."""
    found: Figures = {}
    for record in results.records:
        if "us" in record:
            row = found.setdefault((record["op"], record["bytes"]), {})
            row[record["impl"], record["ranks"]] = record
    return found


def show(found: Figures, ranks: Sequence[int]) -> None:
    impls = [name for name in IMPLS if any(key[0] == name for row in found.values() for key in row)]
    for key, said in (("us", "us"), ("GBps", "GB/s that a rank sends"), *MEMORY.items()):
        lines = []
        for (op, nbytes), row in found.items():
            for impl in impls:
                cells = [row.get((impl, n), {}).get(key) for n in ranks]
                if any(cell is not None for cell in cells):
                    text = ["-" if cell is None else f"{cell:.1f}" for cell in cells]
                    size = harness.size_text(nbytes) if nbytes else ""
                    lines.append([f"{op} {size}, {impl}", *text])
        if lines:
            print()
            harness.table([f"{said}, by ranks", *map(str, ranks)], lines)


MEMORY = {
    "gpu_mib": "MiB of a GPU, a rank",
    "host_mib": "MiB of the host, a rank",
    "mappings_open": "mappings of rank 0",
}


def plot(found: Figures, results: harness.Results, ranks: Sequence[int]) -> None:
    """Times and memory over the number of ranks."""
    try:
        from matplotlib import pyplot
    except ImportError:
        print("no picture: matplotlib is not installed")
        return
    panels = [
        ("8 B, us", "us", [(name, 8) for name in CALLS]),
        ("start, us", "us", [("first message", 0), ("first collective", 0)]),
        ("memory of a GPU, MiB a rank", "gpu_mib", [("first message", 0), ("first collective", 0)]),
        ("at once, 1 MiB, GB/s", "GBps", [(f"at once: {n}", MIB) for n in patterns(0, 2)]),
    ]
    figure, grid = pyplot.subplots(2, 2, figsize=(13, 9), squeeze=False)
    for axes, (title, key, ops) in zip(grid.flat, panels, strict=True):
        for colour, op in enumerate(ops):
            for impl, style in zip(IMPLS, ("-", "--"), strict=True):
                row = found.get(op, {})
                points = [(n, row[impl, n][key]) for n in ranks if key in row.get((impl, n), {})]
                if points:
                    x, y = zip(*points, strict=True)
                    label = f"{op[0]}, {impl}"
                    axes.plot(x, y, style, marker=".", color=f"C{colour}", label=label)
        axes.set(title=title, xlabel="ranks", xscale="log")
        axes.minorticks_off()
        axes.set_xticks(ranks, map(str, ranks))
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize="small")
    gpus = results.header["gpus"]
    said = f"{len(gpus)} {', '.join(sorted(set(gpus))) or 'no GPU'}; {results.header['mpi']}"
    figure.suptitle(said + ("; SIMULATED" if results.header["simulated"] else ""))
    figure.tight_layout()
    figure.savefig(results.path(".png"), dpi=110, bbox_inches="tight")


def parse_arguments() -> argparse.Namespace:
    parser = harness.parser(__doc__.partition("\n")[0], IMPLS)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS, help="numbers of them")
    parser.add_argument("--crowd", type=int, default=8, help="up to so many, messages at once (8)")
    return harness.parse(parser)


def report(results: harness.Results) -> None:
    found, ranks = figures(results), results.args.ranks
    show(found, ranks)
    plot(found, results, ranks)


if __name__ == "__main__":
    harness.run("scale", parse_arguments(), work, start, report)
