# SPDX-License-Identifier: BSD-3-Clause
"""A long kernel writes the array on a side stream, and it is sent at once.

Nobody synchronises: the stream is the library's current one, or is given to
comm.on(). The receiver's next kernel on its own stream, a long one too, reads
what came, and the next message goes into the same array right behind it.
WARPMPI_TEST_PRODUCERS says how often: 1,000 times on a real GPU.
"""

import contextlib
import math
import os
import warnings

import numpy as np
import pytest

import kinds
import warpmpi as wm

COUNT = int(
    os.environ.get(
        "WARPMPI_TEST_PRODUCERS", "1000" if kinds.is_real() else "8"
    )
)
SIZES = (1000, 300_000)  # of float32: device eager, and not
AT_ONCE = 8  # turns before anybody looks
CYCLES = 4_000_000  # 2 ms of a GPU at 2 GHz
TURNS = 50_000  # of a sine that waits for the last one: longer than 1 ms

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of the libraries' own
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
    pytest.mark.ranks(2),
]


def library(name):
    if not kinds.is_real():
        pytest.skip("needs a real GPU")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, exc_type=ImportError)


class Own:
    """wm.Arrays: each knows what was done with it on which stream."""

    def __init__(self, device):
        self.device = device
        self.stream = wm.Stream(device)
        size = (64 << 20) if kinds.is_real() else 1000
        self.long = [wm.zeros(size, "u1", device=device) for _ in "ab"]

    def current(self):
        return contextlib.nullcontext()

    def empty(self, size):
        return wm.zeros(size, "float32", device=self.device)

    def _spin(self):
        for _ in range(30 if kinds.is_real() else 1):
            self.long[0].assign(
                self.long[1], blocking=False, stream=self.stream
            )

    def write(self, array, value):
        self._spin()
        array.fill_(value, blocking=False, stream=self.stream)

    def read(self, array, into):
        self._spin()
        into.assign(array, blocking=False, stream=self.stream)

    def values(self, array):
        return array.numpy()


class Cupy:
    CODE = r"""
    extern "C" __global__ void spin(long long cycles)
    {
        long long begin = clock64();
        while (clock64() - begin < cycles) { }
    }
    """

    def __init__(self, device):
        self.cupy = library("cupy")
        self.cupy.cuda.Device(device.ordinal).use()
        self.stream = self.cupy.cuda.Stream(non_blocking=True)
        self.kernel = self.cupy.RawKernel(self.CODE, "spin")

    def current(self):
        return self.stream

    def empty(self, size):
        array = self.cupy.zeros(size, "f4")
        self.cupy.cuda.Device().synchronize()
        return array

    def _spin(self):
        self.kernel((1,), (1,), (np.int64(CYCLES),))

    def write(self, array, value):
        with self.stream:
            self._spin()
            array.fill(value)

    def read(self, array, into):
        with self.stream:
            self._spin()
            into[:] = array

    def values(self, array):
        with self.stream:
            return array.get()


class Torch:
    def __init__(self, device):
        self.torch = library("torch")
        self.torch.cuda.set_device(device.ordinal)
        self.stream = self.torch.cuda.Stream()

    def current(self):
        return self.torch.cuda.stream(self.stream)

    def empty(self, size):
        array = self.torch.zeros(size, device="cuda")
        self.torch.cuda.synchronize()
        return array

    def write(self, array, value):
        with self.current():
            self.torch.cuda._sleep(CYCLES)
            array.fill_(float(value))

    def read(self, array, into):
        with self.current():
            self.torch.cuda._sleep(CYCLES)
            into.copy_(array)

    def values(self, array):
        self.stream.synchronize()
        return array.cpu().numpy()


def warp_spin(warp):
    """A kernel of Warp's that takes so many turns."""

    @warp.kernel
    def spin(left: warp.array(dtype=float), turns: int):
        x = left[0]
        for _ in range(turns):
            x = warp.sin(x + 1.0)
        left[0] = x

    return spin


class Warp:
    def __init__(self, device):
        self.warp = library("warp")
        self.warp.config.quiet = True
        self.warp.init()
        self.device = self.warp.get_device(f"cuda:{device.ordinal}")
        self.stream = self.warp.Stream(self.device)
        self.kernel = warp_spin(self.warp)
        self.left = self.empty(1)

    def current(self):
        return self.warp.ScopedStream(self.stream, sync_enter=False)

    def empty(self, size):
        array = self.warp.zeros(size, dtype=float, device=self.device)
        self.warp.synchronize_device(self.device)
        return array

    def _spin(self):
        self.warp.launch(
            self.kernel, dim=1, inputs=[self.left, TURNS], stream=self.stream
        )

    def write(self, array, value):
        with self.current():
            self._spin()
            array.fill_(float(value))

    def read(self, array, into):
        self._spin()
        self.warp.copy(into, array, stream=self.stream)

    def values(self, array):
        self.warp.synchronize_stream(self.stream)
        return array.numpy()


