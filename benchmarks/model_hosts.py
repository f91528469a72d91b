# SPDX-License-Identifier: BSD-3-Clause
"""A model of collectives on many hosts: time, bytes, connections and memory of a rank.

    python model_hosts.py [--write]

Prints the tables of docs/scale.md; --write puts them there, and draws docs/scale-*.svg.
Needs the standard library only, so that the same figures always give the same files.
simulate_hosts.py checks the model.

A message of b bytes between two hosts (LogGP's terms): its ports, that of the sender and
that of the receiver, are busy for max(g, b G), and its first byte takes L. Each rank has a
port of its own, and the network between the hosts is never the limit.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from math import ceil, log, log2
from pathlib import Path
from typing import NamedTuple

from harness import size_text
from plot_speed import line, text

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "scale.md"
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
HOSTS = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
SIZES = [8 * KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB, GIB]


class Network(NamedTuple):
    name: str
    latency: float  # us: L
    gap: float  # us: g, between two messages of one port
    rate: float  # GB/s of a port: 1/G

    def busy(self, nbytes: float) -> float:
        """Microseconds of a port."""
        return max(self.gap, nbytes / self.rate / 1e3)


# Measured with NCCL between two processes of one machine; and what is sold today.
LOOPBACK = Network("TCP over the loopback", 28.0, 5.0, 3.05)
FABRIC = Network("400 Gb/s a GPU (assumed)", 5.0, 1.5, 45.0)


class Machine(NamedTuple):
    """A host, by what was measured: docs/scale.md says where."""

    ranks: int = 8
    local_us: float = 17.0  # a blocking collective of few bytes
    local_rate: float = 298.0  # GB/s into a GPU, from all others of the host
    launch_us: float = 8.0  # a kernel, and the wait for it
    fold_rate: float = 2000.0  # GB/s that a kernel reads to add
    pinned_rate: float = 55.0  # GB/s between GPU and host memory
    near_us: float = 1.7  # from kernel to kernel
    mpi_us: float = 3.0  # MPI's own, of a message
    mpi_rate: float = 1.0  # GB/s that MPI's Allreduce adds in host memory


class Cost(NamedTuple):
    us: float
    out: float  # bytes that a rank sends to other hosts
    messages: int  # that it sends there
    peers: int  # ranks of other hosts with which it is connected
    memory: float  # bytes beside its buffers


Rail = Callable[[Machine, Network, int, float], Cost]


def fold(machine: Machine, sources: int, nbytes: float) -> float:
    return machine.launch_us + (sources + 1) * nbytes / machine.fold_rate / 1e3


def rail_gather(machine: Machine, net: Network, hosts: int, share: float) -> Cost:
    """Each sends its share to all, and adds all shares."""
    us = net.latency + (hosts - 1) * net.busy(share) + fold(machine, hosts, share)
    return Cost(us, (hosts - 1) * share, hosts - 1, hosts - 1, hosts * share)


def rail_direct(machine: Machine, net: Network, hosts: int, share: float) -> Cost:
    """Each sends each its block, adds the blocks that it gets, and sends the sum to all."""
    block = share / hosts
    one = net.latency + (hosts - 1) * net.busy(block)
    us = 2 * one + fold(machine, hosts, block)
    return Cost(us, 2 * (hosts - 1) * block, 2 * (hosts - 1), hosts - 1, share)


def rail_ring(machine: Machine, net: Network, hosts: int, share: float) -> Cost:
    """Each step waits for the one before; the additions are hidden."""
    block = share / hosts
    us = 2 * (hosts - 1) * (net.latency + net.busy(block))
    return Cost(us, 2 * (hosts - 1) * block, 2 * (hosts - 1), min(2, hosts - 1), block)


def rail_halving(machine: Machine, net: Network, hosts: int, share: float) -> Cost:
    """Recursive halving and doubling; hosts: a power of two."""
    steps = round(log2(hosts))
    us = out = 0.0
    for step in range(1, steps + 1):
        part = share / 2**step
        us += 2 * (net.latency + net.busy(part)) + fold(machine, 2, part)
        out += 2 * part
    return Cost(us, out, 2 * steps, steps, share / 2)


def rail_tree(machine: Machine, net: Network, hosts: int, share: float) -> Cost:
    """Up a binomial tree and down again: what its root does. hosts: a power of two."""
    steps = ceil(log2(hosts))
    us = steps * (2 * (net.latency + net.busy(share)) + fold(machine, 2, share))
    return Cost(us, steps * share, steps, steps, share)


def of_hosts(rail: Rail) -> Callable[[Machine, Network, int, float], Cost]:
    """Reduce-scatter in the host, the rail's Allreduce of a share, allgather in the host."""

    def cost(machine: Machine, net: Network, hosts: int, nbytes: float) -> Cost:
        share = nbytes / machine.ranks
        found = rail(machine, net, hosts, share)
        one = machine.local_us + (machine.ranks - 1) * share / machine.local_rate / 1e3
        return found._replace(us=2 * one + found.us, memory=share + found.memory)

    return cost


