# SPDX-License-Identifier: BSD-3-Clause
"""Messages that their sender copies into the receiver's memory."""

import os
import signal

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm

pytestmark = [
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
    pytest.mark.ranks(2),
    pytest.mark.usefixtures("ipc"),
]

LARGE = 5_000_000


@pytest.fixture(scope="module")
def pair(world):
    """The first two ranks' own; COMM_NULL on the others."""
    comm = world.Split(0 if world.rank < 2 else MPI.UNDEFINED)
    yield comm
    if comm != MPI.COMM_NULL:
        comm.Free()


def pushed():
    return wm.stats()["pushed_messages"]


def until_pushed(pair, times, turn):
    """Turns until so many messages were. A sender who is late is not waited
    for, so on a busy machine some are not."""
    before, count = pushed(), 0
    for number in range(200):
        turn(number)
        count = pair.allreduce(pushed() - before)
        if count >= times:
            break
    assert count >= times


def test_both_ways_at_once(comm, pair):
    if comm.rank > 1:
        return
    other = 1 - comm.rank
    mine, theirs = (kinds.make("device", np.zeros(LARGE, "u1")) for _ in "ab")

    def turn(number):
        mine.assign(np.full(LARGE, (3 * number + comm.rank) % 251, "u1"))
        comm.Sendrecv(mine, other, 1, theirs, other, 1)
        assert (theirs.numpy() == (3 * number + other) % 251).all()

    until_pushed(pair, 5, turn)


@pytest.mark.parametrize("size", [8, 5000, 100_000, LARGE])
def test_whoever_copied_last_on_a_shared_gpu_copies_again(comm, pair, size):
    """A turn of the other process would cost more than the copy."""
    if comm.rank > 1:
        return
    other = 1 - comm.rank
    array = wm.zeros(size, "u1", device="cuda:0")

    def turn(number):
        for sender in range(2):
            value = (2 * number + sender + 1) % 251
            if comm.rank == sender:
                array.assign(np.full(size, value, "u1"))
                comm.Ssend(array, other)
            else:
                comm.Recv(array, other)
                assert (array.numpy() == value).all()

    until_pushed(pair, 5, turn)


def test_a_sender_who_has_gone_on_is_not_waited_for(comm, pair):
    """Interrupted, it sits in another library's barrier."""
    if comm.rank > 1:
        return
    array = wm.zeros(500_000, "u1", device="cuda:0")
    sender = pair.bcast(os.getpid())
    for _ in range(3):
        if comm.rank == 0:
            array.assign(np.full(500_000, 7, "u1"))
            with pytest.raises(KeyboardInterrupt):
                comm.Ssend(array, 1)
            pair.Barrier()
            pair.Barrier()
        else:
            comm.Probe(0)  # its call has begun
            os.kill(sender, signal.SIGINT)
            pair.Barrier()
            comm.Recv(array, 0)
            assert (array.numpy() == 7).all()
            pair.Barrier()


def test_only_one_way_the_receiver_copies(comm, world):
    if len(set(world.allgather(wm.get_device().uuid)[:2])) == 1:
        pytest.skip("on one GPU whoever copied last copies again")
    array = kinds.make("device", np.zeros(LARGE, "u1"))
    before = pushed()
    for _ in range(4):
        if comm.rank == 0:
            comm.Send(array, 1)
        elif comm.rank == 1:
            comm.Recv(array, 0)
    assert pushed() == before


def test_a_buffer_in_use_is_not_written_early(comm):
    """What was given to the receiver's stream before comes before."""
    if comm.rank > 1:
        return
    other = 1 - comm.rank
    stream = wm.Stream(wm.get_device())
    mine, theirs, zeros = (
        kinds.make("device", np.full(LARGE, value, "u1"))
        for value in (comm.rank + 1, 9, 0)
    )
    for _ in range(4):
        theirs.assign(zeros, blocking=False, stream=stream)
        comm.Sendrecv(mine, other, 1, theirs, other, 1)
        assert (theirs.numpy() == other + 1).all()


def test_what_the_sender_still_writes_is_waited_for(comm):
    if comm.rank > 1:
        return
    other = 1 - comm.rank
    stream = wm.Stream(wm.get_device())
    mine, theirs = (kinds.make("device", np.zeros(LARGE, "u1")) for _ in "ab")
    for turn in range(1, 5):
        mine.fill_(turn + comm.rank, stream=stream)
        comm.Sendrecv(mine, other, 1, theirs, other, 1)
        assert (theirs.numpy() == turn + other).all()


@pytest.mark.parametrize("kind", ["pool", "managed", "foreign"])
def test_other_memory_at_one_end(comm, kind):
    if comm.rank > 1:
        return
    other = 1 - comm.rank
    own = kind if comm.rank == 0 else "device"
    mine, theirs = (kinds.make(own, np.zeros(LARGE, "u1")) for _ in "ab")
    for turn in range(4):
        mine.assign(np.full(LARGE, turn + comm.rank, "u1"))
        comm.Sendrecv(mine, other, 1, theirs, other, 1)
        assert (kinds.values_of(theirs) == turn + other).all()


@pytest.mark.skipif(
    not hasattr(kinds.driver(), "simcuda_fail"),
    reason="needs the simulated driver",
)
def test_a_sender_whose_copy_fails(comm, pair, fail):
    """Both ends are told."""
    if comm.rank > 1:
        return
    array = wm.zeros(100_000, "u1", device="cuda:0")
    for turn in range(120):
        sends, raised = comm.rank == turn % 2, 0
        pair.Barrier()
        if sends and turn > 40:
            fail("MemcpyAsync")
        try:
            if sends:
                comm.Ssend(array, 1 - comm.rank)
            else:
                comm.Recv(array, 1 - comm.rank)
        except wm.CudaError:
            raised = 1
        kinds.driver().simcuda_fail(None, 0, 0)
        told = pair.allreduce(raised)
        if told > 0:
            break
    assert told == 2
