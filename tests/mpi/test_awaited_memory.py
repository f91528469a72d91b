# SPDX-License-Identifier: BSD-3-Clause
"""Calls with page-locked host memory come after the work on its stream.

The memory gets its values by work that is enqueued before the call and has
not run. So does what a call receives into: nothing comes after the result.
"""

import os
import tempfile
import threading

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import ranks
import warpmpi as wm
from awaited import HOWS, Awaited, Subclass
from cases import CALLS, FORMS, STAGED, Case, Staged, id_of, steps
from warpmpi._objects import libraries

pytestmark = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)
N = 500  # elements; more than the bytes that are sent without a producer
BEFORE = -3.0  # what a receive buffer is to hold before the call


@pytest.fixture(scope="module")
def comm(world):
    ring = wm.Comm(world).Create_cart([world.size], [world.size > 2])
    yield ring
    ring.Free()


@pytest.fixture(params=HOWS)
def how(request):
    return request.param


def holds(awaited, values):
    """At once, and after all that was enqueued."""
    np.testing.assert_array_equal(awaited.numpy()[: len(values)], values)
    wm.synchronize()
    np.testing.assert_array_equal(awaited.numpy()[: len(values)], values)


def sent(values, how):
    array = Awaited(np.zeros(len(values)), how)
    array.write(values)
    return array


def into(how, n=N):
    return sent(np.full(n, BEFORE), how)


# --- collectives -------------------------------------------------------------


class Pending(Case):
    """Its arrays are Awaited, or of the other kind."""

    def prepare(self, scale):
        given = [a[0] if isinstance(a, list) else a for a in self.args]
        for array, values in (self.into, self.empty), (self.sent, self.values):
            values = self.times(values, scale)
            if not isinstance(array, Awaited):
                wm.asarray(array).assign(values)
            elif any(array.array is each for each in given):
                array.write(values)
            else:  # nobody waits for it
                array.memory[...] = values

    def spec(self, form, array, counts, at):
        array = getattr(array, "array", array)
        return super().spec(form, array, counts, at)

    def check(self, scale=1):
        super().check(scale)
        wm.synchronize()
        super().check(scale)


def perform(comm, name, form, make, in_place=False):
    case = Pending(comm, name, make, 0, in_place)
    begin, end, free = steps(comm, name, form, *case.args)
    for scale in 1, 2:
        case.prepare(scale)
        begin()
        end()
        case.check(scale)
    free()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("name", "in_place"), CALLS, ids=id_of)
def test_collectives(comm, name, in_place, form, how):
    perform(comm, name, form, lambda a: Awaited(a, how), in_place)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["Allreduce", "Alltoallv", "Bcast", "Gather"])
@pytest.mark.parametrize("side", [0, 1])
def test_collectives_of_two_kinds(comm, name, form, side, how):
    """One side, or some ranks, have GPU arrays."""

    def on_gpu(values):
        return kinds.make("device", values)

    def made(values):
        return Awaited(values, how)

    perform(comm, name, form, (on_gpu, made)[:: 1 - 2 * side])
    perform(comm, name, form, made if comm.rank % 2 == side else on_gpu)


def test_page_locked_memory_that_only_numpy_knows(comm):
    """Costs no wait for the device."""
    array = wm.zeros(N, pinned=True)
    array.numpy()[...] = np.arange(N)
    before = wm.stats()["device_synchronizations"]
    comm.Sendrecv(array, comm.rank, 0, array.numpy(), comm.rank, 0)
    comm.Allreduce(array, np.zeros(N))
    comm.Allreduce(np.zeros(N), array.numpy())
    assert wm.stats()["device_synchronizations"] == before


@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
@pytest.mark.parametrize("form", ["", "I"])
def test_a_wait_that_fails(comm, fail, form):
    """The other ranks do not wait for this one."""
    a, got = sent(np.ones(N), "stream"), np.zeros(N)
    comm.Barrier()
    if comm.rank == 0:
        fail("StreamSynchronize")
        with pytest.raises(wm.CudaError):
            steps(comm, "Allreduce", form, a.array, got)[0]()
    else:
        begin, end, _ = steps(comm, "Allreduce", form, a.array, got)
        begin()
        end()
    comm.Barrier()
    comm.Allreduce(np.ones(N), got)
    assert (got == comm.size).all()


