# SPDX-License-Identifier: BSD-3-Clause
"""Timing: several ways of one operation take turns in the same processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

Call = Callable[[], Any]
SLOW = 0.1  # seconds: where a call takes more, there are three turns


def together(world: Any, step: Call) -> tuple[Any, str | None]:
    """Return the step's result, and what it raised on any rank."""
    result = error = None
    try:
        result = step()
    except Exception as exception:
        error = f"{type(exception).__name__}: {exception}"
    errors = [each for each in world.allgather(error) if each]
    return result, errors[0] if errors else None


def play(call: Call, wait: Call, rounds: int) -> float:
    """Return the seconds for so many calls, and the wait for all of them."""
    start = time.perf_counter()
    for _ in range(rounds):
        call()
    wait()
    return time.perf_counter() - start


class Timed:
    """One way in one mode, ready to be played.

    calls: what a call does at once, such as the calls in a graph.
    """

    def __init__(
        self, impl: str, mode: str, call: Any, wait: Call, calls: int
    ) -> None:
        self.impl, self.mode, self.call = impl, mode, call
        self.wait, self.calls, self.rounds = wait, calls, 1
        self.samples: list[float] = []

    def play(self, rounds: int) -> float:
        """Return the seconds of so many calls."""
        return play(self.call, self.wait, rounds)

    def free(self) -> None:
        """Free a graph; nothing of it runs any more."""
        if hasattr(self.call, "free"):
            self.call.free()


def alternate(
    world: Any,
    chosen: Sequence[Timed],
    budget: float,
    turns: int,
    rounds: int = 0,
    warm: int = 0,
) -> None:
    """Time all of them in turn, in another order each time.

    budget: seconds of a turn, or `rounds` of calls, of which `warm` come
    before. Each one's samples are then microseconds of the slowest rank.
    """
    trials = []
    for timed in chosen:
        world.Barrier()
        timed.play(warm)
        trials.append(max(world.allgather(timed.play(2))) / 2)
        timed.rounds = rounds or max(1, min(1000, int(budget / trials[-1])))
    for turn in range(min(3, turns) if max(trials) > SLOW else turns):
        start = turn % len(chosen)
        for timed in [*chosen[start:], *chosen[:start]]:
            world.Barrier()
            seconds = timed.play(timed.rounds) / timed.rounds / timed.calls
            timed.samples.append(1e6 * seconds)
    for timed in chosen:
        every = zip(*world.allgather(timed.samples), strict=True)
        timed.samples = [round(max(each), 3) for each in every]


def ratios(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return the ratio of each turn, sorted."""
    if len(one) != len(other):
        return []
    pairs = zip(one, other, strict=True)
    return sorted(mine / theirs for mine, theirs in pairs)


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median of sorted values, and the range of the middle half."""
    quarter = len(values) // 4
    return median(values), values[quarter], values[-1 - quarter]
