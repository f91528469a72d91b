# SPDX-License-Identifier: BSD-3-Clause
"""The header, the table and the JSON of `bench`."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence
from typing import Any

from .ways import RIVALS

Facts = dict[str, Any]
MODES = {
    "synced": "blocking calls",
    "stream": "calls on a stream, one wait for all",
    "graph": "calls in a CUDA graph",
}
_COLUMNS = (
    ("size", "(B)", 11),
    ("count", "(elements)", 11),
    ("type", "", 10),
    ("redop", "", 6),
    ("root", "", 5),
    ("time", "(us)", 9),
    ("min", "(us)", 9),
    ("max", "(us)", 9),
    ("algbw", "(GB/s)", 8),
    ("busbw", "(GB/s)", 8),
    ("#wrong", "", 7),
    ("by", "", 10),
)


def of_rank(rank: Any) -> Facts:
    """Return what one rank tells of its place."""
    from .._doctor.facts import of_host

    device = rank.device
    return {
        "host": of_host()["name"],
        "device": device.alias,
        "name": device.name,
        "uuid": device.uuid,
    }


def header(options: Any, rank: Any, places: list[Facts]) -> Facts:
    """Return what the figures are of."""
    from .._about import _config

    now = datetime.datetime.now(datetime.timezone.utc)
    driver = rank.driver.cuda if rank.driver is not None else None
    return {
        "date": now.isoformat(timespec="seconds"),
        "ranks": places,
        "names": options.names,
        "mode": options.mode,
        "array": options.array,
        "against": options.against,
        "config": _config(rank.wm),
        # Its driver is no GPU's, and its figures are not to be reported.
        "simulated": hasattr(driver, "simcuda_calls"),
    }


def _many(things: Sequence[Any], name: str) -> str:
    return f"{len(things)} {name}" + ("s" if len(things) != 1 else "")


def introduction(told: Facts) -> str:
    """Write the header's lines."""
    config, places = told["config"], told["ranks"]
    hosts = list(dict.fromkeys(place["host"] for place in places))
    cuda = config["CUDA"]
    lines = [
        f"warpmpi {config['warpmpi']['version']}, {told['date']}",
        f"{config['MPI']['version']}, mpi4py {config['mpi4py']}, NumPy "
        f"{config['NumPy']}, Python {config['Python']['version']}",
    ]
    if cuda["driver"]:
        release = cuda["driver_release"] or "unknown release"
        lines.append(f"driver {release} for CUDA {cuda['driver']}")
    if told["simulated"]:
        lines.append("SIMULATED driver: these figures say nothing")
    lines.append(
        f"{_many(places, 'rank')} on {_many(hosts, 'host')}; "
        f"{told['array']} arrays; "
        f"{MODES[told['mode']]}"
    )
    for number, place in enumerate(places):
        where = f"{place['device']}, {place['name']}"
        lines.append(f"  rank {number}: {place['host']}, {where}")
    shared = Counter((place["host"], place["uuid"]) for place in places)
    if any(uuid and many > 1 for (_, uuid), many in shared.items()):
        lines.append("ranks share a GPU: the figures are of its own memory")
    settings = config["settings"].items()
    if settings:
        lines.append(" ".join(f"{name}={value}" for name, value in settings))
    return "\n".join(f"# {line}" for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    pairs = zip(cells, widths, strict=True)
    return " ".join(cell.rjust(width) for cell, width in pairs)


def number(value: float | None, digits: int = 4) -> str:
    """Write a figure with so many digits; a dash where there is none."""
    if value is None:
        return "-"
    whole = len(str(int(abs(value))))
    return f"{value:.{max(0, min(2, digits - whole))}f}"


class Table:
    """The lines of one operation, as they come."""

    def __init__(self, against: Sequence[str]) -> None:
        self.against = against
        self.widths = [width for *_, width in _COLUMNS]
        self.widths += [9, 7] * len(against)

    def titles(self, name: str) -> str:
        """Write the lines above the first row."""
        first = [title for title, _, _ in _COLUMNS]
        second = [unit for _, unit, _ in _COLUMNS]
        for rival in self.against:
            first += [RIVALS[rival][1], "ratio"]
            second += ["(us)", ""]
        rows = [f"\n# {name}"]
        rows += [
            "#" + _line(each, self.widths)[1:] for each in (first, second)
        ]
        return "\n".join(rows)

    def row(self, row: Facts) -> str:
        """Write a row; what was left out comes below it."""
        if "failed" in row:
            return f"{row['size']:>11} failed: {row['failed']}"
        wrong = "N/A" if row["wrong"] is None else str(row["wrong"])
        cells = [str(row[key]) for key in ("size", "count", "type", "redop")]
        cells += [str(row["root"])]
        cells += [number(row[key]) for key in ("us", "us_min", "us_max")]
        cells += [number(row[key]) for key in ("algbw", "busbw")]
        cells += [wrong, row["by"]]
        for rival in self.against:
            found = row["rivals"].get(rival, {})
            cells += [number(found.get("us")), number(found.get("ratio"))]
        return _line(cells, self.widths)


def closing(rows: Sequence[Facts], against: Sequence[str]) -> str:
    """Write what served, what was left out, and the sums of nccl-tests."""
    lines = []
    timed = [row for row in rows if "us" in row]
    served = dict.fromkeys(row["by"] for row in timed)
    if served:
        lines.append(f"served by: {', '.join(served)}")
    omitted: dict[str, list[str]] = {}
    for row in rows:
        for rival in against:
            why = row.get("rivals", {}).get(rival, {}).get("left_out")
            if why:
                text = f"{RIVALS[rival][1]} left out: {why}"
                omitted.setdefault(text, []).append(row["name"])
    for text, names in omitted.items():
        lines.append(f"{text} ({', '.join(dict.fromkeys(names))})")
    found = [
        each["wrong"]
        for row in timed
        for each in (row, *row["rivals"].values())
        if each.get("wrong") is not None
    ]
    wrong = sum(found) if found else "not looked for"
    lines.append(f"wrong elements: {wrong}")
    buses = [row["busbw"] for row in timed if row["busbw"] is not None]
    if buses:
        lines.append(
            f"mean bus bandwidth (GB/s): {number(sum(buses) / len(buses))}"
        )
    if against:
        lines.append(
            "ratio: warpmpi's time by the other's, the median of the turns"
        )
    return "\n" + "\n".join(f"# {line}" for line in lines)
