# SPDX-License-Identifier: BSD-3-Clause
"""A plan of random messages, the same on every rank, from a seed alone.

It comes in batches. A batch's messages travel in lanes, each of which makes
sure that it ends and that everybody can tell which message a receive gets:

posted   received by nonblocking calls, all of them posted at first
awaited  sent by nonblocking calls, all of them begun at first, and received
         by blocking calls and after probes
plain    as posted, by mpi4py itself on a communicator of its own
object   as awaited: pickled objects, by the lower-case calls
partitioned
         in partitions, that become ready in any order
ring     all ranks send and receive at once, to neighbours at one distance
lasting  persistent requests between neighbours, made once

A receive by source and tag, by source alone, or by a tag that only one rank
uses, gets a message that the order of both ends determines. In a wild batch
ANY_SOURCE is used freely, and the status says whose message it was: the first
that is left of its source and tag. A barrier follows, so that the messages of
the next batch cannot come for this one's receives.
"""

from dataclasses import dataclass, field

import numpy as np
from mpi4py import MPI

POSTED, AWAITED, PLAIN, OBJECT, PARTITIONED, RING, LASTING = LANES = (
    "posted",
    "awaited",
    "plain",
    "object",
    "partitioned",
    "ring",
    "lasting",
)
RING_FORMS = ("Sendrecv", "Sendrecv_replace", "Isendrecv", "Isendrecv_replace")
EDGES = (4095, 4096, 4097, 65_535, 65_536, 65_537, 1 << 20, (1 << 20) + 1)
SPREAD = 65_536  # how many bytes later a payload may begin
WILD_LIMIT = 70_000  # bytes of a message where any may come
OBJECT_LIMIT = 20_000
LASTING_SIZES = (0, 24, 4096, 30_000, 65_536, 200_000)
_SHARED_TAGS = (0, 1, 2, 3, 77, 30_000)
_OWN_TAG = 1000  # and rank by rank: tags that one source alone uses
NEVER = 29_999  # no message has this tag


@dataclass(slots=True)
class Message:
    """One message: what both its ends know."""

    number: int
    batch: int
    lane: str
    source: int
    dest: int
    tag: int
    size: int
    offset: int  # of its payload, in the bytes all ranks have
    sent: int  # random bits: how it is sent
    received: int
    turn: int = 0  # which of the batch's turns of the ring, or which request


@dataclass(slots=True)
class Receive:
    """What a rank receives by one call, and by which source and tag."""

    message: Message | None  # None: the status will tell
    source: int
    tag: int
    capacity: int
    bits: int


@dataclass(slots=True)
class Batch:
    """So many messages, between a beginning and an end of every rank's."""

    number: int
    messages: list[Message]
    wild: dict[str, bool]
    ready: bool  # everybody's receives are posted before ready sends
    swapped: bool  # which of two communicators the lanes are on
    shifts: list[int]  # of the ring's turns
    forms: list[int]
    barrier: int
    by_lane: dict[str, list[Message]] = field(default_factory=dict)