@pytest.mark.parametrize("how", ["stream", "subclass"])
@pytest.mark.parametrize("name", ["Allreduce", "Bcast"])
def test_a_stream_that_is_gone_at_a_start(comm, name, how):
    """Nobody can tell if the work has run: the start fails."""
    a, got = sent(np.ones(N), how), np.zeros(N)
    args = (a.array,) if name == "Bcast" else (a.array, got)
    alone = wm.Comm(MPI.COMM_SELF)
    request = getattr(alone, f"{name}_init")(*args)
    request.Start()
    request.Wait()
    shown = "interface" if how == "subclass" else "__cuda_array_interface__"
    setattr(a.array, shown, {**getattr(a.array, shown), "stream": -1})
    with pytest.raises(ValueError, match="stream"):
        request.Start()
    request.Wait()
    request.Free()


# --- messages ----------------------------------------------------------------


def sendrecv(comm, right, left, a, b):
    comm.Sendrecv(a.array, right, 0, b.array, left, 0)


def nonblocking(form):
    def exchange(comm, right, left, a, b):
        requests = [
            comm.Irecv(b.array, left),
            getattr(comm, form)(a.array, right),
        ]
        MPI.Request.Waitall(requests)

    return exchange


def persistent(comm, right, left, a, b):
    requests = [comm.Recv_init(b.array, left), comm.Send_init(a.array, right)]
    for scale in 1, 2:
        if scale == 2:
            b.write(np.full(N, BEFORE))
            a.write(a.wanted)
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
    for request in requests:
        request.Free()


def partitioned(comm, right, left, a, b):
    requests = [
        comm.Psend_init(a.array, 2, right, 0),
        comm.Precv_init(b.array, 2, left, 0),
    ]
    MPI.Prequest.Startall(requests)
    requests[0].Pready(1)
    requests[0].Pready(0)
    MPI.Request.Waitall(requests)
    for request in requests:
        request.Free()


def matched(comm, right, left, a, b):
    request = comm.Isend(a.array, right)
    comm.Mprobe(left).Recv(b.array)
    request.Wait()


def on_stream(comm, right, left, a, b):
    """Its own stream is named by the call where the memory names none."""
    requests = [
        comm.on(b.stream).Irecv(b.array, left),
        comm.on(a.stream).Isend(a.array, right),
    ]
    MPI.Request.Waitall(requests)


def buffered(comm, right, left, a, b):
    comm.Attach_buffer(bytearray(16 * 8 * N))
    comm.Bsend(a.array, right)
    comm.Recv(b.array, left)
    comm.Detach_buffer()


def from_gpu(comm, right, left, a, b):
    request = comm.Isend(wm.asarray(a.array).to(wm.get_device()), right)
    comm.Recv(b.array, left)
    request.Wait()


MESSAGES = {
    "Sendrecv": sendrecv,
    "Isend": nonblocking("Isend"),
    "Issend": nonblocking("Issend"),
    "persistent": persistent,
    "partitioned": partitioned,
    "matched": matched,
    "on_stream": on_stream,
    "buffered": buffered,
    "from_gpu": from_gpu,
}


@pytest.mark.parametrize("form", MESSAGES)
def test_messages(comm, form, how):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    a, b = sent(np.arange(N) + comm.rank, how), into(how)
    a.wanted = np.arange(N) + comm.rank
    MESSAGES[form](comm, right, left, a, b)
    holds(b, np.arange(N) + left)


@pytest.mark.parametrize("form", ["send", "isend", "bcast", "allgather"])
def test_objects_with_views(comm, form, how):
    """An object's array is a view of the memory."""
    values = np.arange(N) + 1.0
    a = sent(values + comm.rank, how)
    view = [wm.asarray(a.array)]
    source = 0 if form == "bcast" else comm.rank
    if form == "send":
        got = comm.sendrecv(view, comm.rank, 0, None, comm.rank, 0)
    elif form == "isend":
        request = comm.isend(view, comm.rank)
        got = comm.recv(None, comm.rank)
        request.wait()
    elif form == "bcast":
        got = comm.bcast(view if comm.rank == 0 else None)
    else:
        got = comm.allgather(view)[comm.rank]
    np.testing.assert_array_equal(got[0].numpy(), values + source)


