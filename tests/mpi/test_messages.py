# SPDX-License-Identifier: BSD-3-Clause
"""Send, Recv, Isend, Irecv, Sendrecv: any memory to any memory."""

import functools

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm

SIZES = (0, 1, 1000, 4096, 4097, 300_000, 9_000_001)


@functools.cache
def data(rank, size, dtype=np.uint8):
    values = np.random.default_rng(size * 31 + rank).integers(
        0, 100, size, dtype=dtype
    )
    values.flags.writeable = False
    return values


@pytest.mark.ranks(2)
@pytest.mark.parametrize("into", kinds.KINDS)
@pytest.mark.parametrize("source", kinds.KINDS)
def test_any_memory_to_any_memory(comm, source, into):
    for size in SIZES:
        if comm.rank == 0:
            comm.Send(kinds.make(source, data(0, size)), 1, tag=size % 100)
        elif comm.rank == 1:
            buffer = kinds.make(into, np.zeros(size, np.uint8))
            status = MPI.Status()
            comm.Recv(buffer, 0, size % 100, status)
            assert status.Get_count(MPI.BYTE) == size
            assert (status.source, status.tag) == (0, size % 100)
            np.testing.assert_array_equal(
                kinds.values_of(buffer), data(0, size)
            )


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_sendrecv_in_a_ring(comm, kind):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for size in SIZES:
        buffer = kinds.make(kind, np.zeros(size, np.uint8))
        comm.Sendrecv(
            kinds.make(kind, data(comm.rank, size)), right, 3, buffer, left, 3
        )
        np.testing.assert_array_equal(
            kinds.values_of(buffer), data(left, size)
        )


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_rank_sends_to_itself(comm, kind):
    for size in SIZES:
        buffer = kinds.make(kind, np.zeros(size, np.uint8))
        request = comm.Isend(
            kinds.make(kind, data(comm.rank, size)), comm.rank, 7
        )
        comm.Recv(buffer, comm.rank, 7)
        request.Wait()
        np.testing.assert_array_equal(
            kinds.values_of(buffer), data(comm.rank, size)
        )


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_messages_do_not_overtake(comm, kind):
    count = 40
    sizes = [(7 * i % 5) * 3000 + 1 for i in range(count)]
    if comm.rank == 0:
        requests = [
            comm.Isend(kinds.make(kind, data(i, n)), 1, 5)
            for i, n in enumerate(sizes)
        ]
        MPI.Request.Waitall(requests)
    elif comm.rank == 1:
        for i, n in enumerate(sizes):
            buffer = kinds.make(kind, np.zeros(n, np.uint8))
            comm.Recv(buffer, 0, 5)
            np.testing.assert_array_equal(kinds.values_of(buffer), data(i, n))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_tags_choose_among_messages(comm, kind):
    if comm.rank == 0:
        requests = [
            comm.Isend(kinds.make(kind, data(tag, 6000)), 1, tag)
            for tag in range(5)
        ]
        wm.Request.Waitall(requests)
    elif comm.rank == 1:
        for tag in (3, 0, 4, 1, 2):
            buffer = kinds.make(kind, np.zeros(6000, np.uint8))
            comm.Recv(buffer, 0, tag)
            np.testing.assert_array_equal(
                kinds.values_of(buffer), data(tag, 6000)
            )


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_any_source_and_any_tag(comm, kind):
    if comm.rank == 0:
        seen = set()
        for _ in range(comm.size - 1):
            status = MPI.Status()
            buffer = kinds.make(kind, np.zeros(5000, np.uint8))
            comm.Recv(buffer, MPI.ANY_SOURCE, MPI.ANY_TAG, status)
            assert status.tag == status.source + 10
            np.testing.assert_array_equal(
                kinds.values_of(buffer), data(status.source, 5000)
            )
            seen.add(status.source)
        assert seen == set(range(1, comm.size))
    else:
        comm.Send(kinds.make(kind, data(comm.rank, 5000)), 0, comm.rank + 10)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_more_messages_under_way_than_slots(comm, kind):
    count = 2100
    if comm.rank == 0:
        arrays = [kinds.make("host", data(i, 8)) for i in range(count)]
        block = kinds.make(kind, np.concatenate(arrays))
        view = block if kind == "host" else wm.asarray(block)
        requests = [
            comm.Isend(view[8 * i : 8 * i + 8], 1, 1) for i in range(count)
        ]
        comm.Isend(kinds.make("host", data(1, 8)), 1, 2).Wait()
        wm.Request.Waitall(requests)
    elif comm.rank == 1:
        comm.Recv(np.zeros(8, np.uint8), 0, 2)
        block = kinds.make(kind, np.zeros(8 * count, np.uint8))
        view = block if kind == "host" else wm.asarray(block)
        requests = [
            comm.Irecv(view[8 * i : 8 * i + 8], 0, 1) for i in range(count)
        ]
        wm.Request.Waitall(requests)
        expected = np.concatenate([data(i, 8) for i in range(count)])
        np.testing.assert_array_equal(kinds.values_of(block), expected)


