# SPDX-License-Identifier: BSD-3-Clause
"""Where each element of a random collective goes: who gives and gets what.

Who takes part has an index: the rank, and in an intercommunicator behind
those of the first group the ranks of the second.
"""

import itertools
import math
from dataclasses import dataclass, field

from cases import IN_PLACE, NEIGHBORS, REDUCED, ROOTED, TABLE
from random_layouts import Side, make_side

# name: (form of sendbuf, form of recvbuf); those of one buffer have none.
FORMS = {"Barrier": (None, None)}
FORMS.update((row.name, (row.sends, row.receives)) for row in TABLE.values())
AT_ROOT = [name for name in ROOTED if name in IN_PLACE]  # in place


@dataclass(slots=True)
class Exchange:
    """What one step is for those on one communicator."""

    name: str
    element: str
    op: str | None
    root: tuple[int, int] | None  # group and rank
    in_place: bool
    sides: dict  # (index, "send" or "recv"): Side
    moves: list  # (from index, which, block, to index, block)
    folds: dict = field(default_factory=dict)  # index: (indices, begin, end)
    counts: list = field(default_factory=list)  # of Reduce_scatter
    open_ends: bool = False  # what is behind the result may be anything
    never_none: bool = False  # every block has some elements
    nbytes: int = 0  # about as many as one has at most


