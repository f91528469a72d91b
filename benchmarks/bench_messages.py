# SPDX-License-Identifier: BSD-3-Clause
"""What messages cost beyond the ping-pong, each case beside its rivals.

    python bench_messages.py [--quick] [--launches N] [--impl CASE ...] [--out PREFIX]

Cases: host (NumPy arrays, wm.Comm beside plain mpi4py), rate (64 short messages
in flight), column (strided beside contiguous), pool (memory that CUDA IPC does
not export), both-ways, one-gpu (two ranks on one GPU), rows (Warp's arrays from
its pool, exchanged by Sendrecv, beside an empty kernel), graph (messages of a CUDA
graph, beside bare kernels). Writes PREFIX.jsonl and PREFIX.log and prints a table. Times
are medians of several repeats; the data of each case are checked.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import importlib
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import harness
import numpy as np
from coll_paths import GRAPH_CALLS, capture
from graph_paths import Bare, Messages
from p2p_paths import cupy_on, cupy_on_own_gpu

KIB, MIB = 1 << 10, 1 << 20


class Bench:
    """In a rank: timing, and the record of each figure."""

    def __init__(self, args: argparse.Namespace):
        from mpi4py import MPI

        self.mpi = MPI
        self.world = MPI.COMM_WORLD
        self.wm = importlib.import_module("warpmpi")
        self.comm = self.wm.Comm(self.world)
        self.peer = 1 - self.world.rank
        self.args = args
        self.repeats = 5 if args.quick else 11

    def measure(self, op: str, nbytes: int, turn: Callable[[], Any], messages: int = 1) -> float:
        """Microseconds of one turn, by the number of messages in it."""
        world, budget = self.world, 0.01 if self.args.quick else 0.03
        for _ in range(3):
            turn()
        world.Barrier()
        start = time.perf_counter()
        turn()
        rounds = world.bcast(max(1, min(2000, int(budget / (time.perf_counter() - start)))))
        samples = []
        for _ in range(self.repeats):
            world.Barrier()
            start = time.perf_counter()
            for _ in range(rounds):
                turn()
            samples.append(1e6 * (time.perf_counter() - start) / rounds / messages)
        us = median(samples)
        if world.rank == 0:
            record = {"op": op, "bytes": nbytes, "us": round(us, 3)}
            record |= {"us_min": round(min(samples), 3), "us_max": round(max(samples), 3)}
            record["GBps"] = round(nbytes / us / 1e3, 4)
            harness.append(self.args.results, record)
        return us

    def ping_pong(self, comm: Any, a: Any, b: Any) -> Callable[[], None]:
        send = functools.partial(comm.Send, a, self.peer)
        receive = functools.partial(comm.Recv, b, self.peer)
        order = (send, receive) if self.world.rank == 0 else (receive, send)

        def turn() -> None:
            order[0]()
            order[1]()

        return turn


def expect(received: Any, value: int) -> None:
    if not (np.asarray(received) == value).all():
        raise RuntimeError("wrong data")


def host(bench: Bench) -> None:
    """Both in turn, so that the host's moods hit both."""
    for nbytes in (8, KIB, 4 * KIB, 16 * KIB, 64 * KIB, MIB):
        a, b = np.full(nbytes, bench.world.rank, np.uint8), np.zeros(nbytes, np.uint8)
        for name, comm in (("mpi4py", bench.world), ("warpmpi", bench.comm)) * 2:
            bench.measure(f"host {name}", nbytes, bench.ping_pong(comm, a, b), 2)
            expect(b, bench.peer)


