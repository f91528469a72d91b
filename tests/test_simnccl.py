# SPDX-License-Identifier: BSD-3-Clause
"""The double of NCCL, by ctypes, on ranks that are processes of their own."""

import contextlib
import ctypes as ct
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "simcuda"))

from harness import (  # noqa: E402
    PROMPT,
    Driver,
    Handle,
    Ptr,
    driver_library,  # noqa: F401
)

SUCCESS, CUDA_ERROR, SYSTEM_ERROR, INTERNAL_ERROR = 0, 1, 2, 3
INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, IN_PROGRESS = 4, 5, 6, 7
INT8, INT32, FLOAT32 = 0, 2, 7
UNDEFINED = -(2**31)


class UniqueId(ct.Structure):
    _fields_ = [("internal", ct.c_char * 128)]


class Config(ct.Structure):
    _fields_ = [
        ("size", ct.c_size_t),
        ("magic", ct.c_uint),
        ("version", ct.c_uint),
        ("blocking", ct.c_int),
        ("cgaClusterSize", ct.c_int),
        ("minCTAs", ct.c_int),
        ("maxCTAs", ct.c_int),
        ("netName", ct.c_char_p),
        ("splitShare", ct.c_int),
    ]


def config(**fields):
    values = {name: UNDEFINED for name, _ in Config._fields_[3:]}
    values.update(netName=None, **fields)
    return Config(ct.sizeof(Config), 0xCAFEBEEF, 22005, **values)


class NcclError(Exception):
    pass


class Rank:
    """One rank: its driver, its NCCL, and pipes to the test."""

    def __init__(self, rank, ranks, ids):
        self.rank, self.ranks, self.ids = rank, ranks, ids
        self.d = Driver()
        self.lib = ct.CDLL(os.environ["SIMNCCL"])
        self.lib.ncclGetErrorString.restype = ct.c_char_p
        self.lib.ncclGetLastError.restype = ct.c_char_p
        self.lib.simnccl_live.restype = ct.c_long
        self.lib.simnccl_calls.restype = ct.c_long
        self.stream = self.d.stream()

    def call(self, name, *args):
        return getattr(self.lib, "nccl" + name)(*args)

    def __call__(self, name, *args):
        result = self.call(name, *args)
        if result:
            raise NcclError(name, result, self.lib.ncclGetLastError(None))

    def begin(self, blocking=1):
        """A communicator of all ranks, by the next unique id."""
        comm = Handle()
        text = self.ids.pop(0)
        name = UniqueId.from_buffer_copy(bytes.fromhex(text))
        result = self.call(
            "CommInitRankConfig",
            ct.byref(comm),
            self.ranks,
            name,
            self.rank,
            ct.byref(config(blocking=blocking)),
        )
        if blocking and result:
            raise NcclError("CommInitRankConfig", result)
        if not blocking:
            assert result == IN_PROGRESS
            self.settle(comm)
        return comm

    def state(self, comm):
        out = ct.c_int(-1)
        self("CommGetAsyncError", comm, ct.byref(out))
        return out.value

    def settle(self, comm):
        """Polls until nothing is in progress."""
        while (state := self.state(comm)) == IN_PROGRESS:
            pass
        if state:
            raise NcclError("CommGetAsyncError", state)

    def give(self, name, comm, *args):
        """A call on a communicator that may be in progress afterwards."""
        if (result := self.call(name, *args)) == IN_PROGRESS:
            self.settle(comm)
        elif result:
            raise NcclError(name, result)

    def memory(self, *values, count=1):
        """Device memory with bytes, `count` of each value."""
        data = bytes(v for v in values for _ in range(count))
        out = self.d.alloc(len(data))
        self.d("MemcpyHtoD", Ptr(out), data, ct.c_size_t(len(data)))
        return out

    def gather(self, comm, send, recv, count, stream=None):
        self.give(
            "AllGather",
            comm,
            Ptr(send),
            Ptr(recv),
            ct.c_size_t(count),
            INT8,
            comm,
            stream or self.stream,
        )

    def message(self, name, comm, ptr, count, peer, type=INT8):
        return self.call(
            name, Ptr(ptr), ct.c_size_t(count), type, peer, comm, self.stream
        )

    def wait(self):
        self.d.wait(self.stream)

    def read(self, ptr, size):
        return self.d.read(ptr, size)


