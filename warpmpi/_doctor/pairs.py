# SPDX-License-Identifier: BSD-3-Clause
"""Data between all pairs of ranks: transport, latency, bandwidth, bytes."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from . import network

SMALL, SIZES = 8, (1 << 20, 8 << 20, 64 << 20, 256 << 20)  # bytes
SLOW = 5e-4  # seconds of one of SIZES, after which the next is left out
# A series lasts so many seconds: clocks rise only while there is work.
SECONDS, MOST = 0.02, 1000
TURNS, SERIES = 10, 3  # the least turns; the series, if they are quick
SHARE = 32  # arrays take one part in so many of a GPU's free memory
# Up to so many ranks one pair moves data at a time, else all at once do.
ALONE = 8
_TAG = 1

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


def _number(seconds: float, least: int) -> int:
    """Return the length of a series, each part of which takes seconds."""
    return max(least, min(MOST, int(SECONDS / seconds)))


def wait_for_all(world: Any) -> None:
    """Wait for all ranks without spinning: others measure meanwhile."""
    request = world.Ibarrier()
    while not request.Test():
        time.sleep(0.0005)


def pattern(rank: int, nbytes: int) -> bytearray:
    """Return bytes that tell their place and their sender."""
    period = bytearray((i + 17 * (rank + 1)) % 256 for i in range(251))
    array = period * (nbytes // len(period) + 1)
    del array[nbytes:]  # without a copy
    return array


def differences(one: bytes | bytearray, other: Any) -> int:
    """Count the bytes that differ. other: has a buffer, of single bytes."""
    if one == other:  # as bytearray compares, without a copy
        return 0
    return sum(a != b for a, b in zip(one, bytes(other), strict=True))


class Mover:
    """Moves arrays of one kind of memory between this rank and others.

    world: mpi4py's communicator, which carries what the ranks say. comm: the
    communicator under test. wm: the package; None where it does not work, and
    MPI alone is tested. device: of the arrays; None for host memory.
    """

    def __init__(self, world: Any, comm: Any, wm: Any, device: Any) -> None:
        self.world, self.comm, self.wm, self.device = world, comm, wm, device
        self.moved = 0  # bytes, by send()
        self.arrays: dict[tuple[bool, int], Any] = {}

    def _array(self, sends: bool, nbytes: int) -> Any:
        key = sends, nbytes
        if key not in self.arrays:
            fill = pattern(self.world.rank, nbytes) if sends else None
            if self.device is None:
                self.arrays[key] = bytearray(nbytes) if fill is None else fill
            else:
                array = self.wm.empty(nbytes, "uint8", self.device)
                if fill is not None:
                    array.assign(memoryview(fill))
                self.arrays[key] = array
        return self.arrays[key]

    def _clear(self, array: Any) -> None:
        if self.device is None:
            array[:] = bytes(len(array))
        else:
            array.zero_()
            self.wm.get_device(self.device).synchronize()

    def _wrong(self, array: Any, sender: int) -> int:
        """Count the bytes that are not the sender's."""
        came = array if self.device is None else array.numpy()
        return differences(pattern(sender, len(came)), came)

    def _room(self, peer: int) -> int:
        """Return how large arrays may be on this rank and on a peer."""
        room = SIZES[-1]
        if self.device is not None:
            free = self.wm.get_device(self.device).free_memory
            room = max(SIZES[0], min(room, free // SHARE))
        theirs: int = self.world.sendrecv(room, peer, 0, None, peer, 0)
        return min(room, theirs)

    def _counts(self) -> dict[str, int]:
        if self.wm is None:
            return {}
        stats, links = self.wm.stats(), self.wm._core._links()
        return {name: stats[name + "_messages"] for name in links}

    def _turns(self, peer: int, count: int) -> float:
        """Return the median seconds of a turn of a ping-pong of SMALL."""
        first = self.world.rank < peer
        out, into = self._array(True, SMALL), self._array(False, SMALL)
        times = []
        for _ in range(count):
            begun = time.perf_counter()
            if first:
                self.comm.Send(out, peer, _TAG)
                self.comm.Recv(into, peer, _TAG)
            else:
                self.comm.Recv(into, peer, _TAG)
                self.comm.Send(out, peer, _TAG)
            times.append(time.perf_counter() - begun)
        return statistics.median(times)

    def latency(self, peer: int) -> float:
        """Return the seconds of one way, once kernels and clocks are up."""
        self._turns(peer, TURNS)
        count = _number(self._turns(peer, TURNS), TURNS)
        theirs = self.world.sendrecv(count, peer, 0, None, peer, 0)
        count = min(count, theirs)
        self._turns(peer, count)
        return self._turns(peer, count) / 2

    def _series(
        self, peer: int, nbytes: int, count: int = 1, compare: bool = False
    ) -> float:
        """Send messages back to back; return the seconds of one."""
        out = self._array(True, nbytes)
        self.world.send((nbytes, count, compare), peer)
        self.world.recv(source=peer, tag=0)
        begun = time.perf_counter()
        for _ in range(count):
            self.comm.Send(out, peer, _TAG)
        self.moved += count * nbytes
        self.world.recv(source=peer, tag=0)
        return (time.perf_counter() - begun) / count

    def send(self, peer: int, room: int) -> dict[str, Any]:
        """Send SIZES until one is slow; return the row of the last.

        It tells the card that carried them, if one did.
        """
        before, self.moved = network.sent(), 0
        for nbytes in (each for each in SIZES if each <= room):
            self._series(peer, nbytes, compare=True)  # maps the memory
            trial = self._series(peer, nbytes)
            count, last = _number(trial, 1), SERIES if trial < SECONDS else 1
            best = min(
                self._series(peer, nbytes, count, number == last)
                for number in range(1, last + 1)
            )
            if best > SLOW:
                break
        self.world.send(None, peer)
        told: dict[str, Any] = self.world.recv(source=peer, tag=0)
        told["card"] = network.carrier(before, network.sent(), self.moved)
        return {"bytes": nbytes, "gbps": nbytes / best / 1e9, **told}

    def receive(self, peer: int) -> None:
        """Receive what send() sends, and tell its sender what has come."""
        before, wrong = self._counts(), 0
        into = self._array(False, SMALL)
        while series := self.world.recv(source=peer, tag=0):
            nbytes, count, compare = series
            into = self._array(False, nbytes)
            if compare:
                self._clear(into)
            self.world.send(None, peer)
            for _ in range(count):
                self.comm.Recv(into, peer, _TAG)
            self.world.send(None, peer)
            if compare:
                wrong += self._wrong(into, peer)
        transport, reason = "mpi", "by mpi4py alone, as warpmpi does not work"
        if self.wm is not None:
            told = self.wm.transport(self.comm, peer, into)
            after = self._counts()
            counted = [name for name in after if after[name] > before[name]]
            transport = "+".join(counted) or told.name
            reason = told.reason
        self.world.send(
            {"wrong": wrong, "transport": transport, "reason": reason}, peer
        )

    def pair(self, peer: int) -> dict[str, Any]:
        """Move data both ways; return the row of what went from here."""
        rank = self.world.rank
        room, seconds = self._room(peer), self.latency(peer)
        wrong = self._wrong(self._array(False, SMALL), peer)
        if rank < peer:
            row = self.send(peer, room)
            self.receive(peer)
        else:
            self.receive(peer)
            row = self.send(peer, room)
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