def flat_mpi(machine: Machine, net: Network, hosts: int, nbytes: float) -> Cost:
    """MPI's Allreduce of all ranks, in page-locked memory: recursive halving and doubling.

    In the first steps the partner is on another host. Short vectors: recursive doubling.
    """
    size = hosts * machine.ranks
    far, steps = round(log2(hosts)), round(log2(size))
    us = 2 * (machine.launch_us + nbytes / machine.pinned_rate / 1e3)
    out = 0.0
    if nbytes <= 8 * KIB:
        us += far * (net.latency + net.busy(nbytes)) + steps * machine.mpi_us
        return Cost(us, far * nbytes, far, far, 2 * nbytes)
    for step in range(1, steps + 1):
        part = nbytes / 2**step
        between = step <= far
        move = net.latency + net.busy(part) if between else part / machine.pinned_rate / 1e3
        us += 2 * (machine.mpi_us + move) + part / machine.mpi_rate / 1e3
        out += 2 * part if between else 0
    return Cost(us, out, 2 * far, far, 2 * nbytes)


def flat_ring(machine: Machine, net: Network, hosts: int, nbytes: float) -> Cost:
    """A ring through all GPUs for each port of a host, as NCCL's: the vector is cut for them."""
    size = hosts * machine.ranks
    block = nbytes / machine.ranks / size
    near = machine.near_us + block * machine.ranks / machine.local_rate / 1e3
    step = (hosts * (net.latency + net.busy(block)) + (size - hosts) * near) / size
    out = 2 * (size - 1) * block
    return Cost(2 * (size - 1) * step, out, 2 * (size - 1), 2, block)


ALGORITHMS: dict[str, tuple[str, Callable[[Machine, Network, int, float], Cost]]] = {
    "gather": ("#17becf", of_hosts(rail_gather)),
    "direct": ("#1f77b4", of_hosts(rail_direct)),
    "halving": ("#9467bd", of_hosts(rail_halving)),
    "tree": ("#2ca02c", of_hosts(rail_tree)),
    "ring": ("#ff7f0e", of_hosts(rail_ring)),
    "flat ring": ("#8c564b", flat_ring),
    "flat, by MPI": ("#d62728", flat_mpi),
}


def best(machine: Machine, net: Network, hosts: int, nbytes: float) -> str:
    times = {name: cost(machine, net, hosts, nbytes).us for name, (_, cost) in ALGORITHMS.items()}
    return min(times, key=times.__getitem__)


class Sizes(NamedTuple):
    """Bytes of what a rank keeps; `scale sizes` of tests/c/scale.c prints them."""

    endpoint: int = 600  # of each rank, while a communicator is made; twice
    peer: int = 288  # of each other process, until this one ends
    by_rank: int = 16  # of each rank of a communicator
    hosts: int = 16  # of each rank of a communicator: its host, its place there
    parent_rank: int = 4  # of each rank of the parent, for each level
    window: int = 240  # of each rank of a window
    halo: int = 4024  # of each rank, while a set of fields is made
    control: int = 1769472  # of the segment, from the start on; others appear as they are used


