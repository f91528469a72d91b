# SPDX-License-Identifier: BSD-3-Clause
"""Context managers that set the current device or stream for a while."""

from __future__ import annotations

from types import TracebackType

from warpmpi import _core
from warpmpi._core import Device, Stream
from warpmpi._typing import DeviceLike, StreamLike

__all__ = ["ScopedDevice", "ScopedStream"]


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


class ScopedStream:
    """Makes a stream, and its device, current on this thread within the block.

    Args:
        stream: a wm.Stream or a stream of any library; None changes nothing.
        sync_enter: on entering, the stream waits, on the device, for the work
            of the stream that was current.
        sync_exit: on leaving, the stream that was current waits, on the
            device, for the work of this one.
    """

    def __init__(
        self,
        stream: StreamLike | None,
        sync_enter: bool = True,
        sync_exit: bool = False,
    ) -> None:
        if stream is not None and not isinstance(stream, Stream):
            stream = Stream(cuda_stream=stream)
        self.stream = stream
        self.sync_enter = sync_enter
        self.sync_exit = sync_exit
        self._scope = None if stream is None else ScopedDevice(stream.device)
        self._saved: list[Stream] = []

    def __enter__(self) -> Stream | None:
        if self.stream is not None and self._scope is not None:
            device = self.stream.device
            saved = device.stream
            device.set_stream(self.stream, self.sync_enter)
            self._saved.append(saved)
            self._scope.__enter__()
        return self.stream

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.stream is not None and self._scope is not None:
            self._scope.__exit__(exc_type, exc_value, traceback)
            device = self.stream.device
            device.set_stream(self._saved.pop(), self.sync_exit)
