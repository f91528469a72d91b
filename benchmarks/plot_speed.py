# SPDX-License-Identifier: BSD-3-Clause
"""Draws docs/speed.svg: the time of a message and of an Allreduce, by size.

The figures are those of two records in results/, RECORDS. Needs the standard
library only, so that the same records always give the same file.
"""

from __future__ import annotations

import json
from html import escape
from math import log
from typing import Any

from harness import HERE, size_text

PLOT = HERE.parent / "docs" / "speed.svg"
# Title, record, operation.
RECORDS = [
    ("Send and Recv, one way", "2026-11-22-h200x2-k-p2p", "sendrecv"),
    ("Allreduce", "2026-11-26-h200x2-s-coll-mpi", "Allreduce"),
]
# Colour, label and names in the records, the slowest first.
IMPLS = [
    ("#9467bd", "mpi4py on a CUDA-aware Open MPI", {"cuda-aware-mpi"}),
    ("#d62728", "mpi4py, staged by hand", {"staged"}),
    ("#2ca02c", "NCCL, synchronized", {"nccl", "nccl-synced"}),
    ("#1f77b4", "warpmpi", {"warpmpi"}),
]
AT = 1 << 20  # where figures stand: pixels right of and below the point
LABELLED = {"mpi4py, staged by hand": (34, 13), "warpmpi": (8, 20)}
SIZES = [8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20]
TIMES = {10: "10 us", 100: "100 us", 1000: "1 ms", 10_000: "10 ms", 100_000: "100 ms"}
US = (5, 250_000)  # the ends of the axis
WIDTH, HEIGHT = 350, 290  # of a panel
LEFT, TOP, BETWEEN = 60, 66, 74


def read(record: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What describes the machine, and the measurements."""
    lines = (HERE / "results" / f"{record}.jsonl").read_text().splitlines()
    header, *rows = map(json.loads, lines)
    return header, rows


def text(x: float, y: float, words: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"/>'


def across(size: float) -> float:
    return WIDTH * log(size / SIZES[0]) / log(SIZES[-1] / SIZES[0])


def down(us: float) -> float:
    return HEIGHT * (1 - log(us / US[0]) / log(US[1] / US[0]))


def panel(title: str, rows: list[dict[str, Any]], op: str) -> list[str]:
    """One diagram, both axes logarithmic."""
    made = [text(WIDTH / 2, -10, title, more=' font-weight="bold"')]
    for size in SIZES:
        made.append(line(across(size), 0, across(size), HEIGHT, "#e4e4e4"))
        made.append(text(across(size), HEIGHT + 18, size_text(size)))
    for us, words in TIMES.items():
        made.append(line(0, down(us), WIDTH, down(us), "#e4e4e4"))
        made.append(text(-8, down(us) + 4, words, "end"))
    for colour, label, names in IMPLS:
        found = {
            row["bytes"]: row["us"]
            for row in rows
            if row["impl"] in names and row.get("op") == op and row["bytes"] <= SIZES[-1]
        }
        points = [(across(size), down(us)) for size, us in sorted(found.items())]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        width = 3 if label == "warpmpi" else 2
        made.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
        )
        made += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in points]
        if label in LABELLED:
            right, below = LABELLED[label]
            place = (across(AT) + right, down(found[AT]) + below)
            made.append(text(*place, f"{found[AT]:.3g} us", more=f' fill="{colour}"'))
    return made


def svg() -> str:
    """The whole plot."""
    width, height = LEFT + 2 * WIDTH + BETWEEN + 34, TOP + HEIGHT + 82
    made = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="Helvetica, Arial, sans-serif" '
        'font-size="12" fill="#222">',
        "<!-- made by benchmarks/plot_speed.py -->",
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    x = LEFT
    for colour, label, _ in reversed(IMPLS):
        made.append(line(x, 22, x + 24, 22, colour, 3))
        made.append(text(x + 30, 26, label, "start"))
        x += 64 + 6.5 * len(label)
    dates = []
    for number, (title, record, op) in enumerate(RECORDS):
        header, rows = read(record)
        left = LEFT + number * (WIDTH + BETWEEN)
        made.append(f'<g transform="translate({left} {TOP})">')
        made += [*panel(title, rows, op), "</g>"]
        dates.append(f"{title.partition(',')[0]}: {header['date'][:10]}")
    gpus, said = header["gpus"], header["paths"]
    source = [
        f"{len(gpus)} {gpus[0]} (NVLink), driver {header['driver']}, Open MPI "
        f"{header['mpi'].split()[-1]} without CUDA (CUDA-aware: "
        f"{said['cuda-aware-mpi'].rpartition('v')[2]}), "
        f"NCCL {header['packages']['nvidia-nccl-cu13']}",
        f"Blocking calls from Python, a rank on each GPU. Measured: {'; '.join(dates)}",
    ]
    for number, words in enumerate(source):
        made.append(text(width / 2, TOP + HEIGHT + 48 + 18 * number, words))
    return "\n".join([*made, "</svg>\n"])


if __name__ == "__main__":
    PLOT.write_text(svg())
