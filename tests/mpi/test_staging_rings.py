# SPDX-License-Identifier: BSD-3-Clause
"""A receiver that is away keeps the staging rings, and holds up nobody."""

import pytest

import kinds
import ranks
import warpmpi as wm

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
]

# Rank 1 has matched four messages longer than a ring, and is away until rank 0
# has done all else, or for so long that it never will.
BEGIN = """
    import ctypes, os, signal, threading, time
    import mpi4py
    mpi4py.rc.thread_level = LEVEL = {level!r}
    from mpi4py import MPI
    import numpy as np, warpmpi as wm

    AWAY, SIZE = 40, 17 << 20
    plain, comm = MPI.COMM_WORLD, wm.Comm(MPI.COMM_WORLD)

    def full(size, value):
        return wm.full(size, value, "uint8", device="cuda:0")

    if comm.rank == 1:
        into = [full(SIZE, 0) for _ in range(4)]
        requests = [comm.Irecv(into[i], 0, i) for i in range(4)]
        plain.send(os.getpid(), 0)
        plain.Barrier()
        if LEVEL == "serialized":
            for request in requests:
                request.Test()
            plain.Barrier()
            end = time.monotonic() + AWAY
            while not plain.iprobe(0, 99):
                assert time.monotonic() < end
                time.sleep(0.01)
            plain.recv(None, 0, 99)
    elif comm.rank == 0:
        requests = [comm.Isend(full(SIZE, i + 1), 1, i) for i in range(4)]
        pid = plain.recv(None, 1)
        plain.Barrier()
        if LEVEL == "serialized":
            plain.Barrier()
        else:
            while wm.stats()["staged_bytes"] < 4 * SIZE:
                time.sleep(0.0001)
            os.kill(pid, signal.SIGSTOP)
            again = threading.Timer(AWAY, os.kill, (pid, signal.SIGCONT))
            again.start()
    else:
        plain.Barrier()
        if LEVEL == "serialized":
            plain.Barrier()
"""
END = """
    if comm.rank == 0 and LEVEL == "serialized":
        plain.send(None, 1, 99)
    elif comm.rank == 0:
        assert again.is_alive()
        again.cancel()
        os.kill(pid, signal.SIGCONT)
    if comm.rank < 2:
        wm.Request.Waitall(requests)
    if comm.rank == 1:
        for i in range(4):
            assert (into[i].numpy() == i + 1).all()
"""


def run(folder, level, program, **settings):
    ranks.run_text(
        folder,
        BEGIN.format(level=level) + program + END,
        ranks=3,
        **{"WARPMPI_TRANSPORT": "host", **settings},
    )


@pytest.mark.parametrize("level", ["serialized", "multiple"])
def test_others_are_sent_to(tmp_path, level):
    program = """
    for size in (100, 1 << 20, 9 << 20):
        if comm.rank == 0:
            comm.Send(full(size, 9), 2)
            wm.Request.Waitall([comm.Isend(full(size, i), 2)
                                for i in range(3)])
        elif comm.rank == 2:
            into, several = full(size, 0), [full(size, 9) for _ in range(3)]
            comm.Recv(into, 0)
            wm.Request.Waitall([comm.Irecv(each, 0) for each in several])
            assert (into.numpy() == 9).all()
            for i in range(3):
                assert (several[i].numpy() == i).all()
    """
    run(tmp_path, level, program)


def test_what_was_posted_by_device_eager(tmp_path):
    """It is the receiver whose memory lets it come through the host."""
    program = """
    stream = wm.Stream(device="cuda:0")
    for turn in range(3):
        if comm.rank == 0:
            gaps = full((100, 100), turn + 1)
            comm.Send(gaps[:, ::2], 2)
            comm.on(stream).Send(gaps, 2)
            gaps.fill_(0, stream=stream)
        elif comm.rank == 2:
            into, whole = np.zeros((100, 50), "u1"), np.zeros(10000, "u1")
            comm.Recv(into, 0)
            comm.Recv(whole, 0)
            assert (into == turn + 1).all() and (whole == turn + 1).all()
    """
    run(tmp_path, "serialized", program)


@pytest.mark.skipif(
    not hasattr(kinds.driver(), "simcuda_fail"),
    reason="needs the simulated driver",
)
def test_a_sender_that_fails(tmp_path):
    """Both ends are told, and go on."""
    program = """
    if comm.rank == 0:
        library = ctypes.CDLL(os.environ["WARPMPI_CUDA_DRIVER"])
        comm.Send(full(1 << 20, 9), 2)  # now the rings are full
        request = comm.Isend(full(1 << 20, 9), 2)
        library.simcuda_fail(b"MemcpyAsync", ctypes.c_long(1), 999)
        try:
            request.Wait()
        except wm.CudaError:
            comm.Send(full(1 << 20, 9), 2)
        else:
            raise AssertionError("nothing was raised")
    elif comm.rank == 2:
        into = full(1 << 20, 0)
        comm.Recv(into, 0)
        try:
            comm.Recv(into, 0)
        except wm.CudaError as error:
            assert "sender, rank 0, failed" in str(error), error
        else:
            raise AssertionError("nothing was raised")
        comm.Recv(into, 0)
        assert (into.numpy() == 9).all()
    """
    run(tmp_path, "serialized", program)


@pytest.mark.skipif(
    not hasattr(kinds.driver(), "simcuda_fail"),
    reason="needs the simulated driver",
)
def test_a_receiver_without_memory_for_gaps(tmp_path):
    """What MPI carries to it is thrown away, and its sender ends."""
    program = """
    if comm.rank == 0:
        comm.Send(full(9 << 20, 9), 2)
    elif comm.rank == 2:
        library = ctypes.CDLL(os.environ["WARPMPI_CUDA_DRIVER"])
        into = full((3 << 10, 6 << 10), 0)
        library.simcuda_fail(b"MemAlloc", ctypes.c_long(1), 999)
        try:
            comm.Recv(into[:, : 3 << 10], 0)
        except wm.CudaError:
            pass
        else:
            raise AssertionError("nothing was raised")
    """
    run(tmp_path, "serialized", program)
