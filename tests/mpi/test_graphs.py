# SPDX-License-Identifier: BSD-3-Clause
"""Collectives of comm.on(stream) that are captured into CUDA graphs.

A graph is replayed with other values each time, as a replay that does nothing
leaves what the one before it made.
"""

import ctypes
import gc
import os
import sys
import threading
import time

import numpy as np
import pytest
from mpi4py import MPI

import graphs
import kinds
import ranks
import warpmpi as wm
from stream_calls import CALLS, DTYPES, SIZES, Call, alltoallw_with_gaps

pytestmark = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)

FULL = 10_000 if os.environ.get("WARPMPI_TEST_FULL") else 0
SIZE = 500


@pytest.fixture(scope="module")
def comm(connected):
    return connected


def total(comm, value):
    """Of what fill() gives to each rank."""
    return value * comm.size + sum(range(comm.size))


def fill(array, comm, value):
    array.assign(np.full(array.size, value + comm.rank, array.dtype))


class Noting:
    """The calls of a channel, and what their arrays held before."""

    def __init__(self, channel):
        self.channel, self.arrays = channel, []

    def __getattr__(self, name):
        def call(*args, **kwargs):
            for argument in args:
                array = argument[0] if type(argument) is list else argument
                if isinstance(array, wm.Array):
                    self.arrays.append((array, array.numpy()))
            getattr(self.channel, name)(*args, **kwargs)

        return call

    def restore(self):
        for array, values in self.arrays:
            array.assign(values)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_values(comm, stream, call):
    """All sizes and types in one graph, also in several pieces."""
    channel, made = Noting(comm.on(stream)), []
    with graphs.capture(stream) as captured:
        for turn, size in enumerate(SIZES):
            c = Call(comm, size, DTYPES[turn], "device", turn % comm.size)
            made.append(call(c, channel))
    for _ in range(2):
        channel.restore()
        captured[0].launch(stream)
        stream.synchronize()
        for result in made:
            np.testing.assert_array_equal(result[0].numpy(), result[1])
    captured[0].free()


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_one_rank_captures_again_alone(comm, stream, call):
    """With other buffers, between replays; the others keep their graphs."""
    channel, graph = comm.on(stream), None
    for turn in range(comm.size + 1):
        if turn in (0, comm.rank + 1):
            noting, made = Noting(channel), []
            with graphs.capture(stream) as captured:
                for size, dtype in zip(SIZES, DTYPES, strict=True):
                    c = Call(comm, size, dtype, "device", size % comm.size)
                    made.append(call(c, noting))
            if graph is not None:
                graph.free()
            graph = captured[0]
        noting.restore()
        graph.launch(stream)
        stream.synchronize()
        for result in made:
            np.testing.assert_array_equal(result[0].numpy(), result[1])
    graph.free()


def check_sums_of_sums(graph, comm, stream, a, c):
    """Replays two reductions, one of the other's result, and frees them."""
    for turn in range(3):
        fill(a, comm, turn)
        graph.launch(stream)
        stream.synchronize()
        assert (c.numpy() == comm.size * total(comm, turn)).all()
    graph.free()


def test_replays(comm, stream):
    """Two graphs in turn, and eager calls between, of other lengths."""
    channel = comm.on(stream)
    a, b = wm.zeros(SIZE, "int64"), wm.zeros(SIZE, "int64")
    every, moved = wm.zeros(SIZE * comm.size, "int64"), wm.zeros(SIZE, "int64")
    long = wm.zeros(SIZES[-1], "int64")
    with graphs.capture(stream) as one:
        channel.Allreduce(a, b)
        channel.Allgather(b, every)
        moved.assign(every[-SIZE:], stream=stream)
    with graphs.capture(stream) as two:
        channel.Bcast(a, root=comm.size - 1)
        channel.Barrier()
    own = np.random.default_rng([5, comm.rank])
    both = np.random.default_rng(6)  # alike on all ranks
    for turn in range(FULL or 60):
        fill(a, comm, turn)
        moved.fill_(-1)
        one[0].launch(stream)
        if own.integers(2):
            stream.synchronize()
        two[0].launch(stream)
        if both.integers(3) == 0:
            channel.Allreduce(MPI.IN_PLACE, b)
            eager = total(comm, turn) * comm.size
        else:
            eager = total(comm, turn)
        if both.integers(40) == 0:
            channel.Allreduce(MPI.IN_PLACE, long)
        stream.synchronize()
        assert (moved.numpy() == total(comm, turn)).all(), turn
        assert (every.numpy() == total(comm, turn)).all(), turn
        assert (a.numpy() == turn + comm.size - 1).all(), turn
        assert (b.numpy() == eager).all(), turn
    for graph in one + two:
        graph.free()