def communicator(sizes: Sizes, ranks: int) -> int:
    """Bytes that a communicator takes, beside a constant."""
    return (sizes.by_rank + sizes.hosts) * ranks


def with_levels(sizes: Sizes, hosts: int, local: int) -> int:
    """A communicator with its levels: `local`, `rail`, `all`."""
    ranks = hosts * local
    kept = communicator(sizes, ranks) + communicator(sizes, ranks + hosts + local)
    return kept + 3 * sizes.parent_rank * ranks


def while_made(sizes: Sizes, ranks: int) -> int:
    return 2 * sizes.endpoint * ranks


# Measured on one H200 under MPS, its ranks as hosts: NCCL's ring; a hierarchy of two hosts of
# two, whose rails share the loopback, beside MPI on all ranks; and staging by hand.
class Check(NamedTuple):
    what: str
    us: float  # the model's
    measured: float


def checks() -> list[Check]:
    one, two = Machine(ranks=1), Machine(ranks=2)
    shared = LOOPBACK._replace(rate=LOOPBACK.rate / 2)
    found = [
        Check(
            f"NCCL, {size_text(n)}, two hosts of one",
            rail_ring(one, LOOPBACK, 2, n).us,
            measured,
        )
        for n, measured in ((4 * KIB, 63), (MIB, 495), (16 * MIB, 5500))
    ]
    pair = of_hosts(rail_gather)(two, shared, 2, MIB).us, flat_mpi(two, shared, 2, MIB).us
    found.append(Check("hierarchy, 1 MiB, two hosts of two", pair[0], 520))
    found.append(Check("MPI on all ranks, 1 MiB, two hosts of two", pair[1], 1000))
    by_hand = flat_mpi(one, LOOPBACK, 2, 64 * MIB).us
    found.append(Check("by hand, 64 MiB, two hosts of one", by_hand, 65000))
    return found


def us_text(us: float) -> str:
    return f"{us:.0f} us" if us < 1000 else f"{us / 1e3:.3g} ms"


def bytes_text(nbytes: float) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.3g} {name}"
    return f"{nbytes:.0f} B"


Table = list[list[str]]


def times_table(machine: Machine, net: Network) -> Table:
    rows = [["Allreduce", "hosts", *ALGORITHMS]]
    for nbytes in (64 * KIB, MIB, 16 * MIB, 256 * MIB):
        for hosts in (2, 4, 16, 64, 256, 1024):
            times = [cost(machine, net, hosts, nbytes).us for _, cost in ALGORITHMS.values()]
            cells = [us_text(us) for us in times]
            cells = [
                f"**{c}**" if us == min(times) else c for c, us in zip(cells, times, strict=True)
            ]
            rows.append([size_text(nbytes), str(hosts), *cells])
    return rows


def winners_table(machine: Machine, net: Network) -> Table:
    rows = [["fastest", *[f"{hosts} hosts" for hosts in HOSTS]]]
    for nbytes in SIZES:
        rows.append([size_text(nbytes), *[best(machine, net, hosts, nbytes) for hosts in HOSTS]])
    return rows


def counts_table(machine: Machine) -> Table:
    """Of a vector of 256 MiB, a rank's."""
    rows = [["a rank, of 256 MiB", "hosts", "sent to other hosts", "messages", "peers", "memory"]]
    for name, (_, cost) in ALGORITHMS.items():
        for hosts in (16, 1024):
            found = cost(machine, FABRIC, hosts, 256 * MIB)
            cells = [bytes_text(found.out), str(found.messages), str(found.peers)]
            rows.append([name, str(hosts), *cells, bytes_text(found.memory)])
    return rows