def movement(draw, exchange, sizes, near, number, simple):
    """Numbers for each pair, sides of them, and the moves between."""
    name = exchange.name
    unit = 1 if simple or draw.random() < 0.5 else draw.choice((2, 3, 4, 6))
    each = -(-number // unit) * unit
    numbers = {}  # (from, block, to, block)

    def some(low, high):
        """How many go, where it is not the same for all."""
        if name[-1] not in "vw":
            return each
        key = (low, high)
        if exchange.in_place and name.startswith("Alltoall"):
            key = min(key), max(key)
        if key not in numbers:
            chosen = draw.choice((0, 1, 1, 1, 2)) * each
            if exchange.never_none:
                chosen = each * draw.randrange(1, 3)
            elif chosen and draw.random() < 0.5:
                chosen = unit * draw.randrange(chosen // unit + 1)
            numbers[key] = chosen
        return numbers[key]

    send, recv = {}, {}  # index: numbers of its blocks
    links = _links(exchange, sizes, near, send, recv)
    counted = []
    for source, a, index, b in links:
        # What all get of one is the same.
        if a == 0 and FORMS[name][0] == "":
            number = some(source, -1)
        else:
            number = some(source, index)
        send[source][a] = recv[index][b] = number
        counted.append((source, a, index, b))
    for blocks in (*send.values(), *recv.values()):
        for k, number in enumerate(blocks):
            if number is None:  # of nobody
                blocks[k] = each
    in_place = exchange.in_place
    # Open MPI has them wrong: byte displacements in a group of one, and
    # gaps in what is sent in place. It chooses an algorithm, for which all
    # must do the same, by the size of the datatype.
    if name == "Alltoallw" and (in_place or max(sizes) == 1):
        simple = True
    item = None if name[-1] == "w" else draw.choice((1, unit))
    for index, blocks in send.items():
        if not (in_place and _gives_none(exchange, index, "send")):
            side = make_side(draw, FORMS[name][0], blocks, unit, item, simple)
            exchange.sides[index, "send"] = side
    for index, blocks in recv.items():
        if not (in_place and _gives_none(exchange, index, "recv")):
            side = make_side(draw, FORMS[name][1], blocks, unit, item, simple)
            exchange.sides[index, "recv"] = side
    for side in exchange.sides.values():
        if not side.blocks:  # MPI wants the count of all the same
            side.displ, side.length, side.spare = 0, 0, each
    for source, a, index, b in counted:
        if (index, "recv") not in exchange.sides:
            continue
        which = "send" if (source, "send") in exchange.sides else "recv"
        if which == "recv" and not name.startswith("Alltoall"):
            a = source
        exchange.moves.append((source, which, a, index, b))


def _gives_none(exchange, index, which):
    """Whether it gives IN_PLACE for that buffer."""
    if exchange.name in AT_ROOT:
        mine = "recv" if exchange.name.startswith("Scatter") else "send"
        return which == mine and exchange.root == (0, index)
    return which == "send"


def _links(exchange, sizes, near, send, recv):
    """Which block of whom goes to which of whom; fills in who has some."""
    name, root = exchange.name, exchange.root
    if name in NEIGHBORS:
        for index, (sources, dests) in enumerate(near):
            gathers = "gather" in name
            send[index] = [None] * (1 if gathers else len(dests))
            recv[index] = [None] * len(sources)
        return [
            (source, 0 if "gather" in name else a, index, b)
            for source, a, index, b in neighbour_links(near)
        ]
    inter = len(sizes) == 2
    groups = [range(sizes[0]), range(sizes[0], sum(sizes))][: len(sizes)]
    links = []
    for g, receivers in enumerate(groups):
        senders = groups[1 - g] if inter else receivers
        if root is not None:
            at = root[1] + (sizes[0] if root[0] else 0)
            gathers = name.startswith("Gather")
            if inter and (root[0] == g) != gathers:
                continue
            if gathers:
                recv[at] = [None] * len(senders)
                for k, source in enumerate(senders):
                    send[source] = [None]
                    links.append((source, 0, at, k))
                continue
            send[at] = [None] * (1 if name == "Bcast" else len(receivers))
            for k, index in enumerate(receivers):
                if name == "Bcast" and index == at:
                    continue
                recv[index] = [None]
                links.append((at, 0 if name == "Bcast" else k, index, 0))
            continue
        for j, index in enumerate(receivers):
            recv[index] = [None] * len(senders)
            for k, source in enumerate(senders):
                gathers = name.startswith("Allgather")
                width = 1 if gathers else len(receivers)
                send.setdefault(source, [None] * width)
                links.append((source, 0 if gathers else j, index, k))
    return links


def neighbour_links(near):
    """The k-th edge to a rank is the k-th that it has from there."""
    links = []
    for index, (sources, _) in enumerate(near):
        met = {}
        for b, source in enumerate(sources):
            if source < 0:
                continue
            turn = met[source] = met.get(source, -1) + 1
            places = [a for a, d in enumerate(near[source][1]) if d == index]
            links.append((source, places[turn], index, b))
    return links


def reduction(draw, exchange, sizes, number, simple):
    name, root, in_place = exchange.name, exchange.root, exchange.in_place
    inter = len(sizes) == 2
    total = number
    shares = []  # of each index
    if name == "Reduce_scatter_block":
        common = math.lcm(*sizes)
        total = -(-number // common) * common
        shares = [total // size for size in sizes for _ in range(size)]
    elif name == "Reduce_scatter":
        for size in sizes:
            cuts = sorted(draw.randrange(total + 1) for _ in range(size - 1))
            ends = [0, *cuts, total]
            shares += [b - a for a, b in itertools.pairwise(ends)]
        exchange.counts = shares
    first = 0
    for g, size in enumerate(sizes):
        group = range(first, first + size)
        others = (
            range(sizes[0] * (1 - g), sizes[0] + sizes[1] * (1 - g))
            if inter
            else group
        )
        for k, index in enumerate(group):
            is_root = root == (g, k)
            sends = not (in_place and (name != "Reduce" or is_root))
            if inter and root is not None and root[0] == g:
                sends = False
            begin = sum(shares[first:index]) if shares else 0
            length = shares[index] if shares else total
            if sends:
                # Blocks are what the count is of.
                blocks = (
                    [length] * size
                    if name == "Reduce_scatter_block"
                    else [total]
                )
                exchange.sides[index, "send"] = _flat(
                    draw, FORMS[name][0], blocks, simple
                )
            if root is not None and not is_root:
                continue
            whole = in_place and bool(shares)
            form, blocks = "", [total if whole else length]
            if whole and name == "Reduce_scatter_block":
                form, blocks = "n", [length] * size
            exchange.open_ends = whole
            exchange.sides[index, "recv"] = _flat(draw, form, blocks, simple)
            who = REDUCED[name](list(others), k)
            if who:
                exchange.folds[index] = who, begin, begin + length
        first += size


def _flat(draw, form, blocks, simple) -> Side:
    """A side without datatypes: reductions are of elements alone."""
    side = make_side(draw, form, blocks, 1, 1, True)
    if not simple and draw.random() < 0.3:
        displ = side.displ = draw.randrange(1, 5)
        for block in side.blocks:
            block.first += displ
        side.length += displ + draw.choice((0, 3))
    return side
