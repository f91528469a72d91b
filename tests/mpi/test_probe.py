# SPDX-License-Identifier: BSD-3-Clause
"""Probe and Iprobe: what could be received, before it is."""

import time

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm


@pytest.fixture(scope="module")
def comm(world):
    return wm.Comm(world)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("size", [0, 5, 5000, 300_000])
def test_a_receive_of_the_size_that_was_probed(comm, kind, size):
    if comm.rank == 0:
        values = np.arange(size, dtype=np.uint8)
        comm.Send(kinds.make(kind, values), 1, 3)
    elif comm.rank == 1:
        status = MPI.Status()
        assert comm.Probe(MPI.ANY_SOURCE, MPI.ANY_TAG, status) is True
        assert (status.source, status.tag) == (0, 3)
        assert status.Get_count(MPI.BYTE) == size
        buffer = kinds.make(kind, np.zeros(max(size, 1), np.uint8))
        comm.Recv([buffer, size, MPI.BYTE], status.source, status.tag)
        np.testing.assert_array_equal(
            kinds.values_of(buffer)[:size], np.arange(size, dtype=np.uint8)
        )


@pytest.mark.ranks(2)
def test_probed_messages_do_not_overtake(comm):
    """Those with one tag come in order, whether they were probed or not."""
    if comm.rank == 0:
        for value in range(6):
            comm.Send(np.full(2, value), 1, value % 2)
        comm.Send(np.zeros(1), 1, 9)
    elif comm.rank == 1:
        comm.Probe(0, 9)
        for value in (1, 0, 3, 2, 5, 4):
            if value % 3:
                assert comm.Iprobe(0, value % 2)
            buffer = np.zeros(2, int)
            source = (0, MPI.ANY_SOURCE)[value % 2]
            comm.Recv(buffer, source, value % 2)
            assert (buffer == value).all()
        comm.Recv(np.zeros(1), 0, MPI.ANY_TAG)


@pytest.mark.ranks(2)
def test_iprobe_until_something_comes(comm, world):
    if comm.rank == 1:
        status = MPI.Status()
        assert comm.Iprobe(status=status) is False
        world.Barrier()
        while not comm.Iprobe(0, 4, status):
            time.sleep(0)
        assert status.Get_count(MPI.DOUBLE) == 10
        assert comm.Iprobe(0, 4)
        assert not comm.Iprobe(0, 5)
        comm.Recv(np.zeros(10), 0, 4)
        assert not comm.Iprobe(0, 4)
    else:
        world.Barrier()
        if comm.rank == 0:
            comm.Send(np.zeros(10), 1, 4)


@pytest.mark.ranks(2)
def test_a_probed_message_may_be_too_long(comm):
    if comm.rank == 0:
        comm.Send(np.zeros(10), 1, 6)
    elif comm.rank == 1:
        comm.Probe(0, 6)
        with pytest.raises(MPI.Exception) as raised:
            comm.Recv(np.zeros(5), 0, 6)
        assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE


def test_probing_the_null_process(comm):
    status = MPI.Status()
    assert comm.Probe(MPI.PROC_NULL, 3, status)
    assert (status.source, status.tag) == (MPI.PROC_NULL, MPI.ANY_TAG)
    assert status.Get_count(MPI.BYTE) == 0
    assert comm.Iprobe(MPI.PROC_NULL)


def test_probes_of_what_cannot_come(comm):
    for call in (comm.Probe, comm.Iprobe):
        with pytest.raises(MPI.Exception):
            call(comm.size)
        with pytest.raises(MPI.Exception):
            call(0, -5)
        with pytest.raises(TypeError):
            call("0")


@pytest.mark.ranks(2)
def test_random_order(comm):
    """Messages of all sizes, probed or not, by source and tag or wildcards."""
    generator = np.random.default_rng(7)
    count = 60
    sizes = generator.choice([1, 100, 5000, 70_000], count)
    tags = generator.integers(0, 3, count)
    kind = "pool" if wm.is_cuda_available() else "host"
    if comm.rank == 0:
        requests = []
        for k in range(count):
            array = kinds.make(kind, np.full(sizes[k], k, np.uint8))
            requests.append(comm.Isend(array, 1, int(tags[k])))
        wm.Request.Waitall(requests)
    elif comm.rank == 1:
        left = list(range(count))
        while left:
            tag = MPI.ANY_TAG
            if generator.random() < 0.5:
                tag = int(tags[generator.choice(left)])
            status = MPI.Status()
            if generator.random() < 0.7:
                comm.Probe(0, tag, status)
                size, tag = status.Get_count(MPI.BYTE), status.tag
            else:
                size = 70_000
            buffer = kinds.make(kind, np.zeros(size, np.uint8))
            comm.Recv(buffer, MPI.ANY_SOURCE, tag, status)
            expected = next(k for k in left if tags[k] == status.tag)
            left.remove(expected)
            size = status.Get_count(MPI.BYTE)
            assert size == sizes[expected]
            assert (kinds.values_of(buffer)[:size] == expected).all()


@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("size", [0, 5, 5000, 300_000])
@pytest.mark.parametrize("matched", [False, True])
def test_a_synchronous_send_waits_for_more_than_a_probe(
    comm, kind, size, matched
):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    out = kinds.make(kind, np.full(size, 3, np.uint8))
    into = kinds.make(kind, np.zeros(size, np.uint8))
    sent = comm.Issend(out, right, 6)
    message = comm.Mprobe(left, 6) if matched else comm.Probe(left, 6)
    comm.Barrier()
    until = time.monotonic() + 0.02
    while time.monotonic() < until:
        assert not sent.Test()
    comm.Barrier()
    if matched:
        message.Recv(into)
    else:
        comm.Recv(into, left, 6)
    sent.Wait()
    assert (kinds.values_of(into) == 3).all()
    failing = comm.Issend(np.ones(9), right, 7)
    with pytest.raises(MPI.Exception):
        comm.Recv(np.zeros(1), left, 7)
    failing.Wait()
