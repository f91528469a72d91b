# SPDX-License-Identifier: BSD-3-Clause
"""A plan of random collectives, the same on every rank, from a seed alone.

It comes in batches of steps. A step is one collective on one communicator,
in one form; a persistent one is started several times in its batch. Its
exchange (random_exchanges.py) says of all who take part where each element
goes.
"""

import math
import random
from dataclasses import dataclass, field

from mpi4py import MPI

import random_values as values
from cases import IN_PLACE, INTRA_ONLY, NEIGHBORS, REDUCTIONS, ROOTED
from random_exchanges import (
    FORMS,
    Exchange,
    movement,
    reduction,
)

BLOCKING, NONBLOCKING, PERSISTENT = HOW = ("", "I", "_init")
UNEVEN = ("Alltoallv", "Alltoallw")
VENDOR, VERSION = MPI.get_vendor()
OLD = VENDOR == "Open MPI" and VERSION < (5,)
OTHER = VENDOR != "Open MPI" or OLD  # than the one that the plans are for
WEIGHTS = {"Bcast": 2, "Allreduce": 4, "Barrier": 0.5}
EDGES = 4095, 4096, 4097, 65_536, 65_544, 1 << 18, (1 << 20) + 16


@dataclass(slots=True)
class Step:
    """A collective, as far as it is the same wherever it is called."""

    number: int  # in its batch
    comm: str
    name: str
    how: str
    turns: int
    bits: int
    kinds: dict = field(default_factory=dict)  # of memory, by world rank


@dataclass(slots=True)
class Message:
    """A round of messages, all to a rank at one distance."""

    comm: str
    shift: int
    nbytes: int
    bits: int


@dataclass(slots=True)
class Batch:
    """Steps, and in which order they begin: (step, which turn of it)."""

    number: int
    steps: list[Step]
    order: list[tuple[Step, int]]
    messages: list[Message]


