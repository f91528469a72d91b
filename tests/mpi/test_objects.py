# SPDX-License-Identifier: BSD-3-Clause
"""Pickled objects: lower-case calls are messages of ours, with GPU arrays."""

import dataclasses
import gc
import pickle
import signal
import sys
import threading
import time
import types

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import ranks
import warpmpi as wm
from warpmpi import _core
from warpmpi._objects import libraries

OBJECTS = [
    None,
    7,
    2**70,
    "text",
    b"",
    [1, 2.5, None],
    {"a": {1, 2}, "b": (3 + 4j,)},
    np.arange(6.0).reshape(2, 3).tolist(),
    list(range(700_000)),  # 2 MB, behind its header
]
# Those of the communicator, by mode and whether they return a request.
SENDS = ["send", "ssend", "bsend", "isend", "issend", "ibsend"]
gpu = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU, or the simulated driver"
)


@pytest.fixture(scope="module")
def comm(world):
    made = wm.Comm(world.Dup())
    made.Attach_buffer(bytearray(50_000_000))
    yield made
    made.Detach_buffer()
    made.Free()


def neighbours(comm):
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


@pytest.mark.parametrize("obj", OBJECTS, ids=lambda obj: repr(obj)[:12])
@pytest.mark.parametrize("send", SENDS)
def test_an_object_arrives(comm, send, obj):
    right, left = neighbours(comm)
    status = MPI.Status()
    request = comm.irecv(None, left, 5)
    assert request
    sent = getattr(comm, send)(obj, right, 5)
    assert request.wait(status) == obj
    assert not request
    assert request.wait() is None
    assert (status.source, status.tag) == (left, 5)
    assert status.Get_count(MPI.BYTE) == len(MPI.pickle.dumps(obj))
    if send[0] == "i":
        assert isinstance(sent, wm.Request)
        assert sent.wait() is None
    else:
        assert sent is None


@pytest.mark.parametrize("obj", OBJECTS, ids=lambda obj: repr(obj)[:12])
def test_received_at_once_and_exchanged(comm, obj):
    right, left = neighbours(comm)
    sent = comm.isend(obj, right)
    assert comm.recv() == obj
    sent.wait()
    status = MPI.Status()
    got = comm.sendrecv(obj, right, 1, None, left, 1, status)
    assert got == obj
    assert (status.source, status.tag) == (left, 1)


def test_upper_case_calls_see_them_as_bytes(comm):
    right, left = neighbours(comm)
    obj = {"data": list(range(10_000))}
    size = len(MPI.pickle.dumps(obj))
    sent = [comm.isend(obj, right, k) for k in range(3)]
    status = MPI.Status()
    assert comm.probe(MPI.ANY_SOURCE, 0, status) is True
    assert (status.source, status.tag) == (left, 0)
    assert status.Get_count(MPI.BYTE) == size
    into = bytearray(size)
    comm.Recv(into, left, 0)
    assert bytes(into) == MPI.pickle.dumps(obj)
    while not comm.Iprobe(left, 1):
        pass
    assert comm.iprobe(left, 1)
    into = bytearray(size)
    comm.Mprobe(left, 1).Recv(into)
    assert MPI.pickle.loads(into) == obj
    assert comm.Mprobe(left, 2).recv() == obj
    wm.Request.waitall(sent)
    sent = comm.Isend(MPI.pickle.dumps(obj), right)
    assert comm.recv(source=left) == obj
    sent.wait()


def test_order_with_upper_case_calls(comm):
    right, left = neighbours(comm)
    sent = [
        comm.isend(1, right, 3),
        comm.Isend(np.full(2, 2.0), right, 3),
        comm.isend(3, right, 3),
    ]
    into = np.zeros(2)
    first = comm.irecv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG)
    second = comm.Irecv(into, left, 3)
    third = comm.irecv(source=left, tag=3)
    assert wm.Request.waitall([third, first, second]) == [3, 1, None]
    assert (into == 2).all()
    wm.Request.Waitall(sent)


