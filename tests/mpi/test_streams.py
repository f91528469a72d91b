# SPDX-License-Identifier: BSD-3-Clause
"""comm.on(stream): ordered on the stream, without a synchronisation."""

import ctypes
import gc
import os
import time
import weakref

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import ranks
import warpmpi as wm

pytestmark = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)

SIZES = (8, 1000, 100_000, 9_000_000)


def values(seed, size):
    return np.random.default_rng(seed).integers(0, 100, size, np.uint8)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_sends_and_receives_follow_the_stream(comm, stream, kind):
    """What an asynchronous copy on the stream brings is what is sent."""
    channel = comm.on(stream)
    for size in SIZES:
        fresh = wm.array(values(size, size), device=wm.get_device())
        buffer = kinds.make(kind, np.zeros(size, np.uint8))
        if comm.rank == 0:
            if kind in kinds.DEVICE_KINDS:
                copy_on(stream, buffer, fresh)
            else:
                kinds.values_of(buffer)[:] = values(size, size)
            channel.Send(buffer, 1)
        elif comm.rank == 1:
            channel.Recv(buffer, 0)
            result = wm.empty(size, np.uint8, device=wm.get_device())
            if kind in kinds.DEVICE_KINDS:
                copy_on(stream, result, buffer)
                stream.synchronize()
                np.testing.assert_array_equal(
                    result.numpy(), values(size, size)
                )
            else:
                np.testing.assert_array_equal(
                    kinds.values_of(buffer), values(size, size)
                )
        stream.synchronize()


def copy_on(stream, into, source):
    """An asynchronous copy by the driver itself, unseen by the library."""
    import ctypes

    def pointer(array):
        interface = array.__cuda_array_interface__
        return ctypes.c_uint64(interface["data"][0]), interface["shape"][0]

    device = wm.get_device()
    with kinds.Current(device) as _:
        cuda = kinds.driver()
        to, count = pointer(into)
        result = cuda.cuMemcpyAsync(
            to,
            pointer(source)[0],
            ctypes.c_size_t(count),
            ctypes.c_void_p(stream.cuda_stream),
        )
    assert result == 0, result


class OthersStream:
    """A stream as another package has it, destroyed with its object."""

    def __init__(self):
        self.own = wm.Stream(wm.get_device())

    def __cuda_stream__(self):
        return 0, self.own.cuda_stream


def begin_irecv(channel, into):
    return channel.Irecv(into, 0)


def begin_recv_init(channel, into):
    request = channel.Recv_init(into, 0)
    request.Start()
    return request


def begin_precv_init(channel, into):
    request = channel.Precv_init(into, 2, 0, 0)
    request.Start()
    return request


def begin_isendrecv(channel, into):
    return channel.Isendrecv(wm.ones(10), 0, 1, into, 0, 0)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("dropped", [False, True], ids=["waited", "dropped"])
@pytest.mark.parametrize(
    "begin",
    [begin_irecv, begin_recv_init, begin_precv_init, begin_isendrecv],
)
@pytest.mark.parametrize("size", [1000, 9_000_000])
def test_a_stream_lives_as_long_as_its_messages(comm, begin, dropped, size):
    """Neither the channel nor the stream need be kept."""
    kept = lambda: None  # noqa: E731
    if comm.rank == 1:
        into = wm.zeros(size, np.uint8, device=wm.get_device())
        stream = OthersStream()
        kept = weakref.ref(stream)
        request = begin(comm.on(stream), into)
        del stream
        if dropped:
            del request
        gc.collect()
        assert kept() is not None
    comm.Barrier()
    if comm.rank == 0:
        sent = wm.array(values(size, size), device=wm.get_device())
        if begin is begin_precv_init:
            sending = comm.Psend_init(sent, 1, 1, 0)
            sending.Start()
            sending.Pready(0)
            sending.Wait()
        else:
            comm.Send(sent, 1)
        if begin is begin_isendrecv:
            comm.Recv(wm.zeros(10), 1, 1)
    if comm.rank == 1:
        if not dropped:
            request.Wait()
            del request
        end = time.monotonic() + 20
        while kept() is not None and time.monotonic() < end:
            time.sleep(0.001)
            comm.Iprobe()
        assert kept() is None
        np.testing.assert_array_equal(into.numpy(), values(size, size))
    comm.Barrier()


