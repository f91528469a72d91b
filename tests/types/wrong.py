# SPDX-License-Identifier: BSD-3-Clause
"""A program whose marked lines, and no others, type checkers find wrong."""

from mpi4py import MPI

import warpmpi as wm


def wrong(comm: wm.Comm, a: wm.Array) -> None:
    wm.Comm("world")  # wrong
    comm.Send(a)  # wrong
    comm.Send(a, 0, tag=None)  # wrong
    comm.Recv(a, source="0")  # wrong
    comm.Recv(a, stat=MPI.Status())  # wrong
    comm.Split("red")  # wrong
    comm.Split(0).Shift(0, 1)  # wrong
    comm.Isend(a, 0).Start()  # wrong
    comm.Send_init(a, 0).start()  # wrong
    comm.on(wm.Stream()).Allreduce(a)  # wrong
    comm.Mprobe().Wait()  # wrong
    wm.Request.Waitall(comm.Isend(a, 0))  # wrong
    wm.Prequest.Startall([comm.Isend(a, 0)])  # wrong
    wm.transport("world", 0)  # wrong
    wm.transport(comm, 0).path  # wrong # noqa: B018
    wm.zeros("8")  # wrong
    wm.zeros(8, pinned="yes")  # wrong
    wm.zeros(8).shapes  # wrong # noqa: B018
    a.to()  # wrong
    number: int = wm.get_device()  # wrong
    print(number)
    comm.Allreduce(a, a, op="SUM")  # wrong
    comm.on(wm.Stream()).Allreduce(a, a, op=max)  # wrong
    comm.Scan(a, a, op=wm.AVG)  # wrong
    comm.on(wm.Stream()).Scan(a, a, op=wm.AVG)  # wrong
    comm.on(wm.Stream()).Exscan(a, a, op=wm.AVG)  # wrong
    comm.on("cuda:0")  # wrong
    wm.get_device(1.5)  # wrong
    wm.zeros(8, device=[0])  # wrong
    wm.zeros(8, dtype=8.0)  # wrong
    wm.Stream(device=object())  # wrong
