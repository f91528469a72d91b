# SPDX-License-Identifier: BSD-3-Clause
"""Sending and receiving at the same time, in one buffer or in two."""

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm

SIZES = [1, 5000, 300_000]


def neighbours(comm):
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("blocking", [True, False])
def test_replacing_what_was_sent(comm, kind, size, blocking):
    right, left = neighbours(comm)
    status = MPI.Status()
    values = np.full(size, comm.rank + 1, np.uint8)
    buffer = kinds.make(kind, values)
    for turn in range(1, 4):
        if blocking:
            comm.Sendrecv_replace(buffer, right, 4, left, 4, status)
        else:
            comm.Isendrecv_replace(buffer, right, 4, left, 4).Wait(status)
        sender = (comm.rank - turn) % comm.size
        assert (kinds.values_of(buffer) == sender + 1).all()
        assert (status.source, status.tag) == (left, 4)
        assert status.Get_count(MPI.BYTE) == size


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize(
    "waitall", [wm.Request.Waitall, MPI.Request.Waitall], ids=["ours", "stock"]
)
def test_one_request_for_both_ends(comm, kind, size, waitall):
    right, left = neighbours(comm)
    out = kinds.make(kind, np.full(size, comm.rank + 1, np.uint8))
    into = kinds.make(kind, np.zeros(size + 3, np.uint8))
    status = MPI.Status()
    waitall([comm.Isendrecv(out, right, 1, into, left, 1)], [status])
    got = kinds.values_of(into)
    assert (got[:size] == left + 1).all()
    assert not got[size:].any()
    assert (status.source, status.tag) == (left, 1)
    assert status.Get_count(MPI.BYTE) == size


# Where the two lie in an array of `n` elements and one more, in twos.
OVERLAPPING = {
    "the same": (lambda a, n: a[:n], lambda a, n: a[:n]),
    "one element on": (lambda a, n: a[:n], lambda a, n: a[1 : n + 1]),
    "one element back": (lambda a, n: a[1 : n + 1], lambda a, n: a[:n]),
    "backwards": (
        lambda a, n: a[: 2 * n : 2],
        lambda a, n: a[2 * n - 2 :: -2],
    ),
    "within": (lambda a, n: a[: 2 * n : 2], lambda a, n: a[n - 1 : 2 * n - 1]),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("where", OVERLAPPING)
@pytest.mark.parametrize("blocking", [True, False])
def test_what_is_sent_is_received_into(comm, kind, size, where, blocking):
    """MPI forbids it: what is sent is what was there."""
    right, left = neighbours(comm)
    sends, receives = OVERLAPPING[where]

    def values(rank):
        return (np.arange(2 * size + 2) % 100 + 100 * (rank % 2)).astype("u1")

    made = kinds.make(kind, values(comm.rank))
    array = made if kind == "host" else wm.asarray(made)
    out, into = sends(array, size), receives(array, size)
    if blocking:
        comm.Sendrecv(out, right, 1, into, left, 1)
    else:
        comm.Isendrecv(out, right, 1, into, left, 1).Wait()
    want = values(comm.rank)
    receives(want, size)[:] = sends(values(left), size)
    np.testing.assert_array_equal(kinds.values_of(made), want)


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
def test_what_a_stream_sends_is_received_into(comm):
    right, left = neighbours(comm)
    stream = wm.Stream(wm.get_device())
    array = wm.full(1000, comm.rank, "int32")
    for call in ("Sendrecv", "Isendrecv"):
        exchange = getattr(comm.on(stream), call)
        request = exchange(array[1:], right, 1, array[:-1], left, 1)
        if request is not None:
            request.Wait()
    stream.synchronize()
    got = array.numpy()
    assert (got[:-2] == (comm.rank - 2) % comm.size).all()
    assert got[-2] == (comm.rank - 1) % comm.size
    assert got[-1] == comm.rank


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_part_of_a_buffer_is_replaced(comm, kind):
    right, left = neighbours(comm)
    buffer = kinds.make(kind, np.full(8, float(comm.rank)))
    comm.Sendrecv_replace([buffer, (2, 3), MPI.DOUBLE], right, source=left)
    expected = np.full(8, float(comm.rank))
    expected[3:5] = left
    np.testing.assert_array_equal(kinds.values_of(buffer), expected)


def test_nobody_at_one_end(comm):
    buffer = np.full(3, 7.0)
    right, left = neighbours(comm)
    comm.Sendrecv_replace(buffer, MPI.PROC_NULL, 0, MPI.PROC_NULL)
    assert (buffer == 7).all()
    request = comm.Isendrecv(buffer, right, 0, None, MPI.PROC_NULL)
    into = np.zeros(3)
    comm.Recv(into, left)
    request.Wait()
    assert (into == 7).all()


def test_truncation_is_the_receivers_and_both_go_on(comm):
    right, left = neighbours(comm)
    request = comm.Isendrecv(np.ones(100), right, 0, np.zeros(3), left, 0)
    with pytest.raises(MPI.Exception) as caught:
        request.Wait()
    assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
    comm.Isendrecv(np.ones(3), right, 0, np.zeros(3), left, 0).Wait()


@pytest.mark.parametrize("call", ["Sendrecv", "Isendrecv"])
def test_a_bad_buffer_sends_nothing(comm, call):
    right, left = neighbours(comm)
    good = np.zeros(2)
    exchange = getattr(comm, call)
    with pytest.raises(TypeError, match="sendbuf"):
        exchange(object(), right, 0, good, left)
    with pytest.raises(TypeError, match="recvbuf"):
        exchange(good, right, 0, object(), left)
    with pytest.raises(MPI.Exception):
        exchange(good, comm.size, 0, good, left)
    with pytest.raises(TypeError, match="buf"):
        comm.Sendrecv_replace(object(), right, 0, left)
    comm.Barrier()
    assert not comm.Iprobe(left)
    comm.Barrier()
    comm.Barrier()
    into = np.zeros(2)
    comm.Sendrecv(np.full(2, 5.0), right, 0, into, left)
    assert (into == 5).all()
