# SPDX-License-Identifier: BSD-3-Clause
"""Threads: many on one communicator, and others while one of them waits."""

import ctypes
import os
import random
import re
import select
import shutil
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import compiled
import kinds
import ranks
import warpmpi as wm

THREADS = 8
ROUNDS = 8 if not kinds.is_real() else 200

pytestmark = pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE,
    reason="MPI runs below MPI_THREAD_MULTIPLE",
)


def run_threads(work, count=THREADS):
    """Runs work(number) on so many threads; the first error is raised."""
    errors = []

    def call(number):
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=call, args=(number,), daemon=True)
        for number in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def value_of(rank, thread, turn):
    return (rank * 89 + thread * 31 + turn * 7) % 251


def check(buffer, size, value):
    assert (kinds.values_of(buffer)[:size] == value).all()


@pytest.mark.parametrize("how", ["Sendrecv", "requests", "probe", "lasting"])
def test_threads_with_tags_of_their_own(comm, how):
    """A ring a thread, its tags and memory the thread's, sizes any."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

    def work(thread):
        kind = kinds.KINDS[thread % len(kinds.KINDS)]
        sizes = random.Random(thread)
        most = 200_000
        zeros = np.zeros(most, np.uint8)
        out, into = kinds.make(kind, zeros), kinds.make(kind, zeros)
        whole = wm.asarray(out)
        lasting = []
        if how == "lasting":
            lasting = [
                comm.Send_init(out, right, thread),
                comm.Recv_init(into, left, thread),
            ]
        for turn in range(ROUNDS):
            size = int(most ** sizes.random())
            whole.fill_(value_of(comm.rank, thread, turn))
            sent, taken = [out, size, MPI.BYTE], [into, size, MPI.BYTE]
            if how == "Sendrecv":
                comm.Sendrecv(sent, right, thread, taken, left, thread)
            elif how == "requests":
                requests = [
                    comm.Irecv(taken, left, thread),
                    comm.Isend(sent, right, thread),
                ]
                kind_of_wait = (wm.Request, MPI.Request)[turn % 2]
                kind_of_wait.Waitall(requests)
            elif how == "probe":
                request = comm.Isend(sent, right, thread)
                status = MPI.Status()
                comm.Probe(MPI.ANY_SOURCE, thread, status)
                assert status.Get_count(MPI.BYTE) == size
                comm.Recv(taken, status.source, thread)
                request.Wait()
            else:
                size = most
                wm.Prequest.Startall(lasting)
                wm.Request.Waitall(lasting)
            check(into, size, value_of(left, thread, turn))

    run_threads(work)


def test_threads_with_wildcards(comm):
    """Any thread gets any message; together they get each of them once.

    Each thread of each rank sends to each rank; as many receive as send.
    """
    seen, lock = [], threading.Lock()
    most = 100_000

    def sends(thread):
        kind = kinds.KINDS[thread % len(kinds.KINDS)]
        out = kinds.make(kind, np.zeros(most, np.uint8))
        whole = wm.asarray(out)
        for turn in range(ROUNDS):
            for dest in range(comm.size):
                whole.fill_(value_of(comm.rank, thread, turn))
                size = 1 + (turn * 4001 + thread * 977) % most
                tag = thread * ROUNDS + turn
                comm.Send([out, size, MPI.BYTE], dest, tag)

    def receives(thread):
        kind = kinds.KINDS[-1 - thread % len(kinds.KINDS)]
        into = kinds.make(kind, np.zeros(most, np.uint8))
        for turn in range(ROUNDS * comm.size):
            status = MPI.Status()
            if (turn + thread) % 3 == 0:
                message = comm.Mprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)
                message.Recv(into, status)
            elif (turn + thread) % 3 == 1:
                comm.Irecv(into).Wait(status)
            else:
                comm.Recv(into, MPI.ANY_SOURCE, MPI.ANY_TAG, status)
            sender, sent = divmod(status.tag, ROUNDS)
            size = 1 + (sent * 4001 + sender * 977) % most
            assert status.Get_count(MPI.BYTE) == size
            check(into, size, value_of(status.source, sender, sent))
            with lock:
                seen.append((status.source, status.tag))

    half = THREADS // 2

    def work(number):
        (sends if number < half else receives)(number % half)

    run_threads(work)
    expected = half * ROUNDS * comm.size
    assert len(seen) == len(set(seen)) == expected
    comm.Barrier()


class Late:
    """Does something in a moment, on a thread."""

    def __init__(self, call):
        self.timer = threading.Timer(0.3, call)
        self.timer.daemon = True

    def __enter__(self):
        self.timer.start()

    def __exit__(self, *exception):
        self.timer.join()


LARGE = 1_000_000


@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize(
    "name",
    ["Recv", "Wait", "Waitall", "Probe", "Mprobe", "Send", "Ssend", "on"],
)
def test_the_lock_of_python_is_free_while_a_call_waits(comm, name, kind):
    """A second thread makes the call possible: it never ends without."""
    if name == "on" and kind not in kinds.DEVICE_KINDS:
        pytest.skip("a stream is a GPU's")
    me, values = comm.rank, np.full(LARGE, 7, np.uint8)
    mine = kinds.make(kind, values)
    other = kinds.make(kind, values)
    wm.asarray(other if "end" in name else mine).fill_(0)

    def send():
        comm.Send(other, me, 5)

    def receive():
        comm.Recv(other, me, 5)

    def wait():
        comm.Irecv(mine, me, 5).Wait()

    def waitall():
        wm.Request.Waitall([comm.Irecv(mine, me, 5)])

    def probe():
        comm.Probe(me, 5)
        comm.Recv(mine, me, 5)

    def mprobe():
        comm.Mprobe(me, 5).Recv(mine)

    def on():
        stream = wm.Stream(wm.get_device())
        comm.on(stream).Recv(mine, me, 5)
        stream.synchronize()

    call, later = {
        "Recv": (lambda: comm.Recv(mine, me, 5), send),
        "Wait": (wait, send),
        "Waitall": (waitall, send),
        "Probe": (probe, send),
        "Mprobe": (mprobe, send),
        "Send": (lambda: comm.Send(mine, me, 5), receive),
        "Ssend": (lambda: comm.Ssend(mine, me, 5), receive),
        "on": (on, send),
    }[name]
    with Late(later):
        call()
    got = other if later is receive else mine
    assert (kinds.values_of(got) == 7).all()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", ["Barrier", "Bcast", "Allreduce"])
def test_the_lock_of_python_is_free_in_collectives(comm, world, name):
    """The last rank comes when a second thread of the first calls it."""
    values = kinds.make(kinds.KINDS[-1], np.ones(100))
    last = comm.size - 1
    call = {
        "Barrier": comm.Barrier,
        "Bcast": lambda: comm.Bcast(values, last),
        "Allreduce": lambda: comm.Allreduce(MPI.IN_PLACE, values),
    }[name]
    comm.Barrier()
    if comm.rank == last:
        world.recv(source=0, tag=6)
        call()
    elif comm.rank == 0:
        with Late(lambda: world.send(None, last, 6)):
            call()
    else:
        call()


class Whistle:
    """A pipe between two ranks, by which one tells when it is done."""

    def __init__(self, world, listener):
        self.folder = None
        if world.rank == listener:
            self.folder = tempfile.mkdtemp()
            self.path = os.path.join(self.folder, "pipe")
            os.mkfifo(self.path)
            self.file = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
            world.bcast(self.path, listener)
        else:
            self.path = world.bcast(None, listener)

    def blow(self):
        file = os.open(self.path, os.O_WRONLY)
        os.write(file, b"x")
        os.close(file)

    def poll(self, library):
        """In C until it is blown; PyDLL's functions keep the GIL."""
        polled = (ctypes.c_int32 * 2)(self.file, 1)  # POLLIN
        assert library(None).poll(polled, 1, 60_000) == 1

    def poll_in_python(self):
        while not select.select([self.file], [], [], 0)[0]:
            pass

    def remove(self):
        if self.folder is not None:
            os.close(self.file)
            shutil.rmtree(self.folder)


