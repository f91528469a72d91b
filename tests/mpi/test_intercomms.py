# SPDX-License-Identifier: BSD-3-Clause
"""Intercommunicators, and what merging them gives."""

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import ranks
import warpmpi as wm


@pytest.fixture
def halves(comm):
    """An intercommunicator between the even ranks and the odd ones."""
    half = comm.Split(comm.rank % 2, comm.rank)
    inter = half.Create_intercomm(0, comm, 1 - comm.rank % 2)
    yield inter
    inter.Free()
    half.Free()


def exchange(comm, kind):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    buffer = kinds.make(kind, np.zeros(1000))
    values = kinds.make(kind, np.full(1000, float(comm.rank)))
    comm.Sendrecv(values, right, 0, buffer, left, 0)
    assert (kinds.values_of(buffer) == left).all()


def check_refuses_gpu_memory(comm):
    assert not isinstance(comm, wm.CommMethods)
    assert isinstance(comm, MPI.Intracomm)
    exchange(comm, "host")
    if wm.is_cuda_available():
        array = kinds.make("device", np.zeros(8))
        for call in (
            lambda: comm.Send(array, 0),
            lambda: comm.Irecv(array, 0),
            lambda: comm.Dup().Send(array, 0),
        ):
            with pytest.raises(TypeError, match="GPU memory"):
                call()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_merging_groups_of_ours_gives_ours(comm, halves, kind):
    again = halves.Dup()
    for inter in halves, again, wm.Intercomm(halves):
        merged = inter.Merge(comm.rank % 2 == 1)
        assert isinstance(merged, wm.Comm)
        assert merged.size == comm.size
        exchange(merged, kind)
        merged.Free()
    again.Free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_messages_between_groups(comm, halves, kind):
    peers = halves.remote_size
    got = [kinds.make(kind, np.zeros(500)) for _ in range(peers)]
    mine = kinds.make(kind, np.full(500, float(comm.rank)))
    into = [halves.Irecv(got[k], k) for k in range(peers)]
    out = [halves.Isend(mine, k) for k in range(peers)]
    MPI.Request.Waitall(into + out)
    for k in range(peers):
        sender = 2 * k + 1 - comm.rank % 2
        assert (kinds.values_of(got[k]) == sender).all()


@pytest.mark.ranks(2)
def test_short_and_pickled_messages_between_groups(halves):
    if halves.rank >= halves.remote_size:
        return
    into = np.zeros(3, "i4")
    halves.Sendrecv(
        np.arange(3, dtype="i4"), halves.rank, 5, into, MPI.ANY_SOURCE
    )
    assert list(into) == [0, 1, 2]
    halves.Barrier() if halves.remote_size == halves.size else None
    assert halves.sendrecv("text", halves.rank, source=halves.rank) == "text"


@pytest.mark.ranks(2)
def test_a_rank_the_other_group_lacks(halves):
    with pytest.raises(MPI.Exception):
        halves.Send(np.zeros(1), halves.remote_size)


@pytest.mark.ranks(2)
def test_merging_groups_of_unknown_origin(comm, world):
    half = world.Split(comm.rank % 2, comm.rank)
    plain = half.Create_intercomm(0, world, 1 - comm.rank % 2)
    merged = wm.Intercomm(plain).Merge()
    assert isinstance(merged, wm.Comm)
    exchange(merged, kinds.KINDS[-1])
    for made in merged, plain, half:
        made.Free()


@pytest.mark.ranks(2)
def test_merging_after_accept_and_connect(comm):
    if comm.rank > 1:
        return
    alone = wm.Comm(MPI.COMM_SELF)
    if comm.rank == 0:
        port = MPI.Open_port()
        comm.send(port, 1)
        inter = alone.Accept(port)
    else:
        inter = alone.Connect(comm.recv(source=0))
    assert not isinstance(inter, wm.CommMethods)
    if wm.is_cuda_available():
        with pytest.raises(TypeError, match="GPU memory"):
            inter.Send(kinds.make("device", np.zeros(8)), 0)
    merged = inter.Merge(comm.rank == 1)
    check_refuses_gpu_memory(merged)
    ours = wm.Comm(merged)
    exchange(ours, kinds.KINDS[-1])
    ours.Free()
    inter.Disconnect()
    if comm.rank == 0:
        MPI.Close_port(port)


@pytest.mark.programs
def test_merging_with_a_program_that_has_no_warpmpi(tmp_path):
    program = """
        import sys
        from mpi4py import MPI
        if len(sys.argv) > 1:
            inter = MPI.Comm.Get_parent()
        else:
            import warpmpi as wm
            inter = wm.Comm(MPI.COMM_WORLD).Spawn(
                sys.executable, [__file__, "child"], maxprocs=1
            )
        merged = inter.Merge(len(sys.argv) > 1)
        print(merged.allreduce(1), "warpmpi" in sys.modules, flush=True)
        merged.Free()  # without, Open MPI 4.1 may hang at the end
        inter.Disconnect()
    """
    printed = ranks.run_text(tmp_path, program, ranks=1)
    assert sorted(printed.splitlines()) == ["2 False", "2 True"]
