# SPDX-License-Identifier: BSD-3-Clause
"""The devices of this process, and waiting for all their work."""

from __future__ import annotations

from . import _core
from ._core import Device


def get_cuda_devices() -> list[Device]:
    """The visible CUDA devices in order; empty without a driver."""
    count = _core.get_cuda_device_count()
    return [_core.get_device(ordinal) for ordinal in range(count)]


def is_cuda_available() -> bool:
    """Return True if there is a CUDA driver and a device. Never raises."""
    return _core.get_cuda_device_count() > 0


def synchronize() -> None:
    """Wait for all work on every device that this process uses.

    Through whatever library. Makes no context.
    """
    for device in get_cuda_devices():
        if _core._device_active(device):
            _core.synchronize_device(device)
