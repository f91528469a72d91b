# SPDX-License-Identifier: BSD-3-Clause
"""The double of NCCL, by ctypes, on ranks that are processes of their own."""

import contextlib
import ctypes as ct
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "simcuda"))

from driver_calls import (  # noqa: E402
    NOT_READY,
    PROMPT,
    Driver,
    Handle,
    Ptr,
    Size,
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
        self.d("MemcpyHtoD", Ptr(out), data, Size(len(data)))
        return out

    def gather(self, comm, send, recv, count, stream=None):
        self.give(
            "AllGather",
            comm,
            Ptr(send),
            Ptr(recv),
            Size(count),
            INT8,
            comm,
            stream or self.stream,
        )

    def message(self, name, comm, ptr, count, peer, kind=INT8):
        return self.call(
            name, Ptr(ptr), Size(count), kind, peer, comm, self.stream
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
            with contextlib.ExitStack() as stack:
                for process in running:
                    stack.enter_context(process)
                    stack.callback(process.kill)
                texts = [each.communicate(timeout=60)[1] for each in running]
            for i, process in enumerate(running):
                assert i in told or process.returncode == 0, texts
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
    args = Size(3), INT32, 1, comm, r.stream
    r("Broadcast", Ptr(memory), Ptr(memory), *args)
    r.wait()
    assert r.read(memory, 12) == bytes([2] * 12)
    r("CommDestroy", comm)


@on(3)
def test_all_reduce_in_place(r):
    comm = r.begin()
    data = r.memory(r.rank + 1, 0, 0, 0)
    r("AllReduce", Ptr(data), Ptr(data), Size(1), INT32, 0, comm, r.stream)
    r.wait()
    assert r.read(data, 4) == bytes([6, 0, 0, 0])
    r("CommDestroy", comm)


def split(r, comm, fails=False, **fields):
    """Begins to split a communicator of all ranks; the child.

    fails: another rank may have failed before.
    """
    child = Handle()
    result = r.call(
        "CommSplit",
        comm,
        0,
        r.rank,
        ct.byref(child),
        ct.byref(config(**fields)),
    )
    assert (result == IN_PROGRESS or fails) and not child
    return child


@on(2)
def test_a_child_that_blocks_of_a_parent_that_does_not(r):
    comm = r.begin(0)
    child = split(r, comm, blocking=1)
    r.settle(comm)
    send, recv = r.memory(r.rank + 1), r.memory(0, 0)
    for _ in range(8):  # no polls
        args = Ptr(send), Ptr(recv), Size(1), INT8, child, r.stream
        assert r.call("AllGather", *args) == SUCCESS
    r.wait()
    assert r.read(recv, 2) == bytes([1, 2])
    r("CommDestroy", child)
    r("CommDestroy", comm)
    assert r.lib.simnccl_live(b"communicators") == 0


@on(2, said="cannot make its communicator", SIMNCCL_FAIL="Meet:2")
def test_a_split_that_fails(r):
    comm = r.begin(0)
    child = split(r, comm, fails=True, blocking=1)
    while (state := r.state(comm)) == IN_PROGRESS:
        pass
    assert state != SUCCESS and child
    time.sleep(0.5)  # the other has not failed yet, as the parent lives
    r("CommAbort", comm)
    r("CommAbort", child)
    assert r.lib.simnccl_live(b"communicators") == 0


@on(2, SIMNCCL_SLOW="300")
def test_an_abort_ends_a_split(r):
    comm = r.begin(0)
    child = split(r, comm)
    r("CommAbort", comm)
    r("CommAbort", child)
    assert r.lib.simnccl_live(b"communicators") == 0


# --- order -------------------------------------------------------------------


@on(2)
def test_operation_that_another_rank_waits_for_is_demanded(r):
    comm = r.begin()
    send, recv = r.memory(r.rank + 1), r.memory(0, 0)
    start = time.monotonic()
    r.gather(comm, send, recv, 1)
    if r.rank == 0:
        r.wait()
    while r.read(recv, 2) != bytes([1, 2]):
        time.sleep(0.001)
    assert time.monotonic() - start < PROMPT
    r("CommDestroy", comm)


@on(2)
def test_operations_run_in_the_order_of_calls_on_all_streams(r):
    comm = r.begin()
    other = r.d.stream()
    send, recv = r.memory(r.rank + 1, r.rank + 5), r.memory(0, 0, 0, 0)
    r.gather(comm, send, recv, 1)
    r.gather(comm, send + 1, recv + 2, 1, other)
    r.d.wait(other if r.rank == 0 else r.stream)
    r.d.wait(other)
    assert r.read(recv, 4) == bytes([1, 2, 5, 6])
    r("CommDestroy", comm)


@on(2)
def test_memory_is_read_when_the_stream_comes_to_it(r):
    """A missing wait for another stream reads the old bytes."""
    comm = r.begin()
    other = r.d.stream()
    send, recv = r.memory(7), r.memory(0, 0)
    r.d.fill(send, 9, 1, other)
    r.gather(comm, send, recv, 1)
    r.wait()
    assert r.read(recv, 2) == bytes([7, 7])
    r.d.wait(other)
    r("CommDestroy", comm)


@on(2)
def test_graph_runs_its_operations_at_each_launch(r):
    comm = r.begin(0)
    send, recv = r.memory(0), r.memory(*[0] * 4)
    r.d("StreamBeginCapture", r.stream, 2)
    r.gather(comm, send, recv, 1)
    r.gather(comm, send, recv + 2, 1)
    graph = Handle()
    r.d("StreamEndCapture", r.stream, ct.byref(graph))
    runs = r.d.get(Handle, "GraphInstantiateWithFlags", graph, Size(0))
    assert r.lib.simnccl_live(b"operations") == 0
    for i in range(3):
        value = 10 * i + r.rank
        r.d.fill(send, value, 1, r.stream)
        r.d("GraphLaunch", runs, r.stream)
        r.gather(comm, send, recv, 1)  # on both ranks after the graph
        r.wait()
        assert r.read(recv, 4) == bytes([10 * i, 10 * i + 1] * 2)
    r.d("GraphExecDestroy", runs)
    r.d("GraphDestroy", graph)
    r("CommDestroy", comm)


@on(2)
def test_destroy_waits_for_operations(r):
    comm = r.begin()
    send, recv = r.memory(r.rank + 1), r.memory(0, 0)
    r.gather(comm, send, recv, 1)
    r("CommFinalize", comm)
    r("CommDestroy", comm)
    assert r.read(recv, 2) == bytes([1, 2])


# --- not blocking ------------------------------------------------------------


@on(2, said="before the previous operation")
def test_call_without_a_poll_fails_and_does_nothing(r):
    comm = r.begin(0)
    send, recv = r.memory(1, 1), r.memory(0, 0)
    args = Ptr(send), Ptr(recv), Size(1), INT8, comm, r.stream
    assert r.call("AllGather", *args) == IN_PROGRESS
    assert r.call("AllGather", *args) == INVALID_ARGUMENT
    assert r.call("CommDestroy", comm) == INVALID_ARGUMENT
    r.wait()  # for nothing
    assert r.read(recv, 2) == bytes(2)
    r.settle(comm)
    r.wait()
    assert r.read(recv, 2) == bytes([1, 1])
    r("CommDestroy", comm)


@on(2)
def test_finalize_without_blocking_is_polled(r):
    comm = r.begin(0)
    send, recv = r.memory(r.rank + 1), r.memory(0, 0)
    r.gather(comm, send, recv, 1)
    result = r.call("CommFinalize", comm)
    assert result in (SUCCESS, IN_PROGRESS)
    if result == IN_PROGRESS:
        r.settle(comm)
    assert r.read(recv, 2) == bytes([1, 2])
    args = Ptr(send), Ptr(recv), Size(1), INT8, comm, r.stream
    assert r.call("AllGather", *args) == INVALID_USAGE
    r("CommDestroy", comm)


# --- deaths ------------------------------------------------------------------


@on(2, said="has ended", told=[1])
def test_death_of_a_rank_is_an_error_until_the_abort(r):
    comm = r.begin()
    send, recv = r.memory(1), r.memory(0, 0)
    posted = Path(tempfile.gettempdir()) / f"simnccl-{r.ids[0][:32]}"
    if r.rank == 1:
        while not posted.exists():
            time.sleep(0.001)
        os._exit(0)
    r.gather(comm, send, recv, 1)
    assert r.d.call("StreamQuery", r.stream) == NOT_READY
    posted.touch()
    while r.state(comm) == SUCCESS:
        time.sleep(0.001)
    posted.unlink()
    assert r.state(comm) == REMOTE_ERROR
    time.sleep(0.1)
    assert r.d.call("StreamQuery", r.stream) == NOT_READY
    assert r.call("AllGather", 0, 0, Size(0), 0, comm, None) == REMOTE_ERROR
    word, other = r.d.pinned(4), r.d.stream()
    ct.memset(word, 0, 4)
    r.d("StreamWaitValue32", other, Ptr(word), 1, 0)
    aborting = threading.Thread(target=r, args=("CommAbort", comm))
    aborting.start()
    r.wait()
    time.sleep(0.1)
    assert aborting.is_alive()  # until the GPU is idle
    ct.memset(word, 1, 4)
    aborting.join()
    assert r.read(recv, 2) != bytes([1, 1])
    assert r.lib.simnccl_live(b"communicators") == 0
    assert r.call("CommAbort", comm) == INVALID_ARGUMENT


@on(2, SIMNCCL_FAIL="Meet:1", SIMNCCL_FAIL_RANK="1")
def test_abort_ends_an_initialisation(r):
    comm = Handle()
    name = UniqueId.from_buffer_copy(bytes.fromhex(r.ids[0]))
    args = ct.byref(comm), 2, name, r.rank, ct.byref(config(blocking=0))
    assert r.call("CommInitRankConfig", *args) == IN_PROGRESS
    for _ in range(50):
        state = r.state(comm)
        time.sleep(0.01)
    assert state == (IN_PROGRESS if r.rank == 0 else INTERNAL_ERROR)
    r("CommAbort", comm)


@on(2, said="has destroyed it")
def test_operation_with_a_rank_that_has_destroyed_fails(r):
    comm = r.begin()
    if r.rank == 0:
        recv = r.memory(0)
        assert r.message("Recv", comm, recv, 1, 1) == SUCCESS
        assert r.d.call("StreamQuery", r.stream) == NOT_READY
        while r.state(comm) == SUCCESS:
            time.sleep(0.001)
        assert r.state(comm) == REMOTE_ERROR
        r("CommAbort", comm)
        r.wait()
    else:
        time.sleep(0.2)
        r("CommDestroy", comm)


# --- mistakes ----------------------------------------------------------------


def fails_later(r, comm, want=INVALID_USAGE):
    r.d.call("StreamQuery", r.stream)
    while r.state(comm) == SUCCESS:
        time.sleep(0.001)
    assert r.state(comm) == want
    r("CommAbort", comm)
    r.wait()


@on(2, said="AllGather of 2 elements")
def test_wrong_counts_are_told_on_both_ranks(r):
    comm = r.begin()
    send, recv = r.memory(1, 1), r.memory(0, 0, 0, 0)
    r.gather(comm, send, recv, r.rank + 1)
    fails_later(r, comm)


@on(2, said="but rank 0: message of 1")
def test_wrong_pair_of_calls_is_told_on_both_ranks(r):
    comm = r.begin()
    send, recv = r.memory(1, 1), r.memory(0, 0, 0, 0)
    if r.rank == 0:
        assert r.message("Send", comm, send, 1, 1) == SUCCESS
    else:
        r.gather(comm, send, recv, 1)
    fails_later(r, comm)


@on(2, said="Duplicate GPU detected", NCCL_HOSTID="one")
def test_two_ranks_on_one_gpu(r):
    comm = Handle()
    name = UniqueId.from_buffer_copy(bytes.fromhex(r.ids[0]))
    result = r.call("CommInitRank", ct.byref(comm), 2, name, r.rank)
    assert result == INVALID_USAGE
    r("CommAbort", comm)


@on(1, said="a buffer is not memory of device 0")
def test_invalid_arguments(r):
    comm = r.begin()
    mine, pageable = r.memory(1, 2), ct.create_string_buffer(8)
    r.d.use(1)
    others, stream = r.memory(1), r.d.stream()

    def gather(send, recv, count=1, kind=INT8, on=r.stream):
        args = Ptr(send), Ptr(recv), Size(count), kind, comm, on
        return r.call("AllGather", *args)

    pinned = r.d.pinned(8)
    assert gather(mine, pinned) == SUCCESS
    r.wait()
    assert ct.string_at(pinned, 1) == b"\1"
    assert gather(ct.addressof(pageable), mine) == INVALID_ARGUMENT
    assert gather(mine, others) == INVALID_ARGUMENT
    assert gather(mine, 0) == INVALID_ARGUMENT
    assert gather(mine, mine + 4096) == INVALID_ARGUMENT
    assert gather(mine, mine + 1, 2) == INVALID_ARGUMENT  # overlap
    assert gather(mine, mine, kind=12) == INVALID_ARGUMENT
    assert gather(mine, mine, on=stream) == INVALID_ARGUMENT
    assert gather(mine, mine, 0) == SUCCESS
    assert r.message("Send", comm, mine, 1, 1) == INVALID_ARGUMENT
    assert r.message("Send", comm, mine, 1, 0) == INVALID_USAGE  # to itself
    assert r.call("GroupEnd") == INVALID_USAGE
    r("GroupStart")
    assert r.message("Send", comm, mine, 1, 1) == INVALID_ARGUMENT
    assert r.call("GroupEnd") == INVALID_ARGUMENT
    assert r.state(comm) == SUCCESS
    r("CommDestroy", comm)
    assert gather(mine, mine) == INVALID_ARGUMENT


@on(1)
def test_invalid_config(r):
    comm, name = Handle(), UniqueId.from_buffer_copy(bytes.fromhex(r.ids[0]))
    for fields in ({"blocking": 2}, {"maxCTAs": 0}, {"cgaClusterSize": 9}):
        args = ct.byref(comm), 1, name, 0, ct.byref(config(**fields))
        assert r.call("CommInitRankConfig", *args) == INVALID_ARGUMENT
    wrong = config()
    wrong.magic = 0
    args = ct.byref(comm), 1, name, 0, ct.byref(wrong)
    assert r.call("CommInitRankConfig", *args) == INVALID_ARGUMENT
    assert r.call("CommInitRank", ct.byref(comm), 1, name, 1) != SUCCESS


@on(
    1,
    SIMNCCL_FAIL="AllGather:2,ncclGetVersion:2:2",
    SIMNCCL_VERSION="21805",
    SIMNCCL_SLOW="20",
)
def test_settings(r):
    version = ct.c_int()
    r("GetVersion", ct.byref(version))
    assert version.value == 21805
    assert r.call("GetVersion", ct.byref(version)) == SYSTEM_ERROR
    start = time.monotonic()
    comm = r.begin()
    mine = r.memory(1)
    args = Ptr(mine), Ptr(mine), Size(1), INT8, comm, r.stream
    assert r.call("AllGather", *args) == SUCCESS
    r.wait()
    assert time.monotonic() - start >= 0.04
    assert r.call("AllGather", *args) == INTERNAL_ERROR
    r.lib.simnccl_fail(b"AllGather", ct.c_long(1), REMOTE_ERROR)
    assert r.call("AllGather", *args) == REMOTE_ERROR
    assert r.lib.simnccl_calls(b"AllGather") == 3
    r("CommDestroy", comm)
    assert r.lib.ncclGetErrorString(6).startswith(b"remote process exited")


if __name__ == "__main__":
    name, rank, ranks, *ids = sys.argv[1:]
    globals()[name].body(Rank(int(rank), int(ranks), ids))
