# SPDX-License-Identifier: BSD-3-Clause
"""Persistent requests: messages that are begun many times."""

import gc
import sys

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm


def write(buffer, value):
    if isinstance(buffer, np.ndarray):
        buffer[:] = value
    else:
        wm.asarray(buffer).fill_(value)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("startall", [True, False])
@pytest.mark.parametrize(
    "waitall", [wm.Request.Waitall, MPI.Request.Waitall], ids=["ours", "stock"]
)
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_halo_exchange(comm, kind, startall, waitall):
    """Both directions, begun together, with other data each time."""
    if comm.rank > 1:
        return
    other = 1 - comm.rank
    for size in (1, 5000, 300_000):
        zeros = np.zeros(size, np.uint8)
        out, into = (
            [kinds.make(kind, zeros.copy()) for _ in "ab"] for _ in "ab"
        )
        requests = [
            comm.Send_init(out[0], other, 1),
            comm.Send_init(out[1], other, 2),
            comm.Recv_init(into[1], other, 2),
            comm.Recv_init(into[0], other, 1),
        ]
        for turn in range(3):
            for k, buffer in enumerate(out):
                write(buffer, 1 + 10 * turn + 2 * k + comm.rank)
            if startall:
                wm.Prequest.Startall(requests)
            else:
                for request in requests:
                    request.Start()
            waitall(requests)
            for k, buffer in enumerate(into):
                expected = 1 + 10 * turn + 2 * k + other
                assert (kinds.values_of(buffer) == expected).all()
        for request in requests:
            request.Free()


@pytest.mark.ranks(2)
def test_many_at_once(comm):
    """More than share a kernel, or a call without the GIL."""
    count, kind = 150, "pool" if wm.is_cuda_available() else "host"
    buffers = [kinds.make(kind, np.zeros(9, "u1")) for _ in range(count)]
    if comm.rank == 0:
        requests = [comm.Send_init(b, 1, t) for t, b in enumerate(buffers)]
    elif comm.rank == 1:
        requests = [comm.Recv_init(b, 0, t) for t, b in enumerate(buffers)]
    else:
        return
    for turn in range(2):
        if comm.rank == 0:
            for tag, buffer in enumerate(buffers):
                write(buffer, (tag + turn) % 251)
        wm.Prequest.Startall(requests)
        wm.Request.Waitall(requests)
        for tag, buffer in enumerate(buffers):
            assert (kinds.values_of(buffer) == (tag + turn) % 251).all()


@pytest.mark.ranks(2)
@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
def test_on_a_stream(comm):
    if comm.rank > 1:
        return
    other, stream = 1 - comm.rank, wm.Stream(wm.get_device())
    out, into = (
        wm.zeros(7000, "u1", device=wm.get_device()) for _ in range(2)
    )
    channel = comm.on(stream)
    requests = [channel.Send_init(out, other), channel.Recv_init(into, other)]
    del channel
    for turn in range(5):
        out.fill_(turn + comm.rank)
        wm.Prequest.Startall(requests)
        wm.Request.Waitall(requests)
        stream.synchronize()
        assert (into.numpy() == turn + other).all()


@pytest.mark.ranks(2)
def test_synchronous_and_ready_ones(comm):
    out, into = np.full(5, comm.rank, "i"), np.zeros(5, "i")
    if comm.rank == 0:
        for make in (comm.Ssend_init, comm.Rsend_init):
            request = make([out, MPI.INT], dest=1, tag=4)
            comm.Recv(np.zeros(1), 1)
            request.Start()
            request.Wait()
    elif comm.rank == 1:
        into[:] = 9
        for _ in range(2):
            request = comm.Recv_init([into, MPI.INT], source=0, tag=4)
            request.Start()
            comm.Send(np.zeros(1), 0)
            status = MPI.Status()
            request.Wait(status)
            assert (status.source, status.tag) == (0, 4)
            assert status.Get_count(MPI.INT) == 5
            assert (into == 0).all()


def test_derived_types_are_packed_each_time(comm):
    kind = MPI.INT.Create_vector(3, 1, 2).Commit()
    out, into = np.zeros(6, "i"), np.zeros(6, "i")
    requests = [
        comm.Recv_init([into, 1, kind], comm.rank),
        comm.Send_init([out, 1, kind], comm.rank),
    ]
    kind.Free()
    for turn in range(3):
        out[:] = turn * 10 + np.arange(6)
        wm.Prequest.Startall(requests)
        wm.Request.Waitall(requests)
        assert into.tolist()[::2] == out.tolist()[::2]
        assert into.tolist()[1::2] == [0, 0, 0]


def test_the_null_process(comm):
    requests = [
        comm.Send_init(np.zeros(3), MPI.PROC_NULL),
        comm.Recv_init(np.zeros(3), MPI.PROC_NULL),
    ]
    for _ in range(2):
        wm.Prequest.Startall(requests)
        wm.Request.Waitall(requests)


