# SPDX-License-Identifier: BSD-3-Clause
"""A picture of `bench`: time and bus bandwidth over size."""

from __future__ import annotations

from typing import Any

from .report import MODES
from .ways import RIVALS


def _curves(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the points of warpmpi and of each rival, by caption."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if "us" in row and row["size"]:
            found.setdefault("warpmpi", []).append(row)
            for name, each in row["rivals"].items():
                if "us" in each:
                    point = {**each, "size": row["size"]}
                    found.setdefault(RIVALS[name][1], []).append(point)
    return found


def draw(
    header: dict[str, Any], rows: list[dict[str, Any]], path: str
) -> None:
    """Draw a line for each operation and library. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["size"]:
            facts = [row["name"], row["type"]]
            facts += [row["redop"]] if row["redop"] != "none" else []
            groups.setdefault(", ".join(facts), []).append(row)
    height = 4.0 * max(1, len(groups))
    figure, grid = pyplot.subplots(
        max(1, len(groups)), 2, figsize=(11, height), squeeze=False
    )
    for (title, group), (left, right) in zip(
        groups.items(), grid, strict=False
    ):
        for caption, points in _curves(group).items():
            x = [point["size"] for point in points]
            left.plot(x, [p["us"] for p in points], marker=".", label=caption)
            low, high = ([p[k] for p in points] for k in ("us_min", "us_max"))
            left.fill_between(x, low, high, alpha=0.2)
            buses = [point["busbw"] for point in points]
            right.plot(x, buses, marker=".", label=caption)
        left.set(title=title, ylabel="us", yscale="log")
        right.set(title=title, ylabel="bus GB/s")
        for axes in (left, right):
            axes.set(xlabel="bytes", xscale="log")
            axes.grid(alpha=0.3)
            if axes.lines:
                axes.legend()
    places = header["ranks"]
    names = ", ".join(sorted({place["name"] for place in places}))
    what = f"{len(places)} ranks on {names}; {MODES[header['mode']]}"
    figure.suptitle(what + ("; SIMULATED" if header["simulated"] else ""))
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
