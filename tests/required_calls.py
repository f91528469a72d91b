# SPDX-License-Identifier: BSD-3-Clause
"""Calls that stage GPU memory or not, under wm.require("gpu"): a table.

    mpirun -n 2 python tests/required_calls.py [--apart [N]] [--nccl]

Each row is a call of two ranks, and the ranks that must raise StagingError:
on one host, and with --apart as if every rank, or N of them, had a host of
their own. Ranks above 1 take part in collectives only. After each row the next
calls must be right, with host and, where they are not staged, GPU memory.
--nccl: NCCL serves between hosts.
"""

import argparse
import os
import tempfile
import traceback

import numpy as np
from mpi4py import MPI

parser = argparse.ArgumentParser()
parser.add_argument("--apart", type=int, nargs="?", const=1, default=0)
parser.add_argument("--nccl", action="store_true")
options = parser.parse_args()
APART = options.apart  # ranks of a host; 0: one host has all of them
# The GPUs of a host do not reach each other: as good as apart.
UNREACHED = os.environ.get("SIMCUDA_PEER") == "0"
if APART:
    HOST = f"host {MPI.COMM_WORLD.rank // APART}"
    os.environ["WARPMPI_HOST"] = os.environ["NCCL_HOSTID"] = HOST

import warpmpi as wm  # noqa: E402

# With --nccl these are not staged.
BY_NCCL = """
    Allreduce Bcast Gatherv bcast_of_objects Bcast_of_mixed_memory
    Iallreduce Ibcast_of_mixed_memory Allgather_init
""".split()
SIZES = 8, 70_000  # of float64: below and above the limits of eager messages
ROWS = []
NOBODY, BOTH, FIRST = "nobody", "both", "first"
# "late": only ranks with GPU memory, as MPI's call was made for the others.
ALL, LATE = "all", "late"


def row(together, apart, sizes=SIZES):
    """Adds a call, whose arguments are the communicator and a size."""

    def add(call):
        ROWS.append((call, together, apart, sizes))
        return call

    return add


def gpu(size, value=0.0):
    return wm.full(size, value, "f8", device=wm.get_device())


def host(size, value=0.0):
    return np.full(size, value, "f8")


def irregular(count):
    """A datatype whose gaps MPI alone knows."""
    at = [8 * i * i for i in range(count)]
    return MPI.DOUBLE.Create_hindexed_block(1, at)


def passes(send, receive, source, into, then=None):
    """Sends from rank 0 to rank 1 and checks what came."""

    def call(comm, size):
        if comm.rank == 0:
            send(comm, source(size, 5.0))
        elif comm.rank == 1:
            array = into(size)
            receive(comm, array)
            assert (np.asarray(wm.asarray(array).numpy()) == 5.0).all()

    return call


def Send(comm, array):
    comm.Send(array, 1, 7)


def Recv(comm, array):
    comm.Recv(array, 0, 7)


def Isend(comm, array):
    comm.Isend(array, 1, 7).Wait()


def Irecv(comm, array):
    comm.Irecv(array, 0, 7).Wait()


def started(make):
    def call(comm, array):
        request = make(comm, array)
        try:
            request.Start()
            request.Wait()
        finally:
            request.Free()

    return call


Send_init = started(lambda comm, array: comm.Send_init(array, 1, 7))
Recv_init = started(lambda comm, array: comm.Recv_init(array, 0, 7))

for send, receive in ((Send, Recv), (Isend, Irecv), (Send_init, Recv_init)):
    for source, into, together, apart in (
        (gpu, gpu, NOBODY, BOTH),
        (gpu, host, BOTH, BOTH),
        (host, gpu, NOBODY, NOBODY),
        (host, host, NOBODY, NOBODY),
    ):
        call = passes(send, receive, source, into)
        call.__name__ = f"{send.__name__} {source.__name__} to {into.__name__}"
        row(together, apart)(call)


@row(NOBODY, BOTH)
def Sendrecv(comm, size):
    if comm.rank < 2:
        into = gpu(size)
        comm.Sendrecv(gpu(size, comm.rank), 1 - comm.rank, 1, into)
        assert (into.numpy() == 1 - comm.rank).all()


@row(BOTH, BOTH, (8,))
def datatype_sent(comm, size):
    kind = irregular(size).Commit()
    if comm.rank == 0:
        comm.Send([gpu(size * size), 1, kind], 1)
    elif comm.rank == 1:
        comm.Recv(gpu(size), 0)
    kind.Free()


@row(BOTH, BOTH, (8,))
def datatype_received(comm, size):
    kind = irregular(size).Commit()
    if comm.rank == 0:
        comm.Send(gpu(size), 1)
    elif comm.rank == 1:
        comm.Recv([gpu(size * size), 1, kind], 0)
    kind.Free()


