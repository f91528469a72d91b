# SPDX-License-Identifier: BSD-3-Clause
"""A finding of the doctor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from .job import Job

LEVELS = NOTE, WARNING, BROKEN = "note", "warning", "broken"


class Finding(NamedTuple):
    """A finding has a text, which tells the problem, and a cure."""

    name: str
    level: str
    text: str
    cure: str


Rule = Callable[[Job], Iterator[Finding]]


def size_of(nbytes: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"
