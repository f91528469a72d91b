# SPDX-License-Identifier: BSD-3-Clause
"""Memory that a peer has mapped comes back when its owner frees it."""

import numpy as np
import pytest

import warpmpi as wm

GIB = 1 << 30


def share(comm):
    """A fraction of this rank's device, as ranks may share one."""
    return wm.get_device().total_memory // (8 * comm.size)


@pytest.mark.ranks(2)
@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
def test_mapped_memory_is_given_back_after_a_barrier(comm):
    device = wm.get_device()
    first, second = 4 * share(comm), 5 * share(comm)
    if len(wm.get_cuda_devices()) >= comm.size > 1:
        # A device of its own: 80 GB, then 100 GB, on one of 140 GB.
        first = device.total_memory * 4 // 7
        second = device.total_memory * 5 // 7
    count = 1 << 20
    for _ in range(2):
        if comm.rank == 0:
            array = wm.empty(first, np.uint8, device=device)
            array[:count].fill_(3)
            comm.Send(array[:count], 1)
            del array
        elif comm.rank == 1:
            into = wm.zeros(count, np.uint8, device=device)
            comm.Recv(into, 0)
            assert (into.numpy() == 3).all()
        comm.Barrier()
        if comm.rank == 0:
            array = wm.empty(second, np.uint8, device=device)
            del array
        comm.Barrier()


@pytest.mark.ranks(2)
@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
def test_many_rounds_of_send_free_and_allocate_stay_flat(comm):
    device = wm.get_device()
    rounds = 300 if device.total_memory < 8 * GIB else 10_000

    def turn(i):
        size = 1000 + i % 7 * 100_000
        array = wm.empty(size, np.uint8, device=device)
        if comm.rank == 0:
            comm.Send(array, 1)
        elif comm.rank == 1:
            comm.Recv(array, 0)

    for i in range(20):
        turn(i)
    comm.Barrier()
    before, free = wm.stats(), device.free_memory
    for i in range(rounds):
        turn(i)
    comm.Barrier()
    after = wm.stats()
    assert after["mappings_open"] <= before["mappings_open"] + 2
    assert free - device.free_memory < 64 << 20
