# SPDX-License-Identifier: BSD-3-Clause
"""Elements that only MPI knows, in host memory: as plain mpi4py takes them."""

import ctypes

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm

PAIR = np.dtype([("value", "f8"), ("index", "i4")], align=True)
RECORD = np.dtype([("a", "i2"), ("b", "f8")])


@pytest.fixture(scope="module")
def comm(world):
    return wm.Comm(world)


class Complex32:
    """Host memory of elements that no buffer protocol knows, by DLPack."""

    def __init__(self, array):
        self.array = array.view(np.float32)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, stream=None):
        capsule = self.array.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype = ctypes.c_void_p
        pointer.argtypes = ctypes.py_object, ctypes.c_char_p
        code = pointer(capsule, b"dltensor") + 20
        ctypes.memmove(code, bytes([5]), 1)  # complex, of 32 bits
        return capsule


CASES = {
    "longdouble": (np.zeros(5, "g"), lambda a: a),
    "clongdouble": (np.zeros(5, "G"), lambda a: a),
    "no longdouble": (np.zeros(0, "g"), lambda a: a),
    "longdouble and count": (np.zeros(5, "g"), lambda a: [a, 3]),
    "ctypes": (np.zeros(5, "g"), (ctypes.c_longdouble * 5).from_buffer),
    "typed": (np.zeros(5, "g"), lambda a: [a, MPI.LONG_DOUBLE]),
    "wide character": (np.zeros(1, "U1"), lambda a: a),
    "text": (np.zeros(5, "U3"), lambda a: [a, MPI.WCHAR]),
    "bytes": (np.zeros(5, "S3"), lambda a: [a, "c"]),
    "void": (np.zeros(5, "V10"), lambda a: [a, MPI.BYTE]),
    "dates": (np.zeros(5, "M8[s]"), lambda a: [a, MPI.INT64_T]),
    "records": (np.zeros(5, RECORD), lambda a: [a, MPI.BYTE]),
    "columns": (np.zeros((2, 3), RECORD, "F"), lambda a: [a, MPI.BYTE]),
    "pairs": (np.zeros(5, PAIR), lambda a: [a, MPI.DOUBLE_INT]),
    "some pairs": (np.zeros(5, PAIR), lambda a: [a, (3, 1), MPI.DOUBLE_INT]),
    "pairs of ints": (np.zeros((5, 2), "i"), lambda a: [a, MPI.TWOINT]),
    "DLPack": (np.zeros(64, "b"), lambda a: [Complex32(a), MPI.BYTE]),
}


def content(array):
    return ctypes.string_at(array.ctypes.data, array.nbytes)


def exchange(comm, case):
    """A ring of messages, blocking and not, and a broadcast."""
    empty, specify = CASES[case]
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sent, first, second = (empty.copy("A") for _ in range(3))
    for array in first, second:  # also between the elements
        ctypes.memset(array.ctypes.data, 0, array.nbytes)
    values = bytes((i + comm.rank) % 120 for i in range(sent.nbytes))
    ctypes.memmove(sent.ctypes.data, values, sent.nbytes)
    comm.Sendrecv(specify(sent), right, 0, specify(first), left, 0)
    request = comm.Irecv(specify(second), left, 1)
    comm.Isend(specify(sent), right, 1).Wait()
    request.Wait()
    comm.Bcast(specify(sent), 0)
    return content(first), content(second), content(sent)


@pytest.mark.parametrize("case", CASES)
def test_messages_as_of_plain_mpi4py(comm, world, case):
    assert exchange(comm, case) == exchange(world, case)


def test_statuses_count_elements(comm):
    status = MPI.Status()
    request = comm.Irecv(np.zeros(5, "g"), comm.rank)
    comm.Send(np.zeros(4, "g"), comm.rank)
    request.Wait(status)
    assert status.Get_count(MPI.LONG_DOUBLE) == 4


@pytest.mark.parametrize("size", [0, 1, 1000, 1_500_000])
def test_the_least_and_where_it_is(comm, size):
    mine = np.zeros(size, PAIR)
    mine["value"] = (np.arange(size) + comm.rank) % comm.size
    mine["index"] = comm.rank
    least = np.zeros(size, PAIR)
    kind = MPI.DOUBLE_INT
    comm.Allreduce([mine, kind], [least, kind], MPI.MINLOC)
    assert (least["value"] == 0).all()
    expected = -np.arange(size) % comm.size
    np.testing.assert_array_equal(least["index"], expected)
    comm.Allreduce(MPI.IN_PLACE, [mine, kind], MPI.MINLOC)
    np.testing.assert_array_equal(mine, least)


def test_reducing_long_doubles(comm):
    total = np.zeros(10, np.longdouble)
    comm.Allreduce(np.arange(10, dtype=np.longdouble), total)
    np.testing.assert_array_equal(total, np.arange(10) * comm.size)


@pytest.mark.parametrize("name", ["INT", "LONG", "UNSIGNED_CHAR", "LONG_LONG"])
def test_reducing_integers_by_the_name_of_c(comm, name):
    kind = getattr(MPI, name)
    mine = np.full(3, comm.rank, kind.typechar)
    most = np.zeros(3, kind.typechar)
    comm.Allreduce([mine, kind], most, MPI.MAX)
    assert (most == comm.size - 1).all()


def test_reducing_elements_with_gaps_by_an_own_operation(comm):
    def add(source, into, _):
        values = np.frombuffer(into, "i")
        values += np.frombuffer(source, "i")

    op = MPI.Op.Create(add, commute=True)
    kind = MPI.INT.Create_resized(0, 8).Commit()
    total = np.zeros(6, "i")
    comm.Allreduce([np.arange(6, dtype="i"), 3, kind], [total, 3, kind], op)
    assert total[::2].tolist() == [0, 2 * comm.size, 4 * comm.size]
    kind.Free()
    op.Free()


def test_a_datatype_that_reaches_past_its_buffer(comm):
    kind = MPI.DOUBLE.Create_vector(4, 1, 3).Commit()
    with pytest.raises(ValueError, match="fit"):
        comm.Send([np.zeros(9), 1, kind], comm.rank)
    kind.Free()


class Shown:
    """GPU memory of elements that this package does not know."""

    def __init__(self):
        self.array = kinds.make("device", np.zeros(32, np.uint8))
        self.__cuda_array_interface__ = {
            **self.array.__cuda_array_interface__,
            "shape": (2,),
            "typestr": "<f16",
        }


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
def test_gpu_memory_of_such_elements_is_refused(comm):
    for buffer in Shown(), [Shown(), MPI.LONG_DOUBLE]:
        with pytest.raises(TypeError, match="f16"):
            comm.Send(buffer, comm.rank)
    pairs = kinds.make("device", np.zeros(32, np.uint8))
    for call in (
        lambda: comm.Send([pairs, MPI.DOUBLE_INT], comm.rank),
        lambda: comm.Recv([pairs, MPI.DOUBLE_INT], comm.rank),
        lambda: comm.Allreduce(MPI.IN_PLACE, [pairs, MPI.DOUBLE_INT]),
    ):
        with pytest.raises(TypeError, match="GPU memory"):
            call()
