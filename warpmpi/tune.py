# SPDX-License-Identifier: BSD-3-Clause
"""Measure at which sizes collectives of GPU memory best change their way.

    mpirun -n N python -m warpmpi.tune [--out FILE] [--quick]

Start one rank for each GPU of an idle host, once for each number of ranks that
programs use: 2, up to 4, more. It forces each way in turn at sizes around each
switch point, prints what it found, and writes it to the file that programs
read when they start.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from mpi4py import MPI

import warpmpi as wm

from . import _core, _points

MOST = _points.MOST
NOISE = 0.03  # a smaller gain leaves a point where it is


class Trial(NamedTuple):
    """A point, and how the ways up to it and beyond it are compared."""

    point: str
    on_stream: bool
    calls: tuple[str, ...]
    others: dict[str, int]  # points that keep further ways out


ALL = "Allreduce", "Allgather", "Bcast"
ROOTED = "Bcast", "Reduce"
IN_PARTS = "Allreduce", *ROOTED
LATE = {"meeting": MOST}  # no parts, where less than all need pay
TRIALS = (
    Trial("lines", True, ALL, {"wide": MOST, **LATE}),
    Trial("wide", True, ALL, {"lines": 0, "wide_parts": MOST, **LATE}),
    Trial("wide_parts", True, IN_PARTS, {"lines": 0, "wide": 0}),
    Trial("parts", True, ROOTED, {"lines": 0, "wide": 0, "wide_parts": 0}),
    Trial("phase", False, ("Bcast",), {"meeting": MOST}),
    Trial("meeting", False, ("Allreduce", "Bcast"), {}),
)


class Machine:
    """These ranks, their GPUs, and the points that they have."""

    def __init__(self, world: MPI.Intracomm) -> None:
        self.world = world
        self.refuse_if(world.size < 2, "two ranks or more are needed")
        self.refuse_if(not wm.is_cuda_available(), "there is no GPU")
        self.device = wm.get_device()
        self.stream = wm.Stream(self.device)
        self.name, uuid, _, _, self.major = _core._device_facts(self.device)
        uuids = world.allgather(uuid)
        self.refuse_if(
            len(set(uuids)) < world.size,
            "ranks share a GPU, and there is nothing to measure for streams",
        )
        here = world.Split_type(MPI.COMM_TYPE_SHARED)
        self.refuse_if(here.size < world.size, "there are several hosts")
        here.Free()
        linked = [_core._device_is_linked(self.device, u) for u in uuids]
        self.reached = not self.stages()
        self.linked: bool = world.allreduce(
            self.reached and all(linked), MPI.LAND
        )
        self.old = self.points()
        _core._set_points([])
        self.built_in = self.points()

    def refuse_if(self, wrong: bool, why: str) -> None:
        """End all ranks where one finds something wrong; the first says it."""
        if not self.world.allreduce(wrong, MPI.LOR):
            return
        if self.world.rank == 0:
            print(
                f"python -m warpmpi.tune: {why}: start one rank for each of "
                "two or more GPUs of one host, as in mpirun -n 2 python -m "
                "warpmpi.tune",
                file=sys.stderr,
            )
        self.world.Barrier()  # a launcher ends them all with the first
        sys.exit(2)

    def points(self) -> dict[str, int]:
        """Return rank 0's switch points on all ranks."""
        own = _core._points(self.device, self.linked, self.world.size)
        points: dict[str, int] = self.world.bcast(own)
        return points

    def force(self, points: dict[str, int]) -> None:
        """Have what begins now use these."""
        row = tuple({**self.built_in, **points}.values())
        _core._set_points([(0, linked, 0, *row) for linked in (False, True)])

    def stages(self) -> bool:
        """Return True if the GPUs do not reach each other."""
        name, plain = "staged_collectives", self.world.Dup()
        before = wm.stats()[name]
        wm.Comm(plain).Allreduce(MPI.IN_PLACE, wm.zeros(4, device=self.device))
        plain.Free()
        return wm.stats()[name] > before

    def has(self, trial: Trial) -> bool:
        """Return True if there are two ways to compare."""
        several = self.world.size > 2
        return {
            "lines": True,
            "wide": self.linked,
            "wide_parts": self.linked,
            "parts": several,
            "phase": self.reached and several,
            "meeting": self.reached,
        }[trial.point]

    def holds(self, trial: Trial, nbytes: int) -> bool:
        """Return True if LL serves this size; above, there is one way only."""
        if trial.point == "lines":
            return nbytes * (self.world.size - 1) < 1 << 19
        most = self.built_in["wide_parts"]  # all of theirs
        return not trial.point.startswith("wide") or nbytes <= most

    def make_call(
        self, trial: Trial, name: str, nbytes: int
    ) -> Callable[[Any], None] | None:
        """Make the call for which this is compared with the point, if any."""
        size, factor = self.world.size, 1.0
        if trial.point == "meeting":  # plan.c compares so many bytes
            factor = size - 2
            if name == "Allreduce":
                factor = max((size - 1) * (1 - 2 / size), 1)
        if trial.point == "wide":  # and the kernels so many
            factor = size - 1
        if trial.point == "wide_parts":
            factor = 1 if name == "Bcast" else (size - 1) / size
            factor *= size > 2 or name == "Allreduce"
        if factor == 0:
            return None
        count = int(nbytes / factor) // 4
        a = wm.zeros(count, "float32", device=self.device)
        if name == "Bcast":
            return lambda comm: comm.Bcast(a)
        blocks = size if name == "Allgather" else 1
        b = wm.zeros(count * blocks, "float32", device=self.device)
        return lambda comm: getattr(comm, name)(a, b)


