# SPDX-License-Identifier: BSD-3-Clause
"""Ctrl-C ends a call that waits, and no message is lost by that."""

import os
import signal
import threading
import time

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm

SIZE = 1_000_000  # bytes: more than any MPI takes before its receive
KINDS = [kind for kind in ("host", "device", "pool") if kind in kinds.KINDS]


class Stopped(Exception):
    pass


@pytest.fixture
def interrupt():
    """Calls a function that waits, and is interrupted in a moment.

    By a signal to the process from another thread, as a terminal's comes.
    """

    def stop(*_):
        raise Stopped

    old = signal.signal(signal.SIGINT, stop)
    timers = []

    def call(function, begun=lambda: True):
        ready = threading.Event()

        def kill():
            ready.wait()  # the thread is there before its starter is told so
            time.sleep(0.1)
            while not begun():  # a busy machine
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Thread(target=kill, daemon=True)
        timers.append(timer)
        timer.start()
        with pytest.raises(Stopped):
            ready.set()
            function()

    yield call
    for timer in timers:
        timer.join()
    signal.signal(signal.SIGINT, old)


def filled(kind, value):
    return kinds.make(kind, np.full(SIZE, value, np.uint8))


def holds(buffer, value):
    return bool((kinds.values_of(buffer) == value).all())


