# SPDX-License-Identifier: BSD-3-Clause
"""Threads that wait for a message when MPI is finalized."""

import pytest
from mpi4py import MPI

import ranks

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
