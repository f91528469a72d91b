# SPDX-License-Identifier: BSD-3-Clause
"""Nothing of ours is seen half done: by a stream, a device, the host.

On the simulated driver in its lazy mode an operation runs only when something
waits for it, so that each wait that is missing makes a test here fail.
"""

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import compiled
import warpmpi as wm
from awaited import Torch, page_locked

pytestmark = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)
GPU = "cuda:0"
COUNT = wm.get_cuda_device_count()
OTHERS = [f"cuda:{i}" for i in range(min(2, COUNT))]
ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "tests" / "c" / "array_layer.c"
CASES = re.findall(r"CASE\((\w+)\),", SOURCE.read_text())
simulated = pytest.mark.skipif(
    "WARPMPI_CUDA_DRIVER" not in os.environ, reason="needs the simulator"
)


N = 300_000  # bytes; long enough for a real GPU to be caught half way


class Driver:
    """What a foreign library does, on streams of its own."""

    def __init__(self):
        path = os.environ.get("WARPMPI_CUDA_DRIVER", "libcuda.so.1")
        self.lib = ctypes.CDLL(path)

    def __call__(self, name, ordinal, *arguments):
        context, old = ctypes.c_void_p(), ctypes.c_void_p()
        lib = self.lib
        assert not lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal)
        assert not lib.cuCtxPushCurrent_v2(context)
        result = getattr(lib, name)(*arguments)
        lib.cuCtxPopCurrent_v2(ctypes.byref(old))
        lib.cuDevicePrimaryCtxRelease_v2(ordinal)
        assert result == 0, (name, result)

    def fill(self, stream, pointer, value, count=N):
        self(
            "cuMemsetD8Async",
            stream.device.ordinal,
            ctypes.c_uint64(pointer),
            ctypes.c_ubyte(value),
            ctypes.c_size_t(count),
            ctypes.c_void_p(stream.cuda_stream),
        )

    def read(self, stream, pointer, count=N):
        """The bytes as `stream` (a handle, or None for none) finds them."""
        out = np.zeros(count, "u1")
        handle = ctypes.c_void_p(stream)
        to = ctypes.c_uint64(out.ctypes.data)
        where = (ctypes.c_uint64(pointer), ctypes.c_size_t(count))
        if stream is None:
            self("cuMemcpyDtoH_v2", 0, to, *where)
        else:
            self("cuMemcpyAsync", 0, to, *where, handle)
            self("cuStreamSynchronize", 0, handle)
        return out


@pytest.fixture(scope="module")
def driver():
    return Driver()


@pytest.fixture(autouse=True)
def quiet():
    """Each test begins and ends with idle devices."""
    wm.synchronize()
    yield
    wm.synchronize()


def is_all(array, value):
    array = array if isinstance(array, np.ndarray) else array.numpy()
    return bool(np.all(array == value))


def settled(array, value):
    """Now, and when everything has run that was left pending."""
    now = is_all(array, value)
    wm.synchronize()
    return now and is_all(array, value)


def new(value, device=GPU, count=N):
    return wm.full(count, value, "u1", device)


def run(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code, __file__],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


class Shown:
    """Foreign memory by its CUDA array interface."""

    def __init__(self, array, stream=None, version=3):
        self.keep = array
        self.__cuda_array_interface__ = {
            "shape": (array.size,),
            "typestr": "|u1",
            "data": (array.ptr, False),
            "version": version,
            "stream": None if stream is None else stream.cuda_stream,
        }


# --- complete when they return ----------------------------------------------

COMPLETE = {
    "full": lambda d: wm.full(N, 7, "u1", d),
    "ones": lambda d: wm.ones(N, "u1", d),
    "from_numpy": lambda d: wm.from_numpy(np.full(N, 7, "u1"), device=d),
    "array": lambda d: wm.array(new(7), device=d),
    "copy": lambda d: new(7, d).copy(),
    "to": lambda d: new(7, "cpu").to(d),
    "strided": lambda d: wm.full((N, 2), 7, "u1", d)[:, 1].copy(),
}


@pytest.mark.parametrize("name", COMPLETE)
@pytest.mark.parametrize("device", OTHERS)
def test_what_makes_an_array_is_complete_when_it_returns(name, device, driver):
    made = COMPLETE[name](device)
    address = made.__cuda_array_interface__["data"][0]
    assert is_all(driver.read(None, address), 1 if name == "ones" else 7)