RECEIVES = {
    "Recv": lambda comm, into: comm.Recv(into, comm.rank, 3),
    "any": lambda comm, into: comm.Recv(into),
    "Probe": lambda comm, into: comm.Probe(comm.rank, 3),
    "Mprobe": lambda comm, into: comm.Mprobe(comm.rank, 3),
    "Sendrecv": lambda comm, into: comm.Sendrecv(
        np.zeros(1), comm.rank, 4, into, comm.rank, 3
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", list(RECEIVES))
def test_a_receive_that_is_interrupted(comm, interrupt, name, kind):
    """What is sent afterwards goes to the next receive."""
    if name == "Sendrecv":
        # What it has sent itself is received first.
        requests = [comm.Irecv(np.zeros(1), comm.rank, 4)]
    into = filled(kind, 1)
    interrupt(
        lambda: RECEIVES[name](comm, into),
        lambda: name != "Sendrecv" or requests[0].Test(),
    )
    for value in (5, 6):
        request = comm.Isend(filled(kind, value), comm.rank, 3)
        other = filled(kind, 2)
        status = MPI.Status()
        comm.Recv(other, comm.rank, 3, status)
        request.Wait()
        assert status.Get_count(MPI.BYTE) == SIZE
        assert holds(other, value)
    assert holds(into, 1)
    if name == "Sendrecv":
        wm.Request.Waitall(requests)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_receive_gives_back_keeps_its_turn(comm, kind):
    """Messages come at the moment in which the call is interrupted."""
    requests = []
    tags = [4, 5, 3, 5]

    def stop(*_):
        requests.extend(
            comm.Isend(filled(kind, tag), comm.rank, tag) for tag in tags
        )
        raise Stopped

    old = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    with pytest.raises(Stopped):
        comm.Recv(filled(kind, 1), comm.rank, 5)
    signal.signal(signal.SIGALRM, old)
    for tag in tags:
        into, status = filled(kind, 0), MPI.Status()
        comm.Recv(into, comm.rank, MPI.ANY_TAG, status)
        assert status.tag == tag
        assert holds(into, tag)
    wm.Request.Waitall(requests)


@pytest.mark.parametrize("tags", [[5], [5, 5], [4, 5, 3, 5]])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_receive_gives_back_is_the_next_ones(comm, kind, tags):
    """Those that were begun meanwhile, and wait in MPI, are the next.

    They may have later messages by the time it is given back.
    """
    given = [at for at, tag in enumerate(tags) if tag == 5]
    intos = [filled(kind, 0) for _ in given]
    receives, sends = [], []

    def stop(*_):
        receives.extend(comm.Irecv(into, comm.rank, 5) for into in intos)
        sends.extend(
            comm.Isend(filled(kind, at + 1), comm.rank, tag)
            for at, tag in enumerate(tags)
        )
        raise Stopped

    old = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    with pytest.raises(Stopped):
        comm.Recv(filled(kind, 9), comm.rank, 5)
    signal.signal(signal.SIGALRM, old)
    wm.Request.Waitall(receives)
    for at in given:
        assert sum(holds(into, at + 1) for into in intos) == 1
    for at, tag in enumerate(tags):
        if tag != 5:
            into = filled(kind, 0)
            comm.Recv(into, comm.rank, tag)
            assert holds(into, at + 1)
    wm.Request.Waitall(sends)


SENDS = {
    "Send": lambda comm, out: comm.Send(out, comm.rank, 3),
    "Ssend": lambda comm, out: comm.Ssend(out, comm.rank, 3),
    "Sendrecv": lambda comm, out: comm.Sendrecv(
        out, comm.rank, 3, np.zeros(1), comm.rank, 4
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", list(SENDS))
def test_a_send_that_is_interrupted_goes_on(comm, interrupt, name, kind):
    """It is received afterwards, once, also when its array is forgotten."""
    interrupt(
        lambda: SENDS[name](comm, filled(kind, 7)),
        lambda: comm.Iprobe(comm.rank, 3),
    )
    into, status = filled(kind, 0), MPI.Status()
    comm.Recv(into, comm.rank, 3, status)
    assert status.Get_count(MPI.BYTE) == SIZE
    assert holds(into, 7)
    assert not comm.Iprobe(comm.rank, 3)


WAITS = {
    "Wait": lambda requests: requests[0].Wait(),
    "Waitall": lambda requests: wm.Request.Waitall(requests),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["Irecv", "Recv_init", "Issend"])
@pytest.mark.parametrize("name", list(WAITS))
def test_a_wait_that_is_interrupted_can_be_repeated(
    comm, interrupt, name, form, kind
):
    me, sends = comm.rank, form == "Issend"
    mine = [filled(kind, 8 if sends else 0) for _ in "ab"]
    requests = [
        getattr(comm, form)(buffer, me, tag) for tag, buffer in enumerate(mine)
    ]
    if form == "Recv_init":
        wm.Prequest.Startall(requests)
    interrupt(lambda: WAITS[name](requests))
    theirs = [filled(kind, 0 if sends else 8) for _ in "ab"]
    for tag, buffer in enumerate(theirs):
        if sends:
            comm.Recv(buffer, me, tag)
        else:
            comm.Send(buffer, me, tag)
    wm.Request.Waitall(requests)
    for buffer in (*mine, *theirs):
        assert holds(buffer, 8)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["Recv", "Send"])
def test_between_two_ranks(comm, world, interrupt, name, kind):
    """Again and again, one end is interrupted, then the other comes."""
    for turn in range(3):
        buffer = filled(kind, turn if comm.rank == 0 else 99)
        if comm.rank == 1 and name == "Recv":
            interrupt(lambda buffer=buffer: comm.Recv(buffer, 0, 3))
        elif comm.rank == 0 and name == "Send":
            interrupt(
                lambda buffer=buffer: comm.Send(buffer, 1, 3),
                lambda: world.iprobe(1, 9),
            )
            world.recv(None, 1, 9)
        elif comm.rank == 1:
            comm.Probe(0, 3)  # it has begun
            world.send(None, 0, 9)
        world.Barrier()
        if comm.rank == 1:
            comm.Recv(buffer, 0, 3)
            assert holds(buffer, turn)
        elif comm.rank == 0 and name == "Recv":
            comm.Send(buffer, 1, 3)
        world.Barrier()


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
@pytest.mark.ranks(2)
def test_locks_of_windows(comm, interrupt, world):
    """An abandoned place in the queue holds nobody up."""
    win = wm.Win.Create(wm.zeros(4, "int32"), 4, comm=comm)
    if comm.rank == 0:
        win.Lock(0)
    world.Barrier()
    if comm.rank == 1:
        for _ in range(2):
            interrupt(lambda: win.Lock(0))
        interrupt(lambda: win.Lock_all())
    world.Barrier()
    if comm.rank == 0:
        win.Unlock(0)
    for kind in (MPI.LOCK_EXCLUSIVE, MPI.LOCK_SHARED):
        win.Lock(0, kind)
        win.Put(wm.full(4, 1, "int32"), 0)
        win.Unlock(0)
    win.Free()


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
@pytest.mark.ranks(2)
def test_epochs_of_windows(comm, interrupt, world):
    """The call can be made again."""
    memory = wm.zeros(4, "int32")
    win = wm.Win.Create(memory, 4, comm=comm)
    if comm.rank < 2:
        group = comm.Get_group().Incl([1 - comm.rank])
    if comm.rank == 0:
        interrupt(lambda: win.Start(group))
        world.send(None, 1)
        win.Start(group)
        win.Put(wm.full(4, 3, "int32"), 1)
        world.recv(source=1)
        win.Complete()
    elif comm.rank == 1:
        world.recv(source=0)
        win.Post(group)
        interrupt(win.Wait)
        world.send(None, 0)
        win.Wait()
        assert memory.numpy().tolist() == [3] * 4
    win.Free()


def test_a_keyboard_interrupt(comm):
    """Python's own handler, and the rank goes on."""
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.2, signal.raise_signal, (signal.SIGINT,))
    try:
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            comm.Recv(np.zeros(1), comm.rank)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, old)
    request = comm.Isend(np.full(1, 3.0), comm.rank)
    buffer = np.zeros(1)
    comm.Recv(buffer, comm.rank)
    request.Wait()
    assert buffer[0] == 3
