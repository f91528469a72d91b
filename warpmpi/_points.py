# SPDX-License-Identifier: BSD-3-Clause
"""The file of sizes at which collectives change their way.

Rank 0's are used on all ranks.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

from . import _core

KEYS = ("compute_capability", "nvlink", "ranks")  # a row belongs to these
NAMES = "lines", "wide", "wide_parts", "parts", "phase", "meeting"  # bytes
MOST = 2**62  # bytes
MOST_BYTES = 1 << 20  # the most that the file may have
RANKS = 2, 4, 64  # a row is of so many, or fewer down to the next

_source = ""


def path() -> str:
    """Return the file's path, or "" if none is wanted. It may not exist."""
    given = os.environ.get("WARPMPI_TUNED")
    if given is not None:
        return given
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(caches, "warpmpi", "tuned.json")


def source() -> str:
    """Return the path of the file in use, or "built in"."""
    return _source or "built in"


def _check(row: Any) -> tuple[int, ...]:
    if not isinstance(row, dict) or set(row) != {*KEYS, *NAMES}:
        raise ValueError(
            f"a row of switch_points does not have the names {(*KEYS, *NAMES)}"
        )
    for name, value in row.items():
        if type(value) is not (bool if name == "nvlink" else int):
            raise ValueError(f"{name} has the wrong type: {value!r}")
        if not 0 <= value <= (MOST if name in NAMES else 1000):
            raise ValueError(f"{name} is out of range: {value}")
    if row["ranks"] not in RANKS:
        raise ValueError(
            f"ranks is {row['ranks']}, and must be one of {RANKS}"
        )
    return tuple(row[name] for name in (*KEYS, *NAMES))


def _open(name: str, flags: int) -> int:
    # To open a pipe would wait for who writes into it.
    return os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)


def read(name: str) -> list[tuple[int, ...]]:
    """Read its rows. OSError, ValueError."""
    with open(name, "rb", opener=_open) as file:
        import json  # slower than the look for a file that is not there
        import stat

        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("the file is not a regular file")
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise ValueError(f"the file is longer than {MOST_BYTES} bytes")
    content = json.loads(text.decode())
    if not isinstance(content, dict) or not isinstance(
        content.get("switch_points"), list
    ):
        raise ValueError("the file has no list switch_points")
    return [_check(row) for row in content["switch_points"]]


def load() -> None:
    """Use those of the file, if there is one; warn of one that is broken."""
    global _source
    name = path()
    if not name:
        return
    asked = "WARPMPI_TUNED" in os.environ
    try:
        _core._set_points(read(name))
        _source = name
    except (OSError, ValueError, RecursionError) as error:
        absent = isinstance(error, (FileNotFoundError, NotADirectoryError))
        if absent and not asked:
            return
        cure = "unset WARPMPI_TUNED" if asked else "delete it"
        warnings.warn(
            f"{name} cannot be used, and the built-in switch points are used: "
            f"{error}; {cure}, or see the guide, Switch points",
            RuntimeWarning,
            stacklevel=3,
        )
