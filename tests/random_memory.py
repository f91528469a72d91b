# SPDX-License-Identifier: BSD-3-Clause
"""Memory of every kind that random messages come from and go to.

An arena is one allocation of a kind. Messages get pieces of it, one behind
the other with gaps between. What it must hold is known for each byte of it,
those between the messages included: its image, on the host.
"""

import ctypes
import sys
import warnings

import numpy as np

import kinds
import warpmpi as wm

STRIDED = 3  # bytes between the rows of a strided array
GAPS = 64 * STRIDED  # at most, of one


class Payload:
    """The bytes that messages are made of, on the host and on each GPU."""

    def __init__(self, seed, size):
        draw = np.random.default_rng([seed, 0x9AB0])
        self.host = draw.integers(0, 256, size, np.uint8)
        self._devices = {}

    def on(self, device, seen):
        """An array of the same bytes; seen: one that others look at."""
        key = device.ordinal, seen
        if key not in self._devices:
            array = wm.array(self.host, device=device)
            self._devices[key] = array, array.ptr if seen else 0
        return self._devices[key]


class Arena:
    """Pageable host memory, and what all the kinds have in common."""

    device = None
    stream = None
    takes_strides = True

    def __init__(self, name, size, payload):
        self.name = name
        self.size = size
        self.payload = payload
        self.image = np.full(size, 0xEE, np.uint8)
        self.used = 0
        self.allocate()

    def allocate(self):
        self.memory = np.full(self.size, 0xEE, np.uint8)

    def take(self, nbytes, local):
        """Where so many bytes may go, or None where the arena is full."""
        align = local.choice((1, 2, 8, 16, 256))
        start = -(-(self.used + local.randrange(16, 64)) // align) * align
        if start + nbytes + 16 > self.size:
            return None
        self.used = start + nbytes + 16
        return start

    def buffer(self, start, nbytes, strided=None):
        """What is handed to a call; strided: rows and bytes of a row."""
        piece = self.memory[start : start + nbytes]
        if strided:
            return rows_of(piece, strided)
        return piece

    def write(self, start, nbytes, offset, strided=None):
        """Puts payload there; may return before it is."""
        source = self.payload.host[offset : offset + content(nbytes, strided)]
        piece = self.memory[start : start + nbytes]
        if strided:
            rows_of(piece, strided)[:] = source.reshape(strided)
        else:
            piece[:] = source

    def read(self, start, nbytes):
        """What is there now, as NumPy array."""
        return self.memory[start : start + nbytes]

    def expect(self, start, nbytes, offset, strided=None):
        """A message of these bytes has come there."""
        source = self.payload.host[offset : offset + content(nbytes, strided)]
        piece = self.image[start : start + nbytes]
        if strided:
            rows_of(piece, strided)[:] = source.reshape(strided)
        else:
            piece[:] = source

    def forget(self, start, nbytes):
        """What is there is not known: whatever it is, it may stay."""
        self.image[start : start + nbytes] = self.read(start, nbytes)

    def difference(self):
        """The first byte that is not what it must be, or None."""
        used = min(self.size, -(-self.used // 8) * 8)
        found, image = self.read(0, used), self.image[:used]
        if np.array_equal(found.view(np.uint64), image.view(np.uint64)):
            return None
        place = int(np.flatnonzero(found != image)[0])
        return place, int(found[place]), int(image[place])


def content(nbytes, strided):
    """Bytes of payload in a piece of so many."""
    return strided[0] * strided[1] if strided else nbytes


def extent(strided):
    """Bytes that rows so long need, with those between them."""
    return strided[0] * (strided[1] + STRIDED)


def rows_of(piece, strided):
    rows, width = strided
    return piece.reshape(rows, width + STRIDED)[:, :width]


class Pinned(Arena):
    """Page-locked host memory, as NumPy arrays or as wm.Arrays."""

    takes_strides = False

    def allocate(self):
        self.array = wm.full(
            self.size, 0xEE, np.uint8, device="cpu", pinned=True
        )
        self.memory = self.array.numpy()
        self.turn = 0

    def buffer(self, start, nbytes, strided=None):
        self.turn += 1
        memory = (self.array, self.memory)[self.turn % 2]
        return memory[start : start + nbytes]


class Device(Arena):
    """A wm.Array, whose order this package knows."""

    def __init__(self, name, size, payload, device):
        self.device = device
        self.stream = wm.Stream(device)
        super().__init__(name, size, payload)

    def allocate(self):
        self.memory = wm.full(self.size, 0xEE, np.uint8, device=self.device)
        self.mirror = wm.full(self.size, 0xEE, np.uint8, device=self.device)
        self.host = wm.empty(self.size, np.uint8, device="cpu", pinned=True)

    def write(self, start, nbytes, offset, strided=None):
        source, _ = self.payload.on(self.device, False)
        source = source[offset : offset + content(nbytes, strided)]
        into = self.buffer(start, nbytes, strided)
        if strided:
            source = source.reshape(*strided)
        into.assign(source, blocking=False, stream=self.stream)

    def read(self, start, nbytes):
        host = self.host[:nbytes]
        host.assign(self.memory[start : start + nbytes])
        return host.numpy()

    def follow(self, start, nbytes):
        """The next work of the stream, which reads what a receive wrote."""
        piece = slice(start, start + nbytes)
        self.mirror[piece].assign(
            self.memory[piece], blocking=False, stream=self.stream
        )

    def followed(self, start, nbytes):
        """What that work has read."""
        self.stream.synchronize()
        return self.mirror[start : start + nbytes].numpy()


class Raw:
    """Copies by the driver itself, that nobody orders but their stream."""

    def __init__(self, device):
        self.cuda = kinds.driver()
        self.context = ctypes.c_void_p()
        result = self.cuda.cuDevicePrimaryCtxRetain(
            ctypes.byref(self.context), ctypes.c_int(device.ordinal)
        )
        assert result == 0, result

    def __enter__(self):
        assert self.cuda.cuCtxPushCurrent_v2(self.context) == 0
        return self

    def __exit__(self, *exception):
        self.cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def copy(self, into, source, nbytes, stream):
        result = self.cuda.cuMemcpyAsync(
            ctypes.c_uint64(into),
            ctypes.c_uint64(source),
            ctypes.c_size_t(nbytes),
            ctypes.c_void_p(stream.cuda_stream),
        )
        assert result == 0, result


class Seen:
    """A piece of an allocation, by __cuda_array_interface__."""

    def __init__(self, owner, address, nbytes, stream):
        self.owner = owner
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "stream": stream.cuda_stream,
        }


class Foreign(Arena):
    """GPU memory of another allocator, its stream named by its interface.

    What is read is read on a stream that nothing orders after a message.
    """

    takes_strides = False

    def __init__(self, name, size, payload, kind):
        self.kind = kind
        super().__init__(name, size, payload)

    def allocate(self):
        self.memory = kinds.Foreign(self.size, "u1", self.kind)
        self.other = kinds.Foreign(self.size, "u1", "foreign")
        self.settle(self.memory.device, self.memory.stream)
        self.address = self.memory.pointer
        self.mirror = self.other.pointer
        for memory in self.memory, self.other:
            memory.assign(self.image)
        wm.synchronize_device(self.device)

    def settle(self, device, stream):
        self.device = device
        self.stream = stream
        self.aside = wm.Stream(device)
        self.raw = Raw(device)
        self.host = wm.zeros(self.size, np.uint8, device="cpu", pinned=True)
        self.pinned = self.host.numpy()

    def buffer(self, start, nbytes, strided=None):
        return Seen(self.memory, self.address + start, nbytes, self.stream)

    def write(self, start, nbytes, offset, strided=None):
        _, source = self.payload.on(self.device, True)
        if nbytes:
            self.copy(
                self.address + start, source + offset, nbytes, self.stream
            )

    def copy(self, into, source, nbytes, stream):
        with self.raw:
            self.raw.copy(into, source, nbytes, stream)

    def read(self, start, nbytes):
        return self.fetch(self.address + start, nbytes, self.aside)

    def fetch(self, address, nbytes, stream):
        if nbytes:
            self.copy(self.pinned.ctypes.data, address, nbytes, stream)
            stream.synchronize()
        return self.pinned[:nbytes]

    def follow(self, start, nbytes):
        if nbytes:
            self.copy(
                self.mirror + start, self.address + start, nbytes, self.stream
            )

    def followed(self, start, nbytes):
        return self.fetch(self.mirror + start, nbytes, self.stream)


class Cupy(Foreign):
    """CuPy's memory, on the stream that is current in CuPy."""

    def __init__(self, name, size, payload, library):
        self.library = library
        Arena.__init__(self, name, size, payload)

    def allocate(self):
        cupy, device = self.library, wm.get_device()
        cupy.cuda.Device(device.ordinal).use()
        self.memory = cupy.full(self.size, 0xEE, "u1")
        self.other = cupy.full(self.size, 0xEE, "u1")
        stream = cupy.cuda.get_current_stream()
        self.settle(device, wm.Stream(device, cuda_stream=stream.ptr))
        self.address = self.memory.data.ptr
        self.mirror = self.other.data.ptr
        wm.synchronize_device(device)

    def buffer(self, start, nbytes, strided=None):
        return self.memory[start : start + nbytes]


class Torch(Cupy):
    """PyTorch's memory, on the stream that is current there."""

    def allocate(self):
        torch, device = self.library, wm.get_device()
        torch.cuda.set_device(device.ordinal)
        self.memory, self.other = (
            torch.full((self.size,), 0xEE, dtype=torch.uint8, device="cuda")
            for _ in "ab"
        )
        stream = torch.cuda.current_stream()
        self.settle(device, wm.Stream(device, cuda_stream=stream.cuda_stream))
        self.address = self.memory.data_ptr()
        self.mirror = self.other.data_ptr()
        wm.synchronize_device(device)


class Warp(Cupy):
    """Warp's memory, from its pool, on its device's current stream."""

    def allocate(self):
        warp, device = self.library, wm.get_device()
        warp.config.quiet = True
        warp.init()
        place = warp.get_device(f"cuda:{device.ordinal}")
        self.memory, self.other = (
            warp.full(self.size, 0xEE, dtype=warp.uint8, device=place)
            for _ in "ab"
        )
        self.settle(
            device, wm.Stream(device, cuda_stream=place.stream.cuda_stream)
        )
        self.address = self.memory.ptr
        self.mirror = self.other.ptr
        wm.synchronize_device(device)


def _importable(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return __import__(name)
        except ImportError:
            return None


def elsewhere(device, make):
    """What is made while another device is the current one."""
    with wm.ScopedDevice(device):
        return make()


def arenas(size, payload, chosen=None):
    """One of each kind there is here, or of those named; pageable first."""
    makers = {"host": lambda name: Arena(name, 4 * size, payload)}
    if wm.is_cuda_available():
        makers["pinned"] = lambda name: Pinned(name, size, payload)
        here = wm.get_device()
        places = [here]
        places += [d for d in wm.get_cuda_devices() if d != here][:1]
        for place in places:
            key = "device" if place == here else "device of another GPU"
            makers[key] = lambda name, place=place: Device(
                name, size, payload, place
            )
        for kind in ("foreign", "pool", "managed"):
            makers[kind] = lambda name, kind=kind: Foreign(
                name, size, payload, kind
            )
        if len(places) > 1:
            makers["pool of another GPU"] = lambda name: elsewhere(
                places[1], lambda: Foreign(name, size, payload, "pool")
            )
        if kinds.is_real():
            others = {"cupy": Cupy, "torch": Torch, "warp": Warp}
            for name, maker in others.items():
                library = _importable(name)
                if library is not None:
                    makers[name] = lambda name, maker=maker, library=library: (
                        maker(name, size, payload, library)
                    )
    names = [n for n in makers if not chosen or n in chosen or n == "host"]
    if chosen and set(chosen) - set(makers):
        sys.exit(f"no memory of these kinds: {set(chosen) - set(makers)}")
    return [makers[name](name) for name in names]
