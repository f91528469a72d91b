# SPDX-License-Identifier: BSD-3-Clause
"""Figures that GPUs reach between two ranks, by generation and link."""

from __future__ import annotations

from typing import Any, NamedTuple


class Reach(NamedTuple):
    """Bandwidth of large messages one way, and latency of 8 B, by a link."""

    link: str
    gbps: float
    latency_us: float | None
    source: str


_MEASURED = "measured on two H200, docs/performance.md"
# By compute capability; theory is the links' one way, without protocol.
_NVLINK = {
    (7, 0): Reach("NVLink", 150, None, "theory: NVLink 2"),
    (8, 0): Reach("NVLink", 300, None, "theory: NVLink 3"),
    (9, 0): Reach("NVLink", 389, 8.9, _MEASURED),
    (10, 0): Reach("NVLink", 900, None, "theory: NVLink 5"),
}
# The links of a whole GPU, which lead to other GPUs, or to switches.
_LINKS = {(7, 0): 6, (8, 0): 12, (9, 0): 18, (10, 0): 18}
_STAGED = {(9, 0): Reach("host memory", 50, 17.1, _MEASURED)}
_SAME_GPU = {(9, 0): Reach("their own memory", 1906, None, _MEASURED)}
_PCIE_OF = {
    (7, 0): 3,
    (7, 5): 3,
    (8, 0): 4,
    (8, 6): 4,
    (8, 9): 4,
    (9, 0): 5,
    (10, 0): 5,
    (12, 0): 5,
}
_PCIE = {3: 15.8, 4: 31.5, 5: 63.0}  # GB/s of 16 lanes, one way


def _of_pcie(capability: tuple[int, int]) -> Reach | None:
    generation = _PCIE_OF.get(capability)
    if generation is None:
        return None
    gbps = _PCIE[generation]
    source = f"theory: PCIe generation {generation}, 16 lanes"
    return Reach("PCIe", gbps, None, source)


def _of_nvlink(capability: tuple[int, int], links: int | None) -> Reach | None:
    """links: between two GPUs; None if their number is not known."""
    reach, whole = _NVLINK.get(capability), _LINKS.get(capability)
    if reach is None or whole is None or links is None or links >= whole:
        return reach
    source = f"{reach.source}, for {links} of {whole} links"
    return reach._replace(gbps=reach.gbps * links / whole, source=source)


def expected(
    one: dict[str, Any], other: dict[str, Any], transport: str
) -> Reach | None:
    """Return what two GPUs of a host reach, None if that is not known.

    one, other: the driver's facts of both GPUs, as the first one's rank sees
    them. The link is unknown if that rank does not see the other GPU.
    """
    capability = one["capability"][0], one["capability"][1]
    if transport == "host":
        return _STAGED.get(capability) or _of_pcie(capability)
    if transport != "ipc" or one["name"] != other["name"]:
        return None
    if one["uuid"] == other["uuid"]:
        return _SAME_GPU.get(capability)
    links = [peer for peer in one["peers"] if peer["uuid"] == other["uuid"]]
    if not links:
        return None
    if links[0]["nvlink"]:
        return _of_nvlink(capability, links[0].get("links"))
    return _of_pcie(capability)