def test_matched_messages(comm):
    right, left = neighbours(comm)
    assert comm.improbe(left, 9) is None
    assert not comm.iprobe(left, 9)
    sent = [comm.isend([k], right, k) for k in range(4)]
    status = MPI.Status()
    message = comm.mprobe(left, 0, status)
    assert isinstance(message, wm.Message)
    assert status.tag == 0
    other = None
    while other is None:
        other = comm.improbe(left, 1)
    assert other.irecv().wait() == [1]
    assert not other
    assert message.recv(status) == [0]
    assert (status.source, status.tag) == (left, 0)
    assert wm.Message.probe(comm, left, 2).recv() == [2]
    third = None
    while third is None:
        third = wm.Message.iprobe(comm, left, 3)
    assert third.recv() == [3]
    wm.Request.Waitall(sent)


def test_nobody(comm):
    unpicklable = threading.Lock()
    for send in SENDS:
        request = getattr(comm, send)(unpicklable, MPI.PROC_NULL)
        assert request is None or request.wait() is None
    status = MPI.Status()
    assert comm.recv(source=MPI.PROC_NULL, status=status) is None
    assert status.source == MPI.PROC_NULL
    assert comm.irecv(0, MPI.PROC_NULL).wait() is None
    assert comm.mprobe(MPI.PROC_NULL).recv() is None
    assert comm.improbe(MPI.PROC_NULL).irecv().wait() is None
    nobody = MPI.PROC_NULL
    assert comm.sendrecv(unpicklable, nobody, 0, None, nobody) is None


def test_what_cannot_be_pickled_sends_nothing(comm):
    right, left = neighbours(comm)
    for send in SENDS:
        with pytest.raises(TypeError, match=r"pickle"):
            getattr(comm, send)([threading.Lock()], right)
    with pytest.raises(MPI.Exception):
        comm.send(1, comm.size)
    with pytest.raises(MPI.Exception):
        comm.isend(1, right, -5)
    assert comm.sendrecv("after", right, 0, None, left) == "after"


class Unloadable:
    def __reduce__(self):
        return _fail, ()


def _fail():
    raise LookupError("on purpose")


def test_what_cannot_be_unpickled_raises_and_the_rest_arrives(comm):
    right, left = neighbours(comm)
    sent = [comm.isend(each, right) for each in (Unloadable(), 1)]
    requests = [comm.irecv(source=left) for _ in range(2)]
    with pytest.raises(LookupError, match="on purpose"):
        wm.Request.waitall(requests)
    wm.Request.waitall(sent)
    sent = [comm.isend(each, right) for each in (Unloadable(), 2)]
    with pytest.raises(LookupError):
        comm.recv(source=left)
    assert comm.recv(source=left) == 2
    wm.Request.waitall(sent)


def test_buffers_and_limits_of_the_receiver(comm):
    right, left = neighbours(comm)
    obj, small = list(range(100)), 20
    for buf in 5000, np.int64(5000), bytearray(5000), np.zeros(5000, "u1"):
        request = comm.irecv(buf, left)
        comm.send(obj, right)
        assert request.wait() == obj
        with pytest.warns(UserWarning, match="'buf' argument"):
            assert comm.sendrecv(obj, right, 0, buf, left) == obj
    for buf in small, bytearray(small):
        request = comm.irecv(buf, left)
        comm.send(obj, right)
        with pytest.raises(MPI.Exception) as caught:
            request.wait()
        assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
    with pytest.raises(ValueError, match="buf"):
        comm.irecv(-1, left)
    with pytest.raises(BufferError):
        comm.irecv(b"12", left)


