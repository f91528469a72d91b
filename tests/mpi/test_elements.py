# SPDX-License-Identifier: BSD-3-Clause
"""Elements that MPI cannot reduce, which it would take for mere bytes."""

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm
from cases import FORMS, REDUCTIONS, called, steps
from warpmpi._install import CLASS_CALLS

INSTALLED = {(kind, name): call for kind, name, call in CLASS_CALLS}


class Tensor(kinds.Tensor):
    """So many elements of a type, all zero."""

    def __init__(self, code, bits, count=4, device=None):
        values = np.zeros(count * bits // 8, np.uint8)
        if device is not None:
            values = wm.array(values, device=device)
        super().__init__(values, code, bits)


def pinned(*_):
    if not wm.is_cuda_available():
        pytest.skip("needs a GPU")
    return wm.zeros(4, "bfloat16", device="cpu", pinned=True)


def device(*_):
    if not wm.is_cuda_available():
        pytest.skip("needs a GPU")
    return wm.zeros(4, "bfloat16")


def float8_on_device():
    if not wm.is_cuda_available():
        pytest.skip("needs a GPU")
    return Tensor(10, 8, device=wm.get_device())


def numpys(*_):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    return np.zeros(4, ml_dtypes.bfloat16)


MAKERS = {
    "host": lambda: wm.zeros(4, "bfloat16", device="cpu"),
    "pinned": pinned,
    "device": device,
    "numpy": numpys,
    "tensor": lambda: Tensor(4, 16),
    "list": lambda: [wm.zeros(4, "bfloat16", device="cpu"), 4],
}
FLOAT8 = {
    "float8": lambda: Tensor(10, 8),
    "float8 on a GPU": float8_on_device,
    "list of float8": lambda: [Tensor(10, 8), 4],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("kind", FLOAT8)
def test_a_reduction_refuses_them(comm, kind, name, form):
    make = FLOAT8[kind]
    what = "buf: MPI has no reduction for|buf: DLPack element type .code 10"
    for first in (make(), MPI.IN_PLACE):
        with pytest.raises(TypeError, match=what):
            getattr(comm, called(name, form))(first, make())


@pytest.mark.parametrize("kind", [*MAKERS, *FLOAT8])
def test_reduce_local_and_windows_refuse_them(comm, kind):
    make = {**MAKERS, **FLOAT8}[kind]
    if kind in FLOAT8:  # the others it has
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


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("device", [False, True])
def test_bfloat16_of_a_library_is_added(comm, form, device):
    if device and not wm.is_cuda_available():
        pytest.skip("needs a GPU")
    mine = Tensor(4, 16, device=wm.get_device() if device else None)
    one = np.array([0x3F80] * 4, np.uint16).view(np.uint8)
    mine.values[:] = wm.array(one) if device else one
    begin, wait, _ = steps(comm, "Allreduce", form, MPI.IN_PLACE, [mine, 3])
    begin()
    wait()
    found = np.asarray(kinds.values_of(mine.values)).view(np.uint16)
    whole = found.astype(np.uint32) << 16
    assert whole.view(np.float32).tolist() == [comm.size] * 3 + [1]


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
