# SPDX-License-Identifier: BSD-3-Clause
"""Calls whose two sides are on two GPUs, one or both in a memory pool.

The copies of one device do not reach the pool of another.
"""

import itertools

import numpy as np
import pytest
from mpi4py import MPI

import graphs
import kinds
import warpmpi as wm

pytestmark = pytest.mark.skipif(
    len(wm.get_cuda_devices()) < 2, reason="needs two GPUs"
)

# Of the sides on the first GPU and on the second.
KINDS = list(itertools.product(("pool", "foreign"), repeat=2))
SIZES = [1000, 300_001, 5_000_000]


def make(device, kind, values):
    """An array of a kind on a device."""
    with wm.ScopedDevice(device):
        return kinds.make(kind, values)


def sides(pair, turned, values):
    """A full array and an empty one, on two GPUs."""
    devices = wm.get_cuda_devices()[:2]
    whole = list(zip(devices, pair, strict=True))
    if turned:
        whole.reverse()
    return make(*whole[0], values), make(*whole[1], 0 * values)


@pytest.fixture
def values():
    return (np.arange(SIZES[-1]) % 251).astype(np.uint8)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("pair", KINDS, ids="-".join)
class TestArrays:
    def test_copies(self, pair, turned):
        given, got = sides(pair, turned, np.arange(1000.0))
        wm.asarray(got).assign(wm.asarray(given))
        assert np.array_equal(kinds.values_of(got), np.arange(1000.0))
        there = wm.asarray(given).to(got.device)
        assert np.array_equal(there.numpy(), np.arange(1000.0))

    @pytest.mark.parametrize("step", [(1, 2), (2, 1), (2, 2)])
    def test_strides(self, pair, turned, step):
        given, got = (
            wm.asarray(a) for a in sides(pair, turned, np.arange(1200.0))
        )
        into = got[: 500 * step[1] : step[1]]
        into.assign(given[: 500 * step[0] : step[0]])
        assert np.array_equal(into.numpy(), np.arange(500) * step[0])

    def test_nobody_waits(self, pair, turned):
        """Each copy comes behind the work before it, on any device."""
        given, got = sides(pair, turned, np.zeros(1000))
        for turn in range(3):
            fresh = wm.full(1000, turn + 1.0, np.float64, device=given.device)
            wm.asarray(given).assign(fresh, blocking=False)
            wm.asarray(got).assign(wm.asarray(given), blocking=False)
        assert np.array_equal(kinds.values_of(got), np.full(1000, 3.0))

    def test_streams_of_either(self, pair, turned):
        given, got = sides(pair, turned, np.arange(1000.0))
        for device in given.device, got.device:
            stream = wm.Stream(device)
            wm.asarray(got).assign(np.zeros(1000))
            wm.asarray(got).assign(wm.asarray(given), stream=stream)
            stream.synchronize()
            assert np.array_equal(wm.asarray(got).numpy(), np.arange(1000.0))

    def test_stream_of_the_other(self, pair, turned):
        """Both sides on one GPU, and the stream on the other."""
        given, got = sides(pair, turned, np.arange(1000.0))
        stream = wm.Stream(got.device)
        copy = make(given.device, "pool", np.zeros(1000))
        wm.asarray(copy).assign(wm.asarray(given), stream=stream)
        stream.synchronize()
        assert np.array_equal(kinds.values_of(copy), np.arange(1000.0))


def test_captures():
    """A graph has the copy on the stream of the pool's GPU."""
    first, second = wm.get_cuda_devices()[:2]
    given = wm.asarray(make(first, "pool", np.arange(1000.0)))
    got = wm.zeros(1000, np.float64, device=second)
    wrong, right = wm.Stream(second), wm.Stream(first)
    told = pytest.raises(RuntimeError, match="on a stream of cuda:0")
    with graphs.capture(wrong), told:
        got.assign(given, stream=wrong)
    with graphs.capture(right) as made:
        got.assign(given, stream=right)
    made[0].launch(right)
    right.synchronize()
    made[0].free()
    assert np.array_equal(got.numpy(), np.arange(1000.0))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("pair", KINDS, ids="-".join)
@pytest.mark.parametrize("distance", [0, 1])
def test_gaps_that_mpi_alone_knows(world, distance, pair, turned, values):
    """The host unpacks them on the receiver's GPU, not on the sender's."""
    comm = wm.Comm(world)
    peer = comm.rank ^ distance
    if peer >= comm.size:
        return
    given, got = sides(pair, turned, values[:30_000] % 200 + comm.rank)
    kind = MPI.BYTE.Create_indexed([2, 1], [0, 5]).Commit()
    want = np.zeros((5000, 6), np.uint8)
    want[:, [0, 1, 5]] = (values[:15_000] % 200 + peer).reshape(5000, 3)
    comm.Sendrecv(
        [given, 15_000, MPI.BYTE], peer, 0, [got, 5000, kind], peer, 0
    )
    assert np.array_equal(kinds.values_of(got), want.ravel())
    kind.Free()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("pair", KINDS, ids="-".join)
@pytest.mark.parametrize("size", SIZES)
class TestMessages:
    def test_to_itself(self, world, size, pair, turned, values):
        comm = wm.Comm(world)
        given, got = sides(pair, turned, values[:size])
        comm.Sendrecv(given, comm.rank, 0, got, comm.rank, 0)
        assert np.array_equal(kinds.values_of(got), values[:size])

    def test_on_a_stream_of_either(self, world, size, pair, turned, values):
        """A stream of either GPU takes the message, and gives it."""
        comm = wm.Comm(world)
        comm.Barrier()
        for sends, receives in itertools.product((0, 1), repeat=2):
            given, got = sides(pair, turned, values[:size])
            devices = given.device, got.device
            out, into = (wm.Stream(devices[i]) for i in (sends, receives))
            sent = comm.on(out).Isend(given, comm.rank, 5)
            comm.on(into).Recv(got, comm.rank, 5)
            sent.Wait()
            into.synchronize()
            assert np.array_equal(kinds.values_of(got), values[:size])

    def test_between_ranks(self, world, size, pair, turned, values):
        """Each rank gives from one GPU, on a stream of the other."""
        comm = wm.Comm(world)
        peer = comm.rank ^ 1
        if peer >= comm.size:
            return
        given, got = sides(pair, turned, values[:size] + comm.rank)
        out, into = wm.Stream(got.device), wm.Stream(given.device)
        sent = comm.on(out).Isend(given, peer, 5)
        comm.on(into).Recv(got, peer, 5)
        sent.Wait()
        into.synchronize()
        want = values[:size] + peer
        assert np.array_equal(kinds.values_of(got), want)
