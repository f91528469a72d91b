# SPDX-License-Identifier: BSD-3-Clause
"""Psend_init and Precv_init: messages that become ready in partitions."""

import ctypes
import threading
import time

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm

simulated = pytest.mark.skipif(
    not wm.is_cuda_available() or kinds.is_real(),
    reason="faults are the simulated driver's",
)
gpu = pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
SIZES = (0, 12, 6000, 600_000)


@pytest.fixture
def ring(comm):
    """Makes a send to the right and a receive from the left."""
    made = []

    def make(out, into, parts=3, others=3, tag=5):
        right = (comm.rank + 1) % comm.size
        left = (comm.rank - 1) % comm.size
        pair = (
            comm.Psend_init(out, parts, right, tag),
            comm.Precv_init(into, others, left, tag),
        )
        made.extend(pair)
        return pair

    yield make
    for request in made:
        if request:
            request.Free()


def write(buffer, values):
    if isinstance(buffer, np.ndarray):
        buffer[:] = values
    else:
        wm.asarray(buffer).assign(wm.array(values))


def values_of(comm, rank, size, turn):
    return ((np.arange(size) + 7 * (rank % comm.size) + turn) % 251).astype(
        "u1"
    )


@pytest.mark.parametrize("into", kinds.KINDS)
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_every_kind_of_memory(comm, ring, kind, into):
    for size in SIZES:
        out = kinds.make(kind, np.zeros(size, "u1"))
        come = kinds.make(into, np.zeros(size, "u1"))
        sending, receiving = ring(out, come, 3, 4)
        for turn in range(3):
            receiving.Start()
            sending.Start()
            write(out, values_of(comm, comm.rank, size, turn))
            sending.Pready(2)
            sending.Pready_range(0, 1)
            status = MPI.Status()
            receiving.Wait(status)
            sending.Wait()
            left = (comm.rank - 1) % comm.size
            assert (status.source, status.tag) == (left, 5)
            assert status.Get_count(MPI.BYTE) == size
            expected = values_of(comm, comm.rank - 1, size, turn)
            assert (kinds.values_of(come) == expected).all()
        sending.Free()
        receiving.Free()
        assert not sending
        assert not receiving


@pytest.mark.parametrize("order", [[2, 0, 1], [1, 2, 0]])
def test_nothing_arrives_before_all_is_ready(comm, world, ring, order):
    kind = "pool" if wm.is_cuda_available() else "host"
    out = kinds.make(kind, np.full(9, comm.rank))
    into = kinds.make(kind, np.full(9, -1))
    sending, receiving = ring(out, into)
    assert all(receiving.Parrived(i) for i in range(3))  # inactive
    for _ in range(2):
        receiving.Start()
        sending.Start()
        world.Barrier()
        sending.Pready_list(order[:2])
        assert not any(receiving.Parrived(i) for i in range(3))
        assert not receiving.Test()
        assert not sending.Test()
        world.Barrier()
        sending.Pready(order[2])
        while not receiving.Parrived(0):
            pass
        assert all(receiving.Parrived(i) for i in range(3))
        MPI.Request.Waitall([sending, receiving])
        assert (kinds.values_of(into) == (comm.rank - 1) % comm.size).all()


def test_they_meet_in_the_order_of_their_making(comm, world, ring):
    """Not that of their starts; and no other message."""
    buffers = [np.full(4, 10 * comm.rank + i) for i in range(3)]
    come = [np.zeros(4, int) for _ in range(3)]
    pairs = [ring(b, c, 2, 2) for b, c in zip(buffers, come, strict=True)]
    left = (comm.rank - 1) % comm.size
    wild = np.zeros(4, int)
    other = comm.Irecv(wild)
    for sending, _ in pairs[::-1]:
        sending.Start()
        sending.Pready_range(0, 1)
    wm.Prequest.Startall([receiving for _, receiving in pairs])
    wm.Request.Waitall([request for pair in pairs for request in pair])
    for i, received in enumerate(come):
        assert (received == 10 * left + i).all()
    assert not other.Test()
    world.Barrier()
    comm.Send(np.full(4, 99), (comm.rank + 1) % comm.size, 5)
    other.Wait()
    assert (wild == 99).all()


def test_more_than_are_alive_at_a_time(comm, ring):
    for turn in range(20):
        out, into = np.full(4, turn), np.zeros(4, int)
        sending, receiving = ring(out, into, 4, 1)
        wm.Prequest.Startall([sending, receiving])
        sending.Pready_range(0, 3)
        receiving.Wait()
        sending.Wait()
        assert (into == turn).all()
        sending.Free()
        receiving.Free()
    first = comm.Psend_init(out, 1, comm.rank, 8)
    for _ in range(255):
        comm.Psend_init(out, 1, comm.rank, 8).Free()
    with pytest.raises(MPI.Exception, match="has not been freed"):
        comm.Psend_init(out, 1, comm.rank, 8)
    first.Free()
    comm.Psend_init(out, 1, comm.rank, 8).Free()


