# SPDX-License-Identifier: BSD-3-Clause
"""Ranks that die and communicators that are revoked, as MPI tells it."""

import os

import pytest

import compiled
import dying
import warpmpi as wm

pytestmark = [pytest.mark.programs, dying.needs_ulfm]

PROGRAM = """
    how, kind, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
    comm = wm.Comm(MPI.COMM_WORLD)
    device = wm.get_device() if kind == "device" else "cpu"
    out, into = (wm.zeros(size, np.uint8, device=device) for _ in range(2))
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.Sendrecv(out, right, recvbuf=into, source=left)
    if kind == "device":
        stream = wm.Stream(device)

    comm.Barrier()
    begun = time.monotonic()
    try:
        if comm.rank == 1:  # the one that dies, or revokes
            if how == "its sends":
                pending = [comm.Isend(out, rank, 5) for rank in (0, 2)]
            if how == "exchange":  # its stream has what it never comes to
                kinds.Gate().stop(stream)
                for rank in (0, 2):
                    comm.on(stream).Recv(into, rank)
            time.sleep(0.5)
            if how == "revoke":
                comm.Revoke()
                comm.Recv(into, 0)
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "receive":
            comm.Recv(into, 1)
        elif how == "from anybody":
            comm.Recv(into, MPI.ANY_SOURCE)
        elif how == "object":
            comm.recv(source=1)
        elif how == "send":
            comm.Isend(out, 1).Wait()
        elif how == "on a stream":
            comm.on(stream).Ssend(out, 1)
            stream.synchronize()
        elif how == "exchange":
            comm.on(stream).Send(out, 1)
            comm.on(stream).Recv(into, 1)
        elif how == "its sends":
            time.sleep(1)
            comm.Recv(into, 1, 5)
            comm.Recv(into, 1, 5)
        elif how == "revoke":
            comm.Recv(into, 1) if comm.rank == 2 else comm.Ssend(out, 2, 9)
        raise SystemExit("no error")
    except MPI.Exception as error:
        name = MPI.Get_error_string(error.Get_error_class())
        took = time.monotonic() - begun
        told = "revoked" if "REVOKED" in name else "died"
        print("told", told, took < 10, took, flush=True)
        assert "REVOKED" in name or "PROC_FAILED" in name, name
    comm.Revoke()
    comm = comm.Shrink()
    assert comm.Agree(1) == 1
    out, into = (wm.ones(size, np.uint8, device=device) for _ in range(2))
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.Sendrecv(out, right, recvbuf=into, source=left)
    if kind == "device":
        comm.on(stream).Sendrecv(out, right, recvbuf=into, source=left)
        stream.synchronize()
    assert (into.numpy() == 1).all()
    print("again", type(comm) is wm.Comm, comm.size, flush=True)
    comm.Barrier()
"""

WAYS = (
    ("receive", "host", 8),
    ("from anybody", "device", 8),
    ("object", "host", 8),
    ("send", "device", 1_000_000),
    ("on a stream", "device", 1000),
    ("on a stream", "device", 1_000_000),
    ("exchange", "device", 1_000_000),
    ("its sends", "device", 1_000_000),
    ("revoke", "device", 100_000),
)


@pytest.mark.parametrize("how, kind, size", WAYS)
def test_the_others_hear_of_it_and_go_on(tmp_path, how, kind, size):
    if kind == "device" and not wm.is_cuda_available():
        pytest.skip("needs a GPU")
    if how == "exchange" and "WARPMPI_CUDA_DRIVER" not in os.environ:
        pytest.skip("needs the simulated driver")
    printed = dying.run_text(tmp_path, PROGRAM, how, kind, size, ranks=3)
    left = 3 if how == "revoke" else 2
    assert printed.count("told") == printed.count(" True ") - left == left, (
        printed
    )
    assert printed.count(f"again True {left}") == left, printed


