# SPDX-License-Identifier: BSD-3-Clause
"""Mistakes once made: hangs, lost data and errors that reached one end."""

import contextlib
import ctypes
import os
import signal
import threading
import time

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm
from cases import settle
from warpmpi import _core

pytestmark = pytest.mark.ranks(2)
simulated = pytest.mark.skipif(
    "WARPMPI_CUDA_DRIVER" not in os.environ, reason="needs injected failures"
)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: MPI.INT.Create_vector(3, 1, 2), [1, 0, 2, 0, 3]),
        (lambda: MPI.INT.Create_indexed([1, 1, 1], [2, 1, 0]), [3, 2, 1]),
        (
            lambda: MPI.INT.Create_vector(3, 1, 2).Create_resized(0, 12),
            [1, 0, 2, 0, 3],
        ),
    ],
)
def test_derived_types_are_unpacked_for_a_stock_waitall(comm, make, expected):
    kind = make().Commit()
    if comm.rank == 0:
        comm.Send(np.arange(1, 4, dtype="i"), 1)
    elif comm.rank == 1:
        buffer = np.zeros(5, "i")
        request = comm.Irecv([buffer, 1, kind], 0)
        kind.Free()
        MPI.Request.Waitall([request])
        assert buffer[: len(expected)].tolist() == expected


def test_waitall_raises_once_and_completes_the_others(comm):
    if comm.rank == 0:
        for tag in 1, 2:
            comm.Send(np.ones(10), 1, tag)
    elif comm.rank == 1:
        short, whole = np.zeros(1), np.zeros(10)
        requests = [comm.Irecv(short, 0, 1), comm.Irecv(whole, 0, 2)]
        with pytest.raises(MPI.Exception):
            wm.Request.Waitall(requests)
        assert (whole == 1).all()
        wm.Request.Waitall(requests)


def test_an_interrupted_wait_can_be_waited_again(comm, world):
    class Interrupted(Exception):
        pass

    def interrupt(*_):
        raise Interrupted

    if comm.rank == 1:
        buffer = np.zeros(1)
        request = comm.Irecv(buffer, 0)
        old = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Interrupted):
            request.Wait()
        signal.signal(signal.SIGALRM, old)
        world.Barrier()
        request.Wait()
        assert buffer[0] == 7
    else:
        world.Barrier()
        if comm.rank == 0:
            comm.Send(np.full(1, 7.0), 1)


class Stopped(Exception):
    pass


@pytest.fixture
def on_alarm():
    """Sets what is to be called in 0.2 seconds, before Stopped is raised."""
    old = signal.getsignal(signal.SIGALRM)

    def arm(call):
        def handler(*_):
            call()
            raise Stopped

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2)

    yield arm
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, old)


@pytest.mark.parametrize("size", [1, 100_000])
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_an_interrupted_receive_loses_no_message(comm, on_alarm, kind, size):
    """The messages come while the handler runs that raises."""
    requests = []

    def send():
        for tag in 1, 2, 1:
            values = np.full(size, 10.0 * len(requests) + tag)
            array = kinds.make(kind, values)
            requests.append(comm.Isend(array, comm.rank, tag))

    with pytest.raises(Stopped):
        on_alarm(send)
        comm.Recv(kinds.make("host", np.zeros(size)), comm.rank)
    for tag, expected in (2, 12), (MPI.ANY_TAG, 1), (1, 21):
        status = MPI.Status()
        buffer = kinds.make(kind, np.zeros(size))
        comm.Recv(buffer, MPI.ANY_SOURCE, tag, status)
        assert (kinds.values_of(buffer) == expected).all()
        assert status.source == comm.rank
        assert status.Get_count(MPI.DOUBLE) == size
    wm.Request.Waitall(requests)


def test_an_interrupted_receive_puts_back_what_was_put_back(comm, on_alarm):
    requests = []

    def send():
        requests.append(comm.Isend(np.full(1, 5.0), comm.rank, 3))

    for _ in range(2):
        on_alarm(send)
        with pytest.raises(Stopped):
            comm.Recv(np.zeros(1), comm.rank, 4 if requests else 3)
    buffer = np.zeros(1)
    for _ in range(2):
        comm.Irecv(buffer, comm.rank, 3).Wait()
        assert buffer[0] == 5
    wm.Request.Waitall(requests)


def test_an_interrupted_receive_without_a_message(comm, on_alarm):
    on_alarm(lambda: None)
    with pytest.raises(Stopped):
        comm.Recv(np.zeros(1), comm.rank)
    request = comm.Isend(np.full(1, 3.0), comm.rank)
    buffer = np.zeros(1)
    comm.Recv(buffer, comm.rank)
    request.Wait()
    assert buffer[0] == 3


def test_gpu_memory_of_unknown_elements_is_taken_for_it():
    class Foreign:
        def __dlpack_device__(self):
            return 2, 0

        def __dlpack__(self, **_):
            raise BufferError("no such element type")

    assert _core.is_on_device(Foreign())


def test_reducing_elements_of_no_size(comm):
    """It once divided by their size. Some MPIs refuse the type."""
    kind = MPI.INT.Create_contiguous(0).Commit()
    with contextlib.suppress(MPI.Exception):
        comm.Allreduce([np.ones(1, "i"), 1, kind], [np.ones(1, "i"), 1, kind])


