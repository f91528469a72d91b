# SPDX-License-Identifier: BSD-3-Clause
"""Messages of comm.on(stream) that are captured into CUDA graphs.

A graph is replayed with other values each time, as a replay that does nothing
leaves what the one before it made.
"""

import ctypes
import gc
import threading
import time
import weakref

import numpy as np
import pytest
from mpi4py import MPI

import graphs
import kinds
import ranks
import warpmpi as wm

pytestmark = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)

NOT_READY = 600  # CUDA's
MPS_ENABLED = 133  # an attribute of a device
SIZES = (0, 1, 8, 100, 4096, 65536, 65537, 1 << 20)


@pytest.fixture(scope="module")
def pair_of_ranks(connected):
    """A plain communicator of two ranks, whose kernels can wait together."""
    plain = MPI.COMM_WORLD.Split(connected.rank // 2)
    device, shared = wm.get_device(), ctypes.c_int()
    kinds.driver().cuDeviceGetAttribute(
        ctypes.byref(shared), MPS_ENABLED, device.ordinal
    )
    gpus = connected.allgather(None if shared.value else device.uuid)
    for i in range(0, connected.size - 1, 2):
        if gpus[i] is not None and gpus[i] == gpus[i + 1]:
            pytest.skip("two ranks share a GPU without MPS")
    yield plain
    plain.Free()


@pytest.fixture(scope="module")
def comm(pair_of_ranks):
    return wm.Comm(pair_of_ranks)


@pytest.fixture
def fresh(pair_of_ranks):
    """A communicator of its own, whose errors no other test gets."""
    plain = pair_of_ranks.Dup()
    yield wm.Comm(plain)
    plain.Free()


def values(size, turn, rank):
    return np.random.default_rng([size, turn, rank]).integers(
        0, 256, size, np.uint8
    )


@pytest.mark.ranks(2)
@pytest.mark.parametrize("size", SIZES)
def test_both_ways(comm, stream, size):
    """Each of two ranks sends and receives in one graph."""
    other, channel = 1 - comm.rank, comm.on(stream)
    a, b = wm.zeros(size, "u1"), wm.zeros(size, "u1")
    requests = [channel.Recv_init(b, other, 3), channel.Send_init(a, other, 3)]
    with graphs.capture(stream) as captured:
        wm.Prequest.Startall(requests)
        wm.Request.Waitall(requests)
    for turn in range(5):
        a.assign(values(size, turn, comm.rank))
        b.fill_(0)
        captured[0].launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(b.numpy(), values(size, turn, other))
    captured[0].free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("size", SIZES)
def test_there_and_back(comm, stream, size):
    """What comes is sent back, several times in a graph."""
    channel = comm.on(stream)
    a, b = wm.zeros(size, "u1"), wm.zeros(size, "u1")
    there, back = channel.Send_init(a, 1), channel.Recv_init(b, 1)
    if comm.rank == 1:
        there, back = channel.Recv_init(b, 0), channel.Send_init(b, 0)
    with graphs.capture(stream) as captured:
        for _ in range(3):
            there.Start()
            there.Wait()
            back.Start()
            back.Wait()
    for turn in range(4):
        a.assign(values(size, turn, 0))
        b.fill_(0)
        captured[0].launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(b.numpy(), values(size, turn, 0))
    captured[0].free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("size", [8, 65536, 1 << 18])
def test_replays_without_a_pause(comm, stream, size):
    """Each takes the last one's result: none is left out, nor mixed up."""
    other, channel = 1 - comm.rank, comm.on(stream)
    a, b = wm.zeros(size, "u1"), wm.zeros(size, "u1")
    requests = [channel.Recv_init(b, other), channel.Send_init(a, other)]
    mine, theirs = (values(size, 0, rank) for rank in (comm.rank, other))
    with graphs.capture(stream) as captured:
        wm.Prequest.Startall(requests)
        wm.Request.Waitall(requests)
        a.assign(b, stream=stream)
    a.assign(mine)
    for turn in range(1, 60):
        captured[0].launch(stream)
        if turn % 20 == 0:
            stream.synchronize()
            wanted = mine if turn % 2 == 0 else theirs
            np.testing.assert_array_equal(a.numpy(), wanted)
    stream.synchronize()
    captured[0].free()


@pytest.mark.ranks(2)
def test_many_messages_of_a_graph(comm, stream):
    """Ends of one kernel wait for those of another in any order."""
    other, channel = 1 - comm.rank, comm.on(stream)
    sizes = [8, 70_000, 3, 65_536, 200_000] * 4
    sent = [wm.zeros(size, "u1") for size in sizes]
    received = [wm.zeros(size, "u1") for size in sizes]
    sends = [channel.Send_init(a, other, i) for i, a in enumerate(sent)]
    receives = [channel.Recv_init(b, other, i) for i, b in enumerate(received)]
    if comm.rank:
        sends.reverse()
    with graphs.capture(stream) as captured:
        wm.Prequest.Startall(receives + sends)
        wm.Request.Waitall(receives + sends)
    for turn in range(3):
        for i, a in enumerate(sent):
            a.assign(values(sizes[i], turn + i, comm.rank))
            received[i].fill_(0)
        captured[0].launch(stream)
        stream.synchronize()
        for i, b in enumerate(received):
            np.testing.assert_array_equal(
                b.numpy(), values(sizes[i], turn + i, other)
            )
    captured[0].free()


CALLS = {
    "Sendrecv": lambda ch, a, b, other: ch.Sendrecv(a, other, 1, b, other, 1),
    "Isend": lambda ch, a, b, other: wm.Request.Waitall(
        [ch.Irecv(b, other, 1), ch.Isend(a, other, 1)]
    ),
    "Send": lambda ch, a, b, other: (
        (ch.Send(a, other), ch.Recv(b, other))
        if other
        else (ch.Recv(b, other), ch.Send(a, other))
    ),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("size", [8, 70_000])
@pytest.mark.parametrize("name", list(CALLS))
def test_plain_calls(comm, stream, name, size):
    """They meet in the background, and are sent again in each replay."""
    other, channel = 1 - comm.rank, comm.on(stream)
    a, b = wm.zeros(size, "u1"), wm.zeros(size, "u1")
    with graphs.capture(stream) as captured:
        for _ in range(2):
            CALLS[name](channel, a, b, other)
            CALLS[name](channel, b, a, other)
    for turn in range(3):
        a.assign(values(size, turn, comm.rank))
        b.fill_(0)
        captured[0].launch(stream)
        stream.synchronize()
        wanted = values(size, turn, comm.rank)
        np.testing.assert_array_equal(a.numpy(), wanted)
        np.testing.assert_array_equal(b.numpy(), values(size, turn, other))
    captured[0].free()


@pytest.mark.ranks(2)
def test_sendrecv_of_the_same_memory(comm, stream):
    other, channel = 1 - comm.rank, comm.on(stream)
    a, long = wm.zeros(1000, "u1"), wm.zeros(70_000, "u1")
    with graphs.capture(stream) as captured:
        channel.Sendrecv_replace(a, other, 0, other, 0)
        with pytest.raises(ValueError, match="send a copy"):
            channel.Sendrecv_replace(long, other, 0, other, 0)
    a.assign(values(1000, 0, comm.rank))
    captured[0].launch(stream)
    stream.synchronize()
    np.testing.assert_array_equal(a.numpy(), values(1000, 0, other))
    captured[0].free()


@pytest.mark.ranks(2)
def test_the_replay_comes_before_the_other_rank_captures(comm, stream):
    """The first replay waits until the ends have met.

    To map memory meanwhile does not wait for the kernel.
    """
    other, channel = 1 - comm.rank, comm.on(stream)
    a, b = wm.zeros(100, "u1"), wm.zeros(100, "u1")
    long = 20 << 20  # of its own allocation, which nobody has mapped yet
    for first in (0, 1):
        c, d = wm.zeros(long, "u1"), wm.zeros(long, "u1")
        if comm.rank == 1 - first:
            comm.recv(source=first)
        with graphs.capture(stream) as captured:
            channel.Sendrecv(a, other, 0, b, other, 0)
            channel.Sendrecv(c, other, 0, d, other, 0)
        a.assign(values(100, first, comm.rank))
        c.fill_(10 * first + comm.rank)
        captured[0].launch(stream)
        if comm.rank == first:
            comm.send(None, 1 - first)
        stream.synchronize()
        np.testing.assert_array_equal(b.numpy(), values(100, first, other))
        assert (d.numpy() == 10 * first + other).all()
        captured[0].free()


@pytest.mark.ranks(2)
def test_wildcards(comm, stream):
    """They are resolved once, and stay."""
    channel = comm.on(stream)
    arrays = [wm.zeros(10 + i, "u1") for i in range(3)]
    with graphs.capture(stream) as captured:
        for i, array in enumerate(arrays):
            if comm.rank == 0:
                channel.Send(array, 1, 5 + i)
            else:
                channel.Recv(array)
    for turn in range(3):
        for i, array in enumerate(arrays):
            array.assign(values(10 + i, turn, comm.rank))
        captured[0].launch(stream)
        stream.synchronize()
        for i, array in enumerate(arrays):
            np.testing.assert_array_equal(
                array.numpy(), values(10 + i, turn, 0)
            )
    captured[0].free()


def pair(comm, stream, size):
    """A graph in which each of two ranks sends and receives."""
    other, channel = 1 - comm.rank, comm.on(stream)
    a, b = wm.zeros(size, "u1"), wm.zeros(size, "u1")
    requests = [channel.Recv_init(b, other), channel.Send_init(a, other)]
    with graphs.capture(stream) as captured:
        wm.Prequest.Startall(requests)
        wm.Request.Waitall(requests)
    return captured[0], requests, a, b


@pytest.mark.ranks(2)
@pytest.mark.parametrize("size", [100, 100_000])
def test_a_replay_after_free_is_an_error(fresh, stream, size):
    """It ends, and moves nothing; so does that of the other end."""
    graph, requests, a, b = pair(fresh, stream, size)
    for turn in range(2):
        a.assign(values(size, turn, fresh.rank))
        graph.launch(stream)
        stream.synchronize()
    fresh.Barrier()
    if fresh.rank == 0:
        for request in requests:
            request.Free()
    fresh.Barrier()
    b.fill_(7)
    graph.launch(stream)
    text = "was freed" if fresh.rank == 0 else "its other end has freed"
    with pytest.raises(RuntimeError, match=text):
        stream.synchronize()
    assert (b.numpy() == 7).all()
    graph.free()
    fresh.Barrier()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("size", [100, 100_000])
def test_free_waits_for_a_message_under_way(comm, stream, size):
    """The sender comes when the receiver is about to free its request."""
    channel, a = comm.on(stream), wm.zeros(size, "u1")
    make = channel.Recv_init if comm.rank else channel.Send_init
    request = make(a, 1 - comm.rank)
    with graphs.capture(stream) as captured:
        request.Start()
        request.Wait()
    if comm.rank == 0:
        a.assign(values(size, 0, 0))
        comm.recv(source=1)
        captured[0].launch(stream)
    else:
        captured[0].launch(stream)
        comm.send(None, 0)
        request.Free()
    stream.synchronize()
    np.testing.assert_array_equal(a.numpy(), values(size, 0, 0))
    comm.Barrier()
    captured[0].free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("size", [100, 65_536, 100_000, 5_000_000])
def test_free_while_a_replay_begins(fresh, stream, size):
    """The message comes, or both ranks raise; no byte beyond is written."""
    other, channel = 1 - fresh.rank, fresh.on(stream)
    for turn in range(6):
        a, room = wm.full(size, turn, "u1"), wm.full(size + 4096, 99, "u1")
        b = room[:size]
        requests = [channel.Recv_init(b, other), channel.Send_init(a, other)]
        with graphs.capture(stream) as captured:
            wm.Prequest.Startall(requests)
            wm.Request.Waitall(requests)
        for _ in range(turn % 2):
            captured[0].launch(stream)
        stream.synchronize()
        fresh.Barrier()
        captured[0].launch(stream)
        if turn // 2 % 2 == fresh.rank:
            requests[turn % 2].Free()
        failed = False
        try:
            stream.synchronize()
        except RuntimeError:
            failed = True
        got = room.numpy()
        assert (got[size:] == 99).all()
        assert failed or (got[:size] == turn).all()
        captured[0].free()
        fresh.Barrier()


@pytest.mark.ranks(2)
def test_a_graph_keeps_its_messages(comm, stream):
    """Also where the program has dropped requests and arrays."""
    size = 5000
    graph, requests, a, b = pair(comm, stream, size)
    result = wm.zeros(size, "u1")
    with graphs.capture(stream) as second:
        a.assign(result, stream=stream)
        wm.Prequest.Startall(requests)
        wm.Request.Waitall(requests)
        result.assign(b, stream=stream)
    graph.free()
    del requests, a, b
    gc.collect()
    for turn in range(3):
        result.assign(values(size, turn, comm.rank))
        second[0].launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(
            result.numpy(), values(size, turn, 1 - comm.rank)
        )
    second[0].free()
    comm.Barrier()


@pytest.mark.ranks(2)
def test_nothing_is_left(comm, stream):
    """Memory goes when neither graph nor request has it, on both ranks."""
    before = kinds.blocks()
    for turn in range(12):
        graph, requests, a, b = pair(comm, stream, 70_000)
        if turn % 2:
            graph.launch(stream)
            stream.synchronize()
        graph.free()
        if turn % 3:
            for request in requests:
                request.Free()
        del requests, a, b
        gc.collect()
        comm.Barrier()
    # What the other rank has closed goes at the next message.
    assert kinds.are_freed(before + 6)


@pytest.mark.ranks(2)
def test_a_communicator_is_freed(comm, pair_of_ranks, stream):
    plain = pair_of_ranks.Dup()
    own = wm.Comm(plain)
    graph, requests, _a, b = pair(own, stream, 1000)
    graph.launch(stream)
    stream.synchronize()
    plain.Free()
    b.fill_(7)
    graph.launch(stream)
    with pytest.raises(RuntimeError, match="was freed"):
        stream.synchronize()
    assert (b.numpy() == 7).all()
    graph.free()
    del requests
    comm.Barrier()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("first", ["receive", "send", "third"])
def test_a_wait_serves_the_sends_before_it(comm, stream, first):
    """Each rank waits for one message, whose sender waits likewise."""
    size, other, channel = 100_000, 1 - comm.rank, comm.on(stream)
    a, b, c = (wm.zeros(size, "u1") for _ in range(3))
    send, receive = channel.Send_init(a, other), channel.Recv_init(b, other)
    token = wm.zeros(1, "u1")
    with graphs.capture(stream) as captured:
        send.Start()
        if first == "third":
            # Rank 0 sends this after it has waited, rank 1 needs it before.
            if comm.rank == 1:
                channel.Recv(token, 0, 9)
                receive.Start()
                receive.Wait()
                send.Wait()
            else:
                receive.Start()
                channel.Send(token, 1, 9)
                receive.Wait()
                send.Wait()
        else:
            receive.Start()
            requests = [receive, send]
            for request in requests if first == "receive" else requests[::-1]:
                request.Wait()
        c.assign(b, stream=stream)
    for turn in range(3):
        a.assign(values(size, turn, comm.rank))
        captured[0].launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(c.numpy(), values(size, turn, other))
    captured[0].free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("size", [100, 100_000])
def test_a_synchronous_send_awaits_its_receiver(comm, stream, size):
    """The sender's stream goes on when the receiver's has come."""
    channel, a = comm.on(stream), wm.zeros(size, "u1")
    with graphs.capture(stream) as captured:
        if comm.rank == 0:
            channel.Ssend(a, 1)
        else:
            channel.Recv(a, 0)
    for turn in range(2):
        if comm.rank == 0:
            a.assign(values(size, turn, 0))
            captured[0].launch(stream)
            with kinds.Current(stream.device):
                query = kinds.driver().cuStreamQuery
                assert query(graphs.handle(stream)) == NOT_READY
            comm.send(None, 1)
        else:
            comm.recv(source=0)
            captured[0].launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(a.numpy(), values(size, turn, 0))
    captured[0].free()


@pytest.mark.parametrize("end", ["receive", "long send"])
@pytest.mark.parametrize("then", ["replay", "capture"])
def test_a_start_without_a_wait(fresh, stream, end, then):
    """The next call says so, once; the request can be captured again."""
    channel, a = fresh.on(stream), wm.zeros(70_000, "u1")
    make = channel.Recv_init if end == "receive" else channel.Send_init
    request = make(a, fresh.rank, 5)
    with graphs.capture(stream) as captured:
        request.Start()
        if then == "capture":
            stream_of_other = wm.Stream(stream.device)
            stream_of_other.synchronize()  # the capture goes on
    if then == "replay":
        captured[0].launch(stream)
        with pytest.raises(RuntimeError, match="and not waited for"):
            stream.synchronize()
        with pytest.raises(RuntimeError, match="outside of it"):
            request.Wait()
    with graphs.capture(stream) as again:
        if then == "capture":
            with pytest.raises(RuntimeError, match="and not waited for"):
                request.Start()
        request.Start()
        request.Wait()
    stream.synchronize()
    again[0].free()
    captured[0].free()


def test_a_capture_that_fails_is_no_start(fresh, stream):
    request = fresh.on(stream).Recv_init(wm.zeros(8, "u1"), fresh.rank)
    with graphs.capture(stream) as captured:
        request.Start()
    captured[0].free()
    stream.synchronize()
    with graphs.capture(stream) as captured:
        request.Start()
        request.Wait()
    stream.synchronize()
    captured[0].free()


@pytest.mark.parametrize("others", [0, 1])
def test_a_capture_that_is_spoilt_is_no_start(fresh, stream, others):
    """The driver may tell late that no graph has come of it."""
    request = fresh.on(stream).Recv_init(wm.zeros(8, "u1"), fresh.rank)
    made = []
    for _ in range(others):
        with graphs.capture(stream) as captured:
            request.Start()
            request.Wait()
        made += captured
    with kinds.uncollected():
        graphs.begin(stream)
        request.Start()
        with kinds.Current(stream.device):
            query = kinds.driver().cuStreamQuery
            assert query(graphs.handle(stream)) != 0
        assert graphs.end(stream)[0] != 0
    with graphs.capture(stream) as captured:
        request.Start()
        request.Wait()
    stream.synchronize()
    for graph in made + captured:
        graph.free()


def test_threads_free_communicators_and_graphs(comm, pair_of_ranks, stream):
    """Ends of one are closed while another thread drops its own."""
    stop = threading.Event()

    def run():
        own = wm.Stream(stream.device)
        a = wm.zeros(100, "u1")
        while not stop.is_set():
            with graphs.capture(own, graphs.THREAD_LOCAL) as captured:
                comm.on(own).Sendrecv(a, comm.rank, 0, a, comm.rank, 0)
            captured[0].free()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        for turn in range(20):
            plain = pair_of_ranks.Dup()
            own = wm.Comm(plain)
            a = wm.zeros(100, "u1")
            with graphs.capture(stream, graphs.THREAD_LOCAL) as captured:
                own.on(stream).Sendrecv(a, own.rank, 0, a, own.rank, 0)
            captured[0].launch(stream)
            stream.synchronize()
            if turn % 2:
                captured[0].free()
            plain.Free()
            if turn % 2 == 0:
                captured[0].free()
    finally:
        stop.set()
        thread.join()


def test_nobody_outlives_the_communicator(comm, pair_of_ranks, stream):
    """A graph at an edge of a grid is there when the communicator is not."""
    made = []
    for _ in range(20):
        plain = pair_of_ranks.Dup()
        a = wm.zeros(100, "u1")
        with graphs.capture(stream) as captured:
            wm.Comm(plain).on(stream).Send(a, MPI.PROC_NULL)
        made.append(captured[0])
        plain.Free()
        pair_of_ranks.Dup().Free()
    for graph in made:
        graph.launch(stream)
        stream.synchronize()
        graph.free()
    comm.Barrier()


class Owned:
    """An array of a stream, whose owner tells when it is gone."""

    def __init__(self, array, stream):
        self.array = array
        self.__cuda_array_interface__ = {
            **array.__cuda_array_interface__,
            "stream": graphs.handle(stream).value,
        }


def test_a_graph_that_is_gone_gives_its_array_back(comm, stream):
    """The next wait for a stream does, without another captured call."""
    owner = Owned(wm.zeros(100, "u1"), stream)
    gone = weakref.ref(owner)
    with graphs.capture(stream) as captured:
        comm.on(stream).Sendrecv(owner, comm.rank, 0, owner, comm.rank, 0)
    captured[0].launch(stream)
    stream.synchronize()
    del owner
    gc.collect()
    assert gone() is not None
    captured[0].free()
    for _ in range(200):
        stream.synchronize()
        if gone() is None:
            break
        time.sleep(0.01)
    assert gone() is None


class Unpooled(kinds.Foreign):
    """Its deallocator frees GPU memory."""

    def free(self):
        if self.pointer:
            with self.context():
                graphs.call("cuMemFree_v2", ctypes.c_uint64(self.pointer))
            self.pointer = 0


def test_arrays_that_end_in_a_capture(comm, stream):
    """A deallocator that we call does not spoil the program's own capture."""
    channel = comm.on(stream)
    array = Unpooled(100, "u1", "device", stream)
    gone = weakref.ref(array)
    with graphs.capture(stream) as first:
        channel.Sendrecv(array, comm.rank, 0, array, comm.rank, 0)
    del array
    with graphs.capture(stream, graphs.GLOBAL) as captured:
        assert gone() is not None
        with graphs.relaxed():
            first[0].free()
        for _ in range(1000):
            channel.Send(wm.zeros(1, "u1"), MPI.PROC_NULL)
            if gone() is None:
                break
            time.sleep(0.01)
        assert gone() is None
    captured[0].free()


def test_nobody(comm, stream):
    """Messages with PROC_NULL are captured, and do nothing."""
    channel, a = comm.on(stream), wm.ones(10, "u1")
    send = channel.Send_init(a, MPI.PROC_NULL)
    receive = channel.Recv_init(a, MPI.PROC_NULL)
    with graphs.capture(stream) as captured:
        wm.Prequest.Startall([send, receive])
        wm.Request.Waitall([send, receive])
        channel.Sendrecv(a, MPI.PROC_NULL, 0, a, MPI.PROC_NULL, 0)
        channel.Send(a, MPI.PROC_NULL)
    captured[0].launch(stream)
    stream.synchronize()
    assert (a.numpy() == 1).all()
    captured[0].free()


def test_a_rank_and_itself(comm, stream):
    channel = comm.on(stream)
    for size in (10, 100_000):
        a, b = wm.zeros(size, "u1"), wm.zeros(size, "u1")
        with graphs.capture(stream) as captured:
            channel.Sendrecv(a, comm.rank, 0, b, comm.rank, 0)
        for turn in range(3):
            a.assign(values(size, turn, 0))
            captured[0].launch(stream)
            stream.synchronize()
            np.testing.assert_array_equal(b.numpy(), values(size, turn, 0))
        captured[0].free()


@pytest.mark.ranks(2)
def test_one_rank_captures_again(comm, stream):
    """It meets nobody: the other end is that of the first capture."""
    graph, requests, a, b = pair(comm, stream, 3000)
    for turn in range(6):
        if comm.rank == 0 and turn % 2:
            graph.free()
            with graphs.capture(stream) as captured:
                wm.Prequest.Startall(requests)
                wm.Request.Waitall(requests)
            graph = captured[0]
        a.assign(values(3000, turn, comm.rank))
        graph.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(
            b.numpy(), values(3000, turn, 1 - comm.rank)
        )
    graph.free()


@pytest.mark.ranks(2)
def test_what_does_not_fit(fresh, stream):
    """The receiver raises, and the sender when its replay has ended."""
    channel, a = fresh.on(stream), wm.zeros(100 + fresh.rank, "u1")
    with graphs.capture(stream) as captured:
        if fresh.rank == 1:
            channel.Send(a, 0)
        else:
            channel.Recv(a, 1)
    captured[0].launch(stream)
    error = MPI.Exception if fresh.rank == 0 else RuntimeError
    text = "TRUNCATE" if fresh.rank == 0 else "cannot receive"
    with pytest.raises(error, match=text):
        stream.synchronize()
    captured[0].free()


def test_what_cannot_be_captured(comm, stream):
    """It says so at once, and the capture goes on."""
    channel, a = comm.on(stream), wm.zeros(10, "u1")
    receive = channel.Recv_init(a, comm.rank, 5)
    with graphs.capture(stream) as captured:
        with pytest.raises(ValueError, match="memory of the stream's GPU"):
            channel.Send(np.zeros(3), comm.rank)
        with pytest.raises(MPI.Exception, match="RANK"):
            channel.Send(a, comm.size)
        send = channel.Send_init(a, comm.rank, 5)
        receive.Start()
        with pytest.raises(MPI.Exception, match="active"):
            receive.Start()
        with pytest.raises(RuntimeError, match="call Wait or Waitall"):
            receive.Test()
        with pytest.raises(RuntimeError, match="call Wait or Waitall"):
            wm.Request.Waitany([receive])
        send.Start()
        wm.Request.Waitall([receive, send])
        send.Start()
    with pytest.raises(RuntimeError, match="outside of it"):
        send.Wait()
    send.Wait()  # it is inactive
    captured[0].launch(stream)
    stream.synchronize()
    captured[0].free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("how", "refused", "size"),
    [
        ("argument", "Send", 100),
        ("memory", "Recv", 70_000),
        pytest.param("argument", "Recv", 100, marks=pytest.mark.long),
        pytest.param("memory", "Send", 70_000, marks=pytest.mark.long),
        pytest.param("again", "Send", 100, marks=pytest.mark.long),
        pytest.param("again", "Recv", 100, marks=pytest.mark.long),
    ],
)
def test_a_rank_that_refuses_its_end(fresh, stream, refused, how, size):
    """The other one's graph waits for some time, then both have an error."""
    channel, a = fresh.on(stream), wm.zeros(size, "u1")
    wrong = {"argument": object(), "memory": np.zeros(size, "u1")}
    with graphs.capture(stream) as captured:
        if fresh.rank == 0:
            (channel.Recv if refused == "Send" else channel.Send)(a, 1, 3)
        elif fresh.rank == 1:
            call = getattr(channel, refused)
            with pytest.raises((TypeError, ValueError)):
                call(wrong.get(how, wrong["memory"]), 0, 3)
            if how == "again":
                call(a, 0, 3)
    if fresh.rank == 1 and how == "again":
        time.sleep(4)
    if fresh.rank < 2:
        captured[0].launch(stream)
    if fresh.rank == 0 and how != "again":
        with pytest.raises(RuntimeError, match="rank 1, which refused"):
            stream.synchronize()
    stream.synchronize()
    captured[0].free()


@pytest.mark.long
@pytest.mark.ranks(2)
def test_a_receive_of_any_tag_after_a_refused_one(fresh, stream):
    """A sender waits for a late rank that has captured its receive again."""
    channel, a = fresh.on(stream), wm.zeros(100, "u1")
    for refuses in True, False:
        if fresh.rank == 1 and not refuses:
            time.sleep(5)
        with graphs.capture(stream) as captured:
            if fresh.rank == 0:
                channel.Send(a, 1, 3)
            elif fresh.rank == 1:
                if refuses:
                    with pytest.raises(ValueError):
                        channel.Recv(np.zeros(100, "u1"), 0, MPI.ANY_TAG)
                channel.Recv(a, 0, MPI.ANY_TAG)
        if fresh.rank < 2:
            captured[0].launch(stream)
        stream.synchronize()
        captured[0].free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("size", [0, 3, 100, 65_531, 65_536, 70_001])
def test_the_receiver_has_more_room(comm, stream, size):
    """Nothing is written behind the message."""
    channel, room = comm.on(stream), 100_000
    a = wm.zeros(size if comm.rank == 0 else room, "u1")
    with graphs.capture(stream) as captured:
        for _ in range(2):
            if comm.rank == 0:
                channel.Send(a, 1)
            else:
                channel.Recv(a, 0)
    for turn in range(3):
        if comm.rank == 0:
            a.assign(values(size, turn, 0))
        else:
            a.fill_(turn)
        captured[0].launch(stream)
        stream.synchronize()
        got = a.numpy()
        np.testing.assert_array_equal(got[:size], values(size, turn, 0))
        if comm.rank == 1:
            assert (got[size:] == turn).all()
    captured[0].free()


def test_more_long_sends_than_a_kernel_serves(fresh, stream):
    """Their receivers might wait for them for ever."""
    channel, rank = fresh.on(stream), fresh.rank
    a, b = wm.zeros(65537, "u1"), wm.zeros(8, "u1")
    sends = [channel.Send_init(a, rank, 1) for _ in range(96)]
    with graphs.capture(stream) as captured:
        channel.Send(b, rank, 2)
        wm.Prequest.Startall(sends)
        with pytest.raises(RuntimeError, match="call Waitall for them"):
            channel.Recv(b, rank, 2)
        sends[0].Wait()
        channel.Recv(b, rank, 2)
        wm.Request.Waitall(sends[1:])
    captured[0].free()
    for request in sends:
        request.Free()


def test_a_request_that_is_dropped_without_a_wait(fresh, stream):
    a = wm.zeros(10, "u1")
    with graphs.capture(stream) as captured:
        request = fresh.on(stream).Irecv(a, fresh.rank)
        with pytest.warns(RuntimeWarning, match="without a wait"):
            del request
    captured[0].free()


SHARED = """
    from mpi4py import MPI
    import graphs
    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    stream, a = wm.Stream(wm.get_device()), wm.zeros(100, "u1")
    with graphs.capture(stream) as captured:
        comm.on(stream).Sendrecv(a, 1 - comm.rank, 0, a, 1 - comm.rank, 0)
    captured[0].launch(stream)
    try:
        stream.synchronize()
        print("passed", flush=True)
    except RuntimeError as error:
        print("told" if "start MPS" in str(error) else error, flush=True)
    captured[0].free()
    comm.Barrier()
"""


@pytest.mark.programs
@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
@pytest.mark.parametrize("mps", [0, 1])
def test_a_gpu_that_is_shared(tmp_path, mps):
    """Without MPS both ranks raise, and nobody waits."""
    printed = ranks.run_text(
        tmp_path, SHARED, SIMCUDA_DEVICES="1", SIMCUDA_MPS=str(mps)
    )
    assert printed.split() == ["passed" if mps else "told"] * 2


MANY = """
    import sys
    sys.path.insert(0, "tests")
    import ctypes
    from mpi4py import MPI
    import graphs
    import kinds
    import warpmpi as wm

    how, size, count = sys.argv[1], int(sys.argv[2]), 48
    comm = wm.Comm(MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank // 2))
    stream, other = wm.Stream(wm.get_device()), 1 - comm.rank
    channel = comm.on(stream)
    sent = [wm.full(size, i + 1, "u1") for i in range(count)]
    got = [wm.zeros(size, "u1") for _ in range(count)]
    receives = [channel.Recv_init(b, other, i) for i, b in enumerate(got)]
    make = channel.Ssend_init if how == "synchronous" else channel.Send_init
    sends = [make(a, other, i) for i, a in enumerate(sent)]
    one_way = how == "backwards"
    if one_way:
        got = got if comm.rank else []
    with graphs.capture(stream) as captured:
        if not one_way:
            wm.Prequest.Startall(receives + sends)
        if how == "apart":
            wm.Request.Waitall(receives)
            wm.Request.Waitall(sends)
        elif how == "synchronous":
            for i in range(0, count, 24):
                wm.Request.Waitall(sends[i : i + 24] + receives[i : i + 24])
        elif how == "together":
            wm.Request.Waitall(sends + receives)
        elif comm.rank == 0:
            wm.Prequest.Startall(sends)
            wm.Request.Waitall(sends)
        else:
            for receive in reversed(receives):
                receive.Start()
                receive.Wait()
    for _ in range(3):
        for b in got:
            b.fill_(0)
        captured[0].launch(stream)
        stream.synchronize()
        for i, b in enumerate(got):
            assert (b.numpy() == i + 1).all()
    captured[0].free()
    most_blocks = kinds.driver().simcuda_most_blocks
    most_blocks.restype = ctypes.c_long
    print(max(map(most_blocks, (b"wm_port", b"wm_port_few"))), flush=True)
"""


@pytest.mark.programs
@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
@pytest.mark.parametrize(
    ("how", "size", "count"),
    [
        ("together", 65536, 2),
        ("together", 65537, 2),
        ("together", 65536, 4),
        ("apart", 200_000, 2),
        ("synchronous", 100, 2),
        ("backwards", 200_000, 2),
    ],
)
def test_kernels_have_room_where_ranks_share_a_gpu(tmp_path, how, size, count):
    """The GPU runs eight blocks: each rank waits in its share of them."""
    printed = ranks.run_text(
        tmp_path,
        MANY,
        how,
        str(size),
        ranks=count,
        SIMCUDA_DEVICES="1",
        SIMCUDA_MPS="1",
    )
    most = [int(text) for text in printed.split()]
    assert len(most) == count
    assert max(most) <= 8 // count
    assert "together" not in how or max(most) == 8 // count


REFUSED = """
    import mpi4py
    mpi4py.rc.thread_level = "funneled"  # only calls look at messages
    from mpi4py import MPI
    import graphs
    import warpmpi as wm

    world, comm = MPI.COMM_WORLD, wm.Comm(MPI.COMM_WORLD)
    stream, a = wm.Stream(wm.get_device()), wm.zeros(100 + comm.rank, "u1")

    def run(call, peer, error, text=None):
        with graphs.capture(stream) as captured:
            call(a, peer)
        world.Barrier()
        if comm.rank == 1:
            world.Barrier()
        else:
            comm.Iprobe()
        captured[0].launch(stream)
        try:
            stream.synchronize()
        except error as raised:
            known = text in str(raised)
            print("told" if known else raised, flush=True)
        captured[0].free()

    if comm.rank == 0:
        run(comm.on(stream).Recv, 1, MPI.Exception, "TRUNCATE")
        run(comm.on(stream).Recv, MPI.PROC_NULL, ())  # closes the first one
    else:
        run(comm.on(stream).Send, 0, RuntimeError, "cannot receive")
"""


@pytest.mark.programs
def test_the_cause_is_told_though_the_receiver_has_gone(tmp_path):
    assert ranks.run_text(tmp_path, REFUSED).split() == ["told"] * 2


REFUSALS = """
    from mpi4py import MPI
    import graphs
    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    stream, a = wm.Stream(wm.get_device()), wm.zeros(200, "u1")
    channel = comm.on(stream)

    def until_it_works(call, *args):
        errors = 0
        while True:
            try:
                call(*args)
                return errors
            except (RuntimeError, MPI.Exception):
                errors += 1

    def run(size, count):
        errors = 0
        with graphs.capture(stream) as captured:
            for _ in range(count):
                call = channel.Send if comm.rank else channel.Recv
                part = a[:size] if comm.rank else a[:100]
                errors += until_it_works(call, part, 1 - comm.rank)
        captured[0].launch(stream)
        errors += until_it_works(stream.synchronize)
        captured[0].free()
        comm.Barrier()
        return errors

    refused = all([run(101, 20) for _ in range(55)])
    a.fill_(3 * comm.rank)
    passed = run(100, 1) == 0 and (a.numpy()[:100] == 3).all()
    print(refused and passed, flush=True)
"""


@pytest.mark.programs
def test_messages_that_are_refused_leave_nothing(tmp_path):
    """Neither words, nor a hand on those that another message has next."""
    assert ranks.run_text(tmp_path, REFUSALS).split() == ["True"] * 2


WORDS = """
    import mpi4py
    mpi4py.rc.thread_level = "serialized"  # only calls match messages
    from mpi4py import MPI
    import graphs
    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_SELF)
    stream, a = wm.Stream(wm.get_device()), wm.zeros(100, "u1")

    def captured():
        with graphs.capture(stream) as made:
            comm.on(stream).Sendrecv(a, 0, 0, a, 0, 0)
        return made[0]

    for _ in range(520):
        captured().free()
    kept = []
    try:
        while len(kept) < 520:
            kept.append(captured())
    except MemoryError as error:
        print(len(kept), "free graphs" in str(error), flush=True)
    for graph in kept:
        graph.free()
    captured().free()
"""


@pytest.mark.programs
def test_words_of_ends_that_have_not_met_are_waited_for(tmp_path):
    """A process has words for 1,024 ends, and a message to itself has two."""
    assert ranks.run_text(tmp_path, WORDS, ranks=1).split() == ["512", "True"]


FAILING = """
    from mpi4py import MPI
    import graphs, kinds
    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    stream, a = wm.Stream(wm.get_device()), wm.zeros(8, "u1")
    channel, errors = comm.on(stream), 0
    with graphs.capture(stream) as captured:
        for _ in range(1100):
            kinds.driver().simcuda_fail(b"cuIpcGetMemHandle", 1, 0)
            try:
                channel.Send(a, comm.rank)
            except RuntimeError as error:
                errors += "IpcGetMemHandle" in str(error)
        channel.Sendrecv(a, comm.rank, 0, a, comm.rank, 0)
    captured[0].launch(stream)
    stream.synchronize()
    captured[0].free()
    print(errors, flush=True)
"""


@pytest.mark.programs
@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
def test_sends_that_fail_leave_nothing(tmp_path):
    """More than a process has room for; no header has gone."""
    assert ranks.run_text(tmp_path, FAILING).split() == ["1100"] * 2


LOST = """
    from mpi4py import MPI
    import graphs
    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    stream, a = wm.Stream(wm.get_device()), wm.zeros(100, "u1")
    for turn in range(1100 if comm.rank == 0 else 0):
        with graphs.capture(stream) as captured:
            comm.on(stream).Send(a, 1)
        captured[0].free()
    comm.Barrier()
    errors = 0
    for turn in range(3 if comm.rank == 1 else 0):
        with graphs.capture(stream) as captured:
            comm.on(stream).Recv(a, 0)
        captured[0].launch(stream)
        try:
            stream.synchronize()
        except RuntimeError as error:
            errors += "its other end has freed" in str(error)
        captured[0].free()
    print(errors, flush=True)
    comm.Barrier()
"""


@pytest.mark.programs
def test_sends_that_nobody_receives(tmp_path):
    """Their graphs are gone: so is what they took. Receivers learn it."""
    assert ranks.run_text(tmp_path, LOST).split() in (["0", "3"], ["3", "0"])


CHECKED = """
    import sys, warnings
    from mpi4py import MPI
    import graphs
    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    stream, size = wm.Stream(wm.get_device()), int(sys.argv[1])
    a = wm.zeros(size, "u1")

    def make():
        with graphs.capture(stream) as made:
            if comm.rank == 0:
                comm.on(stream).Send(a, 1)
            else:
                comm.on(stream).Recv(a, 0)
        return made[0]

    graph = make()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        again = make()
    assert "captured again" in str(told[0].message), told
    if comm.rank == 0 and size < 70_000:
        graph.launch(stream)  # it needs no receiver
    for _ in range(2):
        comm.Barrier()
        again.launch(stream)
        stream.synchronize()
    graph.free()
    again.free()
    comm.Barrier()
    error = "none"
    for _ in range(50):
        try:
            with graphs.capture(stream) as made:
                comm.on(stream).Send(a, MPI.PROC_NULL)
            made[0].free()
        except RuntimeError as raised:
            error = str(raised)
        comm.Barrier()
    print("found" if "different numbers" in error else error, flush=True)
"""


@pytest.mark.programs
@pytest.mark.parametrize("size", [100, 100_000])
def test_checked_graphs(tmp_path, size):
    """A message that is new, and one that only one rank has launched."""
    printed = ranks.run_text(tmp_path, CHECKED, size, WARPMPI_CHECK="1")
    assert printed.split() == (["found"] if size < 70_000 else ["none"]) * 2
