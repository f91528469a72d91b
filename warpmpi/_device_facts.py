# SPDX-License-Identifier: BSD-3-Clause
"""Facts about the hardware of a wm.Device."""

from __future__ import annotations

import os
from typing import Any

from . import _core
from ._extend import extends


def _pages(name: str) -> int:
    return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")


@extends(_core.Device)
class _Facts:
    @property
    def alias(self: Any) -> str:
        """Its name: "cuda:0", "cpu"."""
        return "cpu" if self.ordinal < 0 else f"cuda:{self.ordinal}"

    @property
    def is_cuda(self: Any) -> bool:
        """True for a CUDA device."""
        cuda: bool = self.ordinal >= 0
        return cuda

    @property
    def is_cpu(self: Any) -> bool:
        """True for the CPU."""
        cpu: bool = self.ordinal < 0
        return cpu

    @property
    def name(self: Any) -> str:
        """The product's name; "CPU" for the CPU."""
        return "CPU" if self.is_cpu else _core._device_facts(self)[0]

    @property
    def uuid(self: Any) -> str | None:
        """The UUID as nvidia-smi -L writes it; None for the CPU."""
        if self.is_cpu:
            return None
        text = _core._device_facts(self)[1].hex()
        parts = (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
        return "GPU-" + "-".join(parts)

    @property
    def pci_bus_id(self: Any) -> str | None:
        """The PCI address "domain:bus:device.function"; None for the CPU."""
        return None if self.is_cpu else _core._device_facts(self)[2]

    @property
    def total_memory(self: Any) -> int:
        """All memory, in bytes."""
        if self.is_cpu:
            return _pages("SC_PHYS_PAGES")
        return _core._device_facts(self)[3]

    @property
    def free_memory(self: Any) -> int:
        """Free memory in bytes, right now. Makes the device's context."""
        if self.is_cpu:
            return _pages("SC_AVPHYS_PAGES")
        return _core._device_free_memory(self)

    def __str__(self: Any) -> str:
        alias: str = self.alias
        return alias

    def __repr__(self: Any) -> str:
        return f"Device({self.alias!r})"

    def __hash__(self: Any) -> int:
        return hash(self.alias)  # to which it is equal

    def __eq__(self: Any, other: object) -> bool:
        if isinstance(other, str):
            return bool(self.alias == other)
        return self is other if type(other) is type(self) else NotImplemented

    def __reduce__(self: Any) -> tuple[Any, ...]:
        """Pickle by name: elsewhere it is that process's device."""
        return _core.get_device, (self.alias,)