def kept_table(sizes: Sizes) -> Table:
    levels = 3 * sizes.parent_rank + sizes.by_rank + sizes.hosts
    whose = ["what", "bytes", "how long"]
    freed, made = "until it is freed", "while it is made"
    return [
        whose,
        ["another process", f"{sizes.peer} each", "until this one ends"],
        ["a communicator", f"{sizes.by_rank + sizes.hosts} a rank", freed],
        ["its levels, if it has any", f"{levels} a rank, and a communicator of the rail", freed],
        ["the facts that its ranks tell", f"{2 * sizes.endpoint} a rank", made],
        ["a window", f"{sizes.window} a rank", freed],
        ["a set of fields of a halo", f"{sizes.halo} a rank", made],
    ]


def memory_table(sizes: Sizes, local: int) -> Table:
    rows = [["ranks", "other processes", "a communicator", "with levels", "while it is made"]]
    rows[0] += ["a window", "while fields are made"]
    for hosts in (1, 8, 64, 256, 1024):
        ranks = hosts * local
        values = [
            sizes.peer * ranks,
            communicator(sizes, ranks),
            with_levels(sizes, hosts, local),
            while_made(sizes, ranks),
            sizes.window * ranks,
            sizes.halo * ranks,
        ]
        rows.append([str(ranks), *map(bytes_text, values)])
    return rows


def checks_table() -> Table:
    rows = [["Allreduce over the loopback", "model", "measured"]]
    return rows + [[each.what, us_text(each.us), us_text(each.measured)] for each in checks()]


def tables() -> dict[str, Table]:
    machine, sizes = Machine(), Sizes()
    return {
        "times": times_table(machine, FABRIC),
        "checks": checks_table(),
        "winners": winners_table(machine, FABRIC),
        "counts": counts_table(machine),
        "kept": kept_table(sizes),
        "memory": memory_table(sizes, machine.ranks),
    }


def markdown(table: Table) -> str:
    head, *rows = table
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def with_tables(document: str) -> str:
    """The document, each table of which stands behind a comment with its name."""
    for name, table in tables().items():
        pattern = rf"(<!-- table: {name} -->\n\n)(?:\|.*\n)*\n*"
        document = re.sub(pattern, lambda found, t=table: found[1] + markdown(t) + "\n\n", document)
    return document


# --- plots ---------------------------------------------------------------------

WIDTH, HEIGHT, LEFT, TOP, BETWEEN = 330, 250, 66, 84, 84
Curve = tuple[str, str, list[tuple[float, float]]]  # colour, label, points


def scaled(value: float, ends: tuple[float, float], length: float) -> float:
    return length * log(value / ends[0]) / log(ends[1] / ends[0])


def panel(
    title: str, curves: list[Curve], ends: tuple[float, float], ticks: dict[float, str]
) -> list[str]:
    """A diagram over the number of hosts, both axes logarithmic."""
    xs = (HOSTS[0], HOSTS[-1])
    made = [text(WIDTH / 2, -10, title, more=' font-weight="bold"')]
    for hosts in HOSTS:
        x = scaled(hosts, xs, WIDTH)
        made.append(line(x, 0, x, HEIGHT, "#e4e4e4"))
        if hosts in (2, 8, 32, 128, 512):
            made.append(text(x, HEIGHT + 18, f"{hosts} hosts" if hosts == 32 else str(hosts)))
    for value, words in ticks.items():
        y = HEIGHT - scaled(value, ends, HEIGHT)
        made.append(line(0, y, WIDTH, y, "#e4e4e4"))
        made.append(text(-8, y + 4, words, "end"))
    for colour, _, points in curves:
        inside = [(x, y) for x, y in points if ends[0] <= y <= ends[1]]
        path = " ".join(
            f"{scaled(x, xs, WIDTH):.1f},{HEIGHT - scaled(y, ends, HEIGHT):.1f}" for x, y in inside
        )
        made.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return made


