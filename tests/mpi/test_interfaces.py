# SPDX-License-Identifier: BSD-3-Clause
"""What the code of an array's class says, and does, as it is asked."""

import collections
import ctypes
import itertools

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm
from random_interfaces import INSTALLED, Calls
from warpmpi import _buffered

pytestmark = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)
FORMS = ("Alltoallw", "Ialltoallw", "Alltoallw_init")


@pytest.fixture(scope="module")
def comm():
    return wm.Comm(MPI.COMM_SELF.Dup())


def end(made):
    """Waits for the request of a call, if it makes one."""
    if isinstance(made, MPI.Prequest):
        made.Start()
        made.Wait()
        made.Free()
    elif isinstance(made, MPI.Request):
        made.Wait()


BYTES = {
    "memory": lambda at, n: MPI.memory.fromaddress(at, n),
    "memoryview": lambda at, n: memoryview(MPI.memory.fromaddress(at, n)),
    "ctypes": lambda at, n: (ctypes.c_ubyte * n).from_address(at),
}


@pytest.mark.parametrize("number", [1, 3, 100])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", BYTES)
def test_bytes_on_a_gpu_are_no_list(comm, kind, form, number):
    array = wm.zeros(number, dtype="u1")
    buffer = BYTES[kind](array.ptr, number)
    with pytest.raises(ValueError, match=r"sendbuf: give \[array, "):
        getattr(comm, form)(buffer, buffer)


@pytest.mark.parametrize("form", FORMS)
def test_any_sequence_is_a_list_of_alltoallw(comm, form):
    sent = wm.array(np.arange(3.0))
    into = wm.zeros(3)
    made = np.empty(3, object)
    made[:] = [into, ([3], [0]), [MPI.DOUBLE]]
    given = collections.UserList([sent, ([3], [0]), [MPI.DOUBLE]])
    end(getattr(comm, form)(given, made))
    assert into.numpy().tolist() == [0, 1, 2]


@pytest.mark.parametrize("memory", ["host", "device"])
@pytest.mark.parametrize("kind", BYTES)
def test_counts_in_gpu_memory_are_refused(comm, kind, memory):
    counts = wm.zeros(8, dtype="u1")
    given = BYTES[kind](counts.ptr, 1)
    array = kinds.make(memory, np.zeros(8))
    match = "the numbers lie in GPU memory"
    for form in (*FORMS, "Alltoallv", "Ialltoallv"):
        types = [MPI.DOUBLE] if "w" in form else MPI.DOUBLE
        for both in (given, [0]), ([1], given):
            with pytest.raises(TypeError, match=match):
                getattr(comm, form)([array, both, types], [array, both, types])
    into = kinds.make(memory, np.zeros(8))
    for form in "Reduce_scatter", "Ireduce_scatter", "Reduce_scatter_init":
        with pytest.raises(TypeError, match=f"recvcounts: {match}"):
            getattr(comm, form)(array, into, given)
        with pytest.raises(TypeError, match=f"recvcounts: {match}"):
            getattr(comm, form)(array, into, recvcounts=given)
    with pytest.raises(TypeError, match=match):
        comm.scatter(given)


@pytest.mark.parametrize("code", "b1 i1 i2 i4 i8 u2 u8 f4 c8".split())
def test_elements_have_numpys_type(comm, code):
    """MPI has several types of one size, and mpi4py compares them."""
    into = np.zeros(3, code)

    class Shown:
        __cuda_array_interface__ = {
            "shape": (3,),
            "typestr": into.dtype.str,
            "data": (into.ctypes.data, False),
            "version": 3,
        }

    op = MPI.LOR if code == "b1" else MPI.SUM
    comm.Allreduce(np.ones(3, code), Shown(), op)
    assert (into == 1).all()
    into[:] = 0
    comm.Reduce_scatter(wm.ones(3, code), Shown(), [3], op)
    assert (into == 1).all()


class Boom(RuntimeError):
    pass


class Told:
    """An array whose interface raises at some of its readings."""

    def __init__(self, interface, times, error):
        self.interface, self.times, self.error = interface, times, error
        self.readings = 0

    @property
    def __cuda_array_interface__(self):
        self.readings += 1
        if self.readings in self.times:
            raise self.error("by the code")
        return self.interface


INTERFACES = {
    "right": {},
    "no version": {"version": ...},
    "version None": {"version": None},
    "text": {"typestr": "|S3", "shape": (8,)},
    "long double": {"typestr": "<f16", "shape": (1,)},
    "big-endian": {"typestr": ">i4", "shape": (6,)},
    "stream 0": {"stream": 0},
}
OTHER = bytes(24)
PACK = INSTALLED[MPI.Datatype, "Pack"]
UNPACK = INSTALLED[MPI.Datatype, "Unpack"]
REDUCE_LOCAL = INSTALLED[MPI.Op, "Reduce_local"]
CALLS = {
    "Send": lambda comm, one: comm.Sendrecv(one, 0, 0, bytearray(24), 0),
    "Recv": lambda comm, one: comm.Sendrecv(OTHER, 0, 0, one, 0),
    "Send_init": lambda comm, one: comm.Send_init(one, 0).Free(),
    "Bcast": lambda comm, one: comm.Bcast(one),
    "Ibcast": lambda comm, one: comm.Ibcast(one),
    "Bcast_init": lambda comm, one: comm.Bcast_init(one),
    "Allreduce": lambda comm, one: comm.Allreduce(one, bytearray(24), MPI.BOR),
    "Iallreduce": lambda comm, one: comm.Iallreduce(OTHER, one, MPI.BOR),
    "Allgather": lambda comm, one: comm.Allgather(OTHER, one),
    "Alltoallv": lambda comm, one: comm.Alltoallv(one, bytearray(24)),
    "Pack": lambda comm, one: PACK(MPI.BYTE, one, bytearray(64), 0, comm),
    "Unpack": lambda comm, one: UNPACK(MPI.BYTE, OTHER, 0, one, comm),
    "Reduce_local": lambda _, one: REDUCE_LOCAL(MPI.BOR, one, bytearray(24)),
}