def test_requests_of_ours_and_mpis_in_one_call(comm, world):
    right, left = neighbours(comm)

    def begin():
        into = np.zeros(1)
        return [
            comm.irecv(source=left, tag=1),
            comm.isend("ours", right, 1),
            world.irecv(source=left, tag=1),
            world.isend("mpi's", right, 1),
            comm.Irecv(into, left, 2),
            comm.Isend(np.ones(1), right, 2),
            MPI.REQUEST_NULL,
        ]

    wanted = ["ours", None, "mpi's", None, None, None, None]
    statuses = [MPI.Status() for _ in wanted]
    assert wm.Request.waitall(begin(), statuses) == wanted
    assert statuses[0].tag == 1
    assert statuses[0].Get_count(MPI.BYTE) == len(MPI.pickle.dumps("ours"))

    requests = begin()
    while True:
        flag, objects = wm.Request.testall(requests)
        if flag:
            break
        assert objects is None
    assert objects == wanted

    requests, got = begin(), [None] * 7
    for _ in range(6):
        index, obj = wm.Request.waitany(requests)
        got[index] = obj
    assert got == wanted
    assert wm.Request.waitany(requests) == (MPI.UNDEFINED, None)

    requests, got = begin(), [None] * 7
    while (tested := wm.Request.testany(requests)) != (
        MPI.UNDEFINED,
        True,
        None,
    ):
        if tested[1]:
            got[tested[0]] = tested[2]
        else:
            assert tested == (MPI.UNDEFINED, False, None)
    assert got == wanted

    for call in wm.Request.waitsome, wm.Request.testsome:
        requests, got = begin(), [None] * 7
        while (some := call(requests))[0] is not None:
            for index, obj in zip(*some, strict=True):
                got[index] = obj
        assert some == (None, None)
        assert got == wanted


def test_testing_and_cancelling(comm):
    right, left = neighbours(comm)
    request = comm.irecv(source=left, tag=1)
    assert request.test() == (False, None)
    assert not request.get_status()
    comm.Barrier()
    comm.send("here", right, 1)
    while not request.get_status():
        pass
    assert request.test() == (True, "here")
    assert request.test() == (True, None)
    request = comm.irecv(source=left, tag=99)
    request.cancel()
    status = MPI.Status()
    assert request.wait(status) is None
    assert status.Is_cancelled()


def test_a_pickler_of_the_users(comm):
    right, left = neighbours(comm)

    def dumps(obj, *_):
        return b"mine" + str(obj).encode()

    def loads(data):
        assert isinstance(data, MPI.buffer)
        return data.tobytes().decode()

    MPI.pickle.__init__(dumps, loads)
    try:
        assert comm.sendrecv(17, right, 0, None, left) == "mine17"
        sent = comm.isend(wm.zeros(1), right)
        assert comm.recv(source=left).startswith("minearray")
        sent.wait()
    finally:
        MPI.pickle.__init__()
    assert comm.sendrecv(17, right, 0, None, left) == 17


def test_threads_receive_each_message_once(comm):
    right, left = neighbours(comm)
    count, problems, got = 20, [], []

    def work(number):
        try:
            sent = [comm.isend((number, k), right, 6) for k in range(count)]
            got.extend(comm.recv(source=left, tag=6) for _ in range(count))
            wm.Request.waitall(sent)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert sorted(got) == [(n, k) for n in range(3) for k in range(count)]


def test_an_interrupted_recv_loses_nothing(comm):
    right, left = neighbours(comm)

    def stop(number, frame):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    try:
        with pytest.raises(TimeoutError):
            signal.setitimer(signal.ITIMER_REAL, 0.15)
            comm.recv(source=left, tag=8)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    comm.Barrier()
    assert comm.sendrecv("late", right, 8, None, left, 8) == "late"


# GPU arrays inside.


@dataclasses.dataclass
class Holder:
    name: str
    field: object
    seen: float = 0.0

    def __setstate__(self, state):
        # The data is there while an object is being unpickled.
        self.__dict__.update(state)
        self.seen = float(np.asarray(self.field.numpy()).sum())


@gpu
@pytest.mark.parametrize("size", [1, 1000, 700_000])
@pytest.mark.parametrize("send", SENDS)
def test_arrays_inside_an_object(comm, send, size):
    right, left = neighbours(comm)
    wm.reset_stats()
    a = wm.full(size, float(comm.rank))
    obj = {"a": a, "list": [wm.full((2, 3), comm.rank, "int32"), a]}
    obj["held"] = Holder("h", a)
    request = comm.irecv(source=left)
    sent = getattr(comm, send)(obj, right)
    a.fill_(-1.0)  # the object was sent as it was
    got = request.wait()
    if sent is not None:
        sent.wait()
    assert got["a"] is got["list"][1] is got["held"].field
    assert got["a"].device == wm.get_device()
    assert got["a"].shape == (size,)
    assert (got["a"].numpy() == left).all()
    assert got["held"].seen == left * size
    assert got["list"][0].shape == (2, 3)
    assert got["list"][0].dtype == np.int32
    assert (got["list"][0].numpy() == left).all()
    assert wm.stats()["received_messages"] == 3  # the object, two arrays
    assert wm.stats()["staged_bytes"] == 0 or wm.stats()["host_messages"]
    comm.Barrier()


