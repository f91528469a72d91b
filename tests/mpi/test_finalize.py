# SPDX-License-Identifier: BSD-3-Clause
"""Threads that wait for a message when MPI is finalized."""

import pytest
from mpi4py import MPI

import ranks
import warpmpi as wm

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(
        MPI.Query_thread() < MPI.THREAD_MULTIPLE,
        reason="the program has threads that call MPI",
    ),
]

BEGIN = """
    import threading
    import time

    import numpy as np
    from mpi4py import MPI

    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    gpu = long = np.ones(100_000)
    if wm.is_cuda_available():
        gpu = wm.zeros(9, device=wm.get_device())


    def wait():
        try:
            {call}
        except RuntimeError as error:
            print("told:", error, flush=True)


    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    time.sleep(0.3)
"""
CALLS = [
    "comm.Probe(tag=9)",
    "comm.Mprobe(tag=9)",
    "comm.Recv(gpu, tag=9)",
    "comm.Ssend(long, 0, 9)",
    "comm.Send(gpu, 0, 9)",
    "comm.Irecv(gpu, tag=9).Wait()",
    "wm.Request.Waitany([comm.Irecv(gpu, tag=9)])",
    "comm.recv()",
]


def run(tmp_path, call, body=""):
    text = ranks.textwrap.dedent(BEGIN).format(call=call)
    text += ranks.textwrap.dedent(body)
    return ranks.run_text(tmp_path, text, ranks=1)


@pytest.mark.parametrize("call", CALLS)
def test_a_daemon_thread_does_not_end_the_program(tmp_path, call):
    """Its status is 0, as with mpi4py alone; a send is given up."""
    assert run(tmp_path, call) == ""


@pytest.mark.parametrize("call", ["comm.Probe(tag=9)", "comm.Ssend(long, 0)"])
def test_a_thread_is_told_of_finalize(tmp_path, call):
    body = """
        MPI.Finalize()
        thread.join()
    """
    printed = run(tmp_path, call, body)
    assert printed.startswith("told: MPI is finalized"), printed


def test_a_partitioned_send_is_told_of_finalize(tmp_path):
    body = """
        request = comm.Psend_init(np.zeros(4), 2, 0, 0)
        request.Start()
        request.Pready(0)
        MPI.Finalize()
        try:
            request.Wait()
        except RuntimeError as error:
            print(error)
    """
    printed = run(tmp_path, "pass", body)
    assert printed.startswith("MPI is finalized"), printed


STOPPED = """
    import os
    import signal
    import sys
    import time

    import numpy as np
    from mpi4py import MPI

    import warpmpi as wm

    os.dup2(1, 2)
    comm = wm.Comm(MPI.COMM_WORLD.Dup())
    data = np.arange(1_000_000)
    if comm.rank == 0:
        request = comm.Isend(data, 1, 3)
        comm.Send(np.array([os.getpid()]), 1, 4)
    else:
        sender = np.zeros(1, int)
        comm.Recv(sender, 0, 4)
        time.sleep(1)  # it has come to the end
        os.kill(int(sender[0]), signal.SIGSTOP)
        time.sleep(6)  # longer than is waited in vain
        into = np.zeros_like(data)
        request = comm.Irecv(into, 0, 3)
        os.kill(int(sender[0]), signal.SIGCONT)
        request.Wait()
        assert (into == data).all()
        print("received", flush=True)
    if sys.argv[1] == "Free":
        comm.Free()
"""


@pytest.mark.parametrize("end", ["Finalize", "Free"])
def test_a_sender_that_is_stopped_at_the_end_does_not_wait(tmp_path, end):
    """What it sends is not given up, nor said to be."""
    assert ranks.run_text(tmp_path, STOPPED, end) == "received\n"


NEVER = """
    import warpmpi as wm
    from mpi4py import MPI

    comm = wm.Comm(MPI.COMM_WORLD)
    stream = wm.Stream()
    source, into = wm.ones(1000), wm.zeros(1000)
    comm.on(stream).Allreduce(source, into)
    stream.synchronize()
    comm.Barrier()
    if comm.rank == 0:
        comm.on(stream).Allreduce(source, into)
    MPI.Finalize()
    stream.synchronize()
    print("ended", flush=True)
"""


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
def test_a_stream_whose_collective_never_begins_is_let_go(tmp_path):
    """The other rank is at its end as well."""
    assert ranks.run_text(tmp_path, NEVER) == "ended\n" * 2