def rate(bench: Bench) -> None:
    """64 messages of 8 KiB from rank 0, and a byte back."""
    cupy = cupy_on_own_gpu(bench.world)
    count, nbytes = 64, 8 * KIB
    arrays = [cupy.full(nbytes, k + bench.world.rank, cupy.uint8) for k in range(count)]
    token = np.zeros(1, np.uint8)
    comm, peer, request = bench.comm, bench.peer, bench.wm.Request

    own = [bench.wm.zeros(nbytes, "u1", bench.wm.get_device()) for _ in arrays]

    def ours(arrays: list[Any] = arrays) -> None:
        if bench.world.rank == 0:
            request.Waitall([comm.Isend(a, peer) for a in arrays])
        else:
            request.Waitall([comm.Irecv(a, peer) for a in arrays])

    def back(turn: Callable[[], None]) -> Callable[[], None]:
        def both() -> None:
            turn()
            if bench.world.rank == 0:
                bench.world.Recv(token, peer)
            else:
                bench.world.Send(token, peer)

        return both

    bench.measure("rate warpmpi", nbytes, back(ours), count)
    if bench.world.rank == 1:
        expect([int(a[0]) for a in arrays], np.arange(count))
    bench.measure("rate warpmpi, its arrays", nbytes, back(lambda: ours(own)), count)
    make = comm.Send_init if bench.world.rank == 0 else comm.Recv_init
    requests = [make(a, peer) for a in arrays]

    def persistent() -> None:
        bench.wm.Prequest.Startall(requests)
        request.Waitall(requests)

    bench.measure("rate warpmpi persistent", nbytes, back(persistent), count)
    nccl = importlib.import_module("_bench.nccl").Communicator(bench.world)
    stream = cupy.cuda.Stream(non_blocking=True)

    def grouped() -> None:
        nccl.check(nccl.lib.ncclGroupStart())
        move = nccl.send if bench.world.rank == 0 else nccl.recv
        for a in arrays:
            move(a.data.ptr, nbytes, peer, stream.ptr)
        nccl.check(nccl.lib.ncclGroupEnd())
        stream.synchronize()

    bench.measure("rate nccl grouped", nbytes, back(grouped), count)
    nccl.close()


def column(bench: Bench) -> None:
    cupy = cupy_on_own_gpu(bench.world)
    field = cupy.full((4096, 4096), bench.world.rank, cupy.float32)
    into = cupy.zeros((4096, 4096), cupy.float32)
    parts = {"row": (field[0], into[0]), "column": (field[:, 0], into[:, 0])}
    for name, (a, b) in parts.items():
        bench.measure(f"4096 float32, {name}", 4 * 4096, bench.ping_pong(bench.comm, a, b), 2)
        expect(cupy.asnumpy(b), bench.peer)


def pool(bench: Bench) -> None:
    cupy = cupy_on_own_gpu(bench.world)
    nbytes = 256 * MIB
    for name, allocate in (
        ("cudaMalloc", cupy.cuda.memory.alloc),
        ("cudaMallocAsync", cupy.cuda.malloc_async),
    ):
        a, b = (cupy.ndarray(nbytes, cupy.uint8, memptr=allocate(nbytes)) for _ in "ab")
        a.fill(bench.world.rank)
        turn = bench.ping_pong(bench.comm, a, b)
        bench.measure(f"pool {name}", nbytes, turn, 2)
        expect(int(b.max()), bench.peer)
        del a, b, turn


def both_ways(bench: Bench) -> None:
    """Each sends 256 MiB to the other; beside it the bare copies by two streams."""
    cupy = cupy_on_own_gpu(bench.world)
    nbytes = 256 * MIB
    a, b = cupy.full(nbytes, bench.world.rank, cupy.uint8), cupy.zeros(nbytes, cupy.uint8)
    exchange = functools.partial(bench.comm.Sendrecv, a, bench.peer, 0, b, bench.peer)
    bench.measure("both ways warpmpi", nbytes, exchange)
    expect(int(b.max()), bench.peer)
    del a, b, exchange
    raw_copies(bench, cupy, nbytes)


def raw_copies(bench: Bench, cupy: Any, nbytes: int) -> None:
    runtime = cupy.cuda.runtime
    if runtime.getDeviceCount() < 2:
        return
    bench.world.Barrier()
    if bench.world.rank == 0:
        sides = []
        for device in range(2):
            runtime.setDevice(device)
            runtime.deviceEnablePeerAccess(1 - device)
            memory = [cupy.cuda.memory.alloc(nbytes) for _ in "ab"]
            sides.append((device, memory, cupy.cuda.Stream(non_blocking=True)))

        def copies() -> None:
            for device, memory, stream in sides:
                runtime.setDevice(device)
                source = sides[1 - device][1][1]
                runtime.memcpyPeerAsync(
                    memory[0].ptr, device, source.ptr, 1 - device, nbytes, stream.ptr
                )
            for _, _, stream in sides:
                stream.synchronize()

        times = []
        for _ in range(bench.repeats + 3):
            start = time.perf_counter()
            copies()
            times.append(1e6 * (time.perf_counter() - start))
        us = median(times[3:])
        record = {"op": "both ways bare copies", "bytes": nbytes, "us": round(us, 3)}
        record |= {"us_min": min(times[3:]), "us_max": max(times[3:])}
        record["GBps"] = round(nbytes / us / 1e3, 4)
        harness.append(bench.args.results, record)
    bench.world.Barrier()