@gpu
def test_arrays_of_every_layout(comm):
    right, left = neighbours(comm)
    values = np.arange(24.0).reshape(4, 6) + comm.rank
    a = wm.array(values)
    wanted = values - comm.rank + left
    obj = (a[:, 1], a.T, a[1:3], a[::2, ::3], wm.zeros((0, 5)), wm.ones(()))
    got = comm.sendrecv(obj, right, 0, None, left)
    for array, part in zip(
        got,
        (wanted[:, 1], wanted.T, wanted[1:3], wanted[::2, ::3]),
        strict=False,
    ):
        assert (array.numpy() == part).all()
        assert array.device.is_cuda
    assert got[4].shape == (0, 5)
    assert got[4].device.is_cuda
    assert got[5].shape == ()
    assert got[5].item() == 1


@gpu
def test_host_arrays_stay_in_the_pickle(comm):
    right, left = neighbours(comm)
    wm.reset_stats()
    obj = [wm.ones(5, device="cpu"), np.ones(3)]
    got = comm.sendrecv(obj, right, 0, None, left)
    assert got[0].device.is_cpu
    assert (got[0].numpy() == 1).all()
    assert wm.stats()["received_messages"] == 1


@gpu
def test_sent_before_anybody_receives(comm):
    """A send does not wait for an irecv that is unpickled later."""
    right, left = neighbours(comm)
    for size in 10, 500_000:
        request = comm.irecv(source=left)
        comm.send(wm.full(size, comm.rank), right)
        got = request.wait()
        assert got.size == size
        assert (got.numpy() == left).all()
        requests = [comm.isend([wm.full(size, 3)], right), comm.irecv()]
        nothing, got = wm.Request.waitall(requests)
        assert nothing is None
        assert (got[0].numpy() == 3).all()


@gpu
def test_many_at_once_on_several_communicators(comm):
    right, left = neighbours(comm)
    other = comm.Dup()
    sent, got = [], []
    for k in range(12):
        each = (comm, other)[k % 2]
        sent.append(each.isend((k, wm.full(100 + k, k)), right, k % 3))
    for k in range(12):
        got.append((comm, other)[k % 2].irecv(source=left, tag=k % 3))
    order = wm.Request.waitall(got[::-1])
    for k, array in order:
        assert (array.numpy() == k).all()
        assert array.size == 100 + k
    assert sorted(k for k, _ in order) == list(range(12))
    wm.Request.waitall(sent)
    assert not comm.Iprobe()
    comm.Barrier()
    other.Free()


@gpu
def test_matched_and_probed_with_arrays(comm):
    right, left = neighbours(comm)
    sent = comm.isend([wm.full(9, 2.0)], right, 4)
    status = MPI.Status()
    comm.probe(left, 4, status)
    message = comm.mprobe(left, 4)
    assert 0 < status.Get_count(MPI.BYTE) < 2000
    assert (message.recv()[0].numpy() == 2).all()
    sent.wait()


@gpu
@pytest.mark.programs
def test_received_by_other_means(tmp_path):
    """Its arrays cannot be had, and nobody waits for them.

    Until MPI_Finalize does, for five seconds, which are the program's own.
    """
    program = """
        import pickle
        from mpi4py import MPI
        import warpmpi as wm
        comm = wm.Comm(MPI.COMM_WORLD)
        other = 1 - comm.rank
        sent = comm.isend(wm.full(9, 2.0), other, 4)
        status = MPI.Status()
        comm.Probe(other, 4, status)
        into = bytearray(status.count)
        comm.Recv(into, other, 4)
        try:
            MPI.pickle.loads(into)
        except RuntimeError as error:
            assert "with recv or irecv" in str(error), error
        else:
            raise AssertionError("it was had")
        sent.wait()
        text = pickle.dumps(wm.ones(2))  # plain pickling is as ever
        assert (pickle.loads(text).numpy() == 1).all()
        print("right")
    """
    assert ranks.run_text(tmp_path, program, ranks=2).count("right") == 2


