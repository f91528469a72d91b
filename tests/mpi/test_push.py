# SPDX-License-Identifier: BSD-3-Clause
"""Messages that their sender copies into the receiver's memory."""

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm

pytestmark = [
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
    pytest.mark.ranks(2),
]

LARGE = 5_000_000


@pytest.fixture(scope="module")
def comm(world):
    return wm.Comm(world)


@pytest.fixture(autouse=True)
def by_ipc(comm):
    told = wm.transport(comm, 1 - comm.rank) if comm.rank < 2 else None
    told = MPI.COMM_WORLD.allgather(told)[:2]
    if any(each.name != "ipc" for each in told):
        pytest.skip(f"no ipc here: {told}")


def pushed():
    return wm.stats()["pushed_messages"]


def test_both_ways_at_once(comm):
    if comm.rank < 2:
        other = 1 - comm.rank
        mine, theirs = (
            kinds.make("device", np.zeros(LARGE, "u1")) for _ in "ab"
        )
        before = pushed()
        for turn in range(8):
            mine.assign(np.full(LARGE, (3 * turn + comm.rank) % 251, "u1"))
            comm.Sendrecv(mine, other, 1, theirs, other, 1)
            expected = (3 * turn + other) % 251
            assert (theirs.numpy() == expected).all()
        count = pushed() - before
    counts = MPI.COMM_WORLD.allgather(count if comm.rank < 2 else 0)
    assert sum(counts) > 0


@pytest.mark.parametrize("size", [8, 5000, 100_000, LARGE])
def test_whoever_copied_last_on_a_shared_gpu_copies_again(comm, size):
    """A turn of the other process would cost more than the copy."""
    if comm.rank > 1:
        return
    other = 1 - comm.rank
    array = wm.zeros(size, "u1", device="cuda:0")
    before, rounds = pushed(), 6
    for turn in range(rounds):
        if comm.rank == turn % 2:
            array.assign(np.full(size, turn + 1, "u1"))
            comm.Ssend(array, other)
        else:
            comm.Recv(array, other)
            assert (array.numpy() == turn + 1).all()
    counts = pushed() - before
    # The first one tells who was last.
    told = MPI.COMM_WORLD.Create_group(
        MPI.COMM_WORLD.group.Incl([0, 1])
    ).allgather(counts)
    assert sorted(told) in ([0, rounds // 2], [0, rounds // 2 - 1])


def test_only_one_way_the_receiver_copies(comm):
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