def one_way(bench: Bench, a: Any, b: Any) -> Callable[[], None]:
    if bench.world.rank == 0:
        return functools.partial(bench.comm.Ssend, a, bench.peer)
    return functools.partial(bench.comm.Recv, b, bench.peer)


def one_gpu(bench: Bench) -> None:
    """Rank to rank on the first GPU, beside a copy within it."""
    cupy = importlib.import_module("cupy")
    cupy.cuda.Device(0).use()
    stream = cupy.cuda.Stream(non_blocking=True)
    for nbytes in (MIB, 16 * MIB, 256 * MIB, 1024 * MIB):
        a, b = cupy.full(nbytes, bench.world.rank, cupy.uint8), cupy.zeros(nbytes, cupy.uint8)
        bench.measure("one GPU warpmpi", nbytes, bench.ping_pong(bench.comm, a, b), 2)
        expect(int(b.max()), bench.peer)
        b[:] = 255
        bench.measure("one GPU warpmpi, one way", nbytes, one_way(bench, a, b))
        if bench.world.rank == 1:
            expect(int(b.max()), bench.peer)

        def local(to: Any, source: Any, nbytes: int) -> None:
            if bench.world.rank == 0:
                to.data.copy_from_device_async(source.data, nbytes, stream)
                stream.synchronize()

        copy = functools.partial(local, b, a, nbytes)
        bench.measure("one GPU local copy", nbytes, copy)


# An empty kernel.
PTX = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry empty() { ret; }\n"


def launch_and_wait() -> Callable[[], None]:
    """An empty kernel on a stream, by the driver itself, in its current context."""
    cuda = ctypes.CDLL("libcuda.so.1")
    module, kernel, stream = (ctypes.c_void_p() for _ in range(3))
    assert cuda.cuModuleLoadData(ctypes.byref(module), PTX) == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"empty") == 0
    assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
    launch, wait = cuda.cuLaunchKernel, cuda.cuStreamSynchronize
    launch.argtypes = [ctypes.c_void_p] + [ctypes.c_uint] * 7 + [ctypes.c_void_p] * 3

    def turn() -> None:
        launch(kernel, 1, 1, 1, 32, 1, 1, 0, stream, None, None)
        wait(stream)

    return turn


