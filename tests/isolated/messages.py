# SPDX-License-Identifier: BSD-3-Clause
"""Send, free, allocate, 2,000 times between two ranks: nothing is kept."""

import numpy as np
from counts import stay_flat
from mpi4py import MPI

import warpmpi as wm

comm = wm.Comm(MPI.COMM_WORLD)
device = wm.get_device()
other = 1 - comm.rank
ROUNDS = 2000


class Allocated:
    """Memory of another allocator that comes and goes with the array."""

    def __init__(self, size):
        import kinds

        self.array = kinds.Foreign(size, np.uint8, "foreign")
        interface = self.array.__cuda_array_interface__
        self.__cuda_array_interface__ = interface


def turn(i):
    size = 1000 + i % 7 * 60_000
    if device.is_cuda and i % 5 == 0:
        array = Allocated(size)
    else:
        array = wm.empty(size, np.uint8, device=device)
    if comm.rank == i % 2:
        comm.Send(array, other, i % 9)
    else:
        comm.Recv(array, other, i % 9)
    del array
    # What was freed while mapped comes back at a barrier.
    if i % 50 == 49:
        comm.Barrier()


# A multiple of all that varies, so that both ends are at the same place.
stay_flat(turn, ROUNDS, 700)
