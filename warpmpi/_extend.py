# SPDX-License-Identifier: BSD-3-Clause
"""Types that are written in C where a message waits for them, else here."""

from __future__ import annotations

from collections.abc import Callable

from . import _core


class _Empty:
    """A class without attributes of its own."""


def extends(kind: type) -> Callable[[type], type]:
    """Put what a class has into a type of the core, which is then complete."""

    def move(part: type) -> type:
        for name, value in vars(part).items():
            if name not in vars(_Empty):
                call = getattr(value, "fget", value)
                call.__module__ = "warpmpi"
                call.__qualname__ = f"{kind.__name__}.{name}"
                setattr(kind, name, value)
        _core._seal(kind)
        return kind

    return move