@pytest.mark.ranks(2)
def test_a_stream_lives_as_long_as_what_it_sends(comm):
    if comm.rank == 0:
        stream = OthersStream()
        kept = weakref.ref(stream)
        array = wm.array(values(1, 9_000_000), device=wm.get_device())
        request = comm.on(stream).Issend(array, 1)
        del stream, request, array
        gc.collect()
        assert kept() is not None
    comm.Barrier()
    if comm.rank == 1:
        into = wm.zeros(9_000_000, np.uint8, device=wm.get_device())
        comm.Recv(into, 0)
        np.testing.assert_array_equal(into.numpy(), values(1, 9_000_000))
    comm.Barrier()


@pytest.mark.ranks(2)
def test_exchange_on_streams(comm, stream):
    if comm.rank > 1:
        return
    other = 1 - comm.rank
    size = 300_000
    device = wm.get_device()
    for turn in range(20):
        mine = wm.array(values(turn * 2 + comm.rank, size), device=device)
        out = wm.zeros(size, np.uint8, device=device)
        into = wm.zeros(size, np.uint8, device=device)
        result = wm.zeros(size, np.uint8, device=device)
        copy_on(stream, out, mine)
        channel = comm.on(stream)
        requests = [channel.Irecv(into, other), channel.Isend(out, other)]
        wm.Request.Waitall(requests)
        copy_on(stream, result, into)
        stream.synchronize()
        np.testing.assert_array_equal(
            result.numpy(), values(turn * 2 + other, size)
        )


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", kinds.DEVICE_KINDS)
@pytest.mark.parametrize("receiver_on", [True, False])
def test_a_short_send_needs_no_receiver(
    comm, world, stream, kind, receiver_on
):
    """What follows on the stream changes the buffer, not the message."""
    for size in (1, 1000, 65_536):
        array = kinds.make(kind, np.zeros(size, np.uint8))
        if comm.rank == 0:
            device = wm.get_device()
            message = wm.array(values(1, size), device=device)
            later = wm.zeros(size, np.uint8, device=device)
            copy_on(stream, array, message)
            comm.on(stream).Send(array, 1)
            copy_on(stream, array, later)
            stream.synchronize()
        world.Barrier()
        if comm.rank == 1:
            (comm.on(stream) if receiver_on else comm).Recv(array, 0)
            stream.synchronize()
            np.testing.assert_array_equal(
                kinds.values_of(array), values(1, size)
            )


@pytest.mark.ranks(2)
def test_a_short_message_of_a_busy_stream(comm, stream):
    """The receiver's stream waits for what the sender's comes to later."""
    size, device = 20_000, wm.get_device()
    array = wm.zeros(size, np.uint8, device=device)
    if comm.rank == 0:
        fresh = wm.array(values(5, size), device=device)
        big, other = (wm.zeros(64 << 20, "u1", device=device) for _ in "ab")
        for _ in range(100 if kinds.is_real() else 2):
            big.assign(other, blocking=False, stream=stream)
        array.assign(fresh, blocking=False, stream=stream)
        comm.on(stream).Send(array, 1)
    elif comm.rank == 1:
        result = wm.zeros(size, np.uint8, device=device)
        comm.on(stream).Recv(array, 0)
        copy_on(stream, result, array)
        stream.synchronize()
        np.testing.assert_array_equal(result.numpy(), values(5, size))


STAGED_AFTER_ALL = """
    import numpy as np
    from mpi4py import MPI
    import warpmpi as wm
    comm = wm.Comm(MPI.COMM_WORLD)
    device, stream = wm.get_device(), wm.Stream(wm.get_device())
    array = wm.array(np.arange(20_001, dtype=np.uint8), device=device)
    if comm.rank == 0:
        comm.on(stream).Send(array, 1)
        array.fill_(0)
    else:
        array.fill_(0)
        comm.on(stream).Recv(array, 0)
        stream.synchronize()
        assert (array.numpy() == np.arange(20_001, dtype=np.uint8)).all()
        print("by the host:", wm.stats()["host_messages"])
"""


@pytest.mark.programs
@pytest.mark.skipif(
    "WARPMPI_CUDA_DRIVER" not in os.environ,
    reason="needs the simulated driver",
)
def test_a_short_send_that_cannot_be_mapped(tmp_path):
    """It comes through the host as it was sent: its buffer has changed."""
    printed = ranks.run_text(
        tmp_path,
        STAGED_AFTER_ALL,
        SIMCUDA_FAIL="IpcOpenMemHandle:1",
        SIMCUDA_FAIL_RANK="1",
    )
    assert "by the host: 1" in printed


