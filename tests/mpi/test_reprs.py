# SPDX-License-Identifier: BSD-3-Clause
"""The repr of communicators, requests, messages and streams."""

import re

import numpy as np
import pytest
from mpi4py import MPI

import ranks
import warpmpi as wm

gpus = pytest.mark.skipif(not wm.is_cuda_available(), reason="no GPU")


def test_a_communicator_tells_name_rank_and_size(world):
    comm = wm.Comm(world).Dup()
    comm.Set_name("heat")
    place = f"rank {comm.rank} of {comm.size}"
    assert repr(comm) == f"<warpmpi.Comm 'heat' {place}>"
    comm.Set_name("")
    assert repr(comm) == f"<warpmpi.Comm {place}>"
    line = comm.Create_cart([comm.size])
    line.Set_name("line")
    assert repr(line) == f"<warpmpi.Cartcomm 'line' {place}>"
    line.Free()
    comm.Free()
    assert repr(comm) == "<warpmpi.Comm, null or freed>"
    assert repr(wm.Comm()) == "<warpmpi.Comm, null or freed>"


def test_an_intercommunicator_tells_both_groups(world):
    comm = wm.Comm(world)
    if comm.size < 2:
        pytest.skip("two groups")
    half = comm.Split(comm.rank % 2)
    inter = half.Create_intercomm(0, comm, 1 - comm.rank % 2)
    inter.Set_name("between")
    assert repr(inter) == (
        f"<warpmpi.Intercomm 'between' rank {inter.rank} of {inter.size}, "
        f"{inter.remote_size} remote ranks>"
    )
    inter.Free()
    half.Free()


@gpus
def test_a_request_tells_message_and_state(world):
    comm = wm.Comm(world)
    into = wm.zeros(1000)
    request = comm.Irecv(into, MPI.ANY_SOURCE, 7)
    waits = "<warpmpi.Request: a receive from any rank with tag 7 (8000 bytes)"
    assert repr(request) == waits + ", pending>"
    comm.Barrier()
    sent = comm.Isend(wm.ones(1000), comm.rank, 7)
    request.Wait()
    sent.Wait()
    assert repr(request) == "<warpmpi.Request: inactive>"
    assert (into.numpy() == 1).all()
    assert repr(wm.Request()) == "<warpmpi.Request: inactive>"


@gpus
def test_to_look_at_a_request_ends_nothing(world):
    comm = wm.Comm(world)
    into = np.zeros(4)
    request = comm.Irecv(into, comm.rank, 1)
    comm.Send(np.ones(4), comm.rank, 1)
    for _ in range(3):
        text = repr(request)
        assert re.search("pending|complete", text)
    assert request.Test() or request.Wait()
    assert (into == 1).all()


@gpus
def test_a_persistent_request(world):
    comm = wm.Comm(world)
    request = comm.Send_init(wm.ones(2), comm.rank, 3)
    told = f"<warpmpi.Prequest: a send to rank {comm.rank} with tag 3"
    assert repr(request) == told + ", inactive>"
    request.Start()
    assert re.search("pending>$|complete>$", repr(request))
    comm.Recv(wm.zeros(2), comm.rank, 3)
    request.Wait()
    assert repr(request) == told + ", inactive>"
    request.Free()
    assert repr(request) == "<warpmpi.Prequest: freed>"


@gpus
def test_collectives(world):
    comm = wm.Comm(world)
    x = wm.ones(4)
    request = comm.Iallreduce(MPI.IN_PLACE, x)
    assert re.search("(pending|complete)>$", repr(request))
    request.Wait()
    request = comm.Allreduce_init(MPI.IN_PLACE, x)
    assert repr(request) == "<warpmpi.Prequest: inactive>"
    request.Free()
    assert repr(request) == "<warpmpi.Prequest: freed>"


@gpus
def test_a_matched_message(world):
    comm = wm.Comm(world)
    request = comm.Isend(wm.ones(2), comm.rank, 5)
    message = comm.Mprobe(comm.rank, 5)
    told = f"<warpmpi.Message from rank {comm.rank} with tag 5"
    assert repr(message) == told + ", not received>"
    message.Recv(wm.zeros(2))
    request.Wait()
    assert repr(message) == "<warpmpi.Message, received>"
    message = comm.Mprobe(MPI.PROC_NULL)
    assert repr(message) == "<warpmpi.Message from MPI.PROC_NULL>"
    message.Recv(wm.zeros(2))


@gpus
def test_a_communicator_on_a_stream(world):
    comm = wm.Comm(world)
    stream = wm.Stream()
    assert repr(comm.on(stream)) == (
        f"<warpmpi.StreamComm of {comm!r} on {stream.device}, stream "
        f"{stream.cuda_stream:#x}>"
    )


@pytest.mark.programs
def test_after_mpi_has_ended(tmp_path):
    program = """
        from mpi4py import MPI
        import warpmpi as wm
        comm = wm.Comm(MPI.COMM_SELF)
        request = comm.Irecv(bytearray(1), 0)
        MPI.Finalize()
        assert repr(comm) == "<warpmpi.Comm, MPI does not run>"
        assert repr(request).startswith("<"), request
    """
    ranks.run_text(tmp_path, program, ranks=1)
