# SPDX-License-Identifier: BSD-3-Clause
"""Collectives and messages between hosts: warpmpi beside NCCL, and staged by hand.

    python bench_hosts.py [--quick] [--ranks N] [--hosts H] [--op OP ...] [--sizes BYTES ...]
        [--mode MODE ...] [--launches N] [--out PREFIX]

The ranks of this machine pass for H hosts (N, unless told), to warpmpi by WARPMPI_HOST; to
NCCL each rank is a host. So one GPU under NVIDIA's MPS serves. MPI, NCCL and UCX go by TCP
over the loopback. All ways are in one process of each rank, on arrays of one kind, and take
turns: a ratio is the median of those of each turn. NCCL comes twice in each, for the
spread. Writes PREFIX.jsonl and PREFIX.log. Each row's data are checked before it is timed.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import harness
from _bench import timing
from _bench.ops import MESSAGES, Op
from _bench.timing import Timed
from _bench.ways import MODES, RIVALS, Ours, Rank, graph_calls
from coll_ops import OPS
from p2p_paths import library_version

KIB, MIB = 1 << 10, 1 << 20
SIZES = [KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB]
QUICK_SIZES = [KIB, 64 * KIB, MIB]
COLLECTIVES = ["Allreduce", "Allgather", "Alltoall", "Bcast"]
BETWEEN_TWO = "messages"  # one way, and an exchange of two ranks
# name: (class, the caption); "nccl-again" is NCCL measured a second time in each turn.
WAYS = {
    "warpmpi": (Ours, "warpmpi"),
    "nccl": RIVALS["nccl"],
    "staged": (RIVALS["staged"][0], "by hand"),
}
AGAIN = "nccl-again"
CTAS = 32  # of NCCL's on one GPU, by all ranks together
LOOPBACK = Path("/sys/class/net/lo/statistics/tx_bytes")
# warpmpi's counters of what a rank sends to other hosts, the first that has counted: of
# hierarchical calls, and of NCCL's.
BETWEEN = ("rail_bytes", "nccl_bytes")
GOALS = {"Allreduce": 1.15, "Allgather": 1.05, "Alltoall": 1.05, "Bcast": 1.05}
PERFTEST = "ucx_perftest"


def environment(ranks: int) -> dict[str, str]:
    """What makes ranks of one machine talk as hosts do; the user's own settings hold."""
    wanted = {
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
        "NCCL_MAX_CTAS": str(max(1, CTAS // ranks)),
        # Open MPI by TCP also between ranks that could share memory; MPICH.
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "self,tcp",
        "OMPI_MCA_btl_tcp_if_include": "lo",
        "MPIR_CVAR_NOLOCAL": "1",
        # Open MPI 5, and 4: all cores for a rank, as the rivals' threads share its core.
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "UCX_TLS": "tcp,cuda_copy",
        "UCX_NET_DEVICES": "lo",
    }
    return {name: os.environ.get(name, value) for name, value in wanted.items()}


class WrongData(Exception):
    pass


class Bench:
    """In a rank: all ways, size after size."""

    def __init__(self, args: argparse.Namespace, world: Any):
        self.args, self.world = args, world
        self.budget, self.repeats = (0.005, 5) if args.quick else (0.02, 9)
        self.gpu = Rank(world, importlib.import_module("warpmpi"), "wm")
        self.ways: dict[str, Any] = {}
        for name in args.impl:
            way, error = harness.together(world, functools.partial(WAYS[name][0], self.gpu))
            if error:
                self.append({"impl": name, "left_out": error})
            else:
                self.ways[name] = way

    def append(self, record: dict[str, Any]) -> None:
        if self.world.rank == 0:
            harness.append(self.args.results, record)

    def alternate(self, chosen: list[Timed], record: dict[str, Any]) -> None:
        """Time all of them in turn, in another order each time."""
        timing.alternate(self.world, chosen, self.budget, self.repeats)
        for timed in chosen:
            found = {
                "impl": timed.impl,
                "mode": timed.mode,
                "rounds": timed.rounds,
                "samples": timed.samples,
                **self.sent(timed),
            }
            self.append({**record, **found})

    def sent(self, timed: Timed) -> dict[str, Any]:
        """Bytes that all ranks send to other hosts in a call: on the loopback, and counted."""
        stats, world = self.gpu.wm.stats, self.world
        rounds = max(1, min(timed.rounds, 20))
        world.Barrier()
        wire, before = read_loopback(), stats()
        world.Barrier()
        timed.play(rounds)
        world.Barrier()
        passed = read_loopback() - wire
        world.Barrier()
        calls = rounds * timed.calls
        found: dict[str, Any] = {"wire_bytes": round(passed / calls)}
        if timed.impl == "warpmpi":
            after = stats()
            sent = [after[name] - before[name] for name in BETWEEN]
            totals = [sum(each) for each in zip(*world.allgather(sent), strict=True)]
            if any(totals):
                found["counted_bytes"] = round(next(filter(None, totals)) / calls)
        return found

    def choose(self, record: dict[str, Any], make: Any) -> list[Timed]:
        """What each way has of each mode, checked; NCCL twice."""
        chosen = []
        for mode in self.args.mode:
            for impl, way in self.ways.items():
                if mode not in way.modes:
                    continue
                step = functools.partial(make, impl, way, mode)
                timed, error = harness.together(self.world, step)
                if error:
                    self.append({**record, "impl": impl, "mode": mode, "left_out": error})
                elif timed:
                    chosen.append(timed)
                    if impl == "nccl":
                        chosen.append(Timed(AGAIN, mode, timed.call, timed.wait, timed.calls))
        return chosen

    def measure(self, op: Op, n: int) -> None:
        world, gpu = self.world, self.gpu
        nbytes = op.nbytes(n, world.size)
        record = {"op": op.name, "bytes": nbytes, "ranks": world.size, "hosts": self.args.hosts}
        record["least_bytes"] = least(op.name, nbytes, self.args.hosts, world.size)
        gpu.prepare(op, n)

        def make(impl: str, way: Any, mode: str) -> Timed:
            call = way.call(op, n, mode)
            gpu.clear()
            calls = graph_calls(op, n, world.size) if mode == "graph" else 1
            wait = (lambda: None) if mode == "synced" else way.wait
            timed = Timed(impl, mode, call, wait, calls * op.calls(n))
            timed.play(1)
            if not op.is_right(way.received(), *gpu.at, n):
                raise WrongData("not what the ranks gave")
            return timed

        chosen = self.choose(record, make)
        if chosen:
            self.alternate(chosen, record)
        for timed in chosen:
            if timed.impl != AGAIN:
                timed.free()

    def about(self) -> dict[str, Any]:
        stats = self.gpu.wm.stats()
        peer = (self.world.rank + self.world.size // self.args.hosts) % self.world.size
        buffer = self.gpu.wm.zeros(1, "f4", self.gpu.device)
        return {
            "version": self.gpu.wm.__version__,
            "mpi": library_version(),
            "transport": str(self.gpu.wm.transport(self.gpu.comm, peer, buffer)),
            "nccl": self.ways["nccl"].nccl.version if "nccl" in self.ways else None,
            "stats": {name: count for name, count in stats.items() if count},
        }


def read_loopback() -> int:
    return int(LOOPBACK.read_text()) if LOOPBACK.exists() else 0


def least(op: str, nbytes: int, hosts: int, ranks: int) -> int:
    """Bytes that ranks must send to other hosts, all together, in a call of a vector.

    The vector is that of the record's `bytes`: bench_coll.py says which. For Allreduce each
    of the R ranks of H hosts sends 2(H-1)/H of its share, n/(R/H).
    """
    others = hosts - 1
    return {
        "Allreduce": 2 * others * nbytes,
        "Allgather": others * nbytes,  # every block to every other host
        "Alltoall": nbytes * ranks * others // hosts,
        "Bcast": others * nbytes,
        "Send": nbytes,
        "Sendrecv": 2 * nbytes,
    }[op]


def work(args: argparse.Namespace) -> None:
    """In a rank: be on a host, then measure one operation."""
    harness.give_up_after(args.timeout - 3)
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    os.environ["WARPMPI_HOST"] = f"host {world.rank * args.hosts // world.size}"
    os.environ["NCCL_HOSTID"] = f"rank {world.rank}"
    bench = Bench(args, world)
    if args.worker == BETWEEN_TWO:
        args.mode = ["synced"]
        ops = [MESSAGES[name](kind="uint8") for name in ("pingpong", "sendrecv")]
    else:
        ops = [next(op for op in OPS if op.label == args.worker)]
    for op in ops:
        for n in dict.fromkeys(op.count(nbytes, world.size) for nbytes in sizes(args)):
            bench.measure(op, n)
    bench.append({"path": bench.about()})
    for way in bench.ways.values():
        way.close()


def sizes(args: argparse.Namespace) -> list[int]:
    return args.sizes or (QUICK_SIZES if args.quick else SIZES)


def start(args: argparse.Namespace, op: str, results: str) -> None:
    """Start the ranks that measure an operation; messages have two."""
    ranks, hosts = (2, 2) if op == BETWEEN_TWO else (args.ranks, args.hosts)
    words = [__file__, "--worker", op, "--results", results, "--timeout", str(args.timeout)]
    words += ["--ranks", str(ranks), "--hosts", str(hosts)]
    if args.quick:
        words.append("--quick")
    for name in ("sizes", "mode", "impl"):
        if getattr(args, name):
            words += [f"--{name}", *map(str, getattr(args, name))]
    harness.run_ranks(ranks, words, args.timeout, environment(ranks), log=args.log)
    if op == BETWEEN_TWO:
        for nbytes in sizes(args):
            perftest(args, nbytes, results)


def perftest(args: argparse.Namespace, nbytes: int, results: str) -> None:
    """One-way time of a message of GPU memory by UCX's own benchmark, if it is here."""
    found = {"impl": PERFTEST, "op": "Send", "mode": "synced", "bytes": nbytes, "ranks": 2}
    program = shutil.which(PERFTEST)
    if program is None:
        harness.append(results, {**found, "left_out": "it is not in PATH"})
        return
    rounds = max(10, min(2000, (256 << 20) // nbytes))
    words = ["-t", "tag_lat", "-m", args.perftest_memory, "-s", str(nbytes), "-n", str(rounds)]
    words += ["-w", str(max(2, rounds // 10)), "-f"]
    try:
        samples = [one_way(run_perftest([program, *words])) for _ in range(3)]
        harness.append(results, {**found, "hosts": 2, "samples": samples})
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        harness.append(results, {**found, "left_out": str(error)[:200]})


def run_perftest(words: list[str]) -> str:
    """Run its two processes on a free port; returns what the one that connects prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environ = harness.environment(environment(2))
    program, *rest = words
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([program, "-p", port], env=environ, **quiet) as server:
        try:
            time.sleep(1)  # it listens by then
            command = [program, "127.0.0.1", "-p", port, *rest]
            return subprocess.run(
                command, env=environ, capture_output=True, text=True, timeout=60, check=True
            ).stdout
        finally:
            server.kill()


def one_way(text: str) -> float:
    """The overall latency in the last line of ucx_perftest, whose last seven columns are:

    latency (percentile, average, overall), bandwidth (average, overall), rate (likewise).
    """
    for line in reversed(text.splitlines()):
        numbers = re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w%.])", line)
        if len(numbers) >= 7:
            return float(numbers[-5])
    raise ValueError("ucx_perftest printed no figures")


Key = tuple[str, str, int]  # operation, mode, bytes


def pooled(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One record of each measurement: the samples of all launches, in order."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    names = ("impl", "op", "mode", "bytes", "ranks", "failed", "left_out")
    for record in records:
        key = tuple(record.get(name) for name in names)
        if key in found and "samples" in record:
            found[key]["samples"] += record["samples"]
        else:
            found.setdefault(key, dict(record))
    for record in found.values():
        if "samples" in record:
            values = record["samples"]
            record["us"] = round(median(values), 3)
            record["us_min"], record["us_max"] = min(values), max(values)
    return list(found.values())


def figures(records: Sequence[dict[str, Any]]) -> dict[Key, dict[str, dict[str, Any]]]:
    """By operation, mode and size, then by implementation."""
    found: dict[Key, dict[str, dict[str, Any]]] = {}
    for record in records:
        if "us" in record:
            key = record["op"], record["mode"], record["bytes"]
            found.setdefault(key, {})[record["impl"]] = record
    return found


def ratios(one: dict[str, Any] | None, other: dict[str, Any] | None) -> list[float]:
    """Of each turn, sorted."""
    return timing.ratios(one["samples"], other["samples"]) if one and other else []


def ratio_text(values: list[float]) -> str:
    if not values:
        return "-"
    middle, low, high = timing.spread(values)
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def show(found: dict[Key, dict[str, dict[str, Any]]]) -> None:
    """Times, and ratios with the range of the middle half of the turns."""
    captions = {name: caption for name, (_, caption) in WAYS.items()} | {PERFTEST: PERFTEST}
    for op, mode in dict.fromkeys(key[:2] for key in found):
        rows = {key[2]: row for key, row in found.items() if key[:2] == (op, mode)}
        impls = [name for name in captions if any(name in row for row in rows.values())]
        titles = [f"{op}, {mode}", *[f"{captions[name]} us" for name in impls]]
        titles += ["warpmpi/NCCL", "NCCL/itself", "warpmpi/by hand"]
        lines = []
        for nbytes, row in sorted(rows.items()):
            times = [f"{row[name]['us']:.1f}" if name in row else "-" for name in impls]
            ours, nccl = row.get("warpmpi"), row.get("nccl")
            pairs = (ours, nccl), (row.get(AGAIN), nccl), (ours, row.get("staged"))
            lines.append(
                [harness.size_text(nbytes), *times, *[ratio_text(ratios(*pair)) for pair in pairs]]
            )
        print()
        harness.table(titles, lines)


def show_bytes(found: dict[Key, dict[str, dict[str, Any]]]) -> None:
    """What went between hosts, over what had to, for vectors that outweigh the headers."""
    lines = []
    for (op, mode, nbytes), row in found.items():
        for impl, record in row.items():
            if nbytes < MIB or "wire_bytes" not in record or impl == AGAIN:
                continue
            must, counted = record["least_bytes"], record.get("counted_bytes")
            cells = [f"{must / record['ranks']:.0f}"]
            cells += ["-" if counted is None else f"{counted / must:.4f}"]
            cells += [f"{record['wire_bytes'] / must:.3f}" if record["wire_bytes"] else "-"]
            lines.append([f"{op} {harness.size_text(nbytes)}, {mode}, {impl}", *cells])
    if lines:
        print()
        harness.table(["bytes between hosts", "least, a rank", "counted", "on the loopback"], lines)


def asked(found: dict[Key, dict[str, dict[str, Any]]], apart: bool) -> list[tuple[str, bool]]:
    """The goals that were measured: a line, and whether it holds.

    apart: each rank is a host. Else NCCL, to which each is, must be slower.
    """
    lines = []
    for op, goal in GOALS.items():
        limit = goal if apart else 1.0
        for mode in MODES[:2]:
            values = {}
            for key, row in found.items():
                if key[:2] == (op, mode):
                    each = ratios(row.get("warpmpi"), row.get("nccl"))
                    if each:
                        values[key[2]] = median(each)
            if values:
                worst = max(values, key=values.__getitem__)
                text = f"{op}, {mode}: at most {limit} times NCCL's time; most"
                text += f" {values[worst]:.2f}, at {harness.size_text(worst)}"
                lines.append((text, values[worst] <= limit))
    for (op, _, nbytes), row in found.items():
        ours, hand, ucx = (row.get(name) for name in ("warpmpi", "staged", PERFTEST))
        size = harness.size_text(nbytes)
        if op == "Send" and ours and ucx:
            share = ucx["us"] / ours["us"]
            lines.append((f"Send {size}: 0.95 of {PERFTEST}; {share:.2f}", share >= 0.95))
        if op in ("Send", "Sendrecv") and ours and hand:
            gain, least_gain = 1 / median(ratios(ours, hand)), 1.5 if nbytes >= MIB else 1.0
            text = f"{op} {size}: {least_gain} times as fast as by hand; {gain:.2f}"
            lines.append((text, gain >= least_gain))
    return lines


def parse_arguments() -> argparse.Namespace:
    parser = harness.parser(__doc__.partition("\n")[0], WAYS)
    everything = [*COLLECTIVES, BETWEEN_TWO]
    next(a for a in parser._actions if a.dest == "worker").choices = everything
    parser.set_defaults(timeout=540.0)
    parser.add_argument("--ranks", type=int, default=2, help="of the collectives (2)")
    parser.add_argument("--hosts", type=int, default=0, help="that they pass for (all ranks)")
    parser.add_argument("--op", nargs="+", choices=everything, default=everything, metavar="OP")
    parser.add_argument("--sizes", nargs="+", type=int, metavar="BYTES", help="in place of ours")
    parser.add_argument("--mode", nargs="+", choices=MODES, default=MODES, help="these alone")
    parser.add_argument("--perftest-memory", default="cuda", help=f"{PERFTEST} -m (cuda)")
    parser.epilog += "; OP: " + ", ".join(everything)
    args = harness.parse(parser)
    args.hosts = args.hosts or args.ranks
    if args.hosts < 2 or args.ranks % args.hosts:
        parser.error("--hosts must be at least 2, and divide --ranks")
    return args


def main() -> int:
    args = parse_arguments()
    if args.worker:
        work(args)
        return 0
    results = harness.Results("hosts", args, ranks=args.ranks, hosts=args.hosts)
    for _ in range(args.launches):
        for op in args.op:
            results.collect(op, functools.partial(start, args, op))
    results.records = pooled(results.records)
    results.write()
    results.describe()
    found = figures(results.records)
    show(found)
    show_bytes(found)
    results.omissions()
    results.failures()
    lines = asked(found, args.hosts == args.ranks)
    if lines:
        print("\nAsked for:")
    for text, holds in lines:
        harness.verdict(text, holds)
    print(f"\n{results.path('.jsonl')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