@pytest.mark.programs
def test_messages_by_mpi():
    """MPI does the messages of host memory, on the user's handle."""
    text = (
        "import numpy as np, warpmpi as wm\n"
        "from mpi4py import MPI\n"
        "from awaited import HOWS, Awaited\n"
        "comm = wm.Comm(MPI.COMM_WORLD)\n"
        "values = np.arange(500.0)\n"
        "for how in HOWS:\n"
        "    a, b = (Awaited(values * 0, how) for _ in 'ab')\n"
        "    b.write(values + 9)\n"
        "    a.write(values)\n"
        "    to = 1 - comm.rank\n"
        "    comm.Sendrecv(a.array, to, 0, b.array, to, 0)\n"
        "    assert (b.memory == values).all(), how\n"
        "    send = comm.Send_init(a.array, to)\n"
        "    for k in 1, 2:\n"
        "        a.write(values * k)\n"
        "        send.Start()\n"
        "        comm.Recv(b.array, to)\n"
        "        send.Wait()\n"
        "        assert (b.memory == values * k).all(), how\n"
        "    send.Free()\n"
    )
    ranks.run("-c", text, WARPMPI_HOST_MESSAGES="mpi")


def test_objects_of_arrays_that_numpy_pickles(comm, monkeypatch):
    look = libraries._numba_of_host
    monkeypatch.setitem(libraries._known, Subclass, look)
    values = np.arange(N) + 1.0
    a = sent(values, "subclass")
    got = comm.sendrecv([a.array], comm.rank, 0, None, comm.rank, 0)
    np.testing.assert_array_equal(np.asarray(got[0]), values)


# --- files, windows, datatypes -----------------------------------------------


@pytest.fixture
def file(comm):
    name = f"{tempfile.gettempdir()}/awaited-{os.getpid()}-{comm.rank}"
    opened = MPI.File.Open(
        MPI.COMM_SELF, name, MPI.MODE_CREATE | MPI.MODE_RDWR
    )
    yield Staged(opened)
    opened.Close()
    os.unlink(name)


def split(file, verb, array):
    getattr(file, verb + "_at_all_begin")(0, array)
    getattr(file, verb + "_at_all_end")(array)


FILES = {
    "at": lambda file, verb, a: getattr(file, verb + "_at")(0, a),
    "at_all": lambda file, verb, a: getattr(file, verb + "_at_all")(0, a),
    "iat": lambda file, verb, a: getattr(file, f"I{verb.lower()}_at")(
        0, a
    ).Wait(),
    "split": split,
}


@pytest.mark.parametrize("form", FILES)
def test_files(comm, file, form, how):
    values = np.arange(N) + 1.0
    a, b = sent(values, how), into(how)
    FILES[form](file, "Write", a.array)
    FILES[form](file, "Read", b.array)
    holds(b, values)


def put(win, a, _b, _rank):
    win.Put(a.array, _rank)


def get(win, _a, b, rank):
    win.Get(b.array, rank)


def accumulate(win, a, _b, rank):
    win.Accumulate(a.array, rank, op=MPI.REPLACE)


def get_accumulate(win, a, b, rank):
    win.Get_accumulate(a.array, b.array, rank, op=MPI.REPLACE)


def rput(win, a, _b, rank):
    win.Rput(a.array, rank).Wait()


def rget(win, _a, b, rank):
    win.Rget(b.array, rank).Wait()


@pytest.mark.usefixtures("windows_of_one_rank")
@pytest.mark.parametrize(
    "call", [put, get, accumulate, get_accumulate, rput, rget]
)
def test_windows(comm, call, how):
    memory = np.arange(N) + 2.0
    win = Staged(MPI.Win.Create(memory, 8, comm=MPI.COMM_SELF))
    values = np.arange(N) + 1.0
    a, b = sent(values, how), into(how)
    win.Lock(0)
    call(win, a, b, 0)
    win.Unlock(0)
    if call in (get, get_accumulate, rget):
        holds(b, np.arange(N) + 2.0)
    if call not in (get, rget):
        np.testing.assert_array_equal(memory, values)
    win.Free()


@pytest.mark.usefixtures("windows_of_one_rank")
def test_a_window_of_such_memory(comm, how):
    values = np.arange(N) + 1.0
    a, got = sent(values, how), np.zeros(N)
    create = STAGED[MPI.Win, "Create"].__func__
    win = create(MPI.Win, a.array, 8, comm=MPI.COMM_SELF)
    win.Lock(0)
    win.Get(got, 0)
    win.Unlock(0)
    win.Free()
    np.testing.assert_array_equal(got, values)