class Field:
    """A stand-in for another library's array, registered in the table."""

    def __init__(self, memory):
        self.memory = memory
        self.__cuda_array_interface__ = memory.__cuda_array_interface__


class Refused:
    """One whose receiver has no room."""


def _make_field(shape, broken=False):
    if broken:
        raise MemoryError("no room on purpose")
    field = Field(wm.empty(shape))
    return field, lambda: field


@pytest.fixture
def table(monkeypatch):
    part = libraries.Embedded
    known = libraries.known()
    monkeypatch.setitem(
        known, Field, lambda x: part(x, _make_field, (x.memory.shape,))
    )
    monkeypatch.setitem(
        known, Refused, lambda x: part(wm.ones(9), _make_field, (9, True))
    )


@gpu
def test_arrays_of_another_library(comm, table):
    right, left = neighbours(comm)
    field = Field(wm.full((3, 50), comm.rank + 0.5))
    got = comm.sendrecv([field, field], right, 0, None, left)
    assert isinstance(got[0], Field)
    assert got[0] is got[1]
    assert (wm.asarray(got[0]).numpy() == left + 0.5).all()


@gpu
def test_no_room_at_the_receiver(comm, table):
    """It raises there; the sender ends and what comes next arrives."""
    right, left = neighbours(comm)
    comm.Barrier()
    gc.collect()
    before = kinds.blocks()
    for size in 5, 300_000:
        obj = [wm.ones(size), Refused(), wm.ones(size), wm.ones(2)]
        sent = comm.isend(obj, right)
        with pytest.raises(MemoryError, match="on purpose"):
            comm.recv(source=left)
        sent.wait()
        request = comm.irecv(source=left)
        comm.send(obj, right)
        with pytest.raises(MemoryError, match="on purpose"):
            request.wait()
        got = comm.sendrecv(wm.full(3, 4), right, 0, None, left)
        assert (got.numpy() == 4).all()
    del obj, got
    assert kinds.are_freed(before)  # copies that were refused
    comm.Barrier()


@gpu
def test_the_attached_buffer_counts_the_pickle(comm):
    right, left = neighbours(comm)
    itself = wm.Comm(comm.Dup())
    itself.Attach_buffer(bytearray(100 + MPI.BSEND_OVERHEAD))
    with pytest.raises(MPI.Exception) as caught:
        itself.bsend([wm.ones(5), "x" * 200], right)
    assert caught.value.Get_error_class() == MPI.ERR_BUFFER
    assert not itself.Iprobe(left)
    itself.Barrier()
    itself.Detach_buffer()
    itself.Free()


@pytest.mark.ranks(2)
def test_an_intercommunicator(world):
    group = world.rank % 2
    half = wm.Comm(world.Split(group, world.rank))
    inter = half.Create_intercomm(0, wm.Comm(world), 1 - group, 3)
    if half.rank < inter.remote_size:
        sent = inter.isend({"g": group, "a": wm.full(70, group)}, half.rank)
        got = inter.recv(source=half.rank)
        sent.wait()
        assert got["g"] == 1 - group
        assert (got["a"].numpy() == 1 - group).all()
    world.Barrier()
    inter.Free()