@simulated
def test_a_receive_that_fails_lets_the_sender_end(comm, fail):
    size = 20_000_000
    if comm.rank == 0:
        comm.Send(np.ones(size, np.uint8), 1)
    elif comm.rank == 1:
        buffer = kinds.make("device", np.zeros(size, np.uint8))
        fail("MemcpyAsync")
        with pytest.raises(wm.CudaError):
            comm.Recv(buffer, 0)


def receive_in_vain(comm, fail, buffer):
    if comm.rank == 0:
        # Send may have ended before, with a copy.
        with pytest.raises(wm.CudaError, match="cuStreamSynchronize"):
            comm.Ssend(buffer, 1)
    else:
        fail("StreamSynchronize")
        with pytest.raises(wm.CudaError):
            comm.Recv(buffer, 0)


@simulated
def test_the_sender_hears_why_a_small_receive_failed(comm, fail):
    if comm.rank > 1:
        return
    receive_in_vain(comm, fail, kinds.make("device", np.zeros(1000)))


@simulated
def test_memory_that_a_kernel_still_packs_into_is_not_given_back(comm, fail):
    """Its end cannot be remembered, so it is waited for."""
    if comm.rank > 1:
        return
    size = 1_000_000
    stream = wm.Stream(wm.get_device())
    channel = comm.on(stream)
    strided = wm.ones((size, 2), "uint8")[:, 1]
    for _ in range(3):
        if comm.rank == 0:
            fail("EventRecord")
            with pytest.raises(wm.CudaError, match="cuEventRecord"):
                channel.Send(strided, 1)
            others = [wm.full(size, 7, "uint8") for _ in range(4)]
            stream.synchronize()
            assert all((each.numpy() == 7).all() for each in others)
        else:
            with pytest.raises(wm.CudaError, match="cuEventRecord"):
                channel.Recv(strided, 0)


@simulated
def test_who_waits_in_the_driver_does_so_once(comm, fail):
    """The progress thread asks for it again while that is under way."""
    if comm.rank > 1:
        return
    driver = kinds.driver()
    driver.simcuda_fail_slowly(ctypes.c_long(20_000))
    buffer = kinds.make("device", np.zeros(1000))
    for _ in range(10):
        receive_in_vain(comm, fail, buffer)
    driver.simcuda_fail_slowly(ctypes.c_long(0))


@simulated
@pytest.mark.parametrize("culprit", [0, 1])
@pytest.mark.parametrize("count", [100, 1000])
def test_a_copy_that_fails_raises_on_every_rank(comm, fail, count, culprit):
    """Also the last one, of a Bcast so short that it is already over."""
    settle(comm)
    buffer = kinds.make("device", np.zeros(count))
    for name, call in (
        ("MemcpyAsync", lambda: comm.Bcast(buffer, 1 - culprit)),
        ("LaunchKernel", lambda: comm.Allreduce(MPI.IN_PLACE, buffer)),
    ):
        if comm.rank == culprit:
            fail(name)
        with pytest.raises(wm.CudaError):
            call()
        call()


def test_messages_go_on_while_another_thread_keeps_the_gil(comm, world):
    if comm.rank > 1:
        world.Barrier()
        return
    if comm.rank == 0:
        world.Barrier()
        time.sleep(0.3)
        began = time.monotonic()
        comm.Send(np.ones(1_000_000), 1)
        assert time.monotonic() - began < 1
    else:
        buffer = np.zeros(1_000_000)
        thread = threading.Thread(target=comm.Recv, args=(buffer, 0))
        thread.start()
        time.sleep(0.2)
        world.Barrier()
        ctypes.PyDLL(None).usleep(2_000_000)  # with the GIL
        thread.join()


@pytest.mark.ranks(2)
@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
def test_the_current_context_stays_the_callers(comm):
    """After messages and what they release, also in a thread that had none."""

    def current():
        context = ctypes.c_void_p()
        result = kinds.driver().cuCtxGetCurrent(ctypes.byref(context))
        assert result == 0
        return context.value

    def exchange():
        before = current()
        for size in (1000, 300_000):
            if comm.rank == 0:
                comm.Isend(kinds.make("foreign", np.zeros(size, "u1")), 1)
                comm.Ssend(kinds.make("pool", np.zeros(size, "u1")), 1)
            elif comm.rank == 1:
                for _ in range(2):
                    comm.Recv(kinds.make("pool", np.zeros(size, "u1")), 0)
        comm.Barrier()
        return current() == before

    assert exchange()
    done = []
    thread = threading.Thread(target=lambda: done.append(exchange()))
    thread.start()
    thread.join()
    assert done == [True]


def test_a_list_that_changes_while_it_is_looked_at():
    class Clearing:
        @property
        def __cuda_array_interface__(self):
            given.clear()
            return {
                "shape": (3,),
                "typestr": "|S7",
                "data": (1 << 40, False),
                "version": 3,
            }

    for _ in range(50):
        given = [Clearing()]
        _core.is_on_device(given)
        assert not given