def test_pack_and_reduce_local(comm, how):
    values = np.arange(N) + 1.0
    a, packed, b = sent(values, how), into(how), into(how)
    double, add = Staged(MPI.DOUBLE), Staged(MPI.SUM)
    assert double.Pack(a.array, packed.array, 0, comm) == 8 * N
    holds(packed, values)
    packed.write(values + 1)
    double.Unpack(packed.array, 0, b.array, comm)
    holds(b, values + 1)
    a.write(values)
    b.write(values * 2)
    add.Reduce_local(a.array, b.array)
    holds(b, values * 3)


# --- arrays ------------------------------------------------------------------

VIEWS = {
    "numpy": lambda x: wm.asarray(x).numpy(),
    "memoryview": lambda x: np.asarray(memoryview(wm.asarray(x))),
    "array_interface": lambda x: np.array(wm.asarray(x), copy=True),
    "dlpack": lambda x: np.from_dlpack(wm.asarray(x)),
    "copy": lambda x: wm.asarray(x).copy().numpy(),
    "to host": lambda x: wm.asarray(x).to("cpu", pinned=False).numpy(),
    "to GPU": lambda x: wm.asarray(x).to(wm.get_device()).numpy(),
    "array": lambda x: wm.array(x).numpy(),
    "assign": lambda x: assigned(x),
    "part": lambda x: wm.asarray(x)[:].numpy(),
}


def assigned(x):
    array = wm.zeros(N)
    array.assign(x)
    return array.numpy()


@pytest.mark.parametrize("way", VIEWS)
def test_views(comm, way, how):
    values = np.arange(N) + 1.0
    a = sent(values, how)
    np.testing.assert_array_equal(VIEWS[way](a.array), values)


def test_views_of_other_elements(comm):
    """NumPy converts what it can read."""
    values = np.arange(N) + 1.0
    a = sent(values, "subclass")
    got = wm.array(a.array, dtype="f4").numpy()
    np.testing.assert_array_equal(got, values)


def test_views_are_written_after_what_was_enqueued(comm, how):
    b = into(how)
    view = wm.asarray(b.array)
    view.assign(np.arange(N) + 1.0)
    holds(b, np.arange(N) + 1.0)
    b.write(np.full(N, BEFORE))
    view.fill_(4)
    holds(b, np.full(N, 4.0))
    b.write(np.full(N, BEFORE))
    view.assign(wm.full(N, 5.0, "f8", device=wm.get_device()))
    holds(b, np.full(N, 5.0))


# --- devices -----------------------------------------------------------------


def send_to_itself(comm, a):
    got = np.zeros(N)
    comm.Sendrecv(a.array, comm.rank, 0, got, comm.rank, 0)
    return got


def reduce_alone(_comm, a):
    got = np.zeros(N)
    alone = wm.Comm(MPI.COMM_SELF)
    alone.Allreduce(a.array, got)
    return got


DEVICES = [f"cuda:{i}" for i in range(min(2, wm.get_cuda_device_count()))]
READS = {
    "message": send_to_itself,
    "collective": reduce_alone,
    "view": lambda _, a: wm.asarray(a.array).numpy(),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("apart", [False, True])
def test_the_memory_tells_its_device(comm, device, read, apart, how):
    """Whichever is current, and on a thread that has none."""
    values = np.arange(N) + 1.0
    found = []

    def work():
        a = Awaited(np.zeros(N), how, wm.zeros(1, device=device).device)
        a.write(values)
        found.append(READS[read](comm, a).copy())

    if apart:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    else:
        work()
    np.testing.assert_array_equal(found, [values])


def test_elements_that_only_mpi_knows(comm):
    values = np.arange(N, dtype=np.longdouble)
    a = Awaited(np.zeros(N, np.longdouble).view("u1"), "stream")
    a.write(values.view("u1"))
    a.array.__cuda_array_interface__ |= {"shape": (N,), "typestr": "<f16"}
    request = comm.Isend([a.array, MPI.LONG_DOUBLE], comm.rank)
    got = np.zeros(N, np.longdouble)
    comm.Recv(got, comm.rank)
    request.Wait()
    np.testing.assert_array_equal(got, values)
