# SPDX-License-Identifier: BSD-3-Clause
"""Buffers of random collectives, in memory of every kind (random_memory.py).

What is to be sent is copied there on a stream that nobody waits for, from
page-locked memory. What must be there is known of each byte: the image.
"""

import numpy as np

import kinds
import random_memory as memory
import warpmpi as wm

ROOM = 12  # times the most bytes of a buffer: of an arena


class Typed(memory.Seen):
    """A piece of an allocation that names the type of its elements."""

    def __init__(self, owner, address, length, dtype, stream):
        super().__init__(owner, address, length, stream)
        self.__cuda_array_interface__["typestr"] = dtype.str


class Piece:
    """One buffer of a call, in an arena."""

    def __init__(self, buffers, arena, start, nbytes):
        self.buffers = buffers
        self.arena = arena
        self.start = start
        self.nbytes = nbytes
        self.name = arena.name

    @property
    def image(self):
        return self.arena.image[self.start : self.start + self.nbytes]

    def write(self, data, again=False):
        """Puts bytes there; may return before they are.

        again: there may be others on their way.
        """
        arena, begin, end = self.arena, self.start, self.start + self.nbytes
        arena.image[begin:end] = data
        if arena.device is None:
            arena.memory[begin:end] = data
            return
        source = self.buffers.sources[arena.name][again]
        source.numpy()[begin:end] = data
        if isinstance(arena, memory.Device):
            arena.memory[begin:end].assign(
                source[begin:end], blocking=False, stream=arena.stream
            )
        elif self.nbytes:
            arena.copy(
                arena.address + begin,
                source.ptr + begin,
                self.nbytes,
                arena.stream,
            )

    def buffer(self, element, typed=False):
        """What is handed to a call, and whether it tells its elements.

        typed: it must, as MPI has no name for them.
        """
        arena, begin, end = self.arena, self.start, self.start + self.nbytes
        known = not element.is_pair and element.name != "bfloat16"
        if typed and not isinstance(arena.memory, np.ndarray):
            bytes_of = wm.asarray(arena.buffer(begin, self.nbytes))
            return kinds.Tensor(bytes_of, 4, 16), True
        known = known or typed
        if known and isinstance(arena.memory, np.ndarray):
            return arena.memory[begin:end].view(element.numpy), True
        if known and type(arena) is memory.Foreign:
            length = self.nbytes // element.width
            address = arena.address + begin
            words = length, element.numpy, arena.stream
            return Typed(arena.memory, address, *words), True
        return arena.buffer(begin, self.nbytes), element.name == "uint8"

    def read(self):
        return self.arena.read(self.start, self.nbytes)

    def follow(self):
        """The next work of the stream reads it, too; whether there is one."""
        if self.arena.device is not None:
            self.arena.follow(self.start, self.nbytes)
            return True
        return False

    def followed(self):
        return self.arena.followed(self.start, self.nbytes)

    def settle(self):
        """Waits for what was written."""
        if self.arena.stream is not None:
            self.arena.stream.synchronize()

    def forget(self):
        pass  # the arena stays


class Fresh:
    """An array of this call alone, which is freed right after it."""

    name = "fresh"

    def __init__(self, nbytes, element, device):
        dtype = np.dtype("u1") if element.is_pair else element.numpy
        length = nbytes // dtype.itemsize
        self.nbytes = nbytes
        self.array = wm.empty(length, dtype, device=device)
        self.source = wm.empty(length, dtype, device="cpu", pinned=True)
        self.image = np.zeros(nbytes, np.uint8)
        self.write(0x77)

    def write(self, data, again=False):
        if self.array is None:
            return
        source = self.source
        if again:  # the other may be on its way
            words = source.shape, source.dtype
            source = wm.empty(*words, device="cpu", pinned=True)
        self.image[:] = data
        source.numpy().view(np.uint8)[:] = data
        self.array.assign(source, blocking=False)

    def buffer(self, element, typed=False):
        return self.array, not element.is_pair

    def read(self):
        return self.array.numpy().view(np.uint8)

    def follow(self):
        return False

    def settle(self):
        pass  # to read it is to wait for it

    def forget(self):
        self.array = None


class Buffers:
    """All of one rank's, of every kind that there is here."""

    def __init__(self, contents, max_bytes, chosen):
        payload = memory.Payload(0, 1)  # nothing of an arena's own is used
        size = max(ROOM * max_bytes, 1 << 20)
        names = [name for name in chosen or () if name != "fresh"]
        self.arenas = memory.arenas(size, payload, names or chosen)
        self.contents = contents
        self.sources = {
            arena.name: [
                wm.empty(size, np.uint8, device="cpu", pinned=True)
                for _ in "ab"
            ]
            for arena in self.arenas
            if arena.device is not None
        }
        self.kinds = [arena.name for arena in self.arenas]
        if wm.is_cuda_available() and (not chosen or "fresh" in chosen):
            self.kinds.append(Fresh.name)

    def begin(self):
        """Everything may be used again."""
        for arena in self.arenas:
            arena.used = 0

    def take(self, bits, nbytes, element, local):
        """A buffer of so many bytes, of the kind that the bits say."""
        kind = bits % len(self.kinds)
        if self.kinds[kind] == Fresh.name:
            devices = {a.device for a in self.arenas if a.device is not None}
            place = sorted(devices, key=lambda d: d.ordinal)
            place = place or [wm.get_device()]
            return Fresh(nbytes, element, place[bits // 64 % len(place)])
        width = element.width
        for step in range(len(self.arenas)):
            arena = self.arenas[(kind + step) % len(self.arenas)]
            start = arena.take(nbytes + width, local)
            if start is not None:
                return Piece(self, arena, start + -start % width, nbytes)
        raise MemoryError(f"the arenas have no room for {nbytes} bytes")

    def spoil(self, piece, local):
        """What its owner does with a buffer that he has again."""
        start = local.randrange(1000)
        data = self.contents.payload[start : start + piece.nbytes]
        piece.write(data, True)

    def difference(self):
        """The first byte that is not what it must be: where, or None."""
        for arena in self.arenas:
            if arena.stream is not None:
                arena.stream.synchronize()
        for arena in self.arenas:
            found = arena.difference()
            if found:
                return arena, *found
        return None