class Way:
    """The way up to a trial's point, or beyond it."""

    def __init__(self, machine: Machine, trial: Trial, point: int) -> None:
        self.machine = machine
        self.points = {**trial.others, trial.point: point}
        self.plain = machine.world.Dup()
        self.comm: Any = wm.Comm(self.plain)
        if trial.on_stream:
            self.comm = self.comm.on(machine.stream)

    def measure(self, call: Callable[[Any], None], repeats: int) -> float:
        """Seconds of a call, on the slowest rank."""
        machine = self.machine
        machine.force(self.points)  # a channel keeps those of its first call
        machine.world.Barrier()
        start = time.perf_counter()
        for _ in range(repeats):
            call(self.comm)
        machine.stream.synchronize()
        passed = time.perf_counter() - start
        return float(machine.world.allreduce(passed, MPI.MAX)) / repeats


def compare(
    machine: Machine, trial: Trial, ladder: list[int], quick: bool
) -> list[float]:
    """Return, for each size, log(time of the first way / the other's)."""
    ways = [Way(machine, trial, point) for point in (MOST, 0)]
    blocks, repeats = (3, 2) if quick else (9, 20)
    costs = []
    for nbytes in ladder:
        logs = []
        for name in trial.calls:
            call = machine.make_call(trial, name, nbytes)
            if call is None:
                continue
            times = [
                [way.measure(call, repeats) for way in ways]
                for _ in range(1 + blocks)
            ]
            first, second = zip(*times[1:], strict=True)  # the first warmed up
            ratio = statistics.median(first) / statistics.median(second)
            logs.append(math.log(ratio))
        costs.append(statistics.mean(logs))
    for way in ways:
        way.plain.Free()
    return costs


def choose(
    ladder: list[int], costs: list[float], old: int
) -> tuple[int, float]:
    """Find the best point, and which part of the old one's time it saves.

    That is a mean over the sizes whose way it changes.
    """
    totals = [sum(costs[:k]) for k in range(len(ladder) + 1)]
    best = totals.index(min(totals))
    now = sum(nbytes <= old for nbytes in ladder)
    changed = abs(best - now)
    gain = 1 - math.exp((totals[best] - totals[now]) / max(changed, 1))
    if gain < NOISE:
        return old, 0.0
    return ladder[best - 1] if best > 0 else ladder[0] // 2, gain


def tune(machine: Machine, quick: bool) -> dict[str, int]:
    """Measure all points; the new ones."""
    points = dict(machine.old)
    say = print if machine.world.rank == 0 else lambda *_: None
    link = "NVLink" if machine.linked else "no NVLink"
    link += "" if machine.reached else ", by host memory"
    say(f"{machine.world.size} x {machine.name}, {link}")
    say(f"{'point':10} {'old':>9} {'new':>9} {'gain':>5}")
    for trial in filter(machine.has, TRIALS):
        middle, old = machine.built_in[trial.point], machine.old[trial.point]
        steps = range(-1, 2) if quick else range(-4, 4)
        ladder = [int(middle * 2.0**step) for step in steps]
        ladder = [nbytes for nbytes in ladder if machine.holds(trial, nbytes)]
        costs = compare(machine, trial, ladder, quick)
        points[trial.point], gain = choose(ladder, costs, old)
        say(f"{trial.point:10} {old:9} {points[trial.point]:9} {gain:5.0%}")
    return points


def keep(machine: Machine, points: dict[str, int], out: str | None) -> None:
    """Write them to the file, or say why not."""
    name = out or _points.path()
    if machine.name.startswith("Simulated "):
        print("The driver is simulated: these figures mean nothing.")
        name = out or ""
    if not name:
        print("Nothing was written: --out FILE says where to.")
        return
    ranks = next(most for most in _points.RANKS if machine.world.size <= most)
    _points.write(
        name, (machine.major, machine.linked, ranks, *points.values())
    )
    print(f"Written to {name}")
    if name != _points.path():
        print(f"Set WARPMPI_TUNED={name} to have programs read it.")


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
    try:
        machine = Machine(MPI.COMM_WORLD)
        points = tune(machine, asked.quick)
        if MPI.COMM_WORLD.rank == 0:
            keep(machine, points, asked.out)
    except Exception:
        traceback.print_exc()
        MPI.COMM_WORLD.Abort(1)


if __name__ == "__main__":
    main()