def test_misuse_is_answered(comm):
    buffer = np.zeros(3)
    request = comm.Recv_init(buffer, comm.rank, 5)
    assert request.Test()  # inactive
    request.Wait()
    request.Start()
    with pytest.raises(MPI.Exception) as raised:
        request.Start()
    assert raised.value.Get_error_class() == MPI.ERR_REQUEST
    comm.Send(np.ones(3), comm.rank, 5)
    request.Wait()
    assert (buffer == 1).all()
    request.Free()
    for call in (request.Start, request.Free):
        with pytest.raises(MPI.Exception):
            call()
    for wrong in ([3], [MPI.REQUEST_NULL], [comm.Irecv(buffer, comm.rank, 6)]):
        with pytest.raises(TypeError, match=r"requests\[0\]"):
            wm.Prequest.Startall(wrong)
    comm.Send(buffer, comm.rank, 6)
    for call in (
        lambda: comm.Send_init(buffer, comm.size),
        lambda: comm.Recv_init(buffer, 0, -7),
    ):
        with pytest.raises(MPI.Exception):
            call()
    with pytest.raises(TypeError):
        wm.Prequest.Startall(5)
    request = comm.Recv_init(buffer, comm.rank, 5)
    with pytest.raises(MPI.Exception):
        wm.Prequest.Startall([request, request])
    comm.Send(np.full(3, 2.0), comm.rank, 5)  # it was begun once
    request.Wait()
    assert (buffer == 2).all()


def test_types_derived_in_python(comm):
    class Mine(wm.Prequest):
        pass

    request = Mine()
    with pytest.raises(MPI.Exception):
        request.Start()
    del request
    gc.collect()


def test_a_list_that_changes_meanwhile(comm):
    """What asks an array may be anybody's code."""

    class Unruly:
        def __init__(self):
            self.array, self.then = np.zeros(5), lambda: None

        @property
        def __array_interface__(self):
            self.then()
            return self.array.__array_interface__

    unruly = Unruly()
    send = comm.Send_init(np.ones(5), comm.rank, 3)
    receive = comm.Recv_init(unruly, comm.rank, 3)
    requests = [receive, send]
    unruly.then = requests.clear
    wm.Prequest.Startall(requests)
    wm.Request.Waitall((receive, send))
    assert (unruly.array == 1).all()


@pytest.mark.ranks(2)
@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
def test_receives_wait_for_their_own_buffers_alone(comm):
    """Another's stream may go on only after the first has come."""
    size = 1000
    if comm.rank == 0:
        arrays = [
            kinds.make("pool", np.full(size, k + 1, "u1")) for k in (0, 1)
        ]
        wm.Request.Waitall(
            [comm.Isend(array, 1, tag) for tag, array in enumerate(arrays)]
        )
    elif comm.rank == 1:
        first, second = (
            kinds.make("pool", np.zeros(size, "u1")) for _ in "ab"
        )
        with kinds.Gate() as gate:
            gate.stop(second.stream)
            requests = [comm.Irecv(first, 0, 0), comm.Irecv(second, 0, 1)]
            requests[0].Wait()
        assert (first.numpy() == 1).all()
        requests[1].Wait()
        assert (second.numpy() == 2).all()


def test_one_of_several_cannot_start(comm):
    """The others have, and can be waited for."""
    out, into = np.ones(3), np.zeros(3)
    send = comm.Send_init(out, comm.rank, 8)
    receive = comm.Recv_init(into, comm.rank, 8)
    freed = comm.Send_init(out, comm.rank, 8)
    freed.Free()
    with pytest.raises(MPI.Exception):
        wm.Prequest.Startall([receive, send, freed])
    wm.Request.Waitall([receive, send])
    assert (into == 1).all()


def test_buffers_live_as_long_as_the_request(comm):
    buffer = np.zeros(1000)
    before = sys.getrefcount(buffer)
    request = comm.Recv_init(buffer, comm.rank, 9)
    request.Start()
    assert sys.getrefcount(buffer) > before
    send = comm.Isend(np.full(1000, 3.0), comm.rank, 9)
    send.Wait()
    request.Wait()
    assert sys.getrefcount(buffer) > before
    request.Free()
    del request
    gc.collect()
    assert sys.getrefcount(buffer) == before
    assert (buffer == 3).all()


class Window(MPI.Win):
    """A window class of a program's own."""


@pytest.mark.parametrize("how", ["Startall", "Start"])
def test_starts_of_mpi4py_start_ours(comm, how):
    """Without install(), ours alone and beside MPI's own."""
    out, into = np.ones(5), np.zeros(5)
    plain_out, plain_into = np.full(5, 2.0), np.zeros(5)
    requests = [
        comm.Recv_init(into, comm.rank, 8),
        MPI.COMM_SELF.Recv_init(plain_into, 0, 8),
        comm.Send_init(out, comm.rank, 8),
        MPI.COMM_SELF.Send_init(plain_out, 0, 8),
    ]
    for _ in range(2):
        into[:] = plain_into[:] = 0
        if how == "Startall":
            MPI.Prequest.Startall(requests)
        else:
            for request in requests:
                MPI.Prequest.Start(request)
        MPI.Request.Waitall(requests)
        assert (into == 1).all() and (plain_into == 2).all()
    MPI.Prequest.Startall([requests[1], requests[3]])
    MPI.Request.Waitall([requests[1], requests[3]])
    with pytest.raises(TypeError):
        MPI.Prequest.Startall([requests[0], MPI.Request()])
    for request in requests:
        request.Free()


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_window_over_gpu_memory_is_refused(comm, kind):
    if kind in kinds.DEVICE_KINDS:
        memory = kinds.make(kind, np.zeros(4))
        for give in (
            lambda: MPI.Win.Create(memory, 8, MPI.INFO_NULL, comm),
            lambda: Window.Create(memory, comm=comm),
        ):
            with pytest.raises(TypeError, match=r"wm\.Win\.Create"):
                give()
        return
    try:
        window = Window.Create(np.zeros(4), 8, comm=comm)
    except (MPI.Exception, NotImplementedError):
        pytest.skip("this MPI has no windows here")
    assert type(window) is Window
    window.Free()
