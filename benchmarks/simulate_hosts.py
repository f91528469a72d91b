# SPDX-License-Identifier: BSD-3-Clause
"""Simulates collectives of many hosts message by message, and checks model_hosts.py by it.

    python simulate_hosts.py [--hosts H ...]

In a host the transfers are those that the core's planner gives to each rank
(tests/c/scale.c, which is compiled here); between hosts each rail's messages go through
ports, as model_hosts.py says. Small vectors have data, and the results are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from bench_hosts import least
from model_hosts import (
    ALGORITHMS,
    FABRIC,
    KIB,
    LOOPBACK,
    MIB,
    Machine,
    Network,
    Sizes,
    fold,
)

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "build_tools"))
import toolchain  # noqa: E402

ELEMENT = 4
SOURCES = ("tests/c/scale.c", "src/comm/coll/direct/plan.c")


class Transfer(NamedTuple):
    """Of the core's plan; regions are the send memory of all ranks, then what they receive."""

    rank: int
    phase: int
    first: int
    sources: int
    target: int
    targets: int
    start: int
    into: int
    nbytes: int


class Planner:
    """The core's planner, as a program."""

    def __init__(self, program: str | None = None):
        self.folder = tempfile.TemporaryDirectory()
        self.program = program or self.build()
        self.known: dict[tuple[str, int, int], list[Transfer]] = {}

    def build(self) -> str:
        compiler = toolchain.find_mpicc()
        if compiler is None:
            raise RuntimeError("no mpicc: the headers of the core include MPI's")
        folders = [ROOT / "src", ROOT / "warpmpi" / "include", *toolchain.find_cuda().include_dirs]
        made = str(Path(self.folder.name) / "scale")
        words = ["-std=c11", "-O1", '-DWM_VERSION="0"', *[f"-I{folder}" for folder in folders]]
        sources = [str(ROOT / source) for source in SOURCES]
        subprocess.run([*compiler, *words, *sources, "-o", made], check=True)
        return made

    def close(self) -> None:
        self.folder.cleanup()

    def ask(self, *words: object) -> list[list[str]]:
        command = [self.program, *map(str, words)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return [each.split() for each in done.stdout.splitlines()]

    def plan(self, kind: str, ranks: int, nbytes: int) -> list[Transfer]:
        key = kind, ranks, nbytes
        if key not in self.known:
            lines = self.ask("plan", kind, ranks, nbytes)
            self.known[key] = [Transfer(*map(int, words)) for words in lines]
        return self.known[key]

    def sizes(self) -> Sizes:
        found = {name: int(value) for name, value in self.ask("sizes")}
        return Sizes(**{name: found[name] for name in Sizes._fields if name in found})


def parts(total: int, count: int) -> np.ndarray:
    """Bytes of each part of a vector, as the core cuts it for ranks."""
    elements = total // ELEMENT
    each = -(-elements // count) * ELEMENT
    at = np.minimum(np.arange(count + 1) * each, elements * ELEMENT)
    return np.diff(at)


def local_bytes(plan: list[Transfer], ranks: int) -> np.ndarray:
    """Bytes that go into each rank of a host from the others, by a plan."""
    into = np.zeros(ranks, np.int64)
    for move in plan:
        others = sum(
            (move.first + i) % ranks != move.rank and move.nbytes for i in range(move.sources)
        )
        into[move.rank] += others
        for i in range(move.targets):
            target = (move.target + i) % ranks
            if target != move.rank:
                into[target] += move.nbytes
    return into


def local_us(machine: Machine, plan: list[Transfer]) -> float:
    return machine.local_us + local_bytes(plan, machine.ranks).max() / machine.local_rate / 1e3


class Ports:
    """The ports of some ranks: when each is free again, and what it has sent to whom."""

    def __init__(self, net: Network, count: int):
        self.net = net
        self.sends, self.receives = np.zeros(count), np.zeros(count)
        self.out, self.messages = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.pairs = np.zeros((count, count), bool)

    def send(
        self, source: np.ndarray, target: np.ndarray, nbytes: np.ndarray, ready: np.ndarray
    ) -> np.ndarray:
        """One message from each source to its target; when each has arrived."""
        busy = np.maximum(self.net.gap, nbytes / self.net.rate / 1e3)
        start = np.maximum(ready, self.sends[source])
        self.sends[source] = start + busy
        end = np.maximum(self.receives[target], start + self.net.latency) + busy
        self.receives[target] = end
        self.out[source] += nbytes
        self.messages[source] += 1
        self.pairs[source, target] = True
        return end

    def peers(self) -> int:
        """Most that a rank has, in either direction."""
        return int((self.pairs | self.pairs.T).sum(0).max(initial=0))


RailRun = Callable[[Machine, Ports, int, int], float]


def to_all(ports: Ports, hosts: int, nbytes: np.ndarray, ready: np.ndarray) -> np.ndarray:
    """Each sends to each; nbytes: by target, or by source if it has one row for each step.

    Returns when all of a rank's messages have come.
    """
    source, done = np.arange(hosts), ready.copy()
    for step in range(1, hosts):
        target = (source + step) % hosts
        each = nbytes[target] if nbytes.ndim == 1 else nbytes[0]
        end = ports.send(source, target, each, ready)
        done[target] = np.maximum(done[target], end)
    return done


def run_gather(machine: Machine, ports: Ports, hosts: int, share: int) -> float:
    whole = np.full((1, hosts), share)
    done = to_all(ports, hosts, whole, np.zeros(hosts))
    return float(done.max()) + fold(machine, hosts, share)


def run_direct(machine: Machine, ports: Ports, hosts: int, share: int) -> float:
    blocks = parts(share, hosts)
    done = to_all(ports, hosts, blocks, np.zeros(hosts))
    done += np.array([fold(machine, hosts, block) for block in blocks])
    return float(to_all(ports, hosts, blocks[None, :], done).max())


def run_ring(machine: Machine, ports: Ports, hosts: int, share: int) -> float:
    blocks, source = parts(share, hosts), np.arange(hosts)
    ready = np.zeros(hosts)
    for step in range(2 * (hosts - 1)):
        end = ports.send(source, (source + 1) % hosts, blocks[(source - step) % hosts], ready)
        ready = np.roll(end, 1)
    return float(ready.max())


def run_halving(machine: Machine, ports: Ports, hosts: int, share: int) -> float:
    source, ready = np.arange(hosts), np.zeros(hosts)
    steps = hosts.bit_length() - 1
    sizes = [share >> step for step in range(1, steps + 1)]
    for way, order in ((1, sizes), (0, sizes[::-1])):
        for number, part in enumerate(order):
            bit = hosts >> (number + 1) if way else 1 << number
            target = source ^ bit
            ready = ports.send(source, target, np.full(hosts, part), ready)[target]
            ready = ready + (fold(machine, 2, part) if way else 0.0)
    return float(ready.max())


def run_tree(machine: Machine, ports: Ports, hosts: int, share: int) -> float:
    ready = np.zeros(hosts)
    steps = (hosts - 1).bit_length()
    for step in range(steps):
        source = np.arange(1 << step, hosts, 2 << step)
        end = ports.send(source, source - (1 << step), np.full(len(source), share), ready[source])
        ready[source - (1 << step)] = end + fold(machine, 2, share)
    for step in reversed(range(steps)):
        target = np.arange(1 << step, hosts, 2 << step)
        source = target - (1 << step)
        ready[target] = ports.send(source, target, np.full(len(target), share), ready[source])
    return float(ready.max())


RAILS: dict[str, RailRun] = {
    "gather": run_gather,
    "direct": run_direct,
    "halving": run_halving,
    "tree": run_tree,
    "ring": run_ring,
}


class Found(NamedTuple):
    us: float
    out: int  # bytes to other hosts, of the rank that sends most
    total: int  # of all ranks
    messages: int
    peers: int


def allreduce(
    planner: Planner, machine: Machine, net: Network, hosts: int, nbytes: int, rail: str
) -> Found:
    """In the host by the core's plans, and each rail, of which two are unequal."""
    ranks = machine.ranks
    us = local_us(machine, planner.plan("reduce_scatter", ranks, nbytes))
    us += local_us(machine, planner.plan("allgather_shares", ranks, nbytes))
    shares, slowest, out, total, messages, peers = parts(nbytes, ranks), 0.0, 0, 0, 0, 0
    for share in np.unique(shares):
        ports = Ports(net, hosts)
        slowest = max(slowest, RAILS[rail](machine, ports, hosts, int(share)))
        out, messages = max(out, int(ports.out.max())), max(messages, int(ports.messages.max()))
        total += int(ports.out.sum()) * int((shares == share).sum())
        peers = max(peers, ports.peers())
    return Found(us + slowest, out, total, messages, peers)


# --- data ------------------------------------------------------------------------


def play(plan: list[Transfer], memory: list[np.ndarray]) -> None:
    """Make a plan's transfers, on the memory of each region of a host."""
    for move in sorted(plan, key=lambda move: move.phase):
        start, into = move.start // ELEMENT, move.into // ELEMENT
        count = move.nbytes // ELEMENT
        data = sum(memory[move.first + i][start : start + count] for i in range(move.sources))
        for i in range(move.targets):
            memory[move.target + i][into : into + count] = data


def is_right(planner: Planner, op: str, hosts: int, ranks: int, count: int) -> tuple[bool, int]:
    """Whether the results of an operation on `count` elements are right, and the elements
    that went between hosts. In the host the core's plans move the data; `count`: of a
    vector, or of a block.
    """
    rng = np.random.default_rng(hosts * 1000 + ranks)
    nbytes, shares = count * ELEMENT, parts(count * ELEMENT, ranks) // ELEMENT
    sent = 0

    def empty(each: list[int]) -> list[np.ndarray]:
        return [np.full(n, -1, np.int64) for n in each]

    def across(data: list[list[np.ndarray]], times: int) -> None:
        nonlocal sent
        sent += times * sum(len(each) for host in data for each in host)

    if op == "Allreduce":
        given = rng.integers(0, 100, (hosts, ranks, count))
        held = []
        for host in given:
            memory = [*host, *empty(list(shares))]
            play(planner.plan("reduce_scatter", ranks, nbytes), memory)
            held.append(memory[ranks:])
        sums = []
        for i in range(ranks):
            # Each block goes to its host, which sends the sum to all.
            ends = np.cumsum(parts(int(shares[i]) * ELEMENT, hosts) // ELEMENT)[:-1]
            cut = [np.split(host[i], ends) for host in held]
            across([[cut[h][to] for to in range(hosts) if to != h] for h in range(hosts)], 1)
            summed = [sum(host[to] for host in cut) for to in range(hosts)]
            across([summed], hosts - 1)
            sums.append(np.concatenate(summed))
        results = []
        for _ in range(hosts):
            memory = [*sums, *empty([count] * ranks)]
            play(planner.plan("allgather_shares", ranks, nbytes), memory)
            results += memory[ranks:]
        return all(np.array_equal(each, given.sum((0, 1))) for each in results), sent
    if op == "Bcast":
        vector = rng.integers(0, 100, count)
        memory = [vector, *empty([count] * (ranks - 1)), *empty(list(shares))]
        play(planner.plan("scatter", ranks, nbytes), memory)
        held = [memory[ranks:]]
        across(held, hosts - 1)
        results = []
        for _ in range(hosts):
            memory = [*held[0], *empty([count] * ranks)]
            play(planner.plan("allgather_shares", ranks, nbytes), memory)
            results += memory[ranks:]
        return all(np.array_equal(each, vector) for each in results), sent
    if op == "Allgather":
        given = rng.integers(0, 100, (hosts, ranks, count))
        across([list(host) for host in given], hosts - 1)
        by_rail = [given[:, i].ravel() for i in range(ranks)]
        memory = [*by_rail, *empty([hosts * ranks * count] * ranks)]
        play(planner.plan("allgather", ranks, hosts * nbytes), memory)
        # By rail, then by host: a rank puts them in the order of ranks.
        wanted = given.transpose(1, 0, 2).ravel()
        return all(np.array_equal(each, wanted) for each in memory[ranks:]), sent
    # Alltoall: in the host each rank gets what goes to its rail, then by rail.
    given = rng.integers(0, 100, (hosts, ranks, ranks, hosts, count))  # from, to (rank, host)
    held = []
    for host in given:
        blocks = [each.reshape(-1) for each in host]
        memory = [*blocks, *empty([ranks * hosts * count] * ranks)]
        play(planner.plan("alltoall", ranks, hosts * nbytes), memory)
        held.append([each.reshape(ranks, hosts, count) for each in memory[ranks:]])
    sent = hosts * ranks * (hosts - 1) * ranks * count
    right = all(
        np.array_equal(held[h][i][:, to], given[h, :, i, to])
        for h in range(hosts)
        for i in range(ranks)
        for to in range(hosts)
    )
    return right, sent


def check_data(planner: Planner) -> list[str]:
    """What is wrong with results, or with the bytes between hosts."""
    wrong = []
    for op in ("Allreduce", "Allgather", "Alltoall", "Bcast"):
        for hosts, ranks, count in ((2, 2, 24), (3, 4, 96), (4, 8, 64), (2, 3, 17)):
            right, sent = is_right(planner, op, hosts, ranks, count)
            size = hosts * ranks
            vector = count * ELEMENT * (size if op in ("Allgather", "Alltoall") else 1)
            must = least(op, vector, hosts, size)
            if not right or sent * ELEMENT != must:
                wrong.append(f"{op}, {hosts} hosts of {ranks}: {right}, {sent * ELEMENT}, {must}")
    return wrong


def compare(planner: Planner, hosts: int, nbytes: int, net: Network) -> list[tuple[str, float]]:
    """For each algorithm how far the model is off: times, bytes, messages and peers."""
    machine, found = Machine(), []
    for name in RAILS:
        if name in ("halving", "tree") and hosts & (hosts - 1):
            continue
        one = allreduce(planner, machine, net, hosts, nbytes, name)
        cost = ALGORITHMS[name][1](machine, net, hosts, nbytes)
        pairs = ((cost.us, one.us), (cost.out, one.out), (cost.messages, one.messages))
        off = max(abs(ours / theirs - 1) for ours, theirs in pairs)
        off = max(off, abs(cost.peers - one.peers))
        found.append((name, off))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hosts", nargs="+", type=int, default=[2, 4, 16, 64, 256, 1024])
    args = parser.parse_args()
    with contextlib.closing(Planner()) as planner:
        return tell(planner, args.hosts)


def tell(planner: Planner, numbers: Sequence[int]) -> int:
    """Print what was checked, on so many hosts."""
    wrong = check_data(planner)
    print("data and bytes between hosts:", *(wrong or ["right"]))
    print("sizes:", planner.sizes())
    worst = 0.0
    for net in (FABRIC, LOOPBACK):
        for hosts in numbers:
            for nbytes in (64 * KIB, 256 * MIB):
                for name, off in compare(planner, hosts, nbytes, net):
                    worst = max(worst, off)
                    if off > 0.02:
                        print(f"{net.name}, {hosts} hosts, {nbytes} B, {name}: off by {off:.1%}")
    print(f"the model is off by {worst:.2%} at most")
    machine = Machine()
    for hosts in numbers:
        one = allreduce(planner, machine, FABRIC, hosts, 256 * MIB, "direct")
        must = least("Allreduce", 256 * MIB, hosts, hosts * machine.ranks)
        into = sum(
            local_bytes(planner.plan(kind, machine.ranks, 256 * MIB), machine.ranks).max()
            for kind in ("reduce_scatter", "allgather_shares")
        )
        print(
            f"{hosts * machine.ranks} ranks, 256 MiB: {into} B into a GPU from its host's, "
            f"{one.out} B out of it to others, {one.total / must:.6f} of the least"
        )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
