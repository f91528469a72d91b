# SPDX-License-Identifier: BSD-3-Clause
"""Collectives of comm.on(stream) where a rank fails, or is far ahead."""

import contextlib
import ctypes
import gc
import os

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import ranks
import warpmpi as wm

pytestmark = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)

simulated = pytest.mark.skipif(
    "WARPMPI_CUDA_DRIVER" not in os.environ
    or not hasattr(kinds.driver(), "simcuda_fail"),
    reason="needs the simulated driver",
)
FULL = os.environ.get("WARPMPI_TEST_FULL") == "1"
WORLD = MPI.COMM_WORLD
LAST = WORLD.size - 1


@pytest.fixture
def fresh(connected):
    """A communicator whose collectives on streams have begun."""
    plain = WORLD.Dup()
    comm = wm.Comm(plain)
    comm.on(wm.Stream(wm.get_device())).Barrier()
    yield comm
    plain.Free()


@pytest.fixture
def stream():
    return wm.Stream(wm.get_device())


@pytest.mark.ranks(2)
@pytest.mark.parametrize("wrong", ["argument", "count"])
@pytest.mark.parametrize("ahead", [1, 4])
def test_who_is_ahead_is_let_go(fresh, stream, wrong, ahead):
    """Others wait in calls that who has failed will never make."""
    channel = fresh.on(stream)
    a = wm.ones(10, "int32")
    if fresh.rank != LAST:
        for _ in range(ahead):
            channel.Allreduce(MPI.IN_PLACE, a)
    WORLD.Barrier()
    if fresh.rank == LAST:
        bad = np.ones(3) if wrong == "argument" else wm.ones(20, "int32")
        for each in [bad, a, a, a][:ahead]:
            with contextlib.suppress(TypeError, RuntimeError):
                channel.Allreduce(MPI.IN_PLACE, each)
    WORLD.Barrier()
    stream.synchronize()  # nobody hangs
    with pytest.raises((RuntimeError, ValueError)):
        channel.Allreduce(MPI.IN_PLACE, a)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("name", ["Allreduce", "Reduce"])
def test_who_has_a_part_for_others_is_let_go(fresh, stream, name):
    """Of a vector whose parts each rank reduces, and gives to the others."""
    channel = fresh.on(stream)
    count = (3 << 18) // (4 * fresh.size) * 4 * fresh.size
    a, b = wm.ones(count, "int32"), wm.zeros(count, "int32")
    call = getattr(channel, name)
    if fresh.rank != LAST:
        call(a, b)
    WORLD.Barrier()
    if fresh.rank == LAST:
        with contextlib.suppress(ValueError):
            call(a[:20], b[:20])
    WORLD.Barrier()
    stream.synchronize()  # nobody hangs
    with pytest.raises((RuntimeError, ValueError), match="differ"):
        call(a, b)


# All through pipes. The last rank's first call differs from the others', who
# have another one behind it in which nobody waits for that rank.
SLOTS = """
    from mpi4py import MPI

    import warpmpi as wm

    wm._core._set_points([(0, True, 0, *[0] * 6)])
    comm, stream = wm.Comm(MPI.COMM_WORLD), wm.Stream(wm.get_device())
    channel, last = comm.on(stream), comm.rank == 2
    a, b = wm.ones(2_000_000, "float32"), wm.zeros(2_000_000, "float32")
    channel.Allreduce(a[:64], b[:64])
    stream.synchronize()
    comm.Barrier()
    count = 1_500_000 if last else 2_000_000
    counts = [100 * (not last and rank == 1 - comm.rank) for rank in range(3)]
    if last:  # the others have given both by then
        MPI.COMM_WORLD.Barrier()
    try:
        channel.Allreduce(a[:count], b[:count])
        channel.Alltoallv([a, counts], [b, counts])
    except ValueError:
        assert last
    if not last:
        MPI.COMM_WORLD.Barrier()
    stream.synchronize()
    try:
        channel.Barrier()
    except (RuntimeError, ValueError) as error:
        assert "differ" in str(error), error
        print("told")
    comm.Barrier()
"""


@simulated
@pytest.mark.programs
def test_slots_that_nobody_took_out_of_are_free(tmp_path):
    printed = ranks.run_text(tmp_path, SLOTS, ranks=3, SIMCUDA_DEVICES="3")
    assert printed.count("told") == 3


@pytest.mark.ranks(2)
def test_a_request_tells_what_is_wrong_with_what_has_come(fresh, stream):
    channel = fresh.on(stream)
    a = wm.ones(10, "int32")
    if fresh.rank == LAST:
        with pytest.raises(TypeError, match="contiguous GPU memory"):
            channel.Iallreduce(MPI.IN_PLACE, np.ones(3))
    else:
        request = channel.Iallreduce(MPI.IN_PLACE, a)
        with pytest.raises(RuntimeError, match=f"rank {LAST} failed"):
            request.Wait()
    WORLD.Barrier()
    with pytest.raises(RuntimeError, match="failed in a collective on a"):
        channel.Barrier()


