# SPDX-License-Identifier: BSD-3-Clause
"""Buffers are the caller's again when the end of a message has been told."""

import os

import pytest
from mpi4py import MPI

import compiled
import ranks

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(
        MPI.Query_thread() < MPI.THREAD_MULTIPLE,
        reason="no other thread steps",
    ),
]

# Stands before MPI: another thread that has told an end stays there.
STAY = r"""
    #include <mpi.h>
    #include <stdatomic.h>
    #include <sys/syscall.h>
    #include <unistd.h>

    static atomic_int wanted, there, away;

    void
    stay(int at) // the last of so many ends that it tells
    {
        away = 0;
        wanted = at;
    }

    int
    stays(void)
    {
        return there;
    }

    void
    go(void)
    {
        wanted = 0;
        away = 1;
    }

    int
    MPI_Grequest_complete(MPI_Request request)
    {
        int result = PMPI_Grequest_complete(request);
        if (wanted == 0 || syscall(SYS_gettid) == getpid() || --wanted > 0)
            return result;
        there = 1;
        for (int i = 0; i < 5000 && !away; ++i)
            usleep(1000); // five seconds: then something else is wrong
        there = 0;
        return result;
    }
"""

PROGRAM = """
    import ctypes, sys, time
    from mpi4py import MPI
    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    library = ctypes.CDLL(sys.argv[1])
    HOW = sys.argv[2]

    def begin():
        into, out = bytearray(10), bytes(10)
        if HOW == "Isendrecv":
            request = comm.Isendrecv(out, 0, 3, into, 0, 3)
        elif HOW == "Start":
            request = comm.Recv_init(into, 0, 3)
            request.Start()
        elif HOW == "Precv_init":
            request = comm.Precv_init(into, 1, 0, 3)
            request.Start()
        elif HOW == "irecv":
            request = comm.irecv(into, 0, 3)
        else:
            request = comm.Irecv(into, 0, 3)
        return into, request

    def send():
        if HOW == "Precv_init":
            sending = comm.Psend_init(bytes(10), 1, 0, 3)
            sending.Start()
            sending.Pready(0)
            return sending
        elif HOW == "irecv":
            comm.send(None, 0, 3)
        elif HOW != "Isendrecv":
            comm.Send(bytes(10), 0, 3)
        return MPI.REQUEST_NULL

    def end(request):
        if HOW == "Test":
            assert request.Test()
        elif HOW == "Waitall":
            wm.Request.Waitall([request])
        elif HOW == "stock":
            MPI.Request.Waitall([request])
        elif HOW == "Testall":
            assert wm.Request.Testall([request])
        elif HOW == "irecv":
            assert request.wait() is None
        else:
            request.Wait()
        if HOW in ("Start", "Precv_init"):
            request.Free()  # it has kept the buffer for the next time

    stayed = 0
    while stayed < 3:
        library.stay(2 if HOW == "Precv_init" else 1)
        into, request = begin()
        sending = send()
        for _ in range(300):
            time.sleep(0.001)
            if library.stays():
                break
        there = library.stays()
        end(request)
        if HOW == "stock":
            del request
        into.extend(b"x")  # a BufferError as long as it is exported
        assert library.stays() == there
        stayed += there
        library.go()
        sending.Wait()
        while library.stays():
            time.sleep(0.001)
    print("released")
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compiled.library(tmp_path_factory.mktemp("stay"), STAY)


@pytest.mark.parametrize(
    "how",
    [
        "Wait",
        "Test",
        "Waitall",
        "Testall",
        "stock",
        "Isendrecv",
        "Start",
        "Precv_init",
        "irecv",
    ],
)
def test_a_buffer_is_released_when_its_end_is_told(tmp_path, library, how):
    """Another thread has told it, and has not let go of the operation yet."""
    preloaded = os.environ.get("LD_PRELOAD", "")
    printed = ranks.run_text(
        tmp_path,
        PROGRAM,
        library,
        how,
        ranks=1,
        wrapper=("env", f"LD_PRELOAD={preloaded} {library}"),
    )
    assert printed == "released\n"