# Open MPI tells of the death again when a message has come since, and the
# request has ended.
HOLDING = """
    #include <mpi.h>
    #include <mpi-ext.h>
    int holds; // the next error of a receive, until a message comes
    int
    MPI_Test(MPI_Request *request, int *flag, MPI_Status *status)
    {
        int result = PMPI_Test(request, flag, status), class, came = 0;
        MPI_Error_class(result, &class);
        if (class != MPIX_ERR_PROC_FAILED_PENDING || !holds)
            return result;
        for (holds = 0; !came;)
            PMPI_Request_get_status(*request, &came, MPI_STATUS_IGNORE);
        return result;
    }
"""
COMES = """
    import pathlib
    os.environ["WARPMPI_HOST"] = f"host {MPI.COMM_WORLD.rank}"
    MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
    comm = wm.Comm(MPI.COMM_WORLD)
    memory, ones = wm.zeros(4, "f4"), wm.ones(4, "f4")
    is_message = sys.argv[2] == "a message"
    win = None if is_message else wm.Win.Create(memory, 4, comm=comm)
    holds = ctypes.c_int.in_dll(ctypes.CDLL(sys.argv[1]), "holds")
    told = pathlib.Path(sys.argv[1]).with_name("told")
    holds.value = comm.rank == 2
    comm.Barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)

    def tell():
        while holds.value:
            time.sleep(0.01)
        told.touch()

    if comm.rank == 2:
        threading.Thread(target=tell, daemon=True).start()
    while comm.rank == 0 and not told.exists():
        time.sleep(0.01)
    if is_message and comm.rank == 2:
        comm.Recv(memory, MPI.ANY_SOURCE)
    elif is_message:
        comm.Send(ones, 2)
    elif comm.rank == 0:
        win.Lock(2)
        win.Put(ones, 2)
        win.Unlock(2)
        comm.Send(np.zeros(1), 2)
    else:
        comm.Recv(np.zeros(1), 0)
    assert comm.rank == 0 or (memory.numpy() == 1).all()
    print("came", holds.value, flush=True)
    with contextlib.suppress(MPI.Exception):  # the other needs this one
        comm.Sendrecv(ones, 2 - comm.rank, recvbuf=memory,
                      source=2 - comm.rank)
"""


@pytest.mark.parametrize("what", ["a message", "a window's request"])
def test_what_comes_after_a_death_has_been_told_is_not_lost(tmp_path, what):
    holding = compiled.library(tmp_path, HOLDING)
    words = filter(None, [os.environ.get("LD_PRELOAD"), str(holding)])
    preload = " ".join(words)
    printed = dying.run_text(
        tmp_path, COMES, holding, what, ranks=3, LD_PRELOAD=preload
    )
    assert printed.split() == ["came", "0"] * 2


# Those that live stay alive: nobody's end may tell the others.
OUTLIVED = """
    MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
    comm = wm.Comm(MPI.COMM_WORLD)
    last, short = comm.size - 1, np.ones(4)
    array, into = wm.ones(4), wm.zeros(4)
    calls = {
        "short send": lambda: comm.Send(short, last, 3),
        "short isend": lambda: comm.Isend(short, last, 3).Wait(),
        "barrier": comm.Barrier,
        "bcast": lambda: comm.Bcast(array, 0),
        "allreduce": lambda: comm.Allreduce(array, into),
    }
    comm.Barrier()
    if comm.rank == last:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1)
    begun = time.monotonic()
    try:
        for _ in range(5000):  # of short sends MPI takes some
            calls[sys.argv[1]]()
        print("no error", flush=True)
    except MPI.Exception as error:
        assert "PROC_FAILED" in error.Get_error_string()
        print("told", time.monotonic() - begun < 2, flush=True)
    time.sleep(5)
"""


@pytest.mark.parametrize(
    "call", ["short send", "short isend", "barrier", "bcast", "allreduce"]
)
def test_all_hear_of_it_while_the_others_live(tmp_path, call):
    printed = dying.run_text(tmp_path, OUTLIVED, call, ranks=4)
    assert printed.count("told True") == 3, printed


