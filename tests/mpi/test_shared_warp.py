# SPDX-License-Identifier: BSD-3-Clause
"""Device functions of shared arrays in Warp's kernels."""

import numpy as np
import pytest

import kinds
import warpmpi as wm

wp = pytest.importorskip("warp")
wmw = pytest.importorskip("warpmpi.warp")

TURNS = 3


@wp.kernel
def step(
    a: wp.uint64, its: wp.array(dtype=float), right: int, value: float
):  # fmt: skip
    for i in range(its.shape[0]):
        its[i] = value
    wmw.signal(a, right, 0, wp.uint64(1))
    wmw.wait(a, 0, wp.uint64(1))
    wmw.barrier(a)


@wp.kernel
def look(a: wp.uint64, right: int, out: wp.array(dtype=wp.uint64)):
    out[0] = wmw.peek(a, 3)
    out[1] = wmw.pointer(a, right)


@pytest.fixture(params=["cpu", "gpu"])
def place(request):
    if request.param == "cpu":
        return "cpu", "cpu"
    if not wp.is_cuda_available() or not kinds.is_real():
        pytest.skip("needs a GPU")
    device = wm.get_device()
    return device, f"cuda:{device.ordinal}"


def test_kernels_signal_and_wait(world, place):
    comm, (device, name) = wm.Comm(world), place
    a = wm.shared_zeros(9, comm=comm, device=device, like="warp")
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    assert isinstance(a.array, wp.array) and a.peer(right).shape == (9,)
    for turn in range(TURNS):
        values = [a.handle, a.peer(right), right, float(comm.rank + 10 * turn)]
        wp.launch(step, dim=1, inputs=values, device=name)
        assert (a.array.numpy() == left + 10 * turn).all()
        a.barrier()
    out = wp.zeros(2, dtype=wp.uint64, device=name)
    a.signal(right, 3, 5)
    a.barrier()
    wp.launch(look, dim=1, inputs=[a.handle, right, out], device=name)
    assert list(out.numpy()) == [5, a.peer(right).ptr]
    a.wait(3, 5)
    a.barrier()
    wp.synchronize()
    assert np.all(a.numpy() == left + 10 * (TURNS - 1))
