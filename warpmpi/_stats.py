# SPDX-License-Identifier: BSD-3-Clause
"""The counters of this process."""

from __future__ import annotations

from . import _core


def _unit(name: str) -> str:
    """Give the last plural in a name; nothing for a program's own."""
    words = [word for word in name.split("_") if word.endswith("s")]
    return words[-1] if words else ""


class Stats(dict[str, int]):
    """The counters: a dict of ints, which prints as a table."""

    def __str__(self) -> str:
        """Give the counters that are not 0, a line each, with their units."""
        rows = [
            (name, f"{count:,}", _unit(name))
            for name, count in self.items()
            if count
        ]
        if not rows:
            return "all counters are 0"
        name, count = (max(len(row[i]) for row in rows) for i in (0, 1))
        return "\n".join(
            f"{row[0]:{name}}  {row[1]:>{count}} {row[2]}".rstrip()
            for row in rows
        )

    def __reduce__(self) -> tuple[type[dict[str, int]], tuple[object]]:
        """Pickle a plain dict."""
        return dict, (dict(self),)


def stats() -> Stats:
    """Return the counters of this process since its start or reset_stats().

    The result is a dict of ints. ``print(wm.stats())`` prints a table of the
    counters that are not 0, with their units. Received messages are also
    counted by their transport (``ipc_messages``). The guide has a table of
    all counters.
    """
    return Stats(_core._stats())
