# SPDX-License-Identifier: BSD-3-Clause
"""Compiles C files into objects: in parallel, and only what is not current.

Beside each object is the compiler's own list of what went into it. Other
flags, or another compiler, are the business of who names the folder.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from pathlib import Path

import progress
from toolchain import ToolchainError


def _depends(listing: Path) -> list[str]:
    """The files that a rule of make, as a compiler writes it, names."""
    _, _, files = listing.read_text().partition(": ")
    files = files.replace("\\\n", " ")
    if "\\" not in files and "$" not in files:
        return files.split()
    words = re.findall(r"(?:\\.|[^\s\\])+", files)
    return [re.sub(r"\\(.)", r"\1", w).replace("$$", "$") for w in words]


def object_of(folder: str, source: str) -> Path:
    """Where a source's object lies: named by all of its path."""
    path = Path(source)
    if path.is_absolute():
        path = path.relative_to(path.anchor)
    return Path(folder, path).with_suffix(".o")


def is_current(folder: str, source: str, *others: str) -> bool:
    """Whether nothing that an object was made from is newer than it is.

    others: files that its list does not name.
    """
    made = object_of(folder, source)
    try:
        when = made.stat().st_mtime_ns
        files = [*_depends(made.with_suffix(".d")), *others]
        return all(os.stat(path).st_mtime_ns < when for path in files)
    except FileNotFoundError:  # a header that is gone, too
        return False


def compile_one(folder: str, source: str, command: list[str]) -> None:
    """Makes the object of one file."""
    made = object_of(folder, source)
    made.parent.mkdir(parents=True, exist_ok=True)
    # Renamed when whole, so that an interrupted build leaves none; as old as
    # its beginning, so that what was saved meanwhile is newer.
    part = made.with_suffix(f".{os.getpid()}.o")
    listing = part.with_suffix(".d")
    words = [*command, "-MD", "-MT", "object", "-MF", str(listing)]
    words += ["-c", source, "-o", str(part)]
    begun = time.time_ns()
    with progress.doing(f"compiling {source}"):
        status = subprocess.call(words)
    if status != 0:
        raise ToolchainError(f"this failed: {shlex.join(words)}")
    os.utime(part, ns=(begun, begun))
    listing.replace(made.with_suffix(".d"))
    part.replace(made)
