# SPDX-License-Identifier: BSD-3-Clause
"""Messages that a matching probe has found: nobody else receives them."""

import gc
import pickle
import sys
import threading
import time

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm


def neighbours(comm):
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


@pytest.mark.parametrize("size", [0, 5, 5000, 300_000])
@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("blocking", [True, False])
def test_only_its_own_receive_gets_it(comm, kind, size, blocking):
    right, left = neighbours(comm)
    out = [
        kinds.make(kind, np.full(size, 10 * k + comm.rank, np.uint8))
        for k in range(2)
    ]
    into = [kinds.make(kind, np.zeros(size, np.uint8)) for _ in range(2)]
    sent = [comm.Isend(buffer, right, 7) for buffer in out]
    status = MPI.Status()
    message = comm.Mprobe(MPI.ANY_SOURCE, 7, status)
    assert isinstance(message, wm.Message)
    assert message
    assert message != MPI.MESSAGE_NULL
    assert not (MPI.MESSAGE_NULL == message)  # noqa: SIM201, SIM300
    assert (status.source, status.tag) == (left, 7)
    assert status.Get_count(MPI.BYTE) == size
    comm.Recv(into[1], left, 7)
    got = MPI.Status()
    if blocking:
        message.Recv(into[0], got)
    else:
        request = message.Irecv(into[0])
        assert not message
        request.Wait(got)
    assert message == MPI.MESSAGE_NULL
    assert (got.source, got.tag) == (left, 7)
    assert got.Get_count(MPI.BYTE) == size
    MPI.Request.Waitall(sent)
    for k in range(2):
        assert (kinds.values_of(into[k]) == 10 * k + left).all()


def test_nothing_has_come(comm):
    assert comm.Improbe() is None
    assert wm.Message.Iprobe(comm) is None


def test_improbe_until_it_comes(comm):
    right, left = neighbours(comm)
    sent = comm.Isend(np.full(3, 4.0), right)
    message = None
    while message is None:
        message = comm.Improbe(left)
    into = np.zeros(3)
    message.Recv(into)
    assert (into == 4).all()
    sent.Wait()
    assert comm.Improbe() is None


def test_class_methods_take_any_communicator(comm, world):
    right, left = neighbours(comm)
    for each in comm, world:
        sent = each.Isend(np.full(3, 4.0), right)
        message = wm.Message.Probe(each, left)
        into = np.zeros(3)
        message.Recv(into)
        assert (into == 4).all()
        sent.Wait()


def test_nobody(comm):
    status = MPI.Status()
    message = comm.Mprobe(MPI.PROC_NULL, status=status)
    assert status.source == MPI.PROC_NULL
    assert message == MPI.MESSAGE_NO_PROC
    message.Recv(None)
    assert not message
    comm.Improbe(MPI.PROC_NULL).Irecv(None).Wait()


def test_a_dropped_message_is_not_lost(comm):
    right, left = neighbours(comm)
    sent = [comm.Isend(np.full(3, float(k)), right) for k in range(2)]
    message = comm.Mprobe(left)
    del message
    gc.collect()
    into = np.zeros(3)
    for k in range(2):
        comm.Recv(into, left)
        assert (into == k).all()
    MPI.Request.Waitall(sent)


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_dropped_message_is_that_of_a_receive_that_waits(comm, kind):
    right, left = neighbours(comm)
    sent = [comm.Isend(np.full(3, float(k)), right) for k in range(2)]
    message = comm.Mprobe(left)
    second = comm.Mprobe(left)
    intos = [kinds.make(kind, np.full(3, -1.0)) for _ in range(2)]
    receives = [comm.Irecv(into, left) for into in intos]
    del message
    receives[0].Wait()
    del second
    receives[1].Wait()
    for k, into in enumerate(intos):
        assert (kinds.values_of(into) == k).all()
    MPI.Request.Waitall(sent)


def test_a_bad_buffer_leaves_the_message(comm):
    right, left = neighbours(comm)
    sent = comm.Isend(np.full(3, 2.0), right)
    message = comm.Mprobe(left)
    with pytest.raises(TypeError, match="buf"):
        message.Recv(object())
    with pytest.raises(ValueError, match="pickle"):
        pickle.dumps(message)
    assert message
    with pytest.raises(MPI.Exception) as caught:
        message.Recv(np.zeros(1))
    assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
    assert not message
    sent.Wait()