def test_what_each_rank_gets_must_be_told(fresh, stream):
    """Nobody waits on the host to hear how much the others get."""
    a, b = wm.ones(fresh.size), wm.zeros(1)
    with pytest.raises(TypeError, match="recvcounts: one for each rank"):
        fresh.on(stream).Reduce_scatter(a, b, None)
    stream.synchronize()


@pytest.mark.parametrize("name", ["Allgather", "Alltoall"])
def test_nobody_waits_for_more_than_all_give(fresh, stream, name):
    a, b = wm.ones(10 * fresh.size), wm.zeros(20 * fresh.size)
    sent = a[:10] if name == "Allgather" else a
    with pytest.raises(MPI.Exception, match="recvbuf: its block of this rank"):
        getattr(fresh.on(stream), name)(sent, b)
    stream.synchronize()


@pytest.mark.ranks(2)
def test_a_request_tells_that_counts_differ(fresh, stream):
    channel = fresh.on(stream)
    a = wm.ones(10 if fresh.rank != LAST else 20, "int32")
    request = channel.Iallreduce(MPI.IN_PLACE, a)
    with pytest.raises(ValueError, match="other counts, types, op or root"):
        request.Wait()


@simulated  # on a GPU it may be the sender who maps the other's memory
@pytest.mark.ranks(2)
def test_nothing_is_closed_while_a_stream_waits_for_others(fresh, stream):
    """To close a mapping is to wait for the device, and for the others."""
    other = wm.Comm(WORLD)
    freed = kinds.make("foreign", np.full(5_000_000, 7, np.uint8))
    a = wm.ones(10, "int32")
    other.Barrier()  # closes what others left
    if other.rank == 0:
        other.Send(freed, 1)
        freed.free()
        other.Barrier()
        for rank in range(1, other.size):
            other.Recv(np.zeros(1), rank)
        fresh.on(stream).Allreduce(MPI.IN_PLACE, a)
    else:
        if other.rank == 1:
            other.Recv(freed, 0)
        fresh.on(stream).Allreduce(MPI.IN_PLACE, a)
        before = wm.stats()["mappings_closed"]
        other.Barrier()
        assert wm.stats()["mappings_closed"] == before
        other.Send(np.zeros(1), 0)
    stream.synchronize()
    assert (a.numpy() == fresh.size).all()
    for _ in range(3):
        other.Barrier()
    if other.rank == 1:
        assert wm.stats()["mappings_closed"] > before


def arm(n):
    kinds.driver().simcuda_fail(None, ctypes.c_long(n), 999)


def calls():
    driver = kinds.driver()
    driver.simcuda_calls.restype = ctypes.c_long
    return driver.simcuda_calls(None)


def allreduce(channel, a):
    channel.Allreduce(MPI.IN_PLACE, a)


def iallreduce(channel, a):
    request = channel.Iallreduce(MPI.IN_PLACE, a)
    arm(0)
    # That it cannot look at its own stream a rank tells nobody.
    with contextlib.suppress(wm.CudaError):
        request.Wait()


@simulated
@pytest.mark.ranks(2)
@pytest.mark.parametrize("first", [False, True], ids=["later", "first"])
@pytest.mark.parametrize("call", [allreduce, iallreduce])
def test_each_driver_call_may_fail(connected, stream, call, first):
    """Who fails raises, the others do in the next call, and nobody hangs."""
    other, n, used = wm.Stream(stream.device), 1, 1
    while n <= used:
        plain = WORLD.Dup()
        comm = wm.Comm(plain)
        channel = comm.on(stream)
        if not first:  # which it comes behind
            comm.on(other).Barrier()
        a = wm.ones(1000, "int32")
        WORLD.Barrier()
        begun, error, later = calls(), None, None
        if comm.rank == LAST:
            arm(n)
        try:
            call(channel, a)
        except (wm.CudaError, RuntimeError) as caught:
            error = caught
        finally:
            arm(0)
        used = calls() - begun
        WORLD.Barrier()
        stream.synchronize()
        values = a.numpy()
        try:
            for _ in range(2):  # a request that fails fails the first
                channel.Barrier()
                stream.synchronize()
        except RuntimeError as caught:
            later = caught
        told = WORLD.allgather((repr(error), repr(later)))
        if error is None and later is None:
            assert (values == comm.size).all(), (n, told)
        nobody = repr(None)
        whole = [each[1] == nobody for each in told]
        assert len(set(whole)) == 1, (n, told)  # the comm's end all hear of
        if whole[0]:
            assert len({each[0] == nobody for each in told}) == 1, (n, told)
        plain.Free()
        gc.collect()
        used = WORLD.bcast(used, LAST)
        n += 1 if FULL else 3