def library(driver_path):
    """The double beside the driver, made if it is not there."""
    out = Path(driver_path).parent
    beside = out.parent / "simnccl" / "libnccl.so.2"
    if beside.is_file():
        return str(beside)
    words = ["make", "-s", "-j2", "-C", HERE / "simnccl", f"OUT={out}"]
    subprocess.run(words, check=True)
    return str(out / "libnccl.so.2")


def start(function, rank, ranks, ids, env, driver_path):
    full = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("SIMCUDA_", "SIMNCCL", "NCCL_"))
    }
    full.update(
        SIMCUDA_LAZY_US=str(4 * PROMPT * 1_000_000),
        NCCL_SOCKET_IFNAME="lo",
        NCCL_HOSTID=f"host{rank}",
    )
    full.update(env, WARPMPI_CUDA_DRIVER=driver_path)
    full.update(SIMNCCL=library(driver_path), OMPI_COMM_WORLD_RANK=str(rank))
    return subprocess.Popen(
        [sys.executable, __file__, function, str(rank), str(ranks), *ids],
        env=full,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def on(ranks, said="", told=(), **env):
    """Makes a test of a function: run by so many ranks.

    said: is in what they print. told: ranks that end by themselves.
    """

    def decorate(function):
        def test(driver_library):  # noqa: F811
            os.environ["WARPMPI_CUDA_DRIVER"] = driver_library
            lib = ct.CDLL(library(driver_library))
            ids = []
            for _ in range(2):
                made = UniqueId()
                assert lib.ncclGetUniqueId(ct.byref(made)) == 0
                ids.append(bytes(made).hex())
            running = [
                start(function.__name__, i, ranks, ids, env, driver_library)
                for i in range(ranks)
            ]
            texts = []
            try:
                for i, process in enumerate(running):
                    texts.append(process.communicate(timeout=60)[1])
                    if i not in told:
                        assert process.returncode == 0, texts
            finally:
                for process in running:
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()
            assert said in "".join(texts)

        test.__doc__ = function.__doc__
        test.body = function
        return test

    return decorate


# --- collectives and messages ------------------------------------------------


def gathers(r, blocking):
    comm = r.begin(blocking)
    for _ in range(5):
        send = r.memory(r.rank + 1, count=8)
        recv = r.memory(*[0] * r.ranks, count=8)
        r.gather(comm, send, recv, 8)
        r.wait()
        want = bytes(i + 1 for i in range(r.ranks) for _ in range(8))
        assert r.read(recv, 8 * r.ranks) == want
    r("CommDestroy", comm)
    assert r.lib.simnccl_live(b"communicators") == 0


@on(2)
def test_all_gather(r):
    gathers(r, 1)


@on(3)
def test_all_gather_not_blocking(r):
    gathers(r, 0)


@on(2)
def test_all_gather_in_place(r):
    comm = r.begin()
    whole = r.memory(*(r.rank + 1 for _ in range(r.ranks)), count=4)
    r.gather(comm, whole + 4 * r.rank, whole, 4)
    r.wait()
    assert r.read(whole, 8) == bytes([1] * 4 + [2] * 4)
    r("CommDestroy", comm)


@on(4)
def test_messages_of_a_group(r):
    """All send to all, also large ones and to themselves."""
    comm = r.begin(0)
    count = 1 << 20
    send = r.memory(*(16 * r.rank + i for i in range(r.ranks)), count=count)
    recv = r.memory(*[0] * r.ranks, count=count)
    r("GroupStart")
    for peer in range(r.ranks):
        at = peer * count
        assert r.message("Send", comm, send + at, count, peer) == SUCCESS
        assert r.message("Recv", comm, recv + at, count, peer) == SUCCESS
    r.give("GroupEnd", comm)
    r.wait()
    want = b"".join(bytes([16 * i + r.rank]) * count for i in range(r.ranks))
    assert r.read(recv, r.ranks * count) == want
    r("CommDestroy", comm)


@on(3)
def test_broadcast(r):
    comm = r.begin()
    memory = r.memory(r.rank + 1, count=12)
    args = ct.c_size_t(3), INT32, 1, comm, r.stream
    r("Broadcast", Ptr(memory), Ptr(memory), *args)
    r.wait()
    assert r.read(memory, 12) == bytes([2] * 12)
    r("CommDestroy", comm)


if __name__ == "__main__":
    name, rank, ranks, *ids = sys.argv[1:]
    globals()[name].body(Rank(int(rank), int(ranks), ids))
