# SPDX-License-Identifier: BSD-3-Clause
"""The real libraries: their arrays as messages, right behind their kernels."""

import os
import warnings

import numpy as np
import pytest

import warpmpi as wm

if not wm.is_cuda_available() or "WARPMPI_CUDA_DRIVER" in os.environ:
    pytest.skip("needs a real GPU", allow_module_level=True)

SIZE = 1_000_000


def library(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, exc_type=ImportError)


class Cupy:
    def __init__(self, ordinal):
        self.cupy = library("cupy")
        self.cupy.cuda.Device(ordinal).use()

    def slow(self, value):
        """An array that a long queue of kernels fills with a value."""
        array = self.cupy.zeros(SIZE, "f4")
        for _ in range(300):
            array += 1
        array += value - 300
        return array

    def empty(self):
        return self.cupy.zeros(SIZE, "f4")

    def check(self, array, value):
        """By a kernel on the library's own stream."""
        assert bool((array == value).all())


class Torch:
    def __init__(self, ordinal):
        self.torch = library("torch")
        self.torch.cuda.set_device(ordinal)

    def slow(self, value):
        array = self.empty()
        for _ in range(300):
            array += 1
        array += value - 300
        return array

    def empty(self):
        return self.torch.zeros(SIZE, device="cuda")

    def check(self, array, value):
        assert bool((array == value).all())


class TorchSide(Torch):
    """On a stream that is not the default one."""

    def __init__(self, ordinal):
        super().__init__(ordinal)
        self.torch.cuda.set_stream(self.torch.cuda.Stream())


class CupySide(Cupy):
    def __init__(self, ordinal):
        super().__init__(ordinal)
        self.stream = self.cupy.cuda.Stream(non_blocking=True)
        self.stream.use()


class CupyPool(Cupy):
    """Stream-ordered memory, which CUDA IPC cannot export."""

    def empty(self):
        pool = self.cupy.cuda.MemoryAsyncPool()
        with self.cupy.cuda.using_allocator(pool.malloc):
            return self.cupy.zeros(SIZE, "f4")

    def slow(self, value):
        array = self.empty()
        array += super().slow(value)
        return array


class Warp:
    def __init__(self, ordinal):
        self.warp = library("warp")
        self.warp.config.quiet = True
        self.warp.init()
        self.device = self.warp.get_device(f"cuda:{ordinal}")

    def slow(self, value):
        array = self.empty()
        for _ in range(300):
            array.fill_(-1.0)
        array.fill_(float(value))
        return array

    def empty(self):
        return self.warp.zeros(SIZE, dtype=float, device=self.device)

    def check(self, array, value):
        assert (array.numpy() == value).all()


class Numba:
    def __init__(self, ordinal):
        library("numba")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from numba import cuda
        self.cuda = cuda
        cuda.select_device(ordinal)

    def slow(self, value):
        return self.cuda.to_device(np.full(SIZE, value, "f4"))

    def empty(self):
        return self.cuda.to_device(np.zeros(SIZE, "f4"))

    def check(self, array, value):
        assert (array.copy_to_host() == value).all()


KINDS = [Cupy, CupySide, CupyPool, Torch, TorchSide, Warp, Numba]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def producer(request):
    made = request.param(wm.get_device().ordinal)
    yield made
    if request.param is CupySide:
        made.cupy.cuda.Stream.null.use()
    if request.param is TorchSide:
        made.torch.cuda.set_stream(made.torch.cuda.default_stream())


@pytest.mark.ranks(2)
def test_messages_follow_the_librarys_kernels(comm, producer):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for turn in range(20):
        into = producer.empty()
        out = producer.slow(turn * 10 + comm.rank)
        comm.Sendrecv(out, right, 0, into, left, 0)
        producer.check(into, turn * 10 + left)
        requests = [comm.Irecv(out, left, 1), comm.Isend(into, right, 1)]
        wm.Request.Waitall(requests)
        producer.check(out, turn * 10 + (comm.rank - 2) % comm.size)


@pytest.mark.ranks(2)
def test_a_buffer_still_in_use_is_not_overwritten_early(comm, producer):
    """The receive waits for the kernels that read or write its buffer."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for _ in range(10):
        out = producer.slow(7)
        into = producer.slow(3)
        comm.Sendrecv(out, right, 0, into, left, 0)
        producer.check(into, 7)


def test_views_of_the_librarys_memory(producer):
    if isinstance(producer, CupyPool):
        pytest.skip("its pool ends with the array")
    array = producer.slow(5)
    view = wm.asarray(array)
    assert view.device == wm.get_device()
    assert (view.numpy() == 5).all()


@pytest.mark.ranks(2)
def test_jax(comm):
    jax = library("jax")
    device = jax.devices()[wm.get_device().ordinal]
    mine = jax.device_put(np.full(SIZE, comm.rank, "f4"), device) + 1
    into = wm.empty(SIZE, "float32", device=wm.get_device())
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.Sendrecv(mine, right, 0, into, left, 0)
    assert (into.numpy() == left + 1).all()
    with pytest.raises(BufferError, match="cannot be changed"):
        comm.Recv(mine, left)
    back = jax.dlpack.from_dlpack(into)
    assert float(back[0]) == left + 1
