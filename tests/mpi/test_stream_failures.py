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
            with pytest.raises((TypeError, ValueError, RuntimeError)):
                channel.Allreduce(MPI.IN_PLACE, each)
    else:
        with pytest.raises((RuntimeError, ValueError)):  # nobody hangs
            stream.synchronize()
    a.fill_(1)
    channel.Allreduce(MPI.IN_PLACE, a)
    assert (a.numpy() == fresh.size).all()


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
    differ = pytest.raises(ValueError, match=f"to {name}: its count is")
    if fresh.rank == LAST:
        with differ:
            call(a[:20], b[:20])
    WORLD.Barrier()
    if fresh.rank != LAST:
        with differ:
            stream.synchronize()  # nobody hangs
    call(a, b)
    if name == "Allreduce" or fresh.rank == 0:
        assert (b.numpy() == fresh.size).all()


# All by Simple. The last rank's first call differs from the others', who
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
    for call in (
        lambda: channel.Allreduce(a[:count], b[:count]),
        lambda: channel.Alltoallv([a, counts], [b, counts]),
    ):
        try:
            call()
        except (RuntimeError, ValueError) as error:
            assert last
            print(["told", "more"]["before that rank" in str(error)])
    if not last:
        MPI.COMM_WORLD.Barrier()
    try:
        stream.synchronize()
    except ValueError as error:
        assert not last and "differ" in str(error), error
        print("told")
    channel.Allreduce(a, b)
    assert (b.numpy() == 3).all()
