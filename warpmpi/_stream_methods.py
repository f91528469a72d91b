# SPDX-License-Identifier: BSD-3-Clause
"""Methods of streams and events that need no CUDA."""

from __future__ import annotations

from typing import Any

from . import _core
from ._extend import extends


@extends(_core.Stream)
class _Stream:
    def __repr__(self: Any) -> str:
        return f"<warpmpi.Stream {self.cuda_stream:#x} on {self.device}>"

    def __eq__(self: Any, other: Any) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        same: bool = self.cuda_stream == other.cuda_stream
        return same and self.device is other.device

    def __hash__(self: Any) -> int:
        return hash((self.device, self.cuda_stream))


@extends(_core.Event)
class _Event:
    def __repr__(self: Any) -> str:
        return f"<warpmpi.Event {self.cuda_event:#x} on {self.device}>"
