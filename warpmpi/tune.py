# SPDX-License-Identifier: BSD-3-Clause
"""Measure at which sizes collectives of GPU memory best change their way.

    mpirun -n 2 python -m warpmpi.tune [--out FILE] [--quick]

Run it with one rank for each GPU, on an idle machine, once for each number of
ranks that programs use: 2, up to 4, more. It forces each way in turn, at sizes
around each switch point, prints what it found, and writes it to the file that
programs read when they start.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from mpi4py import MPI

import warpmpi as wm

from . import _core, _points

MOST = _points.MOST
NOISE = 0.03  # a smaller gain leaves a point where it is


class Trial(NamedTuple):
    """A point, and the points that force the way up to it, and beyond."""

    point: str
    on_stream: bool
    calls: tuple[str, ...]
    up_to: dict[str, int]
    beyond: dict[str, int]


ALL = "Allreduce", "Allgather", "Bcast"
PIPES = {"lines": 0, "wide": 0}
TRIALS = (
    Trial("lines", True, ALL, {"lines": MOST, "wide": MOST}, {"lines": 0, "wide": MOST}),
    Trial("wide", True, ALL, {"lines": 0, "wide": MOST}, PIPES),
    Trial("parts", True, ("Bcast",), {**PIPES, "parts": MOST}, {**PIPES, "parts": 0}),
    Trial("phase", False, ("Bcast",), {"phase": MOST, "meeting": MOST}, {"phase": 0, "meeting": MOST}),
    Trial("meeting", False, ("Allreduce", "Bcast"), {"meeting": MOST}, {"meeting": 0}),
)  # fmt: skip


class Machine:
    """These ranks, their GPUs, and the points that they have."""

    def __init__(self, world: MPI.Intracomm) -> None:
        self.world = world
        self.refuse_if(world.size < 2, "it needs two ranks or more")
        here = world.Split_type(MPI.COMM_TYPE_SHARED)
        self.refuse_if(here.size < world.size, "the ranks are on several hosts")
        here.Free()
        self.refuse_if(not wm.is_cuda_available(), "there is no GPU")
        self.device = wm.get_device()
        self.name, uuid, _, _, self.major = _core._device_facts(self.device)
        uuids = world.allgather(uuid)
        self.refuse_if(
            len(set(uuids)) < world.size,
            "ranks share a GPU, whose collectives on streams go another way: "
            "there is nothing to measure",
        )
        self.is_simulated = self.name.startswith("Simulated ")
        linked = [_core._device_is_linked(self.device, u) for u in uuids]
        self.linked = world.allreduce(all(linked), MPI.LAND)
        self.old = self.points()
        _core._set_points([])
        self.built_in = self.points()
        self.stream = wm.Stream(self.device)
        self.refuse_if(self.stages(), "the GPUs do not reach each other")

    def refuse_if(self, wrong: bool, why: str) -> None:
        """End all ranks where one finds something wrong."""
        if self.world.allreduce(wrong, MPI.LOR):
            end(self.world, why)

    def points(self) -> dict[str, int]:
        """Rank 0's, for all."""
        own = _core._points(self.device, self.linked, self.world.size)
        points: dict[str, int] = self.world.bcast(own)
        return points

    def force(self, points: dict[str, int]) -> None:
        """Have what begins now use these."""
        values = {**self.built_in, **points}
        row = tuple(values[name] for name in _points.NAMES)
        _core._set_points([(0, linked, 0, *row) for linked in (False, True)])

    def stages(self) -> bool:
        """Whether collectives go through host memory."""
        before = wm.stats()
        plain = self.world.Dup()
        comm, a = wm.Comm(plain), wm.zeros(4, device=self.device)
        comm.Allreduce(MPI.IN_PLACE, a)
        comm.on(self.stream).Allreduce(MPI.IN_PLACE, a)
        self.stream.synchronize()
        plain.Free()
        names = "staged_bytes", "staged_collectives"
        return any(wm.stats()[name] > before[name] for name in names)

    def has(self, trial: Trial) -> bool:
        """Whether there are both ways."""
        return (self.linked or trial.point != "wide") and (
            self.world.size > 2 or trial.point not in ("parts", "phase")
        )

    def block(self, trial: Trial, call: str, at: int) -> int:
        """Elements of the call's block for which the plan compares `at`."""
        size, factor = self.world.size, 1.0
        if trial.point == "meeting":  # as plan.c has it
            once, twice = size - 1, 2 * (size - 1) / size
            factor = max(once - twice, 1) if call == "Allreduce" else size - 2
        return int(at / factor) // 4 if factor > 0 else 0


def end(world: MPI.Intracomm, why: str) -> NoReturn:
    """Leave on all ranks; the first says why."""
    if world.rank == 0:
        print(
            f"python -m warpmpi.tune: {why}: start one rank for each of two "
            "or more GPUs of a host, mpirun -n 2 python -m warpmpi.tune",
            file=sys.stderr,
        )
    world.Barrier()
    sys.exit(2)


