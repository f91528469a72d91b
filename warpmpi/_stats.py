# SPDX-License-Identifier: BSD-3-Clause
"""The counters of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from . import _core

if TYPE_CHECKING:
    from mpi4py import MPI


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


class PeerStats(dict[int, Stats]):
    """The counters of a communicator's ranks, by rank, printed as a table."""

    def __str__(self) -> str:
        """Give a line for each rank, a column for each counter that counts."""
        names = [
            name
            for name in next(iter(self.values()), {})
            if any(counts[name] for counts in self.values())
        ]
        if not names:
            return "all counters are 0"
        rows = [["rank", *names]]
        for rank, counts in self.items():
            rows.append([str(rank), *(f"{counts[name]:,}" for name in names)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(
                cell.rjust(width)
                for cell, width in zip(row, widths, strict=True)
            )
            for row in rows
        )

    def __reduce__(self) -> tuple[type[dict[int, Stats]], tuple[object]]:
        """Pickle a plain dict."""
        return dict, (dict(self),)


@overload
def stats() -> Stats: ...
@overload
def stats(*, peers: MPI.Comm) -> PeerStats: ...
def stats(*, peers: MPI.Comm | None = None) -> Stats | PeerStats:
    """Return the counters of this process since its start or reset_stats().

    The result is a dict of ints. ``print(wm.stats())`` prints a table of the
    counters that are not 0, with their units. Received messages are also
    counted by their transport (``ipc_messages``). The guide has a table of
    all counters.

    With a wm.Comm as ``peers`` the result has such a dict for each of its
    ranks: what this process did with the memory of that rank's process, in
    all communicators. It prints as a table, too.
    """
    if peers is None:
        return Stats(_core._stats())
    rows = _core._peer_stats(peers)
    return PeerStats((rank, Stats(row)) for rank, row in enumerate(rows))
