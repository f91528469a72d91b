# SPDX-License-Identifier: BSD-3-Clause
"""Buffers of partitioned messages; called by the core."""

from __future__ import annotations

from typing import Any


def _times(given: Any, partitions: int) -> Any:
    """A count, or (count, displacement), so many times."""
    if hasattr(type(given), "__index__"):
        return given * partitions
    if isinstance(given, (list, tuple)) and given:
        return (_times(given[0], partitions), *given[1:])
    return given


def whole(buf: Any, partitions: int) -> Any:
    """The count in a message is that of one partition: here that of all.

    What is wrong with it is told where it is parsed.
    """
    if not isinstance(buf, (list, tuple)) or len(buf) < 2:
        return buf
    return [buf[0], _times(buf[1], partitions), *buf[2:]]