# A rank dies when MPI has made what is behind a communicator, and before it
# has told the others who it is.
UNTOLD = """
    MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
    wm.Comm(MPI.COMM_WORLD).Barrier()
    user = MPI.COMM_WORLD.Dup()
    if user.rank == 3:
        group = user.Get_group()
        match = user.Create(group)
        match.Create(group)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        wm.Comm(user)
    except MPI.Exception:
        open(os.path.join(sys.argv[1], f"told-{user.rank}"), "x").close()
    for _ in range(200):  # as nobody's end may tell the others
        told = [name for name in os.listdir(sys.argv[1]) if "told-" in name]
        if len(told) == 7:
            break
        time.sleep(0.1)
    print(len(told), "were told", flush=True)
"""


def test_all_hear_of_who_dies_while_a_communicator_is_made(tmp_path):
    if not wm.is_cuda_available():
        pytest.skip("needs a GPU")
    printed = dying.run_text(tmp_path, UNTOLD, tmp_path, ranks=8)
    assert printed.count("7 were told") == 7, printed


# Rank 1 dies at the given moment of what it sends; every error that rank 0
# meets is MPI's.
KILLED = """
    import random

    how, seed, count = sys.argv[1], int(sys.argv[2]), 6
    MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
    comm = wm.Comm(MPI.COMM_WORLD)
    arrays = [wm.zeros(500_000, np.uint8) for _ in range(2 * count)]
    out, into = arrays[:count], arrays[count:]
    stream, other = wm.Stream(wm.get_device()), 1 - comm.rank

    def exchange():
        begun = [comm.Irecv(into[tag], other, tag) for tag in range(count)]
        begun += [comm.Isend(out[tag], other, tag) for tag in range(count)]
        comm.on(stream).Sendrecv(out[0], other, 9, into[0], other, 9)
        comm.send({"an array": out[0]}, other, 10)
        comm.recv(source=other, tag=10)
        for request in begun:
            request.Wait()

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    wrong, ended = [], 0
    comm.Sendrecv(out[0], other, 0, into[0], other, 0)
    comm.Barrier()
    if how == "random":
        if comm.rank == 1:
            after = random.Random(seed).uniform(0, 0.1)
            threading.Timer(after, die).start()
        try:
            while True:
                exchange()
        except MPI.Exception as error:
            name = MPI.Get_error_string(error.Get_error_class())
            assert "PROC_FAILED" in name, error
    elif comm.rank == 1:  # its offers are there, but never ready
        kinds.Gate().stop(stream)
        for array in out:
            array.fill_(1, stream=stream)
        begun = [comm.Isend(out[tag], 0, tag) for tag in range(count)]
        time.sleep(0.5)
        die()
    else:
        begun = []
        for tag in range(count):
            begun.append(comm.Irecv(into[tag], 1, tag))
            for _ in range(3 * tag):  # out of step with each other
                begun[0].Test()
        for request in begun:
            try:
                request.Wait()
            except MPI.Exception as error:
                name = MPI.Get_error_string(error.Get_error_class())
                ended += "PROC_FAILED" in name
            except wm.CudaError as error:
                wrong.append(str(error))
        assert ended == count, (ended, wrong)
    print("told", flush=True)
"""


@pytest.mark.skipif(
    "WARPMPI_CUDA_DRIVER" not in os.environ,
    reason="needs the simulated driver",
)
def test_a_dead_rank_is_told_as_mpi_does_by_all_its_messages(tmp_path):
    """Also by those of which another message has found it out."""
    printed = dying.run_text(tmp_path, KILLED, "offered", 0)
    assert printed.split() == ["told"], printed


@pytest.mark.skipif(
    os.environ.get("WARPMPI_TEST_FULL") != "1" or not wm.is_cuda_available(),
    reason="takes long, and needs a GPU",
)
@pytest.mark.parametrize("seed", range(30))
def test_a_rank_that_dies_at_any_moment(tmp_path, seed):
    printed = dying.run_text(tmp_path, KILLED, "random", seed)
    assert printed.split() == ["told"], printed