def rows(bench: Bench) -> None:
    """Views made beforehand of fields in Warp's default pool, both directions."""
    warp = importlib.import_module("warp")
    warp.config.quiet = True
    warp.init()
    device = f"cuda:{bench.world.rank % warp.get_cuda_device_count()}"
    warp.set_device(device)
    for nbytes in (16 * KIB, 32 * KIB, 64 * KIB):
        field = warp.full((8, nbytes // 4), bench.world.rank, dtype=warp.float32, device=device)
        out, into = field[1], field[6]
        warp.synchronize_device(device)
        exchange = functools.partial(bench.comm.Sendrecv, out, bench.peer, 0, into, bench.peer)
        bench.measure("rows Sendrecv", nbytes, exchange)
        expect(into.numpy(), bench.peer)
    with warp.ScopedDevice(device):
        bench.measure("rows empty kernel", 0, launch_and_wait())


def graph(bench: Bench) -> None:
    """Captured messages one way after the other, and both ways; beside bare kernels."""
    cupy = cupy_on(bench.wm.get_device())
    stream, launches = cupy.cuda.Stream(non_blocking=True), 10
    for nbytes in (8, 4 * KIB, 64 * KIB, MIB, 256 * MIB):
        for name, make in (("warpmpi", Messages), ("bare kernels", Bare)):
            way = make(bench, cupy, stream, nbytes)
            order = [way.send, way.receive][:: 1 - 2 * bench.world.rank]
            for kind, calls in (("ping-pong", order), ("both ways", [way.both])):
                launch = capture(stream, lambda calls=calls: [call() for call in calls])

                def turn(launch: Callable[[], None] = launch) -> None:
                    for _ in range(launches):
                        launch()
                    stream.synchronize()

                messages = launches * GRAPH_CALLS * len(calls)
                bench.measure(f"graph {name}, {kind}", nbytes, turn, messages)
            expect(cupy.asnumpy(way.got), 1 + bench.peer)
            bench.world.Barrier()
            del way, order, calls, launch, turn


CASES: dict[str, Callable[[Bench], None]] = {
    "host": host,
    "rate": rate,
    "column": column,
    "pool": pool,
    "both-ways": both_ways,
    "one-gpu": one_gpu,
    "rows": rows,
    "graph": graph,
}


def work(args: argparse.Namespace) -> None:
    """In a rank: measure one case."""
    harness.give_up_after(args.timeout - 3)
    CASES[args.worker](Bench(args))


def start(args: argparse.Namespace, case: str, results: str) -> None:
    """Start the ranks of one case."""
    arguments = [__file__, "--worker", case, "--results", results, "--timeout", str(args.timeout)]
    if args.quick:
        arguments.append("--quick")
    harness.run_ranks(2, arguments, args.timeout, log=args.log)


def judge(results: harness.Results) -> None:
    """Print the goals and whether they were reached, by ratios of this run."""
    found: dict[tuple[str, int], float] = {}
    for record in results.records:
        if "us" in record:
            key = record["op"], record["bytes"]
            found[key] = min(record["us"], found.get(key, record["us"]))

    def compare(text: str, a: tuple[str, int], b: tuple[str, int], least: float) -> None:
        share = found[b] / found[a] if a in found and b in found else None
        said = text if share is None else f"{text}: {share:.2f}, at least {least}"
        harness.verdict(said, None if share is None else share >= least)

    print("\nGoals")
    for (op, nbytes), us in sorted(found.items()):
        if op != "host warpmpi":
            continue
        more = us - found["host mpi4py", nbytes]
        most = 0.4 if nbytes <= 4 * KIB else max(0.8, 0.05 * found["host mpi4py", nbytes])
        size = harness.size_text(nbytes)
        text = f"host, {size}: {more:.2f} us more than mpi4py, at most {most:.2f}"
        harness.verdict(text, more <= most)
    small, large = 8 * KIB, 256 * MIB
    compare("64 messages beside NCCL's", ("rate warpmpi", small), ("rate nccl grouped", small), 2)
    size = 4 * 4096
    compare(
        "a column beside a row", ("4096 float32, column", size), ("4096 float32, row", size), 0.5
    )
    compare(
        "pool beside cudaMalloc", ("pool cudaMallocAsync", large), ("pool cudaMalloc", large), 0.9
    )
    compare(
        "both ways beside copies",
        ("both ways warpmpi", large),
        ("both ways bare copies", large),
        0.95,
    )
    compare("one GPU beside a copy", ("one GPU warpmpi", large), ("one GPU local copy", large), 0.8)
    compare(
        "one GPU, one way, beside a copy",
        ("one GPU warpmpi, one way", large),
        ("one GPU local copy", large),
        0.8,
    )
    for kind in ("ping-pong", "both ways"):
        of_graph = [found.get((f"graph warpmpi, {kind}", n)) for n in (8, 4 * KIB, 64 * KIB)]
        known = None not in of_graph
        text = f"messages of a graph to 64 KiB, {kind}, in at most 6 us"
        said = f"{text}: {max(of_graph)}" if known else text
        harness.verdict(said, max(of_graph) <= 6 if known else None)
    # 14 us where an empty kernel took 7.8: hosts differ more than GPUs.
    worst = max((us for (op, _), us in found.items() if op == "rows Sendrecv"), default=None)
    kernel = found.get(("rows empty kernel", 0))
    text = "rows of Warp's pool, 16 to 64 KiB, in at most 1.8 times an empty kernel"
    known = worst is not None and kernel is not None
    said = f"{text}: {worst} us beside {kernel}" if known else text
    harness.verdict(said, worst <= 1.8 * kernel if known else None)


def report(results: harness.Results) -> None:
    rows = [
        [record["op"], harness.size_text(record["bytes"]), f"{record['us']:.2f}", record["GBps"]]
        for record in results.records
        if "us" in record
    ]
    harness.table(["what", "size", "us", "GB/s"], [list(map(str, row)) for row in rows])
    judge(results)


if __name__ == "__main__":
    args = harness.parse(harness.parser(__doc__.partition("\n")[0], CASES))
    harness.run("messages", args, work, start, report)