def test_nobody_is_a_peer(comm):
    status = MPI.Status()
    buffer = np.ones(4)
    comm.Send(buffer, MPI.PROC_NULL)
    comm.Recv(buffer, MPI.PROC_NULL, status=status)
    assert status.source == MPI.PROC_NULL
    assert status.Get_count(MPI.BYTE) == 0
    comm.Isend(buffer, MPI.PROC_NULL).Wait()
    comm.Irecv(buffer, MPI.PROC_NULL).Wait()
    assert (buffer == 1).all()


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    "spec",
    [
        lambda a: [a, MPI.DOUBLE],
        lambda a: [a, 6],
        lambda a: [a, 6, MPI.DOUBLE],
        lambda a: [a, (6, 0), MPI.DOUBLE],
        lambda a: [a, 6, 0, MPI.DOUBLE],
        lambda a: [a, "d"],
        lambda a: (a, 6, "d"),
    ],
)
def test_specifications(comm, spec):
    kind = "device" if wm.is_cuda_available() else "host"
    sent = np.arange(6.0)
    if comm.rank == 0:
        comm.Send(spec(kinds.make(kind, sent)), 1)
    elif comm.rank == 1:
        buffer = kinds.make(kind, np.zeros(6))
        comm.Recv(spec(buffer), 0)
        np.testing.assert_array_equal(kinds.values_of(buffer), sent)


@pytest.mark.ranks(2)
def test_displacement_and_count(comm):
    kind = "device" if wm.is_cuda_available() else "host"
    if comm.rank == 0:
        comm.Send([kinds.make(kind, np.arange(8.0)), 3, 2, MPI.DOUBLE], 1)
    elif comm.rank == 1:
        buffer = kinds.make(kind, np.zeros(8))
        comm.Recv([buffer, 3, 5, MPI.DOUBLE], 0)
        np.testing.assert_array_equal(
            kinds.values_of(buffer), [0, 0, 0, 0, 0, 2, 3, 4]
        )


@pytest.mark.ranks(2)
def test_derived_datatypes_of_host_memory(comm):
    column = MPI.DOUBLE.Create_vector(4, 1, 3).Commit()
    matrix = np.arange(12.0).reshape(4, 3)
    if comm.rank == 0:
        comm.Send([matrix, 1, column], 1)
    elif comm.rank == 1:
        into = np.zeros((4, 3))
        comm.Recv([into, 1, column], 0)
        np.testing.assert_array_equal(into[:, 0], matrix[:, 0])
        assert (into[:, 1:] == 0).all()
    column.Free()


@pytest.mark.ranks(2)
def test_requests_mix_with_those_of_mpi(comm, world):
    kind = "device" if wm.is_cuda_available() else "host"
    other = 1 - comm.rank
    if comm.rank > 1:
        return
    plain_in, plain_out = np.zeros(4), np.full(4, comm.rank + 1.0)
    into = kinds.make(kind, np.zeros(20_000))
    out = kinds.make(kind, np.full(20_000, comm.rank + 1.0))
    requests = [
        world.Irecv(plain_in, other),
        comm.Irecv(into, other),
        world.Isend(plain_out, other),
        comm.Isend(out, other),
    ]
    statuses = [MPI.Status() for _ in requests]
    MPI.Request.Waitall(requests, statuses)
    assert all(request == MPI.REQUEST_NULL for request in requests)
    assert statuses[1].source == other
    assert statuses[1].Get_count(MPI.DOUBLE) == 20_000
    assert (plain_in == other + 1).all()
    assert (kinds.values_of(into) == other + 1).all()


@pytest.mark.ranks(2)
def test_a_request_dropped_early_still_completes(comm):
    kind = "device" if wm.is_cuda_available() else "host"
    if comm.rank == 0:
        comm.Isend(kinds.make(kind, data(0, 100_000)), 1, 9)
    elif comm.rank == 1:
        buffer = kinds.make(kind, np.zeros(100_000, np.uint8))
        comm.Recv(buffer, 0, 9)
        np.testing.assert_array_equal(
            kinds.values_of(buffer), data(0, 100_000)
        )


@pytest.mark.ranks(2)
def test_a_computing_rank_still_serves_its_peer(comm):
    """Under MPI_THREAD_MULTIPLE the progress thread answers."""
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        pytest.skip("MPI runs below MPI_THREAD_MULTIPLE")
    if not wm.is_cuda_available():
        pytest.skip("host messages are MPI's to progress")
    plain = comm.Get_name(), MPI.COMM_WORLD.Dup()
    if comm.rank == 0:
        request = comm.Isend(kinds.make("device", data(0, 500_000)), 1, 4)
        plain[1].Barrier()  # rank 1 is there only after its receive
        request.Wait()
    elif comm.rank == 1:
        buffer = np.zeros(500_000, np.uint8)  # through the host: two sides
        comm.Recv(buffer, 0, 4)
        np.testing.assert_array_equal(buffer, data(0, 500_000))
        plain[1].Barrier()
    else:
        plain[1].Barrier()
    plain[1].Free()


def test_communicators_made_from_ours_are_ours(comm):
    dup = comm.Dup()
    half = comm.Split(comm.rank % 2, comm.rank)
    cart = comm.Create_cart([comm.size], periods=[True])
    try:
        for made in (dup, half, cart):
            assert isinstance(made, wm.CommMethods)
            source = dest = made.rank
            buffer = kinds.make(kinds.KINDS[-1], np.zeros(10))
            request = made.Isend(kinds.make("host", np.ones(10)), dest)
            made.Recv(buffer, source)
            request.Wait()
            assert (kinds.values_of(buffer) == 1).all()
        assert isinstance(cart, MPI.Cartcomm)
        assert cart.Shift(0, 1)[1] == (comm.rank + 1) % comm.size
        nothing = comm.Split(MPI.UNDEFINED)
        assert nothing == MPI.COMM_NULL
    finally:
        for made in (dup, half, cart):
            made.Free()