@pytest.mark.parametrize("device", OTHERS)
def test_what_changes_an_array_is_complete_when_it_returns(device, driver):
    a = wm.zeros(N, "u1", device)
    address = a[:1].__cuda_array_interface__["data"][0]

    def found():
        return driver.read(None, address)

    assert is_all(found(), 0)
    a.fill_(3)
    assert is_all(found(), 3)
    a.assign(np.full(N, 4, "u1"))
    assert is_all(found(), 4)
    a[::2] = 5
    a[1::2] = wm.full(N // 2, 5, "u1", device)
    assert is_all(found(), 5)
    a.zero_()
    assert is_all(found(), 0)
    a.assign(new(6, GPU))
    assert is_all(found(), 6)


def test_the_race_between_devices_cannot_be_written():
    for i in range(100):
        for device in OTHERS:
            a = wm.from_numpy(np.array([i])).to(device)
            assert a.numpy().tolist() == [i]
            b = wm.from_numpy(np.array([i]), device=GPU, blocking=False)
            c = b.to(OTHERS[-1], blocking=False).to(device, blocking=False)
            assert c.numpy().tolist() == [i]


# --- ordered where they are not complete ------------------------------------


@pytest.mark.parametrize("device", OTHERS)
def test_a_read_comes_after_the_write_before_it(device):
    a = wm.zeros(N, "u1", GPU)
    a.fill_(7, blocking=False)
    b = wm.zeros(N, "u1", device)
    b.assign(a, blocking=False)
    assert settled(b, 7)


@pytest.mark.parametrize("device", OTHERS)
def test_a_write_comes_after_the_reads_before_it(device):
    a = new(7)
    b = wm.zeros(N, "u1", device)
    b.assign(a, blocking=False)
    a.fill_(0, blocking=False)
    assert is_all(a, 0)
    assert settled(b, 7)


def test_a_write_comes_after_the_write_before_it():
    a = wm.zeros(N, "u1", GPU)
    a.fill_(1, blocking=False)
    a.fill_(2, blocking=False)
    assert settled(a, 2)
    a.assign(new(3), blocking=False)
    a.assign(np.full(N, 4, "u1"), blocking=False)
    assert settled(a, 4)


def test_more_readers_than_are_remembered_one_by_one():
    a = new(7)
    copies = [wm.zeros(N, "u1", GPU) for _ in range(20)]
    streams = [wm.Stream(GPU) for _ in copies]
    for copy, stream in zip(copies, streams, strict=True):
        copy.assign(a, stream=stream)
    a.fill_(0, blocking=False)
    assert is_all(a, 0)
    assert all(settled(copy, 7) for copy in copies)


def test_a_reader_that_comes_again_is_remembered_for_both_reads():
    a = new(7)
    b, c, d = (wm.zeros(N, "u1", GPU) for _ in range(3))
    s, t = wm.Stream(GPU), wm.Stream(GPU)
    b.assign(a, stream=s)
    c.assign(a, stream=t)
    d.assign(a, stream=s)
    a.fill_(0, blocking=False)
    assert is_all(a, 0)
    assert settled(b, 7)
    assert settled(c, 7)
    assert settled(d, 7)


def test_a_stream_with_the_handle_of_one_that_is_gone_is_another():
    a = new(7)
    b, c = (wm.zeros(N, "u1", GPU) for _ in range(2))
    stream = wm.Stream(GPU)
    handle = stream.cuda_stream
    b.assign(a, stream=stream)
    del stream
    others = [wm.Stream(GPU)]
    while others[-1].cuda_stream != handle:
        if len(others) == 100:
            pytest.skip("this driver does not reuse handles at once")
        others.append(wm.Stream(GPU))
    c.assign(a, stream=others[-1])
    a.fill_(0, blocking=False)
    assert is_all(a, 0)
    assert settled(b, 7)
    assert settled(c, 7)


def test_work_on_a_stream_comes_after_what_is_pending(driver):
    a = wm.zeros(N, "u1", GPU)
    a.fill_(1, blocking=False)
    stream = wm.Stream(GPU)
    a.fill_(2, stream=stream)
    b = a.copy(stream=stream)
    pointer = b[:1].__cuda_array_interface__["data"][0]
    assert is_all(driver.read(stream.cuda_stream, pointer), 2)
    assert settled(a, 2)


def test_views_are_ordered_with_their_whole_allocation():
    a = wm.zeros((2, N), "u1", GPU)
    a.fill_(1, blocking=False)
    b = a[1].copy(blocking=False)
    a[0].fill_(2, blocking=False)
    a[1].fill_(3, blocking=False)
    c = a.T.copy(blocking=False)
    assert is_all(c.numpy()[:, 0], 2)
    assert is_all(c.numpy()[:, 1], 3)
    assert settled(b, 1)


def test_overlapping_copies_are_ordered_too():
    host = (np.arange(N) % 251).astype("u1")
    a = wm.from_numpy(host, device=GPU)
    a.assign(a[::-1], blocking=False)
    a[1:].assign(a[:-1], blocking=False)
    expected = host[::-1].copy()
    expected[1:] = expected[:-1].copy()
    assert np.array_equal(a.numpy(), expected)


@pytest.mark.parametrize("device", OTHERS)
def test_temporaries_live_as_long_as_they_are_used(device):
    host = (np.arange(2 * N) % 251).astype("u1").reshape(N, 2)
    made = []
    for _ in range(5):
        a = wm.zeros((N, 2), "u1", GPU)
        a[:, 1].assign(host[:, 1], blocking=False)
        b = wm.zeros((N, 2), "u1", device)
        b[:, 0].assign(a[:, 1], blocking=False)
        b[:, 1].assign(host[:, 0].copy(), blocking=False)
        made.append((a, b))
        noise = [wm.full(2 * N, 9, "u1", d) for d in {GPU, device}]
    del noise
    wm.synchronize()
    for a, b in made:
        assert np.array_equal(a.numpy()[:, 1], host[:, 1])
        assert np.array_equal(b.numpy(), host[:, ::-1])


# --- freed ------------------------------------------------------------------


def test_device_memory_is_not_reused_before_its_readers_are_done():
    a = new(7)
    b = wm.zeros(N, "u1", GPU)
    b.assign(a, blocking=False)
    del a
    again = [wm.full(N, 9, "u1", GPU) for _ in range(4)]
    assert settled(b, 7)
    assert all(is_all(c, 9) for c in again)


def test_device_memory_is_not_reused_before_its_writers_are_done():
    a = wm.zeros(N, "u1", GPU)
    a.fill_(7, blocking=False)
    del a
    again = [wm.empty(N, "u1", GPU) for _ in range(4)]
    for b in again:
        b.fill_(9)
    wm.synchronize()
    assert all(is_all(c, 9) for c in again)


def test_pinned_memory_is_not_reused_before_its_readers_are_done():
    p = wm.full(N, 7, "u1", pinned=True)
    a = wm.zeros(N, "u1", GPU)
    a.assign(p, blocking=False)
    del p
    again = [wm.full(N, 9, "u1", pinned=True) for _ in range(4)]
    assert settled(a, 7)
    assert all(is_all(c, 9) for c in again)


def test_the_owner_of_foreign_memory_is_kept_until_we_are_done(driver):
    class Owner(Shown):
        def __del__(self):
            released.append(is_all(driver.read(None, address), 7))

    released = []
    a = new(7)
    b = wm.zeros(N, "u1", GPU)
    address = b.__cuda_array_interface__["data"][0]
    foreign = wm.asarray(Owner(a))
    b.assign(foreign, blocking=False)
    del foreign
    assert released == [True]


# --- the host ---------------------------------------------------------------

HOST_READS = {
    "numpy": lambda p: p.numpy(),
    "memoryview": lambda p: np.asarray(memoryview(p)),
    "asarray": lambda p: np.asarray(p),
    "dlpack": lambda p: np.from_dlpack(p),
    "interface": lambda p: np.asarray(_Host(p.__array_interface__)),
    "ptr": lambda p: np.frombuffer(
        (ctypes.c_ubyte * N).from_address(p.ptr), "u1"
    ),
    "copy": lambda p: host_copy(p).numpy(),
}


def host_copy(array):
    made = wm.empty(N, "u1", "cpu")
    made.assign(array)
    return made


class _Host:
    def __init__(self, interface):
        self.__array_interface__ = interface


@pytest.mark.parametrize("name", HOST_READS)
def test_the_host_reads_pinned_memory_after_its_writes(name):
    p = wm.zeros(N, "u1", pinned=True)
    p.assign(new(7), blocking=False)
    assert is_all(np.array(HOST_READS[name](p)), 7)


def test_the_host_writes_pinned_memory_after_its_reads():
    for write in (
        lambda p: p.fill_(0),
        lambda p: p.zero_(),
        lambda p: p.assign(np.zeros(N, "u1")),
        lambda p: p.numpy().fill(0),
        lambda p: np.from_dlpack(p).fill(0),
    ):
        p = wm.full(N, 7, "u1", pinned=True)
        a = wm.zeros(N, "u1", GPU)
        a.assign(p, blocking=False)
        write(p)
        assert settled(a, 7)


def test_pageable_memory_is_written_when_it_returns():
    a = wm.zeros(N, "u1", GPU)
    a.fill_(7, blocking=False)
    host = np.zeros(N, "u1")
    wm.asarray(host).assign(a, blocking=False)
    assert is_all(host, 7)
    a.fill_(8, blocking=False)
    assert is_all(a.to("cpu", blocking=False), 8)
    strided = np.zeros((N, 2), "u1")
    wm.asarray(strided)[:, 1].assign(a, blocking=False)
    assert is_all(strided[:, 1], 8)


def test_pageable_memory_may_be_changed_when_it_returns():
    host = np.full(N, 7, "u1")
    a = wm.from_numpy(host, device=GPU, blocking=False)
    host.fill(0)
    assert settled(a, 7)
    host = np.full((N, 2), 7, "u1")
    a = wm.from_numpy(host[:, 1], device=GPU, blocking=False)
    host.fill(0)
    assert settled(a, 7)


# --- producers --------------------------------------------------------------


def test_a_named_stream_is_waited_for(driver):
    memory, stream = new(0), wm.Stream(GPU)
    for blocking in (True, False):
        driver.fill(stream, memory.ptr, 7)
        b = wm.array(Shown(memory, stream), blocking=blocking)
        assert settled(b, 7)
        driver.fill(stream, memory.ptr, 0)


def test_a_named_stream_waits_for_our_reads(driver):
    memory, stream = new(7), wm.Stream(GPU)
    b = wm.array(Shown(memory, stream), blocking=False)
    driver.fill(stream, memory.ptr, 0)
    stream.synchronize()
    assert settled(b, 7)


@pytest.mark.parametrize("version", [2, 3])
def test_where_no_stream_is_named_the_device_is_waited_for(version, driver):
    memory, stream = new(0), wm.Stream(GPU)
    driver.fill(stream, memory.ptr, 7)
    assert settled(wm.array(Shown(memory, None, version)), 7)


def test_pinned_memory_of_others_is_waited_for_on_the_host(driver):
    memory, stream = wm.zeros(N, "u1", pinned=True), wm.Stream(GPU)
    for shown in (Shown(memory, stream), Shown(memory)):
        driver.fill(stream, memory.ptr, 7)
        assert is_all(wm.array(shown, device="cpu"), 7)
        memory.zero_()


def test_page_locked_memory_that_was_given_away_waits_for_the_device(driver):
    memory, stream = wm.zeros(N, "u1", pinned=True), wm.Stream(GPU)
    ways = (
        lambda: memory.copy(),
        lambda: memory.to(GPU),
        lambda: memory.numpy(),
        lambda: np.from_dlpack(memory),
    )
    for value, way in enumerate(ways, 1):
        driver.fill(stream, memory.ptr, value)
        assert is_all(way(), value)


def test_where_no_stream_is_named_our_read_is_done_when_it_returns(driver):
    memory, stream = new(7), wm.Stream(GPU)
    b = wm.array(Shown(memory), blocking=False)
    driver.fill(stream, memory.ptr, 0)
    stream.synchronize()
    assert settled(b, 7)


def test_views_of_foreign_memory_wait_for_the_device(driver):
    memory, stream = new(0), wm.Stream(GPU)
    view = wm.asarray(Shown(memory, stream))
    for operation in (
        lambda: view.copy(),
        lambda: view.to("cpu"),
        lambda: wm.from_numpy(view.numpy()),
    ):
        driver.fill(stream, memory.ptr, 7)
        assert settled(operation(), 7)
        view.zero_()
    driver.fill(stream, memory.ptr, 7)
    view.fill_(8)
    assert settled(view, 8)


def test_arrays_of_ours_that_were_given_away_wait_for_the_device(driver):
    a, stream = wm.zeros(N, "u1", GPU), wm.Stream(GPU)
    driver.fill(stream, a.ptr, 7)
    assert settled(a.copy(), 7)
    driver.fill(stream, a.ptr, 8)
    a.fill_(9)
    assert settled(a, 9)


def test_arrays_given_away_are_still_ordered_across_devices():
    a = wm.zeros(N, "u1", GPU)
    assert a.ptr
    # On a stream of the other device, which waiting for one does not cover.
    b = wm.full(N, 7, "u1", OTHERS[-1])
    stream = wm.Stream(OTHERS[-1])
    a.assign(b, stream=stream)
    assert settled(a.copy(), 7)


class Warp:
    """What Warp's arrays look like from outside."""

    def __init__(self, array, stream):
        interface = Shown(array, None, 2).__cuda_array_interface__
        self.__cuda_array_interface__ = interface
        self.device = self
        self.stream = stream


Warp.__name__ = "array"
Warp.__module__ = "warp.types"


def test_warps_current_stream_is_waited_for(driver):
    memory, stream = new(0), wm.Stream(GPU)
    driver.fill(stream, memory.ptr, 7)
    assert settled(wm.array(Warp(memory, stream)), 7)
    b = wm.array(Warp(memory, stream), blocking=False)
    driver.fill(stream, memory.ptr, 0)
    stream.synchronize()
    assert settled(b, 7)


def test_torchs_current_stream_is_waited_for(driver):
    memory, stream = new(0), Torch.stream_of(GPU)
    driver.fill(stream, memory.ptr, 7)
    assert settled(wm.array(Torch(memory)), 7)
    b = wm.array(Torch(memory), blocking=False)
    driver.fill(stream, memory.ptr, 0)
    stream.synchronize()
    assert settled(b, 7)


@pytest.mark.parametrize("kind", [1, 3], ids=["cpu", "cuda-host"])
def test_torchs_page_locked_memory_follows_its_current_stream(driver, kind):
    stream = Torch.stream_of(GPU)
    memory = page_locked(N, "u1", stream.device)
    tensor = Torch(memory, kind)
    for value in 7, 8:
        driver.fill(stream, memory.ctypes.data, value)
        assert is_all(wm.array(tensor, device="cpu"), value)


class Handshaking:
    """Orders the consumer after its own stream, as __dlpack__ is to."""

    def __init__(self, array, stream):
        self.array = array
        self.stream = stream

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, stream=None, max_version=None):
        event = wm.Event(self.array.device)
        event.record(self.stream)
        Driver()(
            "cuStreamWaitEvent",
            self.array.device.ordinal,
            ctypes.c_void_p(stream),
            ctypes.c_void_p(event.cuda_event),
            ctypes.c_uint(0),
        )
        return self.array.__dlpack__(stream=-1, max_version=max_version)