def picture(panels: list[list[str]], legend: list[tuple[str, str]], source: str) -> str:
    """Panels in rows of two."""
    lines = -(-len(panels) // 2)
    width, height = LEFT + 2 * WIDTH + BETWEEN + 20, TOP + lines * (HEIGHT + 64) + 10
    made = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="Helvetica, Arial, sans-serif" '
        'font-size="12" fill="#222">',
        "<!-- made by benchmarks/model_hosts.py -->",
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    x = 30.0
    for colour, label in legend:
        made.append(line(x, 22, x + 20, 22, colour, 3))
        made.append(text(x + 25, 26, label, "start"))
        x += 46 + 6.3 * len(label)
    made.append(text(width / 2, 50, source))
    for number, each in enumerate(panels):
        left = LEFT + number % 2 * (WIDTH + BETWEEN)
        top = TOP + number // 2 * (HEIGHT + 64)
        made += [f'<g transform="translate({left} {top})">', *each, "</g>"]
    return "\n".join([*made, "</svg>\n"])


def times_svg(machine: Machine, net: Network) -> str:
    ticks = {10.0: "10 us", 100.0: "100 us", 1e3: "1 ms", 1e4: "10 ms", 1e5: "100 ms", 1e6: "1 s"}
    panels = []
    for nbytes in (64 * KIB, MIB, 16 * MIB, 256 * MIB):
        curves = [
            (colour, name, [(h, cost(machine, net, h, nbytes).us) for h in HOSTS])
            for name, (colour, cost) in ALGORITHMS.items()
        ]
        panels.append(panel(f"Allreduce of {size_text(nbytes)}", curves, (10.0, 1e6), ticks))
    legend = [(colour, name) for name, (colour, _) in ALGORITHMS.items()]
    return picture(panels, legend, f"hosts of {machine.ranks} GPUs; {net.name}; a model")


def memory_svg(machine: Machine, sizes: Sizes) -> str:
    """What a rank keeps, and the peers that algorithms have."""
    local = machine.ranks
    kept: list[Curve] = [
        ("#1f77b4", "other processes", [(h, sizes.peer * h * local) for h in HOSTS]),
        ("#2ca02c", "a communicator", [(h, communicator(sizes, h * local)) for h in HOSTS]),
        ("#ff7f0e", "with levels", [(h, with_levels(sizes, h, local)) for h in HOSTS]),
        ("#d62728", "while it is made", [(h, while_made(sizes, h * local)) for h in HOSTS]),
    ]
    ticks = {100.0: "100 B", 1e4: "10 kB", 1e6: "1 MB", 1e8: "100 MB"}
    panels = [panel("host memory of a rank", kept, (100.0, 1e8), ticks)]
    peers = [
        (colour, name, [(h, cost(machine, FABRIC, h, MIB).peers) for h in HOSTS])
        for name, (colour, cost) in ALGORITHMS.items()
        if name in ("direct", "halving", "ring")
    ]
    colours = {"direct": "#17becf", "halving": "#9467bd", "ring": "#8c564b"}
    peers = [(colours[name], name, points) for _, name, points in peers]
    counts = {1.0: "1", 10.0: "10", 100.0: "100", 1000.0: "1000"}
    panels.append(panel("peers of a rank on other hosts", peers, (1.0, 2000.0), counts))
    legend = [(colour, label) for colour, label, _ in [*kept, *peers]]
    return picture(panels, legend, f"hosts of {local} GPUs")


def plots() -> dict[str, str]:
    return {
        "scale-times.svg": times_svg(Machine(), FABRIC),
        "scale-memory.svg": memory_svg(Machine(), Sizes()),
    }


def main() -> int:
    for name, table in tables().items():
        print(f"\n{name}\n\n{markdown(table)}")
    if "--write" in sys.argv[1:]:
        for name, svg in plots().items():
            (DOCS / name).write_text(svg)
        PAGE.write_text(with_tables(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