@pytest.mark.parametrize(
    "library", ["cupy", "torch", "jax", "numba.cuda", "warp"]
)
def test_real_libraries(comm, library):
    """On a real GPU, with whichever library is there."""
    module = pytest.importorskip(library)
    if not wm.is_cuda_available():
        pytest.skip("needs a GPU")
    values = np.arange(12, dtype="float32").reshape(3, 4)
    if library == "cupy":
        if not module.cuda.is_available():
            pytest.skip("cupy sees no GPU")
        made = [module.asarray(values), module.asarray(values).T]
        host = lambda x: x.get()  # noqa: E731
    elif library == "torch":
        if not module.cuda.is_available():
            pytest.skip("torch sees no GPU")
        tensor = module.tensor(values, device="cuda")
        made = [tensor, tensor.T, tensor.to(module.bfloat16), tensor[1, 1]]
        made += [tensor.clone().requires_grad_(), tensor[:0]]
        host = lambda x: x.detach().float().cpu().numpy()  # noqa: E731
    elif library == "jax":
        if module.default_backend() != "gpu":
            pytest.skip("jax sees no GPU")
        made = [module.numpy.asarray(values), module.numpy.asarray(values[0])]
        host = np.asarray
    elif library == "warp":
        module.init()
        if not module.is_cuda_available():
            pytest.skip("warp sees no GPU")
        make = module.array
        five = module.types.vector(4, module.float32)
        made = [
            make(values, dtype=module.float32, device="cuda"),
            make(values, dtype=five, device="cuda"),
            make(values, dtype=module.float32, device="cuda")[:, 1],
        ]
        host = lambda x: x.numpy()  # noqa: E731
    else:
        if not module.is_available():
            pytest.skip("numba sees no GPU")
        made = [module.to_device(values), module.to_device(values)[:, 1]]
        host = lambda x: x.copy_to_host()  # noqa: E731
    right, left = neighbours(comm)
    wm.reset_stats()
    got = comm.sendrecv({"made": made}, right, 0, None, left)["made"]
    assert wm.stats()["received_messages"] == 1 + len(made)
    for array, original in zip(got, made, strict=True):
        assert type(array) is type(original)
        assert array.dtype == original.dtype
        assert tuple(array.shape) == tuple(original.shape)
        np.testing.assert_array_equal(host(array), host(original))
    if library == "torch":
        assert got[4].requires_grad
        assert not got[0].requires_grad


def test_element_types_of_warp():
    warp = pytest.importorskip("warp")
    local = [
        warp.types.vector(5, warp.float64),
        warp.types.matrix((2, 3), warp.float32),
        warp.types.quaternion(warp.float64),
        warp.types.transformation(warp.float64),
    ]
    for dtype in [warp.float32, warp.bool, warp.vec3, warp.mat33, *local]:
        described = libraries._describe_warp_type(dtype)
        again = pickle.loads(pickle.dumps(described))
        assert libraries._warp_type(again) is dtype

    @warp.struct
    class Inside:
        x: warp.float32

    with pytest.raises(TypeError, match="at the top level of a module"):
        libraries._describe_warp_type(Inside)
    _buffer, finish = libraries.make_warp((3, 2), warp.vec3, False)
    assert finish().shape == (3, 2)


class HostWarp:
    """Like Warp's array in host memory, which Warp itself cannot pickle."""

    class device:  # noqa: N801
        is_cuda = False

    def __init__(self, data, dtype, device, requires_grad):
        assert device == "cpu"
        self.data, self.dtype = data, dtype
        self.requires_grad = requires_grad

    def numpy(self):
        return self.data

    def __reduce_ex__(self, protocol):
        raise AttributeError("Can't pickle local object")


def test_arrays_of_warp_in_host_memory(comm, monkeypatch):
    stand_in = types.ModuleType("warp")
    stand_in.array = HostWarp
    monkeypatch.setitem(sys.modules, "warp", stand_in)
    monkeypatch.setattr(libraries, "_unseen", {})
    monkeypatch.setitem(libraries._known, HostWarp, libraries._warp)
    values = np.arange(6.0).reshape(2, 3)
    made = HostWarp(values, np.float64, "cpu", True)
    right, left = neighbours(comm)
    wm.reset_stats()
    got = comm.sendrecv({"a": made, "b": [made]}, right, 0, None, left)
    assert wm.stats()["received_messages"] == 1
    assert got["a"] is got["b"][0]
    assert got["a"].requires_grad
    assert got["a"].dtype is np.float64
    assert np.array_equal(got["a"].numpy(), values)


def test_warp_in_host_memory(comm):
    warp = pytest.importorskip("warp")
    made = warp.array(
        np.arange(12.0).reshape(4, 3), dtype=warp.vec3, device="cpu"
    )
    right, left = neighbours(comm)
    for sent in (made, made[::2]):
        got = comm.sendrecv({"a": sent}, right, 0, None, left)["a"]
        assert got.dtype is warp.vec3
        assert not got.device.is_cuda
        assert np.array_equal(got.numpy(), sent.numpy())


