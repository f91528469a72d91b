# SPDX-License-Identifier: BSD-3-Clause
"""The facts of all ranks, as the rules and the report look at them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

Facts = dict[str, Any]


def names(ranks: Iterable[int]) -> str:
    """Write rank numbers: "rank 3", "ranks 0 to 3, 7"."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    words = [
        f"{part[0]} to {part[-1]}"
        if len(part) > 2
        else ", ".join(map(str, part))
        for part in parts
    ]
    many = sum(map(len, parts)) > 1
    return ("ranks " if many else "rank ") + ", ".join(words)


class Job:
    """A report; ranks that have not told a fact are left out where it counts.

    report: what supervisor.py has gathered.
    """

    def __init__(self, report: Facts) -> None:
        self.report = report
        self.ranks: list[Facts] = report["ranks"]
        self.pairs: list[Facts] = report["pairs"]

    @property
    def size(self) -> int:
        """The number of ranks whose facts have been gathered."""
        return len(self.ranks)

    @property
    def own(self) -> Facts:
        """The facts of the first rank."""
        return self.ranks[0]

    def get(self, rank: int, group: str, name: str) -> Any:
        """Return a fact of a rank, None if it is not known."""
        return self.ranks[rank].get(group, {}).get(name)

    def values(self, group: str, name: str) -> dict[Any, list[int]]:
        """Return the ranks for each value of a fact that is known."""
        told: dict[Any, list[int]] = {}
        for rank in range(self.size):
            value = self.get(rank, group, name)
            if value is not None:
                told.setdefault(value, []).append(rank)
        return told

    def libraries(self) -> dict[str, dict[int, Facts]]:
        """Return what ranks tell of the libraries, by engine and rank."""
        found: dict[str, dict[int, Facts]] = {}
        for rank in range(self.size):
            for engine, row in (
                self.get(rank, "core", "libraries") or {}
            ).items():
                found.setdefault(engine, {})[rank] = row
        return found

    def hosts(self) -> list[tuple[str, list[int]]]:
        """Return the name of each host, as the core has it, and its ranks."""
        return self._named("identity")

    def machines(self) -> list[tuple[str, list[int]]]:
        """Return the name of each machine, of maybe several hosts."""
        return self._named("machine")

    def _named(self, fact: str) -> list[tuple[str, list[int]]]:
        return [
            (self.get(ranks[0], "host", "name"), ranks)
            for ranks in self.values("host", fact).values()
        ]

    def is_apart(self, row: Facts) -> bool:
        """Tell if the ends of a pair are on two hosts."""
        one, other = (
            self.get(row[end], "host", "identity") for end in ("from", "to")
        )
        return bool(one != other)

    @property
    def may_not_stage(self) -> bool:
        """True if the program's calls may not stage GPU memory."""
        return any(name == "WARPMPI_REQUIRE" for name, _, _ in self.settings())

    def devices(self, rank: int) -> list[Facts]:
        """Return the GPUs that a rank sees."""
        return self.get(rank, "driver", "devices") or []

    def device(self, rank: int) -> Facts | None:
        """Return the GPU that a rank uses."""
        ordinal = self.get(rank, "core", "device")
        for each in self.devices(rank):
            if each["ordinal"] == ordinal:
                return each
        return None

    def gpus(self, ranks: list[int]) -> dict[str, tuple[Facts, list[int]]]:
        """Return by UUID the GPUs that ranks of a host see, and the users."""
        seen: dict[str, tuple[Facts, list[int]]] = {}
        for rank in ranks:
            own = self.device(rank)
            for each in self.devices(rank):
                users = seen.setdefault(each["uuid"], (each, []))[1]
                if own is not None and own["uuid"] == each["uuid"]:
                    users.append(rank)
        return seen

    def settings(self) -> Iterator[tuple[str, str, list[int]]]:
        """Give each setting in the environment, its value and the ranks."""
        told: dict[tuple[str, str], list[int]] = {}
        for rank in range(self.size):
            settings = self.get(rank, "environment", "settings") or {}
            for each in settings.items():
                told.setdefault(each, []).append(rank)
        for (name, value), ranks in sorted(told.items()):
            yield name, value, ranks

    @property
    def simulated(self) -> bool:
        """True if the driver is the simulated one, which has no speed."""
        return any(
            self.get(rank, "driver", "simulated") for rank in range(self.size)
        )
