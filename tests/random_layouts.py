# SPDX-License-Identifier: BSD-3-Clause
"""Where the elements of a collective's buffers lie, and how MPI is told.

A side is what one rank gives for one parameter: blocks of items, each item
one of a layout, that is of a datatype over the elements. All numbers but
those named so are elements, not bytes.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Layout:
    """A datatype: where its elements are, and where the next item begins."""

    name: str
    at: tuple[int, ...] = (0,)
    extent: int = 1
    words: tuple = ()

    @property
    def each(self):
        return len(self.at)

    def make(self, base):
        """MPI's datatype of it, committed; base: that of an element."""
        if self.name == "plain":
            return base
        if self.name == "contiguous":
            made = base.Create_contiguous(*self.words)
        elif self.name == "vector":
            made = base.Create_vector(*self.words)
        elif self.name == "indexed":
            made = base.Create_indexed(*self.words)
        elif self.name == "subarray":
            made = base.Create_subarray(*self.words)
        else:
            width = base.Get_extent()[1]
            made = base.Create_resized(0, self.extent * width)
        return made.Commit()


PLAIN = Layout("plain")


def layout(draw, each):
    """One with so many elements an item."""
    if each == 1:
        extent = draw.choice((2, 3, 5))
        return Layout("resized", (0,), extent)
    gap = draw.choice((1, 2, 3))
    kind = draw.choice(("contiguous", "vector", "indexed", "subarray"))
    if kind == "contiguous":
        return Layout(kind, tuple(range(each)), each, (each,))
    if kind == "vector":
        at = tuple(k * gap for k in range(each))
        return Layout(kind, at, at[-1] + 1, (each, 1, gap))
    if kind == "indexed":
        first = draw.randrange(1, each)
        displs = 0, first + gap
        at = *range(first), *range(displs[1], displs[1] + each - first)
        words = (first, each - first), displs
        return Layout(kind, at, at[-1] + 1, words)
    start = draw.randrange(gap + 1)
    at = tuple(row * (1 + gap) + start for row in range(each))
    words = (each, 1 + gap), (each, 1), (0, start)
    return Layout(kind, at, each * (1 + gap), words)


@dataclass(slots=True)
class Block:
    """So many items of a layout, from an element on."""

    first: int
    count: int
    layout: Layout

    @property
    def number(self):
        return self.count * self.layout.each

    def places(self):
        """Of each element."""
        layout = self.layout
        starts = self.first + layout.extent * np.arange(self.count)
        return (starts[:, None] + np.array(layout.at)).ravel()

    def end(self):
        if not self.count:
            return self.first
        last = self.first + (self.count - 1) * self.layout.extent
        return last + max(self.layout.extent, self.layout.at[-1] + 1)


@dataclass(slots=True)
class Side:
    """What one rank gives for one parameter of a call."""

    form: str  # "", n, v or w, as in warpmpi/_staging/table.py
    blocks: list[Block]
    length: int  # of the buffer
    displ: int = 0  # items before the first block, unless v or w
    spare: int = 0  # what to tell as count where there is no block

    def is_whole(self):
        """Whether nothing but the buffer need be told."""
        last = self.blocks[-1] if self.blocks else None
        return (
            last is not None
            and self.form in ("", "n")
            and self.displ == 0
            and last.layout is PLAIN
            and self.length == last.first + last.count
        )


def make_side(draw, form, numbers, unit, each=None, simple=False):
    """A side with blocks of so many elements, each a multiple of unit.

    each: elements of an item, None: any that fits; simple: without gaps and
    datatypes.
    """

    def some_layout():
        if simple or (each in (None, 1) and draw.random() < 0.6):
            return PLAIN
        fits = [e for e in (1, 2, 3, 4, 6) if unit % e == 0]
        return layout(draw, each or draw.choice(fits))

    if form in ("", "n"):
        return _even_side(draw, form, numbers, some_layout(), simple)
    shared, blocks, at = some_layout(), [None] * len(numbers), 0
    order = list(range(len(numbers)))
    packed = simple or draw.random() < 0.3
    if not packed:
        draw.shuffle(order)
    for k in order:
        kind = some_layout() if form == "w" else shared
        if not packed:
            at += draw.choice((0, 0, 1, 2, 7)) * kind.extent
        blocks[k] = block = Block(at, numbers[k] // kind.each, kind)
        at = block.end()
    tail = 0 if packed else draw.choice((0, 0, 1, 9))
    return Side(form, blocks, at + tail)


def _even_side(draw, form, numbers, kind, simple):
    displ = 0 if simple or draw.random() < 0.7 else draw.randrange(1, 5)
    count = numbers[0] // kind.each if numbers else 0
    blocks = [
        Block((displ + k * count) * kind.extent, count, kind)
        for k in range(len(numbers))
    ]
    length = max((block.end() for block in blocks), default=0)
    if not simple and draw.random() < 0.2:
        length += draw.randrange(1, 20)
    return Side(form, blocks, max(length, displ * kind.extent), displ)


class Specifications:
    """Makes what mpi4py reads of buffers and sides; keeps the datatypes."""

    def __init__(self):
        self._types = {}

    def datatype(self, base, kind):
        key = base.py2f(), kind
        if key not in self._types:
            self._types[key] = kind.make(base)
        return self._types[key]

    def free(self):
        for (_, kind), made in self._types.items():
            if kind is not PLAIN:
                made.Free()
        self._types.clear()

    def make(self, buffer, typed, side, base, local):
        """A specification; typed: the buffer knows what its elements are.

        base: None where no datatype does.
        """
        if side.form == "w":
            return self._of_types(buffer, side, base, local)
        kind = side.blocks[0].layout if side.blocks else PLAIN
        made = self.datatype(base, kind) if base is not None else None
        if side.form == "v":
            return self._of_counts(buffer, typed, side, made, local)
        count = side.blocks[0].count if side.blocks else side.spare
        forms = [
            [buffer, (count, side.displ), made],
            [buffer, count, side.displ, made],
        ]
        if side.displ == 0:
            forms.append((buffer, count, made))
        if kind is PLAIN and typed:
            forms.append([buffer, (count, side.displ)])
            if side.displ == 0:
                forms.append([buffer, count])
        if side.is_whole():
            forms.append([buffer, made])
            if typed:
                forms += [buffer] * 3
        return local.choice(forms)

    def _of_counts(self, buffer, typed, side, made, local):
        extent = side.blocks[0].layout.extent if side.blocks else 1
        counts = [block.count for block in side.blocks]
        displs = [block.first // extent for block in side.blocks]
        if local.random() < 0.2:
            counts, displs = np.array(counts, "i"), np.array(displs, "i")
        forms = [
            [buffer, (counts, displs), made],
            [buffer, counts, displs, made],
        ]
        if typed and extent == 1:
            forms.append([buffer, (counts, displs)])
        if all(
            block.first == sum(b.count for b in side.blocks[:k]) * extent
            for k, block in enumerate(side.blocks)
        ):
            forms.append([buffer, counts, made])
        return local.choice(forms)

    def _of_types(self, buffer, side, base, local):
        width = base.Get_extent()[1]
        counts = [block.count for block in side.blocks]
        displs = [block.first * width for block in side.blocks]
        types = [self.datatype(base, block.layout) for block in side.blocks]
        return local.choice(
            (
                [buffer, (counts, displs), types],
                [buffer, counts, displs, types],
            )
        )