def test_dlpacks_handshake_is_followed(driver):
    memory, stream = new(0), wm.Stream(GPU)
    for _ in range(20):  # more than there are handshake streams
        driver.fill(stream, memory.ptr, 7)
        assert settled(wm.array(Handshaking(memory, stream)), 7)
        memory.zero_()


# --- consumers --------------------------------------------------------------


def test_the_interface_names_a_stream_that_comes_after_our_work(driver):
    a = wm.zeros(N, "u1", GPU)
    a.fill_(7, blocking=False)
    interface = a.__cuda_array_interface__
    pointer, stream = interface["data"][0], interface["stream"]
    assert is_all(driver.read(stream, pointer), 7)


def test_the_interface_comes_after_others_once_it_was_given_away(driver):
    a = wm.zeros(N, "u1", GPU)
    pointer = a.__cuda_array_interface__["data"][0]
    stream = wm.Stream(GPU)
    driver.fill(stream, pointer, 7)
    assert a.__cuda_array_interface__["stream"] is None
    assert is_all(driver.read(None, pointer), 7)


def address_in(capsule):
    """Where the tensor of a DLPack capsule lies."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.c_void_p
    pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return ctypes.c_uint64.from_address(pointer(capsule, b"dltensor")).value


def test_dlpacks_stream_comes_after_our_work(driver):
    a = wm.zeros(N, "u1", GPU)
    a.fill_(7, blocking=False)
    stream = wm.Stream(GPU)
    capsule = a.__dlpack__(stream=stream.cuda_stream)
    found = driver.read(stream.cuda_stream, address_in(capsule))
    assert is_all(found, 7)


def test_dlpacks_stream_comes_after_others_once_it_was_given_away(driver):
    a = wm.zeros(N, "u1", GPU)
    stream, other = wm.Stream(GPU), wm.Stream(GPU)
    driver.fill(other, a.ptr, 7)
    capsule = a.__dlpack__(stream=stream.cuda_stream)
    found = driver.read(stream.cuda_stream, address_in(capsule))
    assert is_all(found, 7)


def test_the_address_is_given_when_our_work_is_done(driver):
    a = wm.zeros(N, "u1", GPU)
    a.fill_(7, blocking=False)
    assert is_all(driver.read(None, a.ptr), 7)


CONSUMERS = """
import os, sys
sys.path.insert(0, os.path.dirname(sys.argv[1]))
from test_ordering import *
driver = Driver()
for _ in range(5):
    test_the_interface_names_a_stream_that_comes_after_our_work(driver)
    test_dlpacks_stream_comes_after_our_work(driver)
    test_the_address_is_given_when_our_work_is_done(driver)