@pytest.mark.ranks(2)
def test_one_end_on_a_stream(comm, stream):
    device = wm.get_device()
    for sender_on in (True, False):
        if comm.rank == 0:
            out = wm.array(values(3, 50_000), device=device)
            (comm.on(stream) if sender_on else comm).Send(out, 1)
        elif comm.rank == 1:
            into = wm.zeros(50_000, np.uint8, device=device)
            (comm if sender_on else comm.on(stream)).Recv(into, 0)
            stream.synchronize()
            np.testing.assert_array_equal(into.numpy(), values(3, 50_000))


def test_the_per_thread_default_stream_is_refused(comm):
    class PerThread:
        def __cuda_stream__(self):
            return 0, 2

    for handle in 2, PerThread():
        with pytest.raises(ValueError, match=r"wm\.Stream\(\)"):
            comm.on(handle)


@pytest.fixture
def capture():
    """Captures a stream; tells whether it was spoilt, and ends it."""
    if "WARPMPI_CUDA_DRIVER" not in os.environ:
        pytest.skip("needs the simulated driver")
    function = ctypes.CDLL(os.environ["WARPMPI_CUDA_DRIVER"]).simcuda_capture
    function.argtypes = ctypes.c_void_p, ctypes.c_int
    begun = []

    def call(stream, begin):
        begun.append(stream)
        return function(stream.cuda_stream, begin)

    yield call
    for stream in begun:
        function(stream.cuda_stream, 0)


@pytest.mark.parametrize("size", [8, 9_000_000])
@pytest.mark.parametrize("kind", ["foreign", "pool"])
def test_a_captured_producer_is_refused(comm, capture, kind, size):
    array = kinds.make(kind, values(1, size))
    assert capture(array.stream, 1) == 0
    for call in (
        lambda: comm.Send(array, comm.rank),
        lambda: comm.Isend(array, comm.rank),
        lambda: comm.Recv(array, comm.rank),
        lambda: comm.on(wm.Stream()).Irecv(array, comm.rank),
    ):
        with pytest.raises(RuntimeError, match="captured into a graph"):
            call()
    # A message of the captured stream becomes a part of the graph.
    with pytest.raises(ValueError, match="memory of the stream's GPU"):
        comm.on(array.stream).Send(np.ones(3), comm.rank)
    for call in (
        lambda: comm.Bcast(array),
        lambda: comm.Allreduce(MPI.IN_PLACE, array),
    ):
        with pytest.raises(RuntimeError, match="captured into a graph"):
            call()
    assert capture(array.stream, 0) == 0
    # Nothing was sent in its place.
    buffer = np.zeros(size, np.uint8)
    request = comm.Irecv(buffer, comm.rank)
    comm.Send(array, comm.rank)
    request.Wait()
    np.testing.assert_array_equal(buffer, values(1, size))


def test_what_is_no_stream_is_refused(comm):
    with pytest.raises(TypeError, match="stream"):
        comm.on("no stream")


@pytest.mark.ranks(2)
@pytest.mark.parametrize("size", [1000, 100_000])
def test_an_exchange_on_a_stream_brings_the_data(comm, stream, size):
    """If what comes is short; what is sent is not held for what is long."""
    if comm.rank > 1:
        return
    device, other = wm.get_device(), 1 - comm.rank
    sent = wm.zeros(1000 if comm.rank else size, "u1", device)
    got = wm.zeros(size if comm.rank else 1000, "u1", device)
    channel = comm.on(stream)
    for turn in range(40):  # more than there are buffers
        sent.fill_(turn + comm.rank, stream=stream)
        channel.Sendrecv(sent, other, 0, got, other, 0)
        if turn % 8 == 0:
            stream.synchronize()
            assert (np.asarray(got.to("cpu")) == turn + other).all()