def told(name, times, error=Boom):
    memory = wm.zeros(24, dtype="u1")
    interface = {
        "shape": (24,),
        "typestr": "|u1",
        "data": (memory.ptr, False),
        "version": 3,
        **INTERFACES[name],
    }
    known = {key: each for key, each in interface.items() if each is not ...}
    array = Told(known, times, error)
    array.memory = memory
    return array


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", INTERFACES)
def test_memory_is_looked_at_that_mpi_gets(comm, name, call, typed):
    """Whichever readings fail: MPI would read GPU memory on the host."""
    for times in [
        (),
        *((at,) for at in range(1, 13)),
        *itertools.combinations(range(1, 5), 2),
    ]:
        array = told(name, times)
        try:
            end(CALLS[call](comm, [array, MPI.BYTE] if typed else array))
        except Boom:
            assert min(times) <= array.readings
        except (TypeError, ValueError, BufferError):
            pass


def create_window(create, one):
    window = create(one, comm=MPI.COMM_SELF)
    ours = isinstance(window, wm.Win) and window._part(0)[3]
    window.Free()
    if ours:  # GPU memory, which MPI has not seen
        raise TypeError


def attach_to_window(_, one):
    window = MPI.Win.Create_dynamic(comm=MPI.COMM_SELF)
    try:
        INSTALLED[MPI.Win, "Attach"](window, one)
    finally:
        window.Free()


def attach_buffer(_, one):
    _buffered.attach_buffer(one)
    host = _buffered._stock_detach()
    _buffered._core._buffer_detach(None)
    _buffered._attached.pop(0, None)
    assert np.frombuffer(host, "u1").ctypes.data != one.memory.ptr
    raise TypeError


KEPT = {  # MPI keeps their memory, and uses it on the host
    "Win.Create": lambda comm, one: create_window(
        INSTALLED[MPI.Win, "Create"].__get__(None, MPI.Win), one
    ),
    "Win.Create of ours": lambda comm, one: MPI.Win.Create(one, comm=comm),
    "Win.Attach": attach_to_window,
    "Attach_buffer": attach_buffer,
}


@pytest.mark.parametrize("error", [Boom, AttributeError, BufferError])
@pytest.mark.parametrize("call", KEPT)
@pytest.mark.parametrize("name", INTERFACES)
def test_memory_is_looked_at_that_mpi_keeps(comm, name, call, error):
    for times in [
        combination
        for length in range(5)
        for combination in itertools.combinations(range(1, 6), length)
    ]:
        with pytest.raises((TypeError, ValueError, BufferError, error)):
            KEPT[call](comm, told(name, times, error))


@pytest.mark.parametrize("error", [Boom, RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("call", CALLS)
def test_exceptions_of_the_code_come_out(comm, call, error):
    for name, typed in itertools.product(INTERFACES, (False, True)):
        array = told(name, range(100), error)
        with pytest.raises(error, match="by the code"):
            CALLS[call](comm, [array, MPI.BYTE] if typed else array)


@pytest.mark.parametrize("seed", range(8))
def test_random_code(seed, monkeypatch):
    monkeypatch.setattr("sys.unraisablehook", lambda told: None)
    Calls(seed).run(250)


def nested_pack(itself):
    PACK(MPI.BYTE, wm.zeros(24, dtype="u1"), bytearray(64), 0, itself)


def nested_collective(itself):
    itself.Allreduce(wm.ones(2), wm.zeros(2))
    itself.Allgatherv(np.ones(2), wm.zeros(2))


REFUSED = {
    "Allreduce": lambda comm, one: comm.Allreduce(one, np.zeros(6)),
    "Iallreduce": lambda comm, one: comm.Iallreduce(one, np.zeros(6)),
    "Allreduce_init": lambda comm, one: comm.Allreduce_init(one, np.zeros(6)),
    "Allgatherv": lambda comm, one: comm.Allgatherv(one, np.zeros(6)),
    "Bcast": lambda comm, one: comm.Bcast(one, 0),
}


@pytest.mark.skipif(MPI.COMM_WORLD.size != 2, reason="between two ranks")
@pytest.mark.parametrize("error", [Boom, AttributeError, TypeError])
@pytest.mark.parametrize("nested", [nested_pack, nested_collective])
@pytest.mark.parametrize("call", REFUSED)
def test_a_call_in_the_code_of_an_array(world, comm, call, nested, error):
    """It says nothing of the call that reads the array: that is refused."""

    class Calls:
        @property
        def __cuda_array_interface__(self):
            nested(comm)
            raise error("by the code")

    ours = wm.Comm(world.Dup())
    if ours.rank == 0:
        with pytest.raises((TypeError, error)):
            REFUSED[call](ours, Calls())
    for make in (np.ones, wm.ones) * 2:
        into = make(2)
        ours.Allreduce(make(2), into)
        assert kinds.values_of(into).tolist() == [2, 2]
    ours.Free()