"""


@simulated
def test_consumers_are_right_where_work_is_slow_rather_than_lazy():
    # Asking whether there is work to wait for is what starts lazy work.
    run(CONSUMERS, SIMCUDA_MODE="delay", SIMCUDA_DELAY_US="200000")


# --- without peer access ----------------------------------------------------

NO_PEER = """
import numpy as np, warpmpi as wm
N = 100_000
host = (np.arange(2 * N) % 251).astype("u1").reshape(N, 2)
other = wm.Stream("cuda:1")
for blocking in (True, False):
    a = wm.zeros((N, 2), "u1", "cuda:0")
    a.assign(host, blocking=False)
    # Gathered on cuda:0, for a copy that runs on cuda:1.
    b = a[:, 1].to("cuda:1", blocking=blocking)
    a.fill_(0, blocking=False)
    assert np.array_equal(b.numpy(), host[:, 1])
    # Gathered and scattered, on whichever device the stream is of.
    for device in ("cuda:0", "cuda:1"):
        a.assign(host, blocking=False)
        c = wm.zeros((2, N), "u1", "cuda:1").T
        c[:, ::-1].assign(a, blocking, stream=wm.Stream(device))
        a.fill_(0, blocking=False)
        junk = [wm.full((N, 2), 9, "u1", d) for d in ("cuda:0", "cuda:1")]
        assert np.array_equal(c.numpy(), host[:, ::-1])
        wm.synchronize()
        assert np.array_equal(c.numpy(), host[:, ::-1])