@row(NOBODY, BOTH)
def send_of_an_object(comm, size):
    if comm.rank == 0:
        comm.send({"a": gpu(size, 3.0)}, 1)
    elif comm.rank == 1:
        assert (comm.recv(None, 0)["a"].numpy() == 3.0).all()


@row(NOBODY, ALL)
def Allreduce(comm, size):
    into = gpu(size)
    comm.Allreduce(gpu(size, 1.0), into)
    assert (into.numpy() == comm.size).all()


@row(NOBODY, ALL)
def Bcast(comm, size):
    array = gpu(size, comm.rank)
    comm.Bcast(array, 1)
    assert (array.numpy() == 1).all()


@row(NOBODY, ALL)
def Gatherv(comm, size):
    into = [gpu(size * comm.size), size] if comm.rank == 0 else None
    comm.Gatherv(gpu(size, 1.0), into)


@row(NOBODY, ALL)
def Alltoall_of_vectors(comm, size):
    kind = MPI.DOUBLE.Create_vector(2, 1, 2).Create_resized(0, 32).Commit()
    into = gpu(4 * comm.size)
    comm.Alltoall([gpu(4 * comm.size), 1, kind], [into, 1, kind])


@row(ALL, ALL, (8,))
def Allgather_of_irregular(comm, size):
    kind = irregular(3).Create_resized(0, 64).Commit()
    comm.Allgather(gpu(3), [gpu(8 * comm.size), 1, kind])
    kind.Free()


@row(NOBODY, BOTH)
def isend_of_an_object(comm, size):
    if comm.rank == 0:
        comm.isend([gpu(size, 3.0)], 1).wait()
    elif comm.rank == 1:
        assert (comm.irecv(None, 0).wait()[0].numpy() == 3.0).all()


@row(NOBODY, ALL)
def bcast_of_objects(comm, size):
    given = [gpu(size, 3.0)] if comm.rank == 0 else None
    assert (comm.bcast(given)[0].numpy() == 3.0).all()


@row(NOBODY, ALL)
def allgather_of_objects(comm, size):
    for array in comm.allgather(gpu(size, 3.0)):
        assert (array.numpy() == 3.0).all()


@row(ALL, ALL)
def Bcast_of_mixed_memory(comm, size):
    comm.Bcast(host(size) if comm.rank == 0 else gpu(size))


@row(ALL, ALL)
def Reduce_of_mixed_memory(comm, size):
    comm.Reduce(gpu(size), host(size) if comm.rank == 0 else None)


def own(a, b, kind):
    np.frombuffer(b)[:] += np.frombuffer(a)


OWN = MPI.Op.Create(own, commute=True)


@row(ALL, ALL)
def Scan_by_an_own_operation(comm, size):
    comm.Scan(gpu(size), gpu(size), OWN)


@row(NOBODY, NOBODY)
def Exscan_of_host_memory(comm, size):
    for _ in range(3):
        comm.Exscan(host(size), host(size), OWN)


@row(LATE, LATE)
def Exscan_after_host_memory(comm, size):
    make = gpu if comm.rank else host
    comm.Exscan(make(size), make(size), OWN)


@row(NOBODY, ALL)
def Iallreduce(comm, size):
    into = gpu(size)
    comm.Iallreduce(gpu(size, 1.0), into).Wait()
    assert (into.numpy() == comm.size).all()


@row(LATE, LATE)
def Ibcast_of_mixed_memory(comm, size):
    array = host(size, 1.0) if comm.rank == 0 else gpu(size)
    comm.Ibcast(array).Wait()


@row(ALL, ALL)
def Iallreduce_by_an_own_operation(comm, size):
    comm.Iallreduce(gpu(size), gpu(size), OWN).Wait()


@row(NOBODY, ALL)
def Allgather_init(comm, size):
    into = gpu(size * comm.size)
    request = comm.Allgather_init(gpu(size, 2.0), into)
    request.Start()
    request.Wait()
    assert (into.numpy() == 2).all()
    request.Free()


@row(ALL, ALL)
def Reduce_init_by_an_own_operation(comm, size):
    comm.Reduce_init(gpu(size), gpu(size), OWN)


@row(NOBODY, ALL)
def neighbours(comm, size):
    ring = wm.Comm(comm).Create_cart([comm.size], [True])
    wm.require("gpu", ring)
    try:
        into = gpu(2 * size)
        ring.Neighbor_allgather(gpu(size, comm.rank), into)
    finally:
        ring.Free()