@pytest.mark.ranks(2)
@pytest.mark.skipif(kinds.is_real(), reason="counts calls of the driver")
def test_an_exchange_costs_few_calls(comm, stream):
    if comm.rank > 1:
        return
    device, other = wm.get_device(), 1 - comm.rank
    sent, got = (wm.zeros(1000, "u1", device) for _ in range(2))
    counted = kinds.driver().simcuda_calls
    names = b"EventRecord", b"StreamWaitEvent", b"LaunchKernel"
    least = []
    for _ in range(100):
        before = [*map(counted, names)]
        comm.on(stream).Sendrecv(sent, other, 0, got, other, 0)
        least.append(
            [counted(n) - old for n, old in zip(names, before, strict=True)]
        )
        stream.synchronize()
    # Two kernels where the other rank was late.
    assert min(least) == [2, 0, 1], least


@pytest.mark.parametrize("seed", range(3))
def test_exchanges_at_random(comm, seed):
    """Rings of all shifts, behind each other, on two streams of each rank."""
    device, size = wm.get_device(), comm.size
    turns = 300 if kinds.is_real() else 60
    common = np.random.default_rng(seed)
    own = np.random.default_rng([seed, comm.rank])
    streams = [wm.Stream(device) for _ in range(2)]
    sent, got = (
        [wm.zeros(1 << 17, "u1", device) for _ in "abc"] for _ in "ab"
    )
    seen = wm.zeros((turns, 2), "u1", device)
    expected = np.zeros((turns, 2), "u1")
    for turn in range(turns):
        shift = int(common.integers(size))
        count = int(common.choice([1, 64, 5000, 60_000, 100_000]))
        to, source = (comm.rank + shift) % size, (comm.rank - shift) % size
        stream = streams[own.integers(2)]
        out, into = own.choice(3), own.choice(3)
        channel = comm.on(stream)
        words = sent[out][:count], to, turn, got[into][:count], source, turn
        sent[out].fill_((turn + 7 * comm.rank) % 251, stream=stream)
        if own.integers(4):
            channel.Sendrecv(*words)
        else:
            request = channel.Irecv(*words[3:])
            channel.Send(*words[:3])
            request.Wait()
        for i, place in enumerate((0, count - 1)):
            seen[turn, i : i + 1].assign(
                got[into][place : place + 1], stream=stream, blocking=False
            )
        expected[turn] = (turn + 7 * source) % 251
    for stream in streams:
        stream.synchronize()
    np.testing.assert_array_equal(seen.numpy(), expected)


@pytest.mark.parametrize("seed", range(2))
def test_exchanges_beside_long_messages(world, seed):
    """A stream waits for no receiver before a send that was promised."""
    device, size = wm.get_device(), world.size
    stream = wm.Stream(device)
    short, long = (wm.Comm(world.Dup()) for _ in range(2))
    right, left = (world.rank + 1) % size, (world.rank - 1) % size
    rng = np.random.default_rng([seed, world.rank])
    sent, got = (wm.zeros(1000, "u1", device) for _ in range(2))
    out, into = (wm.zeros(200_000, "u1", device) for _ in range(2))
    for turn in range(240):
        sent.fill_(turn + world.rank, stream=stream)
        out.fill_(turn + world.rank, stream=stream)
        requests = [long.on(stream).Irecv(into, left, 1)]
        early = rng.integers(2)
        if early:
            requests.append(long.on(stream).Isend(out, right, 1))
        short.on(stream).Sendrecv(sent, left, 2, got, right, 2)
        if not early:
            requests.append(long.on(stream).Isend(out, right, 1))
        for request in requests:
            request.Wait()
        if turn % 16 == 0:
            stream.synchronize()
            assert (got.numpy() == turn + right).all()
            assert (into.numpy() == turn + left).all()
    stream.synchronize()


@pytest.mark.ranks(2)
def test_an_exchange_whose_receive_fails_has_sent(comm, stream):
    """What the program then enqueues on the stream comes behind the send."""
    if comm.rank > 1:
        return
    device, other = wm.get_device(), 1 - comm.rank
    sent, got = (wm.zeros(5000, "u1", device) for _ in range(2))
    for turn in range(60):
        short = (turn + comm.rank) % 3 == 0
        sent.fill_(turn + comm.rank, stream=stream)
        words = sent, other, 0, got[:100] if short else got, other, 0
        if short:
            with pytest.raises(MPI.Exception):
                comm.on(stream).Sendrecv(*words)
        else:
            comm.on(stream).Sendrecv(*words)
        sent.fill_(255, stream=stream)
        if not short:
            stream.synchronize()
            assert (got.numpy() == turn + other).all(), turn
    stream.synchronize()