def test_replays_without_a_pause(comm, stream):
    """Each takes the last one's result: none is left out, nor mixed up."""
    channel = comm.on(stream)
    a, b = wm.zeros(SIZE, "uint64"), wm.zeros(SIZE, "uint64")
    fill(a, comm, 1)
    with graphs.capture(stream) as captured:
        channel.Allreduce(a, b)
        a.assign(b, stream=stream)
        channel.Bcast(a)
    turns = FULL or 150
    for turn in range(turns):
        captured[0].launch(stream)
        if turn % 30 == 0:
            stream.synchronize()
    stream.synchronize()
    wanted = total(comm, 1) * pow(comm.size, turns - 1, 2**64) % 2**64
    assert (a.numpy() == np.uint64(wanted)).all()
    captured[0].free()


def test_one_after_the_other_is_captured_and_freed(comm, stream):
    channel = comm.on(stream)
    a, b = wm.zeros(SIZE, "int32"), wm.zeros(SIZE, "int32")
    for turn in range(8):
        with graphs.capture(stream) as captured:
            for _ in range(turn % 4 + 1):
                channel.Allreduce(a, b)
        fill(a, comm, turn)
        for _ in range(turn % 3):
            captured[0].launch(stream)
        stream.synchronize()
        if turn % 3:
            assert (b.numpy() == total(comm, turn)).all()
        captured[0].free()


@pytest.mark.parametrize(
    "mode", [graphs.GLOBAL, graphs.THREAD_LOCAL, graphs.RELAXED]
)
def test_the_first_call_may_be_captured(fresh, stream, mode):
    channel = fresh.on(stream)
    a, b = wm.zeros(SIZE, "int32"), wm.zeros(SIZE, "int32")
    with graphs.capture(stream, mode) as captured:
        channel.Allreduce(a, b)
    for turn in range(3):
        fill(a, fresh, turn)
        captured[0].launch(stream)
        stream.synchronize()
        assert (b.numpy() == total(fresh, turn)).all()
        channel.Allreduce(MPI.IN_PLACE, a)
        assert (a.numpy() == total(fresh, turn)).all()
    captured[0].free()


def test_a_thread_of_another_library_asks_the_driver(
    fresh, stream, monkeypatch
):
    """JAX's does, at any time."""
    monkeypatch.setitem(sys.modules, "jax", sys.modules.get("jax"))
    other, results = wm.Stream(stream.device), []

    def ask():
        with kinds.Current(stream.device):
            query = kinds.driver().cuStreamQuery
            results.append(query(graphs.handle(other)))

    a, b = wm.zeros(SIZE, "int32"), wm.zeros(SIZE, "int32")
    fill(a, fresh, 1)
    with graphs.capture(stream) as captured:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        fresh.on(stream).Allreduce(a, b)
    captured[0].launch(stream)
    stream.synchronize()
    assert results == [0]
    assert (b.numpy() == total(fresh, 1)).all()
    captured[0].free()


@pytest.mark.ranks(2)
def test_graphs_and_other_calls_do_not_wait_for_each_other(comm, stream):
    """Of one communicator, on two streams that nobody orders."""
    other = wm.Stream(stream.device)
    a, b = wm.zeros(SIZE, "int32"), wm.zeros(SIZE, "int32")
    c, d = wm.zeros(SIZE, "int32"), wm.zeros(SIZE, "int32")
    with graphs.capture(stream) as captured:
        comm.on(stream).Allreduce(a, b)
    for turn in range(10):
        fill(a, comm, turn)
        fill(c, comm, turn + 1)
        launched = False
        for _ in range(2):
            if launched == bool(comm.rank):
                captured[0].launch(stream)
            else:
                comm.on(other).Allreduce(c, d)
            launched = not launched
        (stream if comm.rank else other).synchronize()
        (other if comm.rank else stream).synchronize()
        assert (b.numpy() == total(comm, turn)).all()
        assert (d.numpy() == total(comm, turn + 1)).all()
    captured[0].free()


