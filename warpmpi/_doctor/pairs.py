# SPDX-License-Identifier: BSD-3-Clause
"""Data between all pairs of ranks: route, latency, bandwidth, every byte."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

SMALL, SIZES = 8, (1 << 20, 8 << 20, 64 << 20)  # bytes
SLOW = 5e-4  # seconds of one of SIZES, after which the next is left out
WARM, TURNS, LARGE_TURNS = 5, 20, 3
# Up to so many ranks one pair moves data at a time, else all at once do.
ALONE = 8
_TAG = 1
_ROUTES = "self", "ipc", "host", "mpi"

Step = Callable[[str], None]


def rounds(ranks: list[int]) -> Iterator[list[tuple[int, int]]]:
    """Give all pairs in rounds, in each of which a rank occurs once."""
    ring: list[int | None] = [*ranks]
    if len(ring) % 2:
        ring.append(None)
    half = len(ring) // 2
    for _ in range(len(ring) - 1):
        pairs = [
            (min(a, b), max(a, b))
            for a, b in zip(ring[:half], reversed(ring[half:]), strict=True)
            if a is not None and b is not None
        ]
        if len(ranks) > ALONE:
            yield pairs
        else:
            yield from ([pair] for pair in pairs)
        ring.insert(1, ring.pop())


def wait_for_all(world: Any) -> None:
    """Wait for all ranks without spinning: others measure meanwhile."""
    request = world.Ibarrier()
    while not request.Test():
        time.sleep(0.0005)


def pattern(rank: int, nbytes: int) -> bytearray:
    """Return bytes that tell their place and their sender."""
    period = bytearray((i + 17 * (rank + 1)) % 256 for i in range(251))
    return (period * (nbytes // len(period) + 1))[:nbytes]


def differences(one: bytes | bytearray, other: bytes | bytearray) -> int:
    """Count the bytes that differ."""
    if one == other:
        return 0
    return sum(a != b for a, b in zip(one, other, strict=True))


class Mover:
    """Moves arrays of one kind of memory between this rank and others.

    world: mpi4py's communicator, which carries what the ranks say. comm: the
    communicator under test. wm: the package; None where it does not work, and
    MPI alone is tested. device: of the arrays; None for host memory.
    """

    def __init__(self, world: Any, comm: Any, wm: Any, device: Any) -> None:
        self.world, self.comm, self.wm, self.device = world, comm, wm, device
        self.arrays: dict[tuple[bool, int], Any] = {}

    def _array(self, sends: bool, nbytes: int) -> Any:
        key = sends, nbytes
        if key not in self.arrays:
            host = pattern(self.world.rank, nbytes)
            if self.device is None:
                self.arrays[key] = host
            else:
                array = self.wm.empty(nbytes, "uint8", self.device)
                array.assign(memoryview(host))
                self.arrays[key] = array
        return self.arrays[key]

    def _wrong(self, array: Any, sender: int) -> int:
        """Count the bytes that are not the sender's."""
        came = array if self.device is None else array.numpy().tobytes()
        return differences(came, pattern(sender, len(came)))

    def _counts(self) -> dict[str, int]:
        stats = self.wm.stats() if self.wm is not None else {}
        return {name: stats.get(name + "_messages", 0) for name in _ROUTES}

    def latency(self, peer: int) -> float:
        """Return the seconds of one way of a ping-pong of SMALL bytes."""
        first = self.world.rank < peer
        out, into = self._array(True, SMALL), self._array(False, SMALL)
        times = []
        for _ in range(WARM + TURNS):
            begun = time.perf_counter()
            if first:
                self.comm.Send(out, peer, _TAG)
                self.comm.Recv(into, peer, _TAG)
            else:
                self.comm.Recv(into, peer, _TAG)
                self.comm.Send(out, peer, _TAG)
            times.append(time.perf_counter() - begun)
        return statistics.median(times[WARM:]) / 2

    def send(self, peer: int) -> dict[str, Any]:
        """Send SIZES until one is slow; return the row of the last."""
        for nbytes in SIZES:
            self.world.send(nbytes, peer)
            out = self._array(True, nbytes)
            seconds = []
            for _ in range(LARGE_TURNS):
                self.world.recv(source=peer, tag=0)
                begun = time.perf_counter()
                self.comm.Send(out, peer, _TAG)
                self.world.recv(source=peer, tag=0)
                seconds.append(time.perf_counter() - begun)
            if min(seconds) > SLOW:
                break
        self.world.send(0, peer)
        told: dict[str, Any] = self.world.recv(source=peer, tag=0)
        return {"bytes": nbytes, "gbps": nbytes / min(seconds) / 1e9, **told}

    def receive(self, peer: int) -> None:
        """Receive what send() sends, and tell its sender what has come."""
        before, wrong = self._counts(), 0
        into = self._array(False, SMALL)
        while nbytes := self.world.recv(source=peer, tag=0):
            into = self._array(False, nbytes)
            for _ in range(LARGE_TURNS):
                if self.device is None:
                    into[:] = bytes(nbytes)
                else:
                    into.zero_()
                self.world.send(None, peer)
                self.comm.Recv(into, peer, _TAG)
                self.world.send(None, peer)
                wrong += self._wrong(into, peer)
        route, reason = "mpi", "by mpi4py alone, as warpmpi does not work"
        if self.wm is not None:
            told = self.wm.transport(self.comm, peer, into)
            after = self._counts()
            counted = [name for name in _ROUTES if after[name] > before[name]]
            route = "+".join(counted) or told.name
            reason = told.reason
        self.world.send(
            {"wrong": wrong, "route": route, "reason": reason}, peer
        )

    def pair(self, peer: int) -> dict[str, Any]:
        """Move data both ways; return the row of what went from here."""
        rank = self.world.rank
        seconds = self.latency(peer)
        wrong = self._wrong(self._array(False, SMALL), peer)
        if rank < peer:
            row = self.send(peer)
            self.receive(peer)
        else:
            self.receive(peer)
            row = self.send(peer)
        theirs = self.world.sendrecv(wrong, peer, 0, None, peer, 0)
        row["wrong"] += theirs
        return {"from": rank, "to": peer, "latency_us": seconds * 1e6, **row}


def move(
    mover: Mover, memory: str, ranks: list[int], step: Step
) -> list[dict[str, Any]]:
    """Move data between all pairs of some ranks; all ranks call it.

    Returns the rows of all ranks on rank 0, and none on the others.
    """
    world, rows = mover.world, []
    for pairs in rounds(ranks):
        for pair in pairs:
            if world.rank in pair:
                peer = sum(pair) - world.rank
                step(f"{memory} arrays between ranks {pair[0]} and {pair[1]}")
                rows.append({"memory": memory, **mover.pair(peer)})
        if world.rank not in sum(pairs, ()):
            names = ", ".join(f"{a} and {b}" for a, b in pairs)
            step(f"{memory} arrays: waits for ranks {names}")
        wait_for_all(world)
    gathered = itertools.chain(*(world.gather(rows) or []))
    return sorted(gathered, key=lambda row: (row["from"], row["to"]))
