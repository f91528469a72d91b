# SPDX-License-Identifier: BSD-3-Clause
"""Short messages out of memory that CUDA IPC cannot export."""

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm

pytestmark = [
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
    pytest.mark.ranks(2),
]

ROOM = 70_000
SIZES = (1, 3, 7, 8, 9, 255, 4096, 16_383, 65_535, 65_536, 65_537)


def values(seed, size):
    return np.random.default_rng(seed).integers(1, 256, size, np.uint8)


@pytest.mark.parametrize("into", ["pool", "device", "host"])
@pytest.mark.parametrize(("skip_out", "skip_in"), [(0, 0), (4, 8), (1, 3)])
def test_any_length_and_alignment(comm, into, skip_out, skip_in):
    """Nothing is lost, and nothing beside the message is touched."""
    for size in SIZES:
        if comm.rank == 0:
            array = kinds.make("pool", values(size, ROOM))
            comm.Send([array, (size, skip_out), MPI.BYTE], 1)
        elif comm.rank == 1:
            array = kinds.make(into, np.zeros(ROOM, np.uint8))
            comm.Recv([array, (size, skip_in), MPI.BYTE], 0)
            expected = np.zeros(ROOM, np.uint8)
            expected[skip_in : skip_in + size] = values(size, ROOM)[
                skip_out : skip_out + size
            ]
            np.testing.assert_array_equal(kinds.values_of(array), expected)


VIEWS = {
    "a column": np.s_[:, 0, 0, 3],
    "a plane, backwards": np.s_[::-1, :, 2, :],
    "every other, from the second": np.s_[1::2, ::3, ::2, 1::2],
    "three dimensions": np.s_[1:4, ::2, 1:3, :],
}
SHAPE = (8, 7, 5, 6)


@pytest.mark.parametrize("kind", ["device", "pool"])
@pytest.mark.parametrize("dtype", ["u1", "u2", "f4", "f8", "c16"])
@pytest.mark.parametrize("name", list(VIEWS))
def test_gaps_are_left_by_the_kernels_themselves(comm, name, dtype, kind):
    """Also where less comes than the array holds."""
    view, sent = VIEWS[name], np.arange(np.prod(SHAPE)).astype(dtype)
    by_eager_ll = name != "every other, from the second"  # four dimensions
    numbers = sent.reshape(SHAPE)[view].reshape(-1)
    for lacking in (0, 3):
        count = numbers.size - lacking
        before = wm.stats()["handed_off_bytes"]
        if comm.rank == 0:
            array = wm.asarray(kinds.make(kind, sent)).reshape(SHAPE)[view]
            if lacking:
                array = kinds.make("pool", numbers[:count])
            comm.Send(array, 1)
            handed = wm.stats()["handed_off_bytes"] - before
            posted = by_eager_ll or lacking
            assert handed == (count * sent.itemsize if posted else 0)
        elif comm.rank == 1:
            array = kinds.make(kind, np.zeros(sent.size, dtype))
            comm.Recv(wm.asarray(array).reshape(SHAPE)[view], 0)
            expected, part = np.zeros(SHAPE, dtype), np.zeros_like(numbers)
            part[:count] = numbers[:count]
            expected[view] = part.reshape(expected[view].shape)
            got = kinds.values_of(array).reshape(SHAPE)
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", list(VIEWS))
def test_a_send_of_gaps_on_a_stream_waits_for_nobody(comm, name):
    """Both send before either receives."""
    if comm.rank > 1:
        return
    view, sent = VIEWS[name], np.arange(np.prod(SHAPE)).astype("f4")
    stream = wm.Stream(wm.get_device())
    out, into = (kinds.make("device", sent).reshape(SHAPE) for _ in "ab")
    into.fill_(0)
    comm.on(stream).Send(out[view], 1 - comm.rank)
    comm.on(stream).Recv(into[view], 1 - comm.rank)
    stream.synchronize()
    expected = np.zeros(SHAPE, "f4")
    expected[view] = sent.reshape(SHAPE)[view]
    np.testing.assert_array_equal(into.numpy(), expected)


def test_more_messages_than_eager_buffers(comm):
    """The others go another way, and each finds its receiver."""
    count, size = 100, 5000
    if comm.rank == 0:
        arrays = [kinds.make("pool", values(i, size)) for i in range(count)]
        wm.Request.Waitall(
            [comm.Isend(array, 1, tag) for tag, array in enumerate(arrays)]
        )
    elif comm.rank == 1:
        for tag in reversed(range(count)):
            array = kinds.make("pool", np.zeros(size, np.uint8))
            comm.Recv(array, 0, tag)
            np.testing.assert_array_equal(array.numpy(), values(tag, size))


@pytest.mark.parametrize("blocking", [True, False])
def test_data_that_come_late(comm, blocking):
    """The receiver's kernel does not wait for ever, its host does."""
    size = 20_000
    device = wm.get_device()
    for turn in range(3):
        if comm.rank == 0:
            array = kinds.Foreign(size, np.uint8, "pool")
            fresh = wm.array(values(turn, size), device=device)
            big, other = (
                wm.zeros(64 << 20, "u1", device=device) for _ in "ab"
            )
            for _ in range(40 if kinds.is_real() else 2):
                big.assign(other, blocking=False, stream=array.stream)
            wm.asarray(array).assign(
                fresh, blocking=False, stream=array.stream
            )
            comm.Send(array, 1)
        elif comm.rank == 1:
            array = kinds.make("pool", np.zeros(size, np.uint8))
            if blocking:
                comm.Recv(array, 0)
            else:
                comm.Irecv(array, 0).Wait()
            np.testing.assert_array_equal(array.numpy(), values(turn, size))


def test_both_ways_at_once(comm):
    """Each GPU's kernels may wait for the other's."""
    if comm.rank > 1:
        return
    other, size = 1 - comm.rank, 16_384
    mine, theirs = (kinds.make("pool", np.zeros(size, "u1")) for _ in "ab")
    for turn in range(300 if kinds.is_real() else 30):
        mine.assign(np.full(size, (turn + comm.rank) % 251, np.uint8))
        if turn % 2:
            comm.Sendrecv(mine, other, 1, theirs, other, 1)
        else:
            requests = [comm.Isend(mine, other), comm.Irecv(theirs, other)]
            wm.Request.Waitall(requests)
        expected = np.full(size, (turn + other) % 251, np.uint8)
        np.testing.assert_array_equal(theirs.numpy(), expected)