def test_streams_of_one_capture(comm, stream):
    """A communicator's calls come one after the other on these as well."""
    other = wm.Stream(stream.device)
    a, b, c = (wm.zeros(SIZE, "int32") for _ in range(3))
    with graphs.capture(stream) as captured:
        graphs.wait_for(other, stream)
        comm.on(stream).Allreduce(a, b)
        comm.on(other).Allreduce(b, c)
        graphs.wait_for(stream, other)
    check_sums_of_sums(captured[0], comm, stream, a, c)


def test_what_is_pending_elsewhere_comes_before_the_graph(comm, stream):
    size = 300_000
    a, b = wm.zeros(size, "int32"), wm.zeros(size, "int32")
    source = wm.array(np.full(size, 7, "int32"))
    foreign = kinds.make("foreign", np.zeros(size, "int32"))
    a.assign(source, blocking=False)  # on a stream of its own
    wm.asarray(foreign).assign(source, stream=foreign.stream)
    with graphs.capture(stream) as captured:
        comm.on(stream).Allreduce(a, b)
        comm.on(stream).Allreduce(foreign, a)
    captured[0].launch(stream)
    stream.synchronize()
    assert (b.numpy() == 7 * comm.size).all()
    assert (a.numpy() == 7 * comm.size).all()
    captured[0].free()


def test_copies_in_a_graph(comm, stream):
    """A stream that an array names stays out of it, unless it is in it."""
    inside = wm.Stream(stream.device)
    source = kinds.make("foreign", np.zeros(SIZE, "uint8"))
    middle = kinds.Foreign(SIZE, "uint8", "foreign", stream=inside)
    copies = [wm.zeros(SIZE, "uint8") for _ in range(3)]
    with kinds.Current(stream.device):
        graphs.call(
            "cuMemsetD8Async",
            ctypes.c_uint64(source.pointer),
            ctypes.c_ubyte(7),
            ctypes.c_size_t(SIZE),
            graphs.handle(source.stream),
        )
    with graphs.capture(stream) as captured:
        copies[0].assign(source, stream=stream)
        graphs.wait_for(inside, stream)
        wm.asarray(middle).assign(copies[0], stream=inside)
        copies[1].assign(middle, stream=stream)
        copies[2].assign(middle, stream=inside)
        graphs.wait_for(stream, inside)
    captured[0].launch(stream)
    stream.synchronize()
    for copy in copies:
        assert (copy.numpy() == 7).all()
    captured[0].free()


def test_an_array_of_another_capture(fresh, stream):
    """It cannot be in order; both captures go on."""
    array = kinds.make("foreign", np.zeros(10, "int32"))
    mine = wm.zeros(10, "int32")
    with (
        graphs.capture(array.stream, graphs.RELAXED) as other,
        graphs.capture(stream, graphs.RELAXED) as captured,
    ):
        with pytest.raises(RuntimeError, match="another graph"):
            fresh.on(stream).Bcast(array)
        fresh.on(stream).Bcast(mine)
    fill(mine, fresh, 3)
    captured[0].launch(stream)
    stream.synchronize()
    assert (mine.numpy() == 3).all()
    for graph in captured + other:
        graph.free()


def test_an_array_of_a_capture_outside_of_it(fresh, stream):
    """The stream of the call does not become a part of the capture."""
    array = kinds.make("foreign", np.zeros(10, "int32"))
    mine = wm.zeros(10, "int32")
    fresh.on(stream).Barrier()
    with graphs.capture(array.stream, graphs.RELAXED) as other:
        # A rank may hear of another one that has failed before.
        with pytest.raises(RuntimeError, match=r"captured into|\d failed"):
            fresh.on(stream).Bcast(array)
        with pytest.raises(RuntimeError, match="captured into a graph"):
            mine.assign(array, stream=stream)
        fill(mine, fresh, 3)
        fresh.on(stream).Bcast(mine)
        stream.synchronize()
        assert (mine.numpy() == 3).all()
    other[0].free()


