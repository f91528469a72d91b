# SPDX-License-Identifier: BSD-3-Clause
"""Requests waited for, dropped early, cancelled; errors; other calls."""

import sys
import time

import numpy as np
from counts import stay_flat
from mpi4py import MPI

import warpmpi as wm

comm = wm.Comm(MPI.COMM_WORLD)
device = wm.get_device()
other = 1 - comm.rank
SIZE = 20_000
KEPT = wm.ones(SIZE, np.uint8, device=device)
HOST = np.ones(SIZE, np.uint8)
STREAM = wm.Stream(device, cuda_stream=None) if device.is_cuda else None


def turn(i):
    into = wm.zeros(SIZE, np.uint8, device=device)
    # Dropped before it has ended.
    comm.Isend(KEPT, other, 1)
    comm.Isend(HOST, other, 2)
    comm.Recv(into, other, 1)
    comm.Irecv(into, other, 2)
    # Waited for, by either Waitall, and by Test.
    waitall = (wm.Request.Waitall, MPI.Request.Waitall)[i % 2]
    waitall([comm.Irecv(into, other, 3), comm.Isend(KEPT, other, 3)])
    request = comm.Irecv(into, other, 4)
    comm.Isend(HOST, other, 4).Wait()
    while not request.Test():
        time.sleep(0)
    # Cancelled.
    request = comm.Irecv(into, other, 5)
    request.Cancel()
    request.Wait()
    # Truncated.
    short = comm.Irecv(into[:10], other, 6)
    sent = comm.Isend(KEPT, other, 6)
    try:
        short.Wait()
    except MPI.Exception as error:
        assert error.Get_error_class() == MPI.ERR_TRUNCATE
    else:
        raise AssertionError("not truncated")
    sent.Wait()
    # Refused.
    for bad in (object(), [KEPT, -1], [HOST, "no type"]):
        try:
            comm.Send(bad, other)
        except (KeyError, TypeError, ValueError):
            pass
        else:
            raise AssertionError(bad)
    comm.Bcast(into, i % 2)
    comm.Allreduce(KEPT, into, MPI.MAX)
    if device.is_cuda:
        comm.on(STREAM).Sendrecv(KEPT, other, 7, into, other, 7)
    comm.Barrier()


before = sys.getrefcount(KEPT), sys.getrefcount(HOST)
stay_flat(turn, 400)
comm.Barrier()
after = sys.getrefcount(KEPT), sys.getrefcount(HOST)
assert before == after, (before, after)