BUSY = {
    "computing in C": lambda whistle: whistle.poll(ctypes.CDLL),
    "computing in Python": Whistle.poll_in_python,
    "holding the GIL": lambda whistle: whistle.poll(ctypes.PyDLL),
    "in a barrier": None,
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("direction", ["Send", "Recv"])
@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("busy", list(BUSY))
def test_a_busy_rank_serves_its_peers(comm, world, busy, kind, direction):
    """Rank 1 has begun its half, and is busy until rank 0 has ended its own.

    It never ends where only rank 1 itself could move the data.
    """
    near = "device" if wm.is_cuda_available() else "host"
    if kind == near == "host":
        pytest.skip("host messages are MPI's to progress")
    values = np.full(LARGE, 7, np.uint8)
    plain, whistle = world.Dup(), Whistle(world, 1)
    if comm.rank == 1:
        begin = comm.Irecv if direction == "Send" else comm.Isend
        buffer = kinds.make(near, values * (direction == "Recv"))
        request = begin(buffer, 0, 3)
        plain.Barrier()
        if BUSY[busy] is not None:
            BUSY[busy](whistle)
        plain.Barrier()
        request.Wait()
    else:
        buffer = kinds.make(kind, values * (direction == "Send"))
        plain.Barrier()
        if comm.rank == 0:
            call = comm.Send if direction == "Send" else comm.Recv
            call(buffer, 1, 3)
            whistle.blow()
        plain.Barrier()
    whistle.remove()
    plain.Free()
    if comm.rank < 2:
        assert (kinds.values_of(buffer) == 7).all()


PROGRAM_UNDER_A_TOOL = """
    import threading
    from mpi4py import MPI
    import numpy as np
    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_SELF)
    ended = threading.Event()

    def exchange(tag):  # there is always somebody in the driver
        a, b = wm.full((8, 8), tag, "u1"), wm.zeros((8, 8), "u1")
        while not ended.is_set():
            request = comm.Irecv(b[:, 3], 0, tag)
            comm.Isend(a[:, 2], 0, tag).Wait()
            request.Wait()
        assert (b[:, 3].numpy() == tag).all()

    threads = [threading.Thread(target=exchange, args=[k]) for k in (1, 2, 3)]
    for thread in threads:
        thread.start()
    comm.Attach_buffer(np.zeros(100_000, "u1"))
    for turn in range(9):
        a, b = wm.full(9, turn, "u1"), wm.zeros(9, "u1")
        comm.Isendrecv(a, 0, 7, b, 0, 7).Wait()
        comm.Isendrecv_replace(b, 0, 7, 0, 7).Wait()
        assert (b.numpy() == turn).all()
        sending = comm.Ibsend(a, 0, 8)
        flushing = comm.Iflush_buffer()
        receiving = comm.Mprobe(0, 8).Irecv(b)
        receiving.Test()
        MPI.Request.Waitall([receiving, sending, flushing])
        idle = comm.Irecv(b, 0, 9)
        idle.Cancel()
        idle.Wait()
        comm.Send_init(a, 0, 9).Free()
        comm.Dup().Free()
        del a, b
    comm.Detach_buffer()
    ended.set()
    for thread in threads:
        thread.join()
"""


AFTER_A_SUBINTERPRETER = """
    try:
        import _interpreters as interpreters
    except ImportError:
        import _xxsubinterpreters as interpreters
    from mpi4py import MPI
    import warpmpi as wm

    interpreters.destroy(interpreters.create())
    comm = wm.Comm(MPI.COMM_WORLD)
    columns = wm.full((400, 4000), 3, "u1")
    for turn in range(10):
        into = wm.empty((400, 2000), "u1")
        requests = [
            comm.Isend(columns[:, ::2], comm.rank),
            comm.Irecv(into, comm.rank),
        ]
        wm.Request.Waitall(requests)
        assert (into.numpy() == 3).all()
"""


def switches(process, thread):
    """How often a thread has given up its core by itself."""
    status = Path(f"/proc/{process}/task/{thread}/status").read_text()
    return int(re.search(r"^voluntary_ctxt\w+:\s+(\d+)", status, re.M)[1])


@pytest.mark.ranks(2)
@pytest.mark.parametrize("waits", ["Recv", "Waitany", "Allreduce"])
def test_a_long_wait_leaves_its_core_to_others(comm, waits):
    """To ranks of other containers, say, that nobody can count."""
    x, y = (kinds.make("device", np.ones(4)) for _ in "xy")
    comm.Barrier()
    if comm.rank == 0:  # comes when the other one has given up its core
        where = comm.recv(source=1)
        before = switches(*where)
        while switches(*where) <= before + 50:
            time.sleep(0.01)
        if waits == "Allreduce":
            comm.Allreduce(x, y)
        else:
            comm.Send(x, 1)
        return
    comm.send((os.getpid(), threading.get_native_id()), 0)
    if waits == "Allreduce":
        comm.Allreduce(x, y)
    elif waits == "Waitany":
        wm.Request.Waitany([comm.Irecv(y, 0), MPI.REQUEST_NULL])
    else:
        comm.Recv(y, 0)


@pytest.mark.programs
@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
def test_who_holds_the_gil_is_known_after_a_subinterpreter(tmp_path):
    """PyGILState_Check() says of all threads that they do, from then on."""
    ranks.run_text(tmp_path, AFTER_A_SUBINTERPRETER, ranks=1)


# An MPI that tells of who calls it with the GIL: MPI may hold a lock while a
# reduction by a Python function waits for that.
WATCHED_MPI = r"""
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <mpi.h>
    #include <stdio.h>
    static void look(const char *name)
    {
        int (*runs)(void) = dlsym(RTLD_DEFAULT, "Py_IsInitialized");
        int (*holds)(void) = dlsym(RTLD_DEFAULT, "PyGILState_Check");
        if (runs != NULL && runs() && holds())
            fprintf(stderr, "%s was called with the GIL\n", name);
    }
    #define WATCH(name, arguments, ...)                                     \
        int MPI_##name arguments                                            \
        {                                                                   \
            look(#name);                                                    \
            return PMPI_##name(__VA_ARGS__);                                \
        }
    WATCH(Grequest_start, (MPI_Grequest_query_function * query,
        MPI_Grequest_free_function *release,
        MPI_Grequest_cancel_function *cancel, void *state,
        MPI_Request *request), query, release, cancel, state, request)
    WATCH(Wait, (MPI_Request * request, MPI_Status *status), request, status)
    WATCH(Request_free, (MPI_Request * request), request)
    WATCH(Comm_get_attr, (MPI_Comm comm, int key, void *value, int *found),
        comm, key, value, found)
    WATCH(Status_set_elements_x, (MPI_Status * status, MPI_Datatype type,
        MPI_Count count), status, type, count)
    WATCH(Status_set_cancelled, (MPI_Status * status, int flag), status, flag)
    WATCH(Type_dup, (MPI_Datatype type, MPI_Datatype *copy), type, copy)
    WATCH(Type_free, (MPI_Datatype * type), type)
    WATCH(Type_get_contents, (MPI_Datatype type, int n, int m, int k,
        int *ints, MPI_Aint *addresses, MPI_Datatype *types),
        type, n, m, k, ints, addresses, types)
    WATCH(Pack, (const void *from, int count, MPI_Datatype type, void *to,
        int size, int *at, MPI_Comm comm),
        from, count, type, to, size, at, comm)
    WATCH(Unpack, (const void *from, int size, int *at, void *to, int count,
        MPI_Datatype type, MPI_Comm comm),
        from, size, at, to, count, type, comm)
    #if MPI_VERSION >= 4
    WATCH(Type_get_contents_c, (MPI_Datatype type, MPI_Count n, MPI_Count m,
        MPI_Count l, MPI_Count k, int *ints, MPI_Aint *addresses,
        MPI_Count *counts, MPI_Datatype *types),
        type, n, m, l, k, ints, addresses, counts, types)
    #endif
"""
REQUESTS_OF_ALL_KINDS = """
    import sys
    from mpi4py import MPI
    import numpy as np
    import warpmpi as wm
    comm = wm.Comm(MPI.COMM_WORLD)
    out, into, me = np.arange(100), np.zeros(100, int), comm.rank
    status = MPI.Status()
    whole = MPI.LONG.Create_contiguous(100).Create_resized(0, 800).Commit()
    mixed = MPI.BYTE.Create_indexed([1, 2], [1, 2]).Create_resized(0, 4)
    mixed.Commit()
    there = MPI.BYTE.Create_hindexed([800], [MPI.Get_address(into)]).Commit()
    sys.stderr.write("it begins\\n")
    sys.stderr.flush()
    for _ in range(3):
        wm.Request.Waitall([comm.Irecv(into, me), comm.Isend(out, me)])
        comm.Isend(out, me)  # dropped
        comm.Irecv(into, me).Wait()
        comm.Isendrecv(out, me, 0, into, me, 0).Wait()
        lasting = [comm.Recv_init(into, me), comm.Send_init(out, me)]
        wm.Prequest.Startall(lasting)
        wm.Request.Waitall(lasting)
        lasting[0].Free()
        del lasting
        request = comm.irecv(source=me)
        comm.isend("text", me).wait()
        assert request.wait() == "text"
        comm.Isend(out, me)
        comm.Probe(me, status=status)
        comm.Recv(into, me, status=status)
        for kind in (whole, mixed):
            comm.Sendrecv([out, 1, kind], me, 0, [into, 1, kind], me, 0)
            comm.Bcast([into, 1, kind])
            sent = comm.Isend([out, 1, kind], me)
            comm.Iprobe(me, status=status)
            comm.Irecv([MPI.BOTTOM, 1, there], me).Wait(status)
            sent.Wait(status)
    assert (into == out).all()
"""


@pytest.mark.programs
def test_mpi_is_called_without_the_gil(tmp_path):
    library = compiled.library(tmp_path, WATCHED_MPI)
    program = f"""
import os, sys
if "LD_PRELOAD" not in os.environ:
    os.environ["LD_PRELOAD"] = {str(library)!r}
    os.execv(sys.executable, [sys.executable, *sys.argv])
os.dup2(1, 2)
""" + textwrap.dedent(REQUESTS_OF_ALL_KINDS)
    printed = ranks.run_text(tmp_path, program, ranks=1)
    assert "it begins" in printed
    assert "with the GIL" not in printed, printed


ARRAYS_UNDER_A_TOOL = """
    import threading
    import numpy as np
    import warpmpi as wm
    from warpmpi import _core

    device = wm.zeros(64, "u1")
    pinned = wm.zeros(64, "u1", device="cpu", pinned=True)
    ended = threading.Event()

    def copy():  # there is always somebody in the driver
        into = wm.zeros(64, "u1")
        while not ended.is_set():
            into.assign(device, blocking=False)
            into.assign(pinned, blocking=False)
            freed = wm.full(64, 1, "u1", blocking=False)
            del freed

    def meet_cuda_1():
        wm.zeros(4, "u1", device="cuda:1")

    threads = [threading.Thread(target=f) for f in (copy, copy, meet_cuda_1)]
    for thread in threads:
        thread.start()
    other = wm.get_device("cuda:1")
    for turn in range(40):
        other.name, other.pci_bus_id
        wm.empty(64, "u1").__cuda_array_interface__
        device.ptr
        device.__dlpack__()
        pinned.numpy()
        memoryview(pinned)
        _core._memory_stats()
    ended.set()
    for thread in threads:
        thread.join()
"""

HANDSHAKES_UNDER_A_TOOL = """
    import ctypes
    import os
    import threading
    import warpmpi as wm

    array, asked = wm.zeros(64, "u1"), []
    live = ctypes.CDLL(os.environ["WARPMPI_CUDA_DRIVER"]).simcuda_live
    before = live(b"streams")

    class Foreign:
        __dlpack_device__ = array.__dlpack_device__

        def __dlpack__(self, stream, max_version):
            asked.append(stream)
            return array.__dlpack__(stream=stream)

    def take():
        for _ in range(10):
            assert wm.from_dlpack(Foreign()).ptr == array.ptr

    threads = [threading.Thread(target=take) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(asked) == 60 and all(asked), asked
    assert live(b"streams") - before == len(set(asked)), "some are lost"
"""
INTERFACES_UNDER_A_TOOL = """
    import ctypes
    import os
    import threading
    os.environ["SIMCUDA_LAZY_US"] = "500000"
    import warpmpi as wm

    arrays = [wm.zeros(64, "u1") for _ in range(6)]
    streams = [wm.Stream(wm.get_device()) for _ in arrays]
    for array, stream in zip(arrays, streams):
        array.fill_(1, stream=stream)
    live = ctypes.CDLL(os.environ["WARPMPI_CUDA_DRIVER"]).simcuda_live
    before, named = live(b"streams"), []

    def look(array):
        named.append(array.__cuda_array_interface__["stream"])

    threads = [threading.Thread(target=look, args=[a]) for a in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(named) - {None}) == 1, named
    assert live(b"streams") == before + 1, "some are lost"
"""


@pytest.mark.programs
@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
@pytest.mark.parametrize(
    "program",
    [
        PROGRAM_UNDER_A_TOOL,
        ARRAYS_UNDER_A_TOOL,
        HANDSHAKES_UNDER_A_TOOL,
        INTERFACES_UNDER_A_TOOL,
    ],
    ids=["messages", "arrays", "handshakes", "interfaces"],
)
def test_tools_that_take_the_gil_in_the_driver(tmp_path, program):
    """What they wait for waits for nobody who is in the driver.

    So compute-sanitizer does, and nsys with its stacks of Python.
    """
    ranks.run_text(tmp_path, program, ranks=1, SIMCUDA_TOOL_US="500")
