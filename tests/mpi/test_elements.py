# SPDX-License-Identifier: BSD-3-Clause
"""Elements that MPI cannot reduce, which it would take for mere bytes."""

import ctypes

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm
from warpmpi._install import CLASS_CALLS

CALLS = """
    Reduce Allreduce Reduce_scatter_block Reduce_scatter Scan Exscan
""".split()
INSTALLED = {(kind, name): call for kind, name, call in CLASS_CALLS}


@pytest.fixture(scope="module")
def comm(world):
    return wm.Comm(world)


class Tensor:
    """Host memory of a library with element types of its own (DLPack)."""

    def __init__(self, code, bits, count=4):
        self.values = np.zeros(count * bits // 8, np.uint8)
        self.element = code, bits

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, stream=None):
        capsule = self.values.__dlpack__()
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = (
            ctypes.c_void_p,
            (ctypes.py_object, ctypes.c_char_p),
        )
        tensor = get(capsule, b"dltensor")
        # data, device (8), ndim (4), code, bits, lanes; then shape
        code = ctypes.cast(tensor + 20, ctypes.POINTER(ctypes.c_uint8))
        code[0], code[1] = self.element
        shape = ctypes.cast(tensor + 24, ctypes.POINTER(ctypes.c_void_p))[0]
        shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
        shape[0] = len(self.values) * 8 // self.element[1]
        return capsule


def pinned(*_):
    if not wm.is_cuda_available():
        pytest.skip("needs a GPU")
    return wm.zeros(4, "bfloat16", device="cpu", pinned=True)


def device(*_):
    if not wm.is_cuda_available():
        pytest.skip("needs a GPU")
    return wm.zeros(4, "bfloat16")


def numpys(*_):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    return np.zeros(4, ml_dtypes.bfloat16)


MAKERS = {
    "host": lambda: wm.zeros(4, "bfloat16", device="cpu"),
    "pinned": pinned,
    "device": device,
    "numpy": numpys,
    "tensor": lambda: Tensor(4, 16),
    "float8": lambda: Tensor(10, 8),
    "list": lambda: [wm.zeros(4, "bfloat16", device="cpu"), 4],
}


@pytest.mark.parametrize("form", ["", "I", "_init"])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", MAKERS)
def test_a_reduction_refuses_them(comm, kind, name, form):
    make = MAKERS[kind]
    called = name + form if form == "_init" else form + name
    if form == "I":
        called = "I" + name[0].lower() + name[1:]
    for first in (make(), MPI.IN_PLACE):
        with pytest.raises(TypeError, match="buf: MPI has no reduction for"):
            getattr(comm, called)(first, make())


@pytest.mark.parametrize("kind", MAKERS)
def test_reduce_local_and_windows_refuse_them(comm, kind):
    make = MAKERS[kind]
    reduce_local = INSTALLED[MPI.Op, "Reduce_local"]
    with pytest.raises(TypeError, match="inbuf: MPI has no reduction for"):
        reduce_local(MPI.SUM, make(), make())
    window = MPI.Win.Allocate(16, 1, comm=MPI.COMM_SELF)
    window.Lock(0)
    for name in ("Accumulate", "Raccumulate"):
        accumulate = INSTALLED[MPI.Win, name]
        with pytest.raises(TypeError, match="origin: MPI has no reduction"):
            accumulate(window, make(), 0)
    window.Unlock(0)
    window.Free()


def test_bytes_are_still_added(comm):
    into = bytearray(3)
    comm.Reduce_scatter_block(bytes(range(3)) * comm.size, into)
    assert list(into) == [0, comm.size, 2 * comm.size]
    comm.Iallreduce(b"\1\2", memoryview(into)[:2]).Wait()
    assert list(into[:2]) == [comm.size, 2 * comm.size]
    # Whoever names the datatype knows what the op makes of it.
    array = kinds.make("host", np.ones(2, np.uint16)).view(np.uint8)
    comm.Iallreduce(MPI.IN_PLACE, [array, MPI.UINT16_T]).Wait()
    assert array.view(np.uint16).tolist() == [comm.size] * 2


@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble, np.float16])
def test_elements_that_only_mpi_knows_are_reduced(comm, dtype):
    mine, into = np.ones(3, dtype), np.zeros(3, dtype)
    try:
        MPI.COMM_SELF.Allreduce(mine, into)
    except (KeyError, TypeError, MPI.Exception):
        pytest.skip("MPI has no such type")
    comm.Iallreduce(mine, into).Wait()
    assert (into == comm.size).all()