class Numba:
    """Its arrays name the stream that they were made with."""

    def __init__(self, device):
        numba = library("numba")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from numba import cuda
        numba.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0
        self.cuda = cuda
        cuda.select_device(device.ordinal)
        self.side = cuda.stream()
        self.stream = int(self.side)  # the handle

        @cuda.jit
        def spin(left, turns):
            x = left[0]
            for _ in range(turns):
                x = math.sin(x + 1.0)
            left[0] = x

        @cuda.jit
        def fill(array, value):
            i = cuda.grid(1)
            if i < array.size:
                array[i] = value

        @cuda.jit
        def copy(into, array):
            i = cuda.grid(1)
            if i < array.size:
                into[i] = array[i]

        self.kernels = spin, fill, copy
        self.left = self.empty(1)
        try:
            spin[1, 1, self.side](self.left, 0)
        except AttributeError as error:  # numpy has no attribute …
            pytest.skip(f"Numba does not know this NumPy: {error}")

    def current(self):
        return contextlib.nullcontext()

    def empty(self, size):
        array = self.cuda.to_device(
            np.zeros(size, np.float32), stream=self.side
        )
        self.side.synchronize()
        return array

    def _launch(self, kernel, array, other):
        spin = self.kernels[0]
        spin[1, 1, self.side](self.left, TURNS)
        kernel[-(-array.size // 256), 256, self.side](array, other)

    def write(self, array, value):
        self._launch(self.kernels[1], array, np.float32(value))

    def read(self, array, into):
        self._launch(self.kernels[2], into, array)

    def values(self, array):
        found = array.copy_to_host(stream=self.side)
        self.side.synchronize()
        return found


@pytest.fixture(
    params=[Own, Cupy, Torch, Warp, Numba], ids=lambda k: k.__name__
)
def producer(request):
    return request.param(wm.get_device())


def value_of(rank, turn):
    return float(rank * 1000 + turn % 1000 + 1)


@pytest.mark.parametrize("how", ["current stream", "comm.on"])
def test_long_kernels_around_messages(comm, producer, how):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if how == "current stream":
        channel, scope = comm, producer.current
    else:
        channel, scope = comm.on(producer.stream), contextlib.nullcontext
    sets = [
        (
            producer.empty(size),
            producer.empty(size),
            [producer.empty(size) for _ in range(AT_ONCE)],
        )
        for size in SIZES
    ]
    for first in range(0, COUNT, AT_ONCE):
        out, into, results = sets[first // AT_ONCE % len(sets)]
        turns = range(first, min(first + AT_ONCE, COUNT))
        for turn in turns:
            producer.write(out, value_of(comm.rank, turn))
            with scope():
                if turn % 2:
                    channel.Sendrecv(out, right, 0, into, left, 0)
                else:
                    requests = [
                        channel.Irecv(into, left, 1),
                        channel.Isend(out, right, 1),
                    ]
                    wm.Request.Waitall(requests)
            producer.read(into, results[turn - first])
        for turn in turns:
            found = producer.values(results[turn - first])
            wrong = np.flatnonzero(found != value_of(left, turn))
            assert not len(wrong), (
                f"turn {turn}: {len(wrong)} of {len(found)} elements are "
                f"wrong, such as {found[wrong[0]]} at {wrong[0]}"
            )


def test_jax(comm):
    """It has no streams of the user's, and its arrays cannot be changed."""
    jax = library("jax")
    jnp = jax.numpy
    device = jax.devices()[wm.get_device().ordinal]
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

    @jax.jit
    def slow(zeros, value):
        def turn(_, x):
            return jnp.sin(x + 1.0)

        # A kernel a turn, none of which can be left out.
        return value + 0.0 * jax.lax.fori_loop(0, 300, turn, zeros)

    @jax.jit
    def late(array, x):
        return array + 0.0 * slow(x, 0.0)

    for size in SIZES:
        zeros = jax.device_put(np.zeros(size, np.float32), device)
        for first in range(0, COUNT // len(SIZES), AT_ONCE):
            results = []
            for turn in range(first, first + AT_ONCE):
                out = slow(zeros, value_of(comm.rank, turn))
                into = wm.empty(size, "float32", device=wm.get_device())
                comm.Sendrecv(out, right, 0, into, left, 0)
                results.append(late(jax.dlpack.from_dlpack(into), zeros))
            for turn, result in enumerate(results, first):
                assert (np.asarray(result) == value_of(left, turn)).all()
