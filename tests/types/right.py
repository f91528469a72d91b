# SPDX-License-Identifier: BSD-3-Clause
"""A program that type checkers find nothing wrong with; it is not run."""

from typing import Any

import numpy as np
from mpi4py import MPI
from typing_extensions import assert_type

import warpmpi as wm


def communicators() -> None:
    comm = wm.Comm(MPI.COMM_WORLD)
    assert_type(comm, wm.Comm)
    assert_type(comm.Dup(), wm.Comm)
    assert_type(comm.Split(comm.rank % 2), wm.Comm)
    assert_type(comm.Split_type(MPI.COMM_TYPE_SHARED), wm.Comm)
    assert_type(comm.Create(comm.Get_group()), wm.Comm)
    cart = comm.Create_cart([2, 2], [True, False])
    assert_type(cart, wm.Cartcomm)
    assert_type(cart.Sub([True, False]), wm.Cartcomm)
    assert_type(cart.Dup(), wm.Cartcomm)
    assert_type(cart.Split(0), wm.Comm)
    below, above = cart.Shift(0, 1)
    cart.Sendrecv(wm.ones(3), above, recvbuf=wm.empty(3), source=below)
    inter = comm.Create_intercomm(0, comm, 1)
    assert_type(inter, wm.Intercomm)
    assert_type(inter.Merge(), wm.Comm)
    assert_type(wm.Intercomm(inter), wm.Intercomm)
    plain: MPI.Intracomm = comm
    assert_type(wm.transport(plain, 0), wm.Transport)


def messages(comm: wm.Comm, status: MPI.Status) -> None:
    a, host = wm.zeros((4, 8), "float32"), np.empty(32, "f4")
    assert_type(a[:, 0].T, wm.Array)
    comm.Send(a[:, 0], dest=1)
    comm.Send([a, 3], 1, tag=7)
    comm.Recv((host, 3, MPI.FLOAT), source=0, status=status)
    comm.Recv(bytearray(8), MPI.ANY_SOURCE)
    assert_type(comm.Isend(a, 1), wm.Request)
    requests = [comm.Irecv(host), comm.Isend(a, 1), comm.Iallreduce(a, host)]
    wm.Request.Waitall(requests)
    persistent = [comm.Send_init(a, 1), comm.Recv_init(host, 0)]
    assert_type(persistent, list[wm.Prequest])
    wm.Prequest.Startall(persistent)
    wm.Request.Waitall(persistent)
    assert_type(comm.Mprobe(), wm.Message)
    comm.Mprobe(status=status).Recv(a)
    part = comm.Psend_init(a, 4, 1)
    part.Pready(0)
    stream = wm.Stream("cuda:0")
    channel = comm.on(stream)
    assert_type(channel, wm.StreamComm)
    assert_type(channel.Irecv(a, 1), wm.Request)
    comm.Allreduce(MPI.IN_PLACE, a)
    comm.Allgatherv(a, [host, [1, 2]])
    obj: Any = comm.recv(source=0)
    comm.isend({"a": a, "obj": obj}, 1).wait()


def unchanged() -> None:
    wm.install()
    comm = MPI.COMM_WORLD
    comm.Send(wm.ones(3), 0)
    print(wm.transport(comm, 0).reason)
    MPI.Request.Waitall([comm.Irecv(wm.empty(3))])
    file = MPI.File.Open(comm, "field.bin")
    file.Write_at_all(0, wm.ones(3))


def averages(comm: wm.Comm, a: wm.Array) -> None:
    comm.Allreduce(MPI.IN_PLACE, a, op=wm.AVG)
    comm.Reduce(a, None, MPI.SUM, root=1)
    comm.Reduce_scatter_block(a, a[:1], wm.AVG)
    assert_type(comm.Iallreduce(a, a.copy(), wm.AVG), MPI.Request)
    assert_type(comm.Allreduce_init(a, a.copy(), wm.AVG), MPI.Prequest)
    comm.on(wm.Stream()).Allreduce(MPI.IN_PLACE, a, wm.AVG)
    assert_type(comm.on(wm.Stream()).Iallreduce(a, a, MPI.MAX), wm.Request)
    mean: float = comm.allreduce(1.0, op=wm.AVG)
    print(mean, wm.stats()["ipc_bytes"] + 1)


class TheirArray:
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {}


class TheirDevice:
    id = 0


class TheirStream:
    ptr = 0


def arguments(comm: wm.Comm) -> None:
    comm.Send(TheirArray(), 0)
    comm.on(TheirStream()).Send(TheirArray(), 0)
    wm.asarray(TheirArray())
    wm.asarray(np.ones(3), np.float32, "cpu")
    wm.zeros(3, "bfloat16", TheirDevice())
    wm.zeros((3, 4), float, 0)
    wm.zeros(3, np.dtype("i4"), wm.get_device())
    a = wm.empty_like(bytearray(8))
    a[:3] = 1
    a[:3] = [1, 2, 3]
    a.assign(np.ones(8))