"""


@simulated
@pytest.mark.programs
def test_slots_that_nobody_took_out_of_are_free(tmp_path):
    printed = ranks.run_text(tmp_path, SLOTS, ranks=3, SIMCUDA_DEVICES="3")
    assert (printed.count("told"), printed.count("more")) == (3, 1)


# In each way that a call takes, one rank or all are wrong, early or late.
AGAIN = """
    import re, sys
    import numpy as np
    from mpi4py import MPI
    import warpmpi as wm

    # LL, LL128, this in parts, Simple; of float64.
    points = dict(lines=1024, wide=10_000, wide_parts=10**5, parts=10**5,
                  phase=3 << 20, meeting=2 << 20)
    wm._core._set_points([(0, True, 0, *points.values())])
    LENGTHS = 16, 1000, 10_000, 200_000
    world, stream = MPI.COMM_WORLD, wm.Stream(wm.get_device())
    comm = wm.Comm(world)
    channel, size, rank = comm.on(stream), comm.size, comm.rank
    last = rank == size - 1

    def check(count):
        a, b = wm.ones(count), wm.zeros(count)
        for _ in range(3):  # both halves, and one again
            a.fill_(rank + 1, stream=stream)
            channel.Allreduce(a, b)
            channel.Scan(MPI.IN_PLACE, a)
            assert (b.numpy() == size * (size + 1) / 2).all()
            assert (a.numpy() == (rank + 1) * (rank + 2) / 2).all()
        counts = [count // size + (i == 0) for i in range(size)]
        into = wm.zeros(sum(counts))
        channel.Allgatherv(wm.full(counts[rank], float(rank)), [into, counts])
        assert (into.numpy() == np.repeat(range(size), counts)).all()

    def refused(count, late):
        channel.Allreduce(np.ones(3), wm.ones(3))

    def counts(count, late):
        channel.Allreduce(wm.ones(count - 3), wm.ones(count - 3))

    def another(count, late):
        channel.Bcast(wm.ones(count))

    def pairs(count, late):
        given = [[3 * (late and i == 0) for i in range(size)] for _ in "ab"]
        arrays = wm.ones(count), wm.zeros(count)
        channel.Alltoallv(*([x, n] for x, n in zip(arrays, given)))

    def right(count, late):
        channel.Allreduce(wm.ones(count), wm.ones(count))

    ERRORS = {refused: "failed in a coll|contiguous GPU",
              counts: "to Allreduce: its count is",
              another: "called (Bcast|Allreduce)",
              pairs: "(gives|expects) [0-9]+ bytes, and this rank"}

    def expect(text, call, *args):
        try:
            call(*args)
        except Exception as error:
            assert re.search(text, str(error)), (text, error)
        else:
            raise AssertionError(f"no error: {text}")

    for count in LENGTHS:
        for wrong, text in ERRORS.items():
            check(count)
            for ahead in 1, 3:
                if wrong is pairs and size > 2:
                    break  # of whom not all wait for the pair
                if not last:
                    for _ in range(ahead):
                        (pairs if wrong is pairs else right)(count, False)
                world.Barrier()
                if last:
                    expect(text, wrong, count, True)
                    for _ in range(ahead - 1):
                        expect("before that rank knew", right, count, True)
                world.Barrier()
                if not last:
                    expect(text, stream.synchronize)
                check(count)
        for _ in range(2):
            expect(ERRORS[refused], refused, count, last)
        check(count)
    print("again", flush=True)
"""


@simulated
@pytest.mark.programs
@pytest.mark.parametrize(
    "size, settings",
    [
        (2, {"SIMCUDA_DEVICES": "2"}),
        (3, {"SIMCUDA_DEVICES": "3"}),
        (4, {"SIMCUDA_DEVICES": "4"}),
        (3, {"SIMCUDA_DEVICES": "1"}),  # in pieces, as they share a GPU
        (2, {"SIMCUDA_DEVICES": "2", "SIMCUDA_IPC": "0"}),
    ],
)
def test_after_an_error_all_ways_are_good_again(tmp_path, size, settings):
    printed = ranks.run_text(tmp_path, AGAIN, ranks=size, **settings)
    assert printed.count("again") == size, printed


@pytest.mark.ranks(2)
def test_a_request_tells_what_is_wrong_with_what_has_come(fresh, stream):
    channel = fresh.on(stream)
    a = wm.ones(10, "int32")
    request = None
    if fresh.rank != LAST:
        request = channel.Iallreduce(MPI.IN_PLACE, a)
    WORLD.Barrier()
    if request is None:
        with pytest.raises(TypeError, match="contiguous GPU memory"):
            channel.Iallreduce(MPI.IN_PLACE, np.ones(3))
    else:
        with pytest.raises(RuntimeError, match=f"rank {LAST} failed"):
            request.Wait()
    a.fill_(1)
    channel.Iallreduce(MPI.IN_PLACE, a).Wait()
    assert (a.numpy() == fresh.size).all()


@pytest.mark.ranks(2)
def test_requests_of_before_tell_it_also_later(fresh, stream):
    channel = fresh.on(stream)
    a, requests = wm.ones(10, "int32"), []
    if fresh.rank != LAST:
        requests = [channel.Iallreduce(MPI.IN_PLACE, a) for _ in range(2)]
    WORLD.Barrier()
    if not requests:
        with pytest.raises(TypeError, match="contiguous GPU memory"):
            channel.Iallreduce(MPI.IN_PLACE, np.ones(3))
        with pytest.raises(RuntimeError, match="before that rank knew"):
            channel.Iallreduce(MPI.IN_PLACE, a)
    for request in requests:
        with pytest.raises(RuntimeError, match=f"rank {LAST} failed"):
            request.Wait()
    channel.Allreduce(MPI.IN_PLACE, wm.ones(10))
    for request in requests:
        request.Wait()  # its error has been told


@pytest.mark.ranks(2)
@pytest.mark.parametrize("late", [False, True], ids=["first", "late"])
def test_a_request_tells_nothing_of_later_calls(fresh, stream, late):
    """Who waits for the stream is told; what has come before is right."""
    channel = fresh.on(stream)
    a, b = wm.ones(10, "int32"), wm.ones(10, "int32")
    before = channel.Iallreduce(MPI.IN_PLACE, b)
    if fresh.rank != LAST:
        channel.Allreduce(MPI.IN_PLACE, a)
    WORLD.Barrier()
    if fresh.rank == LAST:
        with pytest.raises(TypeError):
            channel.Allreduce(MPI.IN_PLACE, np.ones(3))
    if not late:
        before.Wait()
    if fresh.rank != LAST:
        with pytest.raises(RuntimeError, match=f"rank {LAST} failed"):
            stream.synchronize()
    a.fill_(1)
    channel.Allreduce(MPI.IN_PLACE, a)
    before.Wait()
    assert (a.numpy() == fresh.size).all()
    assert (b.numpy() == fresh.size).all()


def test_what_each_rank_gets_must_be_told(fresh, stream):
    """Nobody waits on the host to hear how much the others get."""
    a, b = wm.ones(fresh.size), wm.zeros(1)
    with pytest.raises(TypeError, match="one of recvcounts for each rank"):
        fresh.on(stream).Reduce_scatter(a, b, None)
    stream.synchronize()


@pytest.mark.parametrize("name", ["Allgather", "Alltoall"])
def test_nobody_waits_for_more_than_all_give(fresh, stream, name):
    a, b = wm.ones(10 * fresh.size), wm.zeros(20 * fresh.size)
    sent = a[:10] if name == "Allgather" else a
    with pytest.raises(MPI.Exception, match="recvbuf: the block of this rank"):
        getattr(fresh.on(stream), name)(sent, b)
    stream.synchronize()


@pytest.mark.ranks(2)
def test_a_request_tells_that_counts_differ(fresh, stream):
    channel = fresh.on(stream)
    a = wm.ones(10 if fresh.rank != LAST else 20, "int32")
    with pytest.raises(ValueError, match="other counts, types, op or root"):
        channel.Iallreduce(MPI.IN_PLACE, a).Wait()
    channel.Iallreduce(MPI.IN_PLACE, wm.ones(5)).Wait()


@pytest.mark.ranks(2)
def test_a_request_tells_that_types_differ(fresh, stream):
    channel = fresh.on(stream)
    dtype = "float64" if fresh.rank != LAST else "float32"
    with pytest.raises(ValueError, match="its element type is float") as told:
        channel.Iallreduce(MPI.IN_PLACE, wm.ones(5, dtype)).Wait()
    assert "float32" in str(told.value) and "float64" in str(told.value)
    channel.Iallreduce(MPI.IN_PLACE, wm.ones(5)).Wait()


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
    """Who fails raises, the others when they wait, and then it is good."""
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
        try:
            stream.synchronize()
            values = a.numpy()
        except RuntimeError as caught:
            later = caught
        told = WORLD.allgather((repr(error), repr(later)))
        raised = [each != (repr(None), repr(None)) for each in told]
        assert len(set(raised)) == 1, (n, told)
        if not raised[0]:
            assert (values == comm.size).all(), (n, told)
        channel.Allreduce(wm.ones(1000, "int32"), a)
        assert (a.numpy() == comm.size).all(), (n, told)
        plain.Free()
        gc.collect()
        used = WORLD.bcast(used, LAST)
        n += 1 if FULL else 3