class Plan:
    """All batches of a seed, for so many ranks."""

    def __init__(self, seed, ranks, max_bytes, inflight):
        self.seed = seed
        self.ranks = ranks
        self.max_bytes = max_bytes
        self.per_batch = inflight * ranks
        # What may come to, or go from, one rank in a batch.
        self.budget = max(6 * max_bytes, 1 << 20)

    def batch(self, number):
        """The batch of a number."""
        draw = np.random.default_rng([self.seed, number])
        count, ranks = self.per_batch, self.ranks
        batch = Batch(
            number=number,
            messages=[],
            wild={lane: draw.random() < 0.3 for lane in (POSTED, AWAITED)},
            ready=bool(draw.random() < 0.3),
            swapped=bool(draw.random() < 0.5),
            shifts=draw.integers(0, ranks, 3).tolist(),
            forms=draw.integers(0, len(RING_FORMS), 3).tolist(),
            barrier=int(draw.integers(0, 1 << 30)),
        )
        columns = (
            draw.choice(
                (POSTED, AWAITED, PLAIN, OBJECT, PARTITIONED),
                count,
                p=(0.44, 0.41, 0.06, 0.06, 0.03),
            ),
            draw.integers(0, ranks, count),
            draw.integers(0, ranks, count),
            self._sizes(draw, count),
            draw.integers(0, SPREAD, count),
            draw.integers(0, 1 << 60, count),
            draw.integers(0, 1 << 60, count),
            draw.integers(0, 1 << 30, count),
        )
        first = number * (count + len(batch.shifts) * ranks + 6 * ranks)
        budget = [[self.budget] * 2 for _ in range(ranks)]
        for row in zip(*(column.tolist() for column in columns), strict=True):
            lane, source, dest, size, offset, sent, received, bits = row
            if batch.wild.get(lane):
                size = min(size, WILD_LIMIT)
            if lane == OBJECT:
                size = min(size, OBJECT_LIMIT)
            if size > min(budget[source][0], budget[dest][1]):
                size %= 4097
            budget[source][0] -= size
            budget[dest][1] -= size
            if bits % 4 == 0:
                tag = _OWN_TAG + 8 * source + bits // 4 % 3
            else:
                tag = _SHARED_TAGS[bits // 4 % len(_SHARED_TAGS)]
            batch.messages.append(
                Message(
                    first + len(batch.messages),
                    number,
                    lane,
                    source,
                    dest,
                    tag,
                    size,
                    offset,
                    sent,
                    received,
                )
            )
        self._add_ring(draw, batch, first)
        if draw.random() < 0.5:
            self._add_lasting(draw, batch, first)
        for lane in LANES:
            batch.by_lane[lane] = [m for m in batch.messages if m.lane == lane]
        return batch

    def _sizes(self, draw, count):
        """Most of them short; up to max_bytes."""
        lowest = np.array([1, 1, 4096, 65_536, 1 << 20], float)
        most = max(self.max_bytes, 4 << 20)
        highest = np.array([1, 4096, 65_536, 1 << 20, most], float)
        highest = np.minimum(highest, max(self.max_bytes, 1))
        lowest = np.minimum(lowest, highest)
        kind = draw.choice(5, count, p=(0.06, 0.54, 0.25, 0.12, 0.03))
        low, high = np.log(lowest[kind]), np.log(highest[kind])
        sizes = np.exp(low + (high - low) * draw.random(count)).astype(int)
        sizes[kind == 0] = 0
        edges = np.minimum(draw.choice(EDGES, count), self.max_bytes)
        at_edge = draw.random(count) < 0.03
        sizes[at_edge] = edges[at_edge]
        return np.minimum(sizes, self.max_bytes)

    def _add_ring(self, draw, batch, first):
        for turn, shift in enumerate(batch.shifts):
            sizes = self._sizes(draw, self.ranks) % (WILD_LIMIT + 1)
            if "replace" in RING_FORMS[batch.forms[turn]]:
                sizes[:] = sizes[0]
            for source in range(self.ranks):
                batch.messages.append(
                    Message(
                        first + len(batch.messages),
                        batch.number,
                        RING,
                        source,
                        (source + shift) % self.ranks,
                        turn,
                        int(sizes[source]),
                        int(draw.integers(0, SPREAD)),
                        int(draw.integers(0, 1 << 60)),
                        int(draw.integers(0, 1 << 60)),
                        turn,
                    )
                )

    def _add_lasting(self, draw, batch, first):
        for turn, size in enumerate(LASTING_SIZES):
            for source in range(self.ranks):
                batch.messages.append(
                    Message(
                        first + len(batch.messages),
                        batch.number,
                        LASTING,
                        source,
                        (source + 1) % self.ranks,
                        100 + turn,
                        min(size, self.max_bytes),
                        int(draw.integers(0, SPREAD)),
                        0,
                        0,
                        turn,
                    )
                )


def receives(messages, wild, local):
    """In which order a rank receives these, and what it asks for.

    messages: all that come to it in a lane, in the order of each source's
    sends. local: the rank's own generator, a random.Random.
    """
    return _wild(messages, local) if wild else _determinate(messages, local)


def _determinate(messages, local):
    left = {}
    for message in messages:
        left.setdefault(message.source, []).append(message)
    result = []
    while left:
        source = local.choice(list(left))
        queue = left[source]
        index = int(local.random() ** 3 * len(queue))
        # MPI gives the first that fits.
        chosen = next(m for m in queue if m.tag == queue[index].tag)
        asked_source, asked_tag = source, chosen.tag
        if chosen is queue[0] and local.random() < 0.4:
            asked_tag = MPI.ANY_TAG
        elif _OWN_TAG <= chosen.tag < NEVER:
            asked_source = local.choice((source, MPI.ANY_SOURCE))
        queue.remove(chosen)
        if not queue:
            del left[source]
        capacity = chosen.size
        luck = local.random()
        if luck < 0.15:
            capacity += local.randrange(1, 300)
        elif luck < 0.18 and capacity > 1:
            capacity -= local.randrange(1, capacity)
        result.append(
            Receive(chosen, asked_source, asked_tag, capacity, chosen.received)
        )
    return result


def _wild(messages, local):
    """Those that say more come first: they leave enough for the others."""
    capacity = max((m.size for m in messages), default=0)
    levels = ([], [], [])
    for message in messages:
        level = local.choice((0, 1, 2, 2))
        asked = (
            (message.source, message.tag),
            (MPI.ANY_SOURCE, message.tag),
            (MPI.ANY_SOURCE, MPI.ANY_TAG),
        )[level]
        levels[level].append(Receive(None, *asked, capacity, message.received))
    for level in levels:
        local.shuffle(level)
    return [receive for level in levels for receive in level]
