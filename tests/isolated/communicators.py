# SPDX-License-Identifier: BSD-3-Clause
"""Communicators made from ours and freed."""

from counts import stay_flat
from mpi4py import MPI

import warpmpi as wm

world = wm.Comm(MPI.COMM_WORLD)
array = wm.ones(5000, "u1", device=wm.get_device())


def turn(i):
    into = wm.zeros(5000, "u1", device=wm.get_device())
    for comm in (
        world.Dup(),
        world.Split(0, -world.rank),
        world.Create_cart([world.size]),
    ):
        other = 1 - comm.rank
        comm.Sendrecv(array, other, 0, into, other, 0)
        comm.Free()


stay_flat(turn, 200)