def of_window(name):
    """An operation of rank 0 on the GPU memory of the last rank."""

    def call(comm, size):
        win = wm.Win.Create(gpu(size), comm=comm)
        try:
            if comm.rank == 0:
                last = comm.size - 1
                win.Lock(last)
                try:
                    getattr(win, name)(gpu(size, 1.0), last)
                finally:
                    win.Unlock(last)
        finally:
            win.Free()

    call.__name__ = name
    return call


for operation in ("Put", "Get", "Accumulate"):
    row(NOBODY, FIRST, (70_000,))(of_window(operation))


@row(NOBODY, ALL, (70_000,))
def Fence(comm, size):
    win = wm.Win.Create(gpu(size), comm=comm)
    try:
        win.Fence()
        if comm.rank == 0:
            win.Put(gpu(size), comm.size - 1)
        win.Fence()
    finally:
        win.Free()


def of_halo(name):
    """An exchange of ghosts between all ranks, of which each has a slab."""

    def call(comm, size):
        cart = wm.Comm(comm).Create_cart([comm.size], [True])
        try:
            getattr(wm.Halo(cart, 1), name)(wm.zeros((size, 4)))
        finally:
            cart.Free()

    call.__name__ = f"halo_{name}"
    return call


for operation in ("exchange", "reduce"):
    row(NOBODY, ALL, (8,))(of_halo(operation))


@row(ALL, ALL)
def Pack(comm, size):
    MPI.DOUBLE.Pack(gpu(size), bytearray(8 * size), 0, comm)


@row(ALL, ALL)
def Write_at(comm, size):
    with tempfile.TemporaryDirectory() as folder:
        mode = MPI.MODE_CREATE | MPI.MODE_WRONLY
        file = MPI.File.Open(MPI.COMM_SELF, f"{folder}/file", mode)
        try:
            file.Write_at(0, gpu(size))
        finally:
            file.Close()


@row(ALL, ALL)
def Write_at_all(comm, size):
    path = MPI.COMM_WORLD.bcast(f"{tempfile.gettempdir()}/{os.getpid()}.file")
    mode = MPI.MODE_CREATE | MPI.MODE_WRONLY | MPI.MODE_DELETE_ON_CLOSE
    file = MPI.File.Open(MPI.COMM_WORLD, path, mode)
    try:
        file.Write_at_all(0, gpu(size))
    finally:
        file.Close()


def expected(who, rank):
    return {
        NOBODY: False,
        BOTH: rank < 2,
        FIRST: rank == 0,
        LATE: rank > 0,
        ALL: True,
    }[who]


def check_the_next_calls(comm):
    """Host memory always goes, and GPU memory within a host."""
    total = host(4)
    comm.Allreduce(host(4, comm.rank + 1.0), total)
    assert (total == sum(range(comm.size + 1))).all(), total
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    into = host(600)
    comm.Sendrecv(host(600, comm.rank), after, 3, into, before, 3)
    assert (into == before).all()
    if not APART and not UNREACHED:
        moved = gpu(600)
        comm.Sendrecv(gpu(600, comm.rank), after, 3, moved, before, 3)
        assert (moved.numpy() == before).all()
        comm.Allreduce(wm.full(4, 1.0, "f8"), moved[:4])
        assert (moved[:4].numpy() == comm.size).all()


def main():
    wm.install()
    comm = wm.Comm(MPI.COMM_WORLD).Dup()
    wm.require("gpu")
    failures = []
    for call, together, apart, sizes in ROWS:
        if APART > 1 and "objects" in call.__name__:
            continue  # some ranks of a host have the object
        if UNREACHED and call is isend_of_an_object:
            continue  # its sender does not hear of the refusal
        who = together
        if UNREACHED or APART == 1 or (APART and apart != BOTH):
            who = apart
        if options.nccl and call.__name__ in BY_NCCL:
            who = NOBODY
        for size in sizes:
            text = ""
            try:
                call(comm, size)
            except wm.StagingError as error:
                text = str(error)
                assert "forbids: " in text and len(text) < 500, text
            except Exception as error:
                raise RuntimeError(f"{call.__name__}({size})") from error
            if bool(text) != expected(who, comm.rank):
                failures.append(
                    f"{call.__name__}({size}): {text or 'did not raise'}"
                )
            check_the_next_calls(comm)
    told = comm.allgather(failures)
    assert not any(told), told
    wm.require("")
    if comm.size > 1 and comm.rank < 2:  # is staged again
        passes(Send, Recv, gpu, host)(comm, 9)
    comm.Barrier()
    print("ok", flush=True)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
        MPI.COMM_WORLD.Abort(1)