def test_partitions_of_several_threads(comm, ring):
    count = 8
    kind = "device" if wm.is_cuda_available() else "host"
    out = kinds.make(kind, np.zeros(count * 1000))
    into = kinds.make(kind, np.zeros(count * 1000))
    sending, receiving = ring(out, into, count, 2)
    for turn in range(5):
        receiving.Start()
        sending.Start()

        def work(part, turn=turn):
            piece = out[part * 1000 : (part + 1) * 1000]
            if kind == "host":
                piece[:] = part + turn
            else:
                piece.fill_(part + turn)
            sending.Pready(part)

        threads = [
            threading.Thread(target=work, args=(part,))
            for part in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        receiving.Wait()
        sending.Wait()
        expected = np.repeat(np.arange(count) + turn, 1000)
        assert (kinds.values_of(into) == expected).all()


@gpu
@pytest.mark.parametrize("last", ["stream", "device"])
@pytest.mark.parametrize("size", [1000, 300_000])
def test_each_partition_on_a_stream_of_its_own(comm, ring, size, last):
    """The first's work ends long after the last is ready."""
    out = kinds.make("foreign", np.zeros(2 * size, "u1"))
    into = kinds.make("device", np.zeros(2 * size, "u1"))
    cuda = kinds.driver()
    gate = kinds.Gate()
    streams = wm.Stream(), wm.Stream()
    sending, receiving = ring(out, into, 2, 2)
    receiving.Start()
    sending.Start()
    interface = out.__cuda_array_interface__
    with out.context():
        for part, stream in enumerate(streams):
            handle = ctypes.c_void_p(stream.cuda_stream)
            if part == 0:
                gate.stop(stream)
            result = cuda.cuMemsetD8Async(
                ctypes.c_uint64(out.pointer + part * size),
                ctypes.c_ubyte(3 + part),
                ctypes.c_size_t(size),
                handle,
            )
            assert result == 0
    interface["stream"] = streams[0].cuda_stream
    sending.Pready(0)
    opening = threading.Timer(0.05, gate.open)
    if last == "stream":
        interface["stream"] = streams[1].cuda_stream
        sending.Pready(1)
        streams[1].synchronize()  # which does not wait for the other
        opening.start()
    else:
        opening.start()
        del interface["stream"]
        interface["version"] = 2
        sending.Pready(1)
    receiving.Wait()
    sending.Wait()
    opening.join()
    expected = np.repeat([3, 4], size)
    assert (kinds.values_of(into) == expected).all()


@gpu
def test_on_a_stream(comm, ring):
    stream = wm.Stream()
    out, into = wm.zeros(1000), wm.zeros(1000)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    bound = comm.on(stream)
    sending = bound.Psend_init(out, 2, right)
    receiving = bound.Precv_init(into, 2, left, 0)
    for turn in range(3):
        out.fill_(comm.rank + turn, stream=stream)
        wm.Prequest.Startall([receiving, sending])
        sending.Pready_list((0, 1))
        wm.Request.Waitall([receiving, sending])
        copy = into.copy(stream=stream)
        assert (copy.numpy() == left + turn).all()
    sending.Free()
    receiving.Free()


@gpu
@pytest.mark.ranks(2)
def test_gaps_and_datatypes(comm):
    if comm.rank > 1:
        return
    vector = MPI.DOUBLE.Create_vector(3, 1, 2).Commit()
    tail = vector.Create_resized(0, 48).Commit()
    if comm.rank == 0:
        array = wm.array(np.arange(24.0))
        request = comm.Psend_init([array, 2, tail], 2, 1)
        request.Start()
        request.Pready_range(0, 1)
    else:
        array = wm.zeros((12, 2))
        request = comm.Precv_init(array[:, 1], 3, 0, 0)
        request.Start()
    request.Wait()
    request.Free()
    if comm.rank == 1:
        assert (array.numpy()[:, 1] == np.arange(0, 24, 2)).all()
        assert (array.numpy()[:, 0] == 0).all()
    tail.Free()
    vector.Free()


def test_counts_are_those_of_one_partition(comm, ring):
    out, into = np.arange(8.0) + comm.rank, np.full(8, -1.0)
    left = (comm.rank - 1) % comm.size
    expected = np.full(8, -1.0)
    expected[:6] = np.arange(1, 7) + left
    for given, taken in (
        ([out, (3, 1), MPI.DOUBLE], [into, 2, MPI.DOUBLE]),
        ([out, 3, 1, MPI.DOUBLE], (into, 2)),
        ([out[1:7], MPI.DOUBLE], [into[:6], "d"]),
    ):
        sending, receiving = ring(given, taken, 2, 3)
        wm.Prequest.Startall([sending, receiving])
        sending.Pready_range(0, 1)
        receiving.Wait()
        sending.Wait()
        assert (into == expected).all()
        into[:] = -1.0


@gpu
def test_an_array_that_frees_its_request(comm):
    """What is asked of it in Pready is Python code."""

    class Freeing:
        request = None

        def __init__(self, array):
            self.array = array

        @property
        def __cuda_array_interface__(self):
            if self.request is not None:
                with pytest.raises(MPI.Exception, match="in Pready"):
                    self.request.Free()
            return self.array.__cuda_array_interface__

    array = Freeing(kinds.make("foreign", np.full(10, 3.0)))
    into = np.zeros(10)
    sending = comm.Psend_init(array, 2, comm.rank)
    receiving = comm.Precv_init(into, 2, comm.rank, 0)
    wm.Prequest.Startall([sending, receiving])
    array.request = sending
    sending.Pready_range(0, 1)
    receiving.Wait()
    sending.Wait()
    assert (into == 3).all()
    array.request = None
    sending.Free()
    receiving.Free()


def test_a_communicator_is_freed_with_what_nobody_sends(world):
    comm = wm.Comm(world.Dup())
    receiving = comm.Precv_init(np.zeros(4), 2, comm.rank, 0)
    receiving.Start()
    begun = time.monotonic()
    comm.Free()
    assert time.monotonic() - begun < 4  # what is hopeless is not waited for
    del receiving


def test_beside_a_reduction_in_python(comm):
    """Who makes a request waits for no lock with Python's."""

    def add(a, b, datatype):
        total = np.frombuffer(b, float)
        total += np.frombuffer(a, float)

    op = MPI.Op.Create(add, commute=True)
    for _ in range(30):
        values = wm.ones(1000, float)
        sums = wm.zeros(1000, float)
        request = comm.Iallreduce(values, sums, op)
        for _ in range(20):
            made = comm.Psend_init(np.zeros(4), 2, comm.rank, 9)
            made.Start()
            made.Free()
        request.Wait()
    assert (sums.numpy() == comm.size).all()
    op.Free()


def test_nobody(comm):
    buffer = np.full(4, 7)
    sending = comm.Psend_init(buffer, 2, MPI.PROC_NULL)
    receiving = comm.Precv_init(buffer, 2, MPI.PROC_NULL, 0)
    many = [comm.Psend_init(buffer, 3, MPI.PROC_NULL) for _ in range(300)]
    for request in many:  # of whom there is nothing to be told apart
        request.Free()
    for _ in range(2):
        wm.Prequest.Startall([sending, receiving])
        sending.Pready_range(0, 1)
        status = MPI.Status()
        receiving.Wait(status)
        sending.Wait()
        assert status.source == MPI.PROC_NULL
        assert status.Get_count(MPI.INT64_T) == 0
    sending.Free()
    receiving.Free()


def test_bad_arguments(comm):
    array, me = np.zeros(10), comm.rank
    for arguments, error, text in (
        ((array, 3, me), ValueError, "10 elements .* 3 equal partitions"),
        ((array, 0, me), ValueError, "partitions=0"),
        ((array, 2, comm.size), MPI.Exception, "dest="),
        ((array, 2, me, -1), MPI.Exception, "tag=-1"),
        ((array, 2, me, 2**31 - 1), MPI.Exception, "tag="),
        ((array, "2", me), TypeError, "partitions"),
        ((object(), 2, me), TypeError, "buf"),
    ):
        with pytest.raises(error, match=text):
            comm.Psend_init(*arguments)
    with pytest.raises(MPI.Exception, match="source=-"):
        comm.Precv_init(array, 2)
    with pytest.raises(MPI.Exception, match="tag=-"):
        comm.Precv_init(array, 2, me)


def test_calls_out_of_turn(comm):
    out, into = np.ones(4), np.zeros(4)
    sending = comm.Psend_init(out, 2, comm.rank)
    receiving = comm.Precv_init(into, 2, comm.rank, 0)
    whole = comm.Send_init(out, comm.rank)
    with pytest.raises(MPI.Exception, match="not active"):
        sending.Pready(0)
    for call in ("Pready", "Parrived"):
        with pytest.raises(MPI.Exception, match="not partitioned"):
            getattr(whole, call)(0)
    whole.Free()
    for request, text in (sending, "not active"), (receiving, "Psend_init"):
        with pytest.raises(MPI.Exception, match=text):
            request.Pready_list([])
    wm.Prequest.Startall([sending, receiving])
    for request in sending, receiving:
        with pytest.raises(MPI.Exception, match="is active"):
            request.Start()
    with pytest.raises(MPI.Exception, match="Precv_init"):
        sending.Parrived(0)
    with pytest.raises(MPI.Exception, match="Psend_init"):
        receiving.Pready(0)
    for partition in (-1, 2):
        with pytest.raises(MPI.Exception, match=f"partition={partition}"):
            sending.Pready(partition)
        with pytest.raises(MPI.Exception, match=f"partition={partition}"):
            receiving.Parrived(partition)
    with pytest.raises(MPI.Exception, match="partition=0 is ready already"):
        sending.Pready_list([1, 0, 0])
    sending.Pready(0)
    with pytest.raises(MPI.Exception, match="partition=0 is ready already"):
        sending.Pready_range(0, 1)
    sending.Pready(1)
    MPI.Request.Waitall([sending, receiving])
    assert (into == 1).all()
    sending.Free()
    with pytest.raises(MPI.Exception, match="freed"):
        sending.Start()
    with pytest.raises(MPI.Exception, match="freed"):
        sending.Pready(0)
    receiving.Free()


def test_one_that_is_freed_before_it_is_ready(comm):
    sending = comm.Psend_init(np.zeros(4), 2, comm.rank)
    sending.Start()
    sending.Pready(1)
    sending.Free()
    dropped = comm.Psend_init(np.zeros(4), 2, comm.rank)
    dropped.Start()
    del dropped
    # The third on both ends.
    comm.Precv_init(np.zeros(4), 2, comm.rank, 0).Free()
    comm.Precv_init(np.zeros(4), 2, comm.rank, 0).Free()
    into = np.zeros(4)
    sending = comm.Psend_init(np.ones(4), 4, comm.rank)
    receiving = comm.Precv_init(into, 4, comm.rank, 0)
    wm.Prequest.Startall([sending, receiving])
    sending.Pready_range(0, 3)
    MPI.Request.Waitall([sending, receiving])
    assert (into == 1).all()
    sending.Free()
    receiving.Free()


@pytest.mark.ranks(2)
def test_more_than_there_is_room_for(comm):
    if comm.rank == 0:
        sending = comm.Psend_init(np.ones(8), 2, 1)
        sending.Start()
        sending.Pready_range(0, 1)
        sending.Wait()
        sending.Free()
    elif comm.rank == 1:
        into = np.zeros(4)
        receiving = comm.Precv_init(into, 2, 0, 0)
        receiving.Start()
        with pytest.raises(MPI.Exception) as caught:
            receiving.Wait()
        assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
        receiving.Free()


@simulated
@pytest.mark.ranks(2)
def test_a_gpu_that_fails(comm, world, fail):
    """Both ends hear of it, and the requests can be used again."""
    if comm.rank == 0:
        array = wm.array(np.arange(300_000))
        request = comm.Psend_init(array, 2, 1)
    elif comm.rank == 1:
        array = wm.zeros(300_000, int)
        request = comm.Precv_init(array, 2, 0, 0)
    for failing in (True, False):
        if comm.rank < 2:
            request.Start()
        if comm.rank == 1 and failing:
            fail("MemcpyAsync")
        world.Barrier()
        if comm.rank == 0:
            request.Pready(0)
            request.Pready(1)
        if comm.rank < 2 and failing:
            with pytest.raises(wm.CudaError if comm.rank else RuntimeError):
                request.Wait()
        elif comm.rank < 2:
            request.Wait()
    if comm.rank < 2:
        assert (array.numpy() == np.arange(300_000)).all()
        request.Free()


@simulated
@pytest.mark.ranks(2)
def test_a_pready_that_fails_can_be_repeated(comm, fail):
    """Nothing is ready then, and nothing was sent."""
    if comm.rank == 0:
        array = kinds.make("foreign", np.full(1000, 5.0))
        request = comm.Psend_init(array, 2, 1)
        request.Start()
        request.Pready(1)
        fail("EventRecord")
        with pytest.raises(wm.CudaError):
            request.Pready(0)
        request.Pready(0)
    elif comm.rank == 1:
        array = kinds.make("foreign", np.zeros(1000))
        request = comm.Precv_init(array, 2, 0, 0)
        request.Start()
    else:
        return
    request.Wait()
    request.Free()
    assert (kinds.values_of(array) == 5).all()


def test_a_count_that_holds_itself(comm):
    """And one whose code changes the list that holds it."""

    class Changes:
        def __index__(self):
            pair.clear()
            return 2

    itself = [None, 0]
    itself[0] = itself
    with pytest.raises(TypeError, match="count"):
        comm.Psend_init([np.zeros(4), itself, MPI.DOUBLE], 2, comm.rank)
    pair = [Changes(), int("70000")]
    with pytest.raises(ValueError, match="beyond the end"):
        comm.Psend_init([np.zeros(4), pair, MPI.DOUBLE], 2, comm.rank)