@pytest.mark.programs
def test_a_program_unchanged(tmp_path):
    program = """
        from mpi4py import MPI
        import warpmpi as wm
        wm.install()
        comm = MPI.COMM_WORLD
        other = comm.size - 1 - comm.rank
        array = wm.full(1000, comm.rank)
        requests = [comm.isend([array], other), comm.irecv(source=other)]
        got = MPI.Request.waitall(requests)[1][0]
        assert (got.numpy() == other).all()
        request = comm.irecv(source=other)
        comm.send("text", other)
        assert MPI.Request.waitany([request]) == (0, "text")
        sent = comm.isend(7, other)
        assert MPI.Message.probe(comm).recv() == 7
        sent.wait()
        assert comm.allgather(comm.rank) == list(range(comm.size))
    """
    ranks.run_text(tmp_path, program, ranks=2)


@pytest.mark.programs
def test_ranks_that_share_no_memory(tmp_path):
    """MPI carries the arrays, and nobody waits for who unpickles late."""
    program = """
        import os
        from mpi4py import MPI
        import warpmpi as wm
        os.environ["WARPMPI_HOST"] = f"host{MPI.COMM_WORLD.rank}"
        comm = wm.Comm(MPI.COMM_WORLD)
        other = 1 - comm.rank
        for size in 10, 3_000_000:
            request = comm.irecv(source=other)
            comm.send([wm.full(size, comm.rank)], other)
            assert (request.wait()[0].numpy() == other).all()
            requests = [comm.isend({1: wm.full(size, 3)}, other), comm.irecv()]
            assert (wm.Request.waitall(requests)[1][1].numpy() == 3).all()
    """
    ranks.run_text(tmp_path, program)


@gpu
def test_an_object_that_nobody_took_is_told_of(comm):
    right, left = neighbours(comm)
    request = comm.irecv(source=left)
    comm.send("lost", right)
    MPI.Request.Waitall([request])
    with pytest.warns(RuntimeWarning, match=r"wm\.Request\.waitall"):
        del request  # what mpi4py waited for
    request = comm.irecv(source=left)
    comm.send("taken", right)
    MPI.Request.Waitall([request])
    assert request.wait() == "taken"
    requests = [comm.irecv(source=left)]
    comm.send("dropped by who asked for no object", right)
    wm.Request.Waitall(requests)
    assert requests[0].wait() is None


@pytest.mark.programs
def test_the_warning_of_a_lost_object_may_raise(tmp_path):
    """Nobody can catch it, so it is told of and the program goes on."""
    program = """
        import gc, sys, warnings
        from mpi4py import MPI
        import warpmpi as wm
        comm = wm.Comm(MPI.COMM_WORLD)
        warnings.simplefilter("error", RuntimeWarning)
        seen = []
        sys.unraisablehook = lambda told: seen.append(
            (told.exc_type, told.object, str(told.exc_value)))
        for _ in range(20):
            request = comm.irecv(source=comm.rank)
            comm.send("lost", comm.rank)
            MPI.Request.waitall([request])
            del request
            gc.collect()
        assert len(seen) == 20
        for kind, of, text in seen:
            assert kind is RuntimeWarning and "wm.Request.waitall" in text
            assert of is wm.Request
    """
    ranks.run_text(tmp_path, program, ranks=1)


def test_a_long_wait_leaves_others_running(comm):
    """recv releases the GIL."""
    right, _ = neighbours(comm)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(comm.recv(tag=7)))
    thread.start()
    time.sleep(0.05)
    comm.send("now", right, 7)
    thread.join()
    assert seen == ["now"]


def test_which_objects_are_soon_known_to_be_plain():
    often, itself, inside = [1], [], {}
    for _ in range(15):  # pickled in no time, but 10**15 for who counts all
        often = [often] * 10
    itself.append(itself)
    inside["x"] = inside
    plain = {"a": 1, "b": [2, (3.0, None, b"x", 1j)], (4, True): np.zeros(3)}
    for obj in (plain, "text", [0] * 1000, (), {}):
        assert _core._is_plain(obj)
    for obj in (
        *(often, itself, inside, [0] * 5000, {1}, np.array([object()])),
        [wm.zeros(2, device="cpu")],
        type("Derived", (list,), {})(),
    ):
        assert not _core._is_plain(obj)
