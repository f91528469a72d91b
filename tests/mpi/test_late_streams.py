# SPDX-License-Identifier: BSD-3-Clause
"""A message comes after the work that was on a stream when it was begun."""

import ctypes

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm

pytestmark = [
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
    pytest.mark.ranks(2),
]

SIZES = (1000, 300_000, 3_000_000)


def receive(comm, world, into, size):
    """On all ranks but the sender, whose two barriers stand around it."""
    buffer = kinds.make(into, np.zeros(size, np.uint8))
    world.Barrier()
    if comm.rank == 1:
        comm.Recv(buffer, 0)
        assert (kinds.values_of(buffer) == 7).all()
    world.Barrier()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("into", ["host", "device"])
@pytest.mark.parametrize("kind", ["foreign", "pool"])
def test_a_stream_that_is_gone(comm, world, kind, into, size):
    """Isend, then the producer's stream is destroyed, then it is received."""
    if comm.rank == 0:
        cuda, stream = kinds.driver(), ctypes.c_void_p()
        array = kinds.make(kind, np.full(size, 7, np.uint8))
        with array.context():
            assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
            array.__cuda_array_interface__["stream"] = stream.value
            request = comm.Isend(array, 1)
            assert cuda.cuStreamSynchronize(stream) == 0
            assert cuda.cuStreamDestroy_v2(stream) == 0
        world.Barrier()
        request.Wait()
        world.Barrier()
    else:
        receive(comm, world, into, size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("into", ["host", "device"])
@pytest.mark.parametrize("kind", ["foreign", "pool"])
def test_later_work_is_not_waited_for(comm, world, kind, into, size):
    """What comes on it after Isend may wait for the message's end."""
    if comm.rank == 0:
        array = kinds.make(kind, np.full(size, 7, np.uint8))
        wm.synchronize_device(array.device)
        with kinds.Gate() as gate:
            request = comm.Isend(array, 1)
            gate.stop(array.stream)
            world.Barrier()
            request.Wait()
        world.Barrier()
        array.stream.synchronize()
    else:
        receive(comm, world, into, size)


@pytest.mark.parametrize("size", SIZES)
def test_what_is_truncated_is_not_freed_before_it_is_written(
    comm, world, size
):
    """The stream hands the message off when the receiver has it long ago."""
    if comm.rank == 0:
        array = kinds.make("pool", np.full(size, 7, np.uint8))
        wm.synchronize_device(array.device)
        with kinds.Gate() as gate:
            gate.stop(array.stream)
            request = comm.Isend(array, 1)
            world.Barrier()
            early = any(request.Test() for _ in range(100))
        if not early:
            request.Wait()
        assert not early
    elif comm.rank == 1:
        buffer = wm.zeros(size - 1, np.uint8)
        with pytest.raises(MPI.Exception):
            comm.Recv(buffer, 0)
        world.Barrier()
    else:
        world.Barrier()


@pytest.mark.parametrize("kind", ["device", "pool"])
@pytest.mark.skipif(
    len(wm.get_cuda_devices()) < 2, reason="needs two GPUs in a process"
)
def test_a_stream_of_another_device_than_the_buffer(comm, kind):
    pairs = ("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")
    for size in (8, 1000, 100_000):
        for buffers, streams in pairs:
            if comm.rank == 0:
                comm.Send(kinds.make(kind, np.full(size, 7, np.uint8)), 1)
            elif comm.rank == 1:
                buffer = wm.zeros(size, np.uint8, device=buffers)
                stream = wm.Stream(streams)
                comm.on(stream).Recv(buffer, 0)
                stream.synchronize()
                assert (buffer.numpy() == 7).all()


@pytest.mark.ranks(3)
def test_a_slot_that_serves_another_message_is_left_alone(comm, world):
    """Requests looked at late, and slots reused between three ranks."""
    array = wm.array(np.full(1000, 7, np.uint8), device=wm.get_device())
    for _ in range(200):
        requests = []
        if comm.rank == 0:
            for dest in (1, 2, 1, 2):
                comm.Isend(array, dest).Wait()
        elif comm.rank < 3:
            requests = [comm.Irecv(array, 0) for _ in range(2)]
            while not all(request.Test() for request in requests):
                pass
    world.Barrier()