@pytest.mark.parametrize("call", ["Recv", "Irecv", "recv", "irecv"])
@pytest.mark.parametrize("received", [True, False])
def test_a_null_message_cannot_be_received(comm, call, received):
    """MPI would end the program: it knows no communicator to tell."""
    message = wm.Message()
    if received:
        right, left = neighbours(comm)
        sent = comm.Isend(np.zeros(3), right)
        message = comm.Mprobe(left)
        message.Recv(np.zeros(3))
        sent.Wait()
    args = (np.zeros(3),) if call[0].isupper() else ()
    with pytest.raises(MPI.Exception) as caught:
        getattr(message, call)(*args)
    assert caught.value.Get_error_class() == MPI.ERR_REQUEST
    if sys.version_info >= (3, 11):
        assert "received already" in caught.value.__notes__[0]


def test_the_message_of_no_rank_can_be_received_again(comm):
    message = comm.Mprobe(MPI.PROC_NULL)
    message.Recv(np.zeros(3))
    assert wm.Message(MPI.MESSAGE_NO_PROC).recv() is None


@pytest.mark.parametrize("received", [True, False])
def test_after_its_communicator_was_freed(world, received):
    comm = wm.Comm(world.Dup())
    right, left = neighbours(comm)
    sent = comm.Isend(np.full(3, comm.rank), right)
    message = comm.Mprobe(left)
    sent.Wait()
    comm.Free()
    into = np.full(3, -1)
    if received:
        message.Recv(into)
        assert (into == left).all()
    del message
    gc.collect()


def test_threads_that_probe_and_receive(comm):
    """Each message goes to one thread, whole, whoever matches it."""
    right, left = neighbours(comm)
    count, got, problems = 40, [], []
    mutex = threading.Lock()

    def receive():
        try:
            while True:
                status = MPI.Status()
                message = comm.Improbe(left, MPI.ANY_TAG, status)
                with mutex:
                    if len(got) == count:
                        return
                if message is None:
                    time.sleep(0.0005)
                    continue
                buffer = np.zeros(status.Get_count(MPI.INT), "i4")
                message.Recv(buffer)
                with mutex:
                    got.append(status.tag)
                assert (buffer == status.tag).all()
                assert len(buffer) == 1 + status.tag
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=receive) for _ in range(3)]
    for thread in threads:
        thread.start()
    sent = [
        comm.Isend(np.full(1 + k, k, "i4"), right, k) for k in range(count)
    ]
    MPI.Request.Waitall(sent)
    for thread in threads:
        thread.join()
    assert not problems
    assert sorted(got) == list(range(count))


@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("call", ["Recv", "Irecv", "recv", "irecv"])
@pytest.mark.parametrize("copied", [True, False])
def test_calls_of_mpi4py_receive_it(comm, kind, call, copied):
    right, left = neighbours(comm)
    into = kinds.make(kind, np.zeros(4))
    lower = call[0].islower()
    if lower:
        sent = comm.isend("object", right, 3)
    else:
        sent = comm.Isend(kinds.make(kind, np.full(4, 2.0)), right, 3)
    message = comm.Mprobe(left, 3)
    if copied:
        message = MPI.Message(MPI.Message(message))
        gc.collect()
    got = getattr(MPI.Message, call)(message, *([] if lower else [into]))
    if call == "irecv":
        got = got.wait()
    elif call == "Irecv":
        got.Wait()
    sent.Wait()
    if lower:
        assert got == "object"
    else:
        assert (kinds.values_of(into) == 2).all()
    with pytest.raises(MPI.Exception) as caught:
        MPI.Message.Recv(message, into)
    assert caught.value.Get_error_class() == MPI.ERR_REQUEST
    with pytest.raises(MPI.Exception):
        MPI.Message().recv()


class OfMPI(MPI.Message):
    pass


class Ours(wm.Message):
    pass


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("kind", [MPI.Message, wm.Message, Ours, OfMPI])
def test_a_copy_is_the_message(comm, kind, copies):
    right, left = neighbours(comm)
    sent = [comm.isend(number, right) for number in (1, 2)]
    message, other = comm.mprobe(left), comm.mprobe(left)
    copy = message
    for _ in range(copies):
        copy = kind(copy)
    gc.collect()
    assert message == copy and copy == message
    assert (message != copy, copy != message) == (False, False)
    assert MPI.Message(copy) == message
    assert wm.Message(copy) == message
    assert other != copy and message != other
    if kind is not OfMPI:  # MPI's handle alone tells these
        assert copy and MPI.Message(copy)
        assert copy != MPI.MESSAGE_NULL and copy != MPI.MESSAGE_NO_PROC
    assert copy.recv() == 1
    assert not message and not copy
    assert message == MPI.MESSAGE_NULL == copy
    with pytest.raises(MPI.Exception) as caught:
        copy.recv()
    assert caught.value.Get_error_class() == MPI.ERR_REQUEST
    del message, copy
    assert other.recv() == 2
    MPI.Request.Waitall(sent)