class Way:
    """Collectives with some points forced."""

    def __init__(
        self, machine: Machine, trial: Trial, points: dict[str, int]
    ) -> None:
        self.machine, self.points = machine, points
        self.on_stream = trial.on_stream
        self.plain = machine.world.Dup()
        self.comm = wm.Comm(self.plain)
        self.calls: Any = self.comm
        if self.on_stream:
            self.calls = self.comm.on(machine.stream)

    def measure(self, call: Callable[[Any], None], repeats: int) -> float:
        """Seconds of a call, of the slowest rank."""
        machine = self.machine
        machine.force(self.points)  # of streams the first call takes them
        machine.world.Barrier()
        start = time.perf_counter()
        for _ in range(repeats):
            call(self.calls)
        if self.on_stream:
            machine.stream.synchronize()
        passed = time.perf_counter() - start
        return machine.world.allreduce(passed, MPI.MAX) / repeats


def make_call(name: str, count: int, ranks: int) -> Callable[[Any], None]:
    """Make the call of a block of so many elements."""
    a = wm.zeros(count)
    if name == "Bcast":
        return lambda comm: comm.Bcast(a)
    b = wm.zeros(count * (ranks if name == "Allgather" else 1))
    return lambda comm: getattr(comm, name)(a, b)


def compare(
    machine: Machine, trial: Trial, ladder: list[int], quick: bool
) -> list[float]:
    """Logarithms of the way's time up to the point over that beyond it."""
    ways = [Way(machine, trial, p) for p in (trial.up_to, trial.beyond)]
    blocks, repeats = (3, 2) if quick else (9, 20)
    costs = []
    for at in ladder:
        logs = []
        for name in trial.calls:
            count = machine.block(trial, name, at)
            if count == 0:
                continue
            call = make_call(name, count, machine.world.size)
            times = [
                [way.measure(call, repeats) for way in ways]
                for _ in range(blocks + 1)
            ][1:]
            first, second = map(statistics.median, zip(*times, strict=True))
            logs.append(math.log(first / second))
        costs.append(statistics.mean(logs))
    for way in ways:
        way.plain.Free()
    return costs


def choose(
    ladder: list[int], costs: list[float], old: int
) -> tuple[int, float]:
    """Find the best point, and by how much less time it takes than the old.

    That is a mean over the sizes whose way it changes. Less than noise leaves
    the old one.
    """
    totals = [sum(costs[:k]) for k in range(len(ladder) + 1)]
    best = min(range(len(totals)), key=totals.__getitem__)
    now = sum(size <= old for size in ladder)
    if best == now:
        return old, 0.0
    gain = 1 - math.exp((totals[best] - totals[now]) / abs(best - now))
    if gain < NOISE:
        return old, 0.0
    return ladder[best - 1] if best > 0 else ladder[0] // 2, gain


def tune(machine: Machine, quick: bool) -> dict[str, int]:
    """Measure all points; the new ones."""
    points = dict(machine.old)
    say = print if machine.world.rank == 0 else lambda *_: None
    link = "NVLink" if machine.linked else "no NVLink"
    say(f"{machine.world.size} x {machine.name}, {link}")
    say(f"{'point':8} {'old':>10} {'new':>10} {'gain':>5}")
    for trial in filter(machine.has, TRIALS):
        middle = machine.built_in[trial.point]
        span = range(-1, 2) if quick else range(-4, 4)
        ladder = [int(middle * 2.0**k) for k in span]
        costs = compare(machine, trial, ladder, quick)
        old = machine.old[trial.point]
        new, gain = choose(ladder, costs, old)
        points[trial.point] = new
        say(f"{trial.point:8} {old:10} {new:10} {gain:5.0%}")
    return points


def keep(machine: Machine, points: dict[str, int], out: str | None) -> None:
    """Write them to the file, or say why not."""
    if machine.is_simulated:
        print("The driver is simulated: these figures mean nothing.")
    name = out or ("" if machine.is_simulated else _points.path())
    if not name:
        print("Nothing was written: --out FILE says where to.")
        return
    ranks = next(r for r in _points.RANKS if machine.world.size <= r)
    values = (points[n] for n in _points.NAMES)
    _points.write(name, (machine.major, machine.linked, ranks, *values))
    print(f"Written to {name}")
    if name != _points.path():
        print(f"Programs read it where WARPMPI_TUNED={name} is set.")


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m warpmpi.tune",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", metavar="FILE", help="write to this file")
    parser.add_argument(
        "--quick", action="store_true", help="fewer sizes and repetitions"
    )
    asked = parser.parse_args()
    world = MPI.COMM_WORLD
    try:
        machine = Machine(world)
        points = tune(machine, asked.quick)
        if world.rank == 0:
            keep(machine, points, asked.out)
    except Exception:
        traceback.print_exc()
        world.Abort(1)


if __name__ == "__main__":
    main()
