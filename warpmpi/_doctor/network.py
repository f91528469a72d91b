# SPDX-License-Identifier: BSD-3-Clause
"""The network cards of a host: which is near a GPU, which carries messages."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

Facts = dict[str, Any]

RDMA = "RDMA"
_WORD = 4  # bytes, in which InfiniBand's counters count
# A place on PCI in the name of a folder, as of a bridge or a host bridge.
_PLACE = re.compile(
    r"pci[0-9a-f]{4}:[0-9a-f]{2}"
    r"|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]"
)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):  # no speed of a card that is down
        return ""


def _chain(folder: Path) -> list[str]:
    """Return the places on PCI from the host bridge down to a device."""
    if not folder.exists():
        return []
    parts = os.path.realpath(folder).split("/")
    return [part for part in parts if _PLACE.fullmatch(part)]


def _numa(folder: Path) -> int | None:
    text = _read(folder / "numa_node")
    return int(text) if text.isdigit() else None  # -1: there is one node


def _card(name: str, kind: str, gbits: float | None, device: Path) -> Facts:
    return {
        "name": name,
        "kind": kind,
        "gbits": gbits,  # None: not known, or it is down
        "numa": _numa(device),
        "pci": _chain(device),
    }


def _traffic(root: Path) -> dict[str, int]:
    """Return what each interface but the loopback has sent, in bytes."""
    told = {}
    # Of this process's network namespace, which /sys need not be of.
    for line in _read(root / "proc/net/dev").splitlines():
        name, _, numbers = line.partition(":")
        if numbers and name.strip() != "lo":
            told[name.strip()] = int(numbers.split()[8])
    return told


def _ports(root: Path) -> list[Path]:
    return sorted((root / "sys/class/infiniband").glob("*/ports/*"))


def cards(root: str = "/") -> list[Facts]:
    """Return the cards of this host: interfaces, then those with RDMA."""
    base, told = Path(root), []
    for name in _traffic(base):
        folder = base / "sys/class/net" / name
        speed = _read(folder / "speed")
        gbits = int(speed) / 1000 if speed.isdigit() and speed != "0" else None
        told.append(_card(name, "TCP", gbits, folder / "device"))
    for port in _ports(base):
        if "ACTIVE" not in _read(port / "state"):
            continue
        rate = re.match(r"[\d.]+", _read(port / "rate"))
        gbits = float(rate[0]) if rate else None
        device = port.parents[1]
        name = f"{device.name}:{port.name}"
        told.append(_card(name, RDMA, gbits, device / "device"))
    return told


def sent(root: str = "/") -> dict[str, int]:
    """Return the bytes that each card has sent so far."""
    base = Path(root)
    told = _traffic(base)
    for port in _ports(base):
        words = _read(port / "counters/port_xmit_data")
        if words.isdigit():
            told[f"{port.parents[1].name}:{port.name}"] = _WORD * int(words)
    return told


def carrier(before: dict[str, int], after: dict[str, int], nbytes: int) -> str:
    """Return the card that has sent most of nbytes, "" if none has.

    An interface goes before the card that it is on, which counts the same.
    """
    grown = {
        name: count - before.get(name, 0) for name, count in after.items()
    }
    for rdma in (False, True):
        some = {n: c for n, c in grown.items() if (":" in n) is rdma}
        name = max(some, key=some.__getitem__, default="")
        if name and 2 * some[name] > nbytes:
            return name
    return ""


def _alike(one: list[str], other: list[str]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def nearest(pci: str, found: list[Facts], root: str = "/") -> list[str]:
    """Return the names of the cards that are nearest to a GPU, and how near.

    pci: the GPU's. The last string tells what is between; nothing is returned
    if no card has a known place.
    """
    folder = Path(root) / "sys/bus/pci/devices" / pci.lower()
    own, numa = _chain(folder), _numa(folder)
    near: dict[tuple[int, bool], list[str]] = {}
    for card in found:
        if card["pci"] and own:
            same = numa is not None and card["numa"] == numa
            shared = _alike(own, card["pci"])
            near.setdefault((shared, same), []).append(card["name"])
    if not near:
        return []
    shared, same = max(near)
    how = "one host bridge" if shared == 1 else "one PCIe switch"
    if shared == 0:
        how = "one NUMA node" if same else "NUMA nodes"
    return [*near[shared, same], how]