class Plan:
    """All batches of a seed, for so many ranks."""

    messages = True  # whether some are under way

    def __init__(
        self, seed, scene, max_bytes, persistent, calls, hows, averages
    ):
        self.seed = seed
        self.scene = scene  # name: intra, inter or neighbours
        self.max_bytes = max_bytes
        self.persistent = persistent
        self.averages = averages  # wm.AVG is an operation, too
        self.calls = [c for c in FORMS if not calls or c in calls]
        self.hows = [h for h in HOW if not hows or h in hows]
        self.budget = max(4 * max_bytes, 1 << 18)

    def batch(self, number):
        """The batch of a number."""
        draw = random.Random(f"{self.seed} {number}")
        count = draw.choice((1, 4, 8, 12))
        alone = draw.random() < 0.4
        comms = [c for c in self.scene if self._names(c)]
        weights = [self.scene[c][1] for c in comms]
        one = draw.choices(comms, weights)[0]
        steps, order, messages = [], [], []
        for k in range(count):
            comm = one if alone else draw.choices(comms, weights)[0]
            steps.append(self._step(draw, k, comm))
        for step in steps:
            order.append((step, 0))
        for step in steps:
            place = order.index((step, 0))
            for turn in range(1, step.turns):
                place = draw.randrange(place + 1, len(order) + 1)
                order.insert(place, (step, turn))
        for _ in range(draw.choice((0, 0, 1, 3)) * self.messages):
            comm = draw.choice(("world", "dup", "reversed"))
            size = int(math.exp(draw.uniform(0, math.log(200_000))))
            size = min(size, self.max_bytes)
            shift, bits = draw.randrange(8), draw.getrandbits(30)
            messages.append(Message(comm, shift, size, bits))
        return Batch(number, steps, order, messages)

    def _names(self, comm):
        kind = self.scene[comm][0]
        names = [c for c in self.calls if c not in NEIGHBORS]
        if kind == "inter":
            names = [c for c in names if c not in INTRA_ONLY]
        if kind == "neighbours":
            # Now and then another: it is a communicator like all.
            near = [c for c in self.calls if c in NEIGHBORS]
            names = near * 4 + names
        return names

    def _step(self, draw, number, comm):
        names = self._names(comm)
        weights = [WEIGHTS.get(name, 1) for name in names]
        name = draw.choices(names, weights)[0]
        hows = [h for h in self.hows if self.persistent or h != PERSISTENT]
        if self.scene[comm][0] == "inter" and name in ("Bcast", "Reduce"):
            # Open MPI loses count of them: the next one hangs.
            hows = [BLOCKING]
        if OLD and name.lower().endswith("alltoallw"):
            hows = [BLOCKING]  # crashes where it keeps the datatypes
        how = draw.choices(hows, [{"": 4, "I": 3}.get(h, 2) for h in hows])[0]
        turns = draw.choice((1, 2, 3)) if how == PERSISTENT else 1
        return Step(number, comm, name, how, turns, draw.getrandbits(40))

    def bytes_of(self, draw):
        """Most of them few; up to max_bytes."""
        luck = draw.random()
        if luck < 0.06:
            return 0
        if luck < 0.1:
            return min(draw.choice(EDGES), self.max_bytes)
        for share, low, high in (
            (0.4, 1, 128),
            (0.68, 128, 4096),
            (0.9, 4096, 65_536),
            (0.98, 65_536, 1 << 19),
            (1, 1 << 19, self.max_bytes),
        ):
            if luck < share:
                high = min(high, self.max_bytes)
                low = min(low, high)
                return int(low * (high / low) ** draw.random())
        return 1

    def exchange(self, batch, step, sizes, near, part):
        """The step's, on one communicator.

        sizes: of its groups; near: None, or each rank's neighbours, sources
        and destinations; part: which of several communicators of a name.
        """
        draw = random.Random(f"{self.seed} {batch} {step.number} {part}")
        name, members = step.name, sum(sizes)
        if name == "Barrier":
            return Exchange(name, "uint8", None, None, False, {}, [])
        reduces = name in REDUCTIONS
        while True:
            kind = draw.choice(values.NAMES)
            pairs = name != "Reduce" or len(sizes) == 1  # PROC_NULL has none
            if reduces and pairs and draw.random() < 0.12:
                kind = draw.choice(list(values.PAIRS))
            if kind == "bfloat16" and len(sizes) == 2 and not reduces:
                continue  # two bytes are not one pair to Open MPI's Scatterv
            averages = self.averages and "can" not in name
            ops = (
                values.ops_of(values.element(kind), averages)
                if reduces
                else [None]
            )
            if ops:
                break
        op = draw.choice(ops)
        inter = len(sizes) == 2
        root = None
        if name in ROOTED:
            group = draw.randrange(len(sizes))
            root = group, draw.randrange(sizes[group])
        in_place = (
            not inter
            and name in IN_PLACE
            # Open MPI mixes the blocks up.
            and (step.how == BLOCKING or name not in UNEVEN)
            and draw.random() < 0.3
        )
        width = values.element(kind).width
        share = self.bytes_of(draw)
        if batch_is_full(step, share, self.max_bytes):
            share %= 4097
        number = share // width or int(share > 0)
        # Of nothing it is an error, or a hang. In the uneven ones Open MPI 4.1
        # loses count where a rank sends and gets nothing.
        fragile = step.how != BLOCKING and (inter or name in UNEVEN)
        if fragile or (step.how != BLOCKING and reduces):
            number = max(number, 1)
        exchange = Exchange(name, kind, op, root, in_place, {}, [])
        exchange.nbytes = share
        exchange.never_none = fragile
        # Gaps make it several times as long.
        simple = draw.random() < 0.5 or share > self.max_bytes // 4
        if reduces:
            reduction(draw, exchange, sizes, number, simple)
        else:
            each = math.ceil(number / max(sizes))
            movement(draw, exchange, sizes, near, each, simple)
        assert all(i < members for i, _ in exchange.sides)
        return exchange


def batch_is_full(step, share, max_bytes):
    """Whether such a step, as one of several, would be too much."""
    return step.number >= 2 and share > max_bytes // 8