def test_what_cannot_be_captured(fresh, stream):
    """The capture and the communicator go on; the first call asks others."""
    channel = fresh.on(stream)
    a, b = wm.zeros(SIZE, "int32"), wm.zeros(SIZE, "int32")
    last = fresh.rank == fresh.size - 1
    wrong = [
        (lambda: channel.Iallreduce(a, b), RuntimeError, "blocking call"),
        (
            lambda: channel.Allreduce(np.ones(SIZE, "int32"), b),
            TypeError,
            "sendbuf",
        ),
        (lambda: channel.Bcast(b, root=99), MPI.Exception, "root"),
    ]
    with graphs.capture(stream) as captured:
        for call, error, text in wrong:  # the first of the communicator
            if last:
                with pytest.raises(error, match=text):
                    call()
            else:
                with pytest.raises(wm.CudaError, match="failed in this coll"):
                    channel.Allreduce(a, b)
        for call, error, text in wrong:
            channel.Allreduce(a, b)
            if last:
                with pytest.raises(error, match=text):
                    call()
    for turn in range(3):
        fill(a, fresh, turn)
        captured[0].launch(stream)
        stream.synchronize()
        assert (b.numpy() == total(fresh, turn)).all()
    captured[0].free()


DIFFER = {
    "calls": (lambda ch, a: ch.Barrier(), TypeError, "Barrier|Allreduce"),
    "counts": (
        lambda ch, a: ch.Allreduce(MPI.IN_PLACE, a[:-1]),
        ValueError,
        "other counts, types, op or root",
    ),
    "op": (
        lambda ch, a: ch.Allreduce(MPI.IN_PLACE, a, op=MPI.MAX),
        ValueError,
        "other counts, types, op or root",
    ),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", list(DIFFER))
def test_ranks_that_capture_what_differs(fresh, stream, name):
    """They raise when they capture it, and may go on."""
    channel, a = fresh.on(stream), wm.zeros(SIZE, "int32")
    call, error, text = DIFFER[name]
    with graphs.capture(stream) as captured:
        with pytest.raises(error, match=text):
            if fresh.rank == 1:
                call(channel, a)
            else:
                channel.Allreduce(MPI.IN_PLACE, a)
        channel.Allreduce(MPI.IN_PLACE, a)
    fill(a, fresh, 5)
    captured[0].launch(stream)
    stream.synchronize()
    assert (a.numpy() == total(fresh, 5)).all()
    captured[0].free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("ahead", [1, 3])
@pytest.mark.parametrize("captures", ["first", "last"])
def test_one_captures_what_another_calls(fresh, stream, ahead, captures):
    """The first time: neither waits in vain, all raise, and may go on."""
    channel, a = fresh.on(stream), wm.zeros(SIZE, "int32")
    own = fresh.rank == (0 if captures == "first" else fresh.size - 1)
    channel.Barrier()
    stream.synchronize()
    told = "captured Allreduce into a graph, and this rank"
    if own:
        with graphs.capture(stream) as captured:
            text = "without a capture: all must"
            with pytest.raises(RuntimeError, match=text):
                channel.Allreduce(MPI.IN_PLACE, a)
        captured[0].free()
    else:
        for _ in range(ahead):
            try:
                channel.Allreduce(MPI.IN_PLACE, a)
            except RuntimeError as error:
                assert told in str(error)
                break
        else:
            with pytest.raises(RuntimeError, match=told):
                stream.synchronize()
    if ahead > 1:
        return  # how many of these were made nobody knows
    b = wm.zeros(SIZE, "int32")
    for _ in "behind it", "behind a call":
        for _ in range(2):
            with graphs.capture(stream) as captured:
                channel.Allreduce(MPI.IN_PLACE, a)
            fill(a, fresh, 5)
            captured[0].launch(stream)
            stream.synchronize()
            assert (a.numpy() == total(fresh, 5)).all()
            captured[0].free()
        fill(a, fresh, 7)
        channel.Allreduce(a, b)
        stream.synchronize()
        assert (b.numpy() == total(fresh, 7)).all()


def test_two_communicators_in_a_graph_that_is_captured_again(
    comm, fresh, stream
):
    """Each rank captures it another number of times."""
    a, b, c = (wm.zeros(SIZE, "int64") for _ in range(3))
    for _ in range(comm.rank + 1):
        with graphs.capture(stream) as captured:
            comm.on(stream).Allreduce(a, b)
            fresh.on(stream).Allreduce(b, c)
            comm.on(stream).Barrier()
    check_sums_of_sums(captured[0], comm, stream, a, c)


@pytest.mark.parametrize("before", ["graphs", "both"])
def test_a_capture_meets_nobody(fresh, stream, before):
    """Other ranks make other calls meanwhile, or none."""
    channel, other = fresh.on(stream), fresh.on(wm.Stream(stream.device))
    a, b = wm.zeros(SIZE, "int32"), wm.zeros(SIZE, "int32")
    if before == "both":
        channel.Barrier()
    with graphs.capture(stream) as captured:
        channel.Allreduce(a, b)
    for turn in range(2 * fresh.size):
        if turn % fresh.size == fresh.rank:
            with graphs.capture(stream) as unused:
                channel.Bcast(b)
            unused[0].free()  # never launched
            captured[0].free()
            with graphs.capture(stream) as captured:
                channel.Allreduce(a, b)
        other.Barrier()
        fill(a, fresh, turn)
        captured[0].launch(stream)
        stream.synchronize()
        assert (b.numpy() == total(fresh, turn)).all()
    captured[0].free()


@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
@pytest.mark.parametrize("name", ["LaunchKernel", "StreamBatchMemOp"])
def test_a_capture_that_fails_on_one_rank(fresh, stream, fail, name):
    """This one raises, and all may capture once more."""
    if name == "StreamBatchMemOp" and fresh.size <= wm.get_cuda_device_count():
        pytest.skip("where each rank has a GPU, kernels meet, not streams")
    channel = fresh.on(stream)
    a, b = wm.zeros(SIZE, "int32"), wm.zeros(SIZE, "int32")
    with graphs.capture(stream) as captured:
        channel.Allreduce(a, b)
    captured[0].free()
    with graphs.capture(stream) as captured:
        if fresh.rank == fresh.size - 1:
            fail(name)
            with pytest.raises(wm.CudaError):
                channel.Allreduce(a, b)
        else:
            channel.Allreduce(a, b)
    captured[0].free()
    with graphs.capture(stream) as captured:
        channel.Allreduce(a, b)
    for turn in range(3):
        fill(a, fresh, turn)
        captured[0].launch(stream)
        stream.synchronize()
        assert (b.numpy() == total(fresh, turn)).all()
        channel.Barrier()  # nor are other calls the worse for it
    stream.synchronize()
    captured[0].free()


def refuse_argument(channel, a, fail):
    with pytest.raises(TypeError, match="sendbuf"):
        channel.Allreduce(np.ones(SIZE, "int32"), a)


def refuse_launch(channel, a, fail):
    fail("LaunchKernel")
    with pytest.raises(wm.CudaError):
        channel.Allreduce(MPI.IN_PLACE, a)


REFUSED = {"argument": refuse_argument, "launch": refuse_launch}


def wait_for_error(stream, text):
    with pytest.raises(RuntimeError, match=text):
        for _ in range(200):
            stream.synchronize()
            time.sleep(0.1)


@pytest.mark.ranks(2)
@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
@pytest.mark.parametrize("launches", [False, True], ids=["not", "launched"])
@pytest.mark.parametrize("how", REFUSED)
def test_a_refused_call_ends_the_waits_of_others(
    fresh, stream, fail, how, launches
):
    """Whether the rank launches its graph, which lacks the call, or not.

    Or has captured more graphs before, as it may, alone.
    """
    channel, a = fresh.on(stream), wm.zeros(SIZE, "int32")
    refuses = fresh.rank == fresh.size - 1
    for _ in range(3 if refuses and launches else 1):
        with graphs.capture(stream) as captured:
            channel.Allreduce(MPI.IN_PLACE, a)
        captured[0].free()
    with graphs.capture(stream) as captured:
        if refuses:
            REFUSED[how](channel, a, fail)
        else:
            channel.Allreduce(MPI.IN_PLACE, a)
    MPI.COMM_WORLD.Barrier()  # all have captured
    if launches or not refuses:
        captured[0].launch(stream)
    wait_for_error(stream, "refused when it was captured")
    captured[0].free()
    with pytest.raises(RuntimeError, match="no more calls on streams"):
        channel.Allreduce(MPI.IN_PLACE, a)
    other = MPI.COMM_WORLD.Dup()  # another communicator goes on
    wm.Comm(other).on(stream).Allreduce(MPI.IN_PLACE, a)
    stream.synchronize()
    other.Free()


@pytest.mark.ranks(2)
def test_an_older_graph_outlives_a_refused_call(fresh, stream):
    """It lacks no call: a rank may be late in it, longer than one captures."""
    plain = MPI.COMM_WORLD.Dup()
    refuses, a = fresh.rank == fresh.size - 1, wm.zeros(SIZE, "int32")
    calls = [  # where kernels wait, and streams
        (fresh, stream, lambda channel: channel.Allreduce(MPI.IN_PLACE, a)),
        (wm.Comm(plain), wm.Stream(stream.device), lambda on: on.Barrier()),
    ]
    older, unused = [], []
    for comm, own, call in calls:
        with graphs.capture(own) as captured:
            call(comm.on(own))
        older += captured
        with graphs.capture(own) as captured:
            if refuses:
                refuse_argument(comm.on(own), a, None)
            else:
                call(comm.on(own))
        unused += captured
    MPI.COMM_WORLD.Barrier()  # all have captured
    if refuses:
        time.sleep(2.7)
    for turn in range(2):
        fill(a, fresh, turn)
        for graph, (_, own, _) in zip(older, calls, strict=True):
            graph.launch(own)
        for _, own, _ in calls:
            own.synchronize()
        assert (a.numpy() == total(fresh, turn)).all()
    for graph in older + unused:
        graph.free()
    plain.Free()


@pytest.mark.ranks(2)
@pytest.mark.long
@pytest.mark.parametrize("alone", [False, True], ids=["all", "again"])
def test_a_late_launch_after_a_refused_call(fresh, stream, alone):
    """Nothing fails if all refused it, or if the rank has captured again."""
    channel, a = fresh.on(stream), wm.zeros(SIZE, "int32")
    late = fresh.rank == fresh.size - 1
    with graphs.capture(stream) as first:
        channel.Allreduce(MPI.IN_PLACE, a)
    with graphs.capture(stream) as captured:
        if late or not alone:
            refuse_argument(channel, a, None)
    captured[0].free()
    if alone:
        first[0].free()
        with graphs.capture(stream) as first:
            channel.Allreduce(MPI.IN_PLACE, a)
    if late:
        time.sleep(5)
    first[0].launch(stream)
    stream.synchronize()
    first[0].free()


def test_a_capture_that_is_spoilt_on_one_rank(fresh, stream):
    """This one raises, and the others never hear of it."""
    channel = fresh.on(stream)
    a, b = wm.zeros(SIZE, "int32"), wm.zeros(SIZE, "int32")
    with graphs.capture(stream) as captured:
        channel.Allreduce(a, b)
    captured[0].free()
    channel.Barrier()
    stream.synchronize()
    if fresh.rank == fresh.size - 1:
        with graphs.spoilt(stream):
            for call in channel.Allreduce, channel.Iallreduce:
                with pytest.raises(RuntimeError, match="end the capture"):
                    call(a, b)
    for turn in range(3):
        fill(a, fresh, turn)
        channel.Allreduce(a, b)
        stream.synchronize()
        assert (b.numpy() == total(fresh, turn)).all()


@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
def test_a_default_stream_beside_a_capture(fresh):
    """Nothing can be given to it, and the capture goes on."""
    a, b = wm.zeros(SIZE, "int32"), wm.zeros(SIZE, "int32")
    with graphs.blocking_stream(wm.get_device()) as blocking:
        with graphs.capture(blocking) as captured:
            with pytest.raises(RuntimeError, match="default stream"):
                fresh.on(wm.Stream(cuda_stream=0)).Allreduce(a, b)
            fresh.on(blocking).Allreduce(a, b)
        fill(a, fresh, 1)
        captured[0].launch(blocking)
        blocking.synchronize()
        assert (b.numpy() == total(fresh, 1)).all()
        captured[0].free()


def test_other_calls_while_a_stream_is_captured(fresh, stream):
    """Which may take memory and wait, and are in no graph."""
    a, b = wm.zeros(SIZE, "int32"), wm.zeros(SIZE, "int32")
    other = (fresh.rank + 1) % fresh.size
    before = (fresh.rank - 1) % fresh.size
    with graphs.capture(stream) as captured:
        for size in (SIZE, 500_000):
            sent = wm.array(np.full(size, fresh.rank, "int32"))
            received = wm.empty(size, "int32")
            fresh.Sendrecv(sent, other, 0, received, before, 0)
            assert (received.numpy() == before).all()
            fresh.Allreduce(MPI.IN_PLACE, received)
            fresh.on(stream).Allreduce(a, b)
            request = fresh.Iallreduce(sent, received)
            request.Wait()
            assert (received.numpy() == total(fresh, 0)).all()
            del sent, received
        eager = wm.Stream(stream.device)
        fresh.on(eager).Barrier()
        eager.synchronize()
        fresh.Barrier()
        assert (b.numpy() == 0).all()
    fill(a, fresh, 2)
    captured[0].launch(stream)
    stream.synchronize()
    assert (b.numpy() == total(fresh, 2)).all()
    captured[0].free()


def test_they_are_counted_when_they_are_captured(comm, stream):
    before = wm.stats()["ipc_collectives"]
    with graphs.capture(stream) as captured:
        for _ in range(3):
            comm.on(stream).Barrier()
    assert wm.stats()["ipc_collectives"] == before + 3
    captured[0].launch(stream)
    stream.synchronize()
    assert wm.stats()["ipc_collectives"] == before + 3
    captured[0].free()


CHECKED = """
    import sys
    from mpi4py import MPI
    import graphs
    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    stream = wm.Stream(wm.get_device())
    channel, a, b = comm.on(stream), wm.zeros(1000, "i4"), wm.zeros(1000, "i4")

    def make(*calls):
        with graphs.capture(stream) as made:
            for call in calls:
                call()
        return made[0]

    def add(op=MPI.SUM, size=1000):
        channel.Allreduce(a[:size], b[:size], op=op)

    def copy(root=0):
        channel.Bcast(a, root=root)

    make(channel.Barrier).free()
    one, other = {
        "none": ([add, copy], [add, copy]),
        "ops": ([copy, add], [copy, lambda: add(MPI.MAX)]),
        "counts": ([copy, add], [copy, lambda: add(size=900)]),
        "roots": ([add, copy], [add, lambda: copy(1)]),
        "calls": ([add, copy], [copy, add]),
        "numbers": ([add, copy], [add]),
    }[sys.argv[1]]
    graph = make(*(one if comm.rank == 0 else other))
    raised = 0
    try:
        for _ in range(3):
            graph.launch(stream)
        stream.synchronize()
    except RuntimeError as error:
        raised += 1
        assert "different collectives of CUDA graphs" in str(error), error
        stream.synchronize()  # it is raised once
        for again in (lambda: make(add), add):  # none goes on
            try:
                again()
            except RuntimeError as error:
                assert "different collectives" in str(error), error
                raised += 1
    print("raised", raised)
    graph.free()
"""


@pytest.mark.programs
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(
    "what", ["none", "ops", "counts", "roots", "calls", "numbers"]
)
def test_checked_replays(tmp_path, what, count):
    """Ranks whose graphs have other calls are told which, in all waits."""
    printed = ranks.run_text(
        tmp_path, CHECKED, what, ranks=count, WARPMPI_CHECK="1"
    )
    told = "raised 0" if what == "none" else "raised 3"
    assert printed.splitlines() == [told] * count


def test_copies_go_with_their_graph(comm, stream):
    """Of data with gaps, which a program may capture again and again."""
    used = []
    for _ in range(6):
        gc.collect()
        used.append(kinds.blocks())
        c = Call(comm, SIZE, "int32", "device", 0)
        noting = Noting(comm.on(stream))
        with graphs.capture(stream) as captured:
            result = alltoallw_with_gaps(c, noting)
        noting.restore()
        captured[0].launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(result[0].numpy(), result[1])
        captured[0].free()
        del noting, result
    assert kinds.are_freed(used[2])


def test_copies_go_without_another_capture(comm, stream):
    for _ in range(2):
        gc.collect()
        used = kinds.blocks()
        c = Call(comm, SIZE, "int32", "device", 0)
        with graphs.capture(stream) as captured:
            result = alltoallw_with_gaps(c, comm.on(stream))
        captured[0].free()
        comm.Barrier()
        del c, result
        gc.collect()
    # The progress threads free them, each in its time.
    while comm.allreduce(kinds.blocks() > used, MPI.MAX):
        pass


def test_nothing_is_left(comm):
    """Symmetric memory of graphs goes with its communicator."""
    for _ in range(3):
        gc.collect()
        plain = MPI.COMM_WORLD.Dup()
        own = wm.Comm(plain)
        before = kinds.blocks()
        stream = wm.Stream(wm.get_device())
        a = wm.ones(100, "int32")
        with graphs.capture(stream) as captured:
            own.on(stream).Allreduce(MPI.IN_PLACE, a)
        captured[0].launch(stream)
        stream.synchronize()
        captured[0].free()
        MPI.COMM_WORLD.Barrier()
        plain.Free()
        del own, a, stream
        gc.collect()
        wm.Comm(MPI.COMM_SELF)  # what is not used goes now
        assert kinds.blocks() <= before