"""


@simulated
@pytest.mark.skipif(COUNT < 2, reason="needs two GPUs")
def test_strided_copies_are_ordered_without_peer_access():
    run(NO_PEER, SIMCUDA_PEER="0")


# --- calls of several streams, interleaved -----------------------------------


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Two layers and their tests in one program, without Python."""
    made = tmp_path_factory.mktemp("layer") / "array_layer"
    layer = [f"src/array/{name}.c" for name in ("order", "producer")]
    own = "tests/c/array_layer.c"
    return compiled.parts(made, own, "src/cuda/*.c", *layer)


@pytest.mark.parametrize("case", CASES)
def test_order(program, case):
    done = subprocess.run(
        [program, case], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr


@simulated
def test_pinned_memory_waits_for_its_work_where_the_driver_cannot_be_asked():
    lib = ctypes.CDLL(os.environ["WARPMPI_CUDA_DRIVER"])
    device = wm.zeros(N, "u1", device=GPU)
    pinned = wm.full(N, 7, "u1", device="cpu", pinned=True)
    wm.synchronize()
    device.assign(pinned, blocking=False)
    lib.simcuda_fail(b"EventQuery", ctypes.c_long(1), 0)
    del pinned  # its first bytes are the allocator's from now on
    lib.simcuda_fail(None, ctypes.c_long(0), 0)
    assert is_all(device, 7)
