# SPDX-License-Identifier: BSD-3-Clause
"""A context manager that sets the current device for a while."""

from __future__ import annotations

from types import TracebackType

from warpmpi import _core
from warpmpi._core import Device
from warpmpi._typing import DeviceLike

__all__ = ["ScopedDevice"]


class ScopedDevice:
    """Makes a device current on this thread within the ``with`` block.

    ``device=None`` inside the block means this device. ``with … as`` gives the
    :class:`Device`. CUDA's own current context is not changed.

    Args:
        device: a device or its name, as :func:`get_device` takes it.

    Raises:
        ValueError: the device is unknown.
    """

    def __init__(self, device: DeviceLike = None) -> None:
        self.device = _core.get_device(device)
        self._saved: list[Device] = []  # a stack: a scope can be entered again

    def __enter__(self) -> Device:
        self._saved.append(_core.get_device())
        _core.set_device(self.device)
        return self.device

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _core.set_device(self._saved.pop())
