# SPDX-License-Identifier: BSD-3-Clause
"""A rank dies, and NCCL's abort returns late: when graphs are gone, and when
streams have done the work before its calls. Nobody waits for it."""

import os
import textwrap

import pytest

import dying
import ranks
import simulated_nccl
import warpmpi as wm

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
]

START = """
    import pathlib

    device = wm.get_device()
    nccl = ctypes.CDLL("libnccl.so.2")
    world = wm.Comm(MPI.COMM_WORLD)
    stream = wm.Stream(device)

    def ones(count):
        return wm.array(np.ones(count, "f4"), device=device)

    def made(of=MPI.COMM_WORLD):
        comm = wm.Comm(of.Dup())
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        return comm

    def live():
        return nccl.simnccl_live(b"communicators")

    def die():
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)

    def failed(call):
        try:
            call()
        except MPI.Exception as error:
            told = MPI.Get_error_string(error.Get_error_class())
            return "PROC_FAILED" in told
        return False

    sent, got = ones(50_000), ones(50_000)
"""


def survive(folder, text, **options):
    return dying.run_text(
        folder,
        simulated_nccl.APART + textwrap.dedent(START) + textwrap.dedent(text),
        timeout=40,
        **options,
        **simulated_nccl.faulty(folder),
    )


@dying.needs_ulfm
def test_a_graph_lives_on_when_a_rank_has_died(tmp_path):
    printed = survive(
        tmp_path,
        """
        comms, alone = [made(), made()], made(MPI.COMM_SELF)
        graph = []
        for comm in comms:
            comm.on(stream).Allreduce(sent, got)
            with graphs.capture(stream) as captured:
                comm.on(stream).Allreduce(sent, got)
            graph.append(captured[0])
            graph[-1].launch(stream)
        stream.synchronize()
        MPI.COMM_WORLD.Barrier()
        if rank == 1:
            die()

        def replay():
            graph[0].launch(stream)
            stream.synchronize()

        print("raised", failed(replay),
              failed(lambda: comms[0].on(stream).Allreduce(sent, got)))
        alone.Allreduce(sent, got)  # the engine goes on
        for comm in comms:
            comm.Free()
        print("freed", live() > 0)
        for each in graph:
            each.free()
        end = time.monotonic() + 10
        while live() and time.monotonic() < end:
            alone.Allreduce(sent, got)
        print("live", live(), flush=True)
        """,
    )
    assert "raised True True" in printed, printed
    assert "freed True" in printed and "live 0" in printed, printed


@pytest.mark.skipif(
    "WARPMPI_CUDA_DRIVER" not in os.environ,
    reason="a driver launches nothing while NCCL's abort waits for the GPU",
)
@dying.needs_ulfm
def test_work_before_the_call_waits_for_a_rank_that_lives(tmp_path):
    printed = survive(
        tmp_path,
        """
        comm, gate, sum = made(), kinds.Gate(), ones(50_000)
        comm.on(stream).Allreduce(sent, sum)
        stream.synchronize()
        MPI.COMM_WORLD.Barrier()
        if rank == 1:
            die()
        heard = pathlib.Path(sys.argv[0] + ".heard")
        if rank == 2:
            while not heard.exists():
                time.sleep(0.01)
            world.Send(ones(50_000), 0)
            time.sleep(1)
        else:
            gate.stop(stream)
            while not failed(lambda: comm.on(stream).Allreduce(sent, sum)):
                time.sleep(0.1)
            heard.touch()
            world.Recv(got, 2)
            gate.open()
            stream.synchronize()
            print("received", flush=True)
        """,
        ranks=3,
    )
    assert "received" in printed, printed


def test_an_abort_that_waits_for_a_graph_delays_nobody(tmp_path):
    """Neither later calls of other communicators, nor the process's end."""
    text = """
    comm, other = made(), made()
    for each in comm, other:
        each.on(stream).Allreduce(sent, got)
    with graphs.capture(stream) as captured:
        comm.on(stream).Allreduce(sent, got)
    stream.synchronize()
    world.Barrier()
    nccl.simnccl_fail(b"Broadcast", 1, 0)
    try:
        comm.on(stream).Bcast(got)
        raise AssertionError("not refused")
    except RuntimeError:
        pass
    other.on(stream).Allreduce(sent, got)
    began = time.monotonic()
    for _ in range(10):
        other.on(stream).Allreduce(sent, got)
    stream.synchronize()
    print("soon", time.monotonic() - began < 3)
    print("live", live(), flush=True)
    """
    start = dying.START.format(seconds=30) + textwrap.dedent(START)
    printed = ranks.run_text(
        tmp_path,
        simulated_nccl.APART + start + textwrap.dedent(text),
        timeout=40,
        **simulated_nccl.faulty(tmp_path),
    )
    assert printed.count("soon True") == printed.count("live 4") == 2, printed


@dying.needs_ulfm
def test_a_death_is_heard_by_all_communicators_at_once(tmp_path):
    """An abort frees page-locked memory. The driver waits until the GPU is
    idle, launches nothing meanwhile, and the engine waits for the driver."""
    printed = survive(
        tmp_path,
        """
        comms, alone = [made(), made()], made(MPI.COMM_SELF)
        comms[1].on(stream).Allreduce(sent, got)
        comms[0].Allreduce(sent, got)
        copy, other = ones(50_000), ones(50_000)
        alone.Allreduce(sent, copy)
        stream.synchronize()
        MPI.COMM_WORLD.Barrier()
        if rank == 1:
            die()
        comms[1].on(stream).Allreduce(sent, got)
        print("raised", failed(lambda: comms[0].Allreduce(sent, other)))
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            alone.Iallreduce(sent, copy).Wait()
        print("raised", failed(stream.synchronize), flush=True)
        """,
    )
    assert printed.count("raised True") == 2, printed


@dying.needs_ulfm
def test_no_call_begins_beside_an_abort(tmp_path):
    """Its kernel may wait for a rank that dies before the abort has ended."""
    printed = survive(
        tmp_path,
        """
        comm, alone = made(), made(MPI.COMM_SELF)
        pair = made(MPI.COMM_WORLD.Split(rank == 1))
        pair.on(stream).Allreduce(sent, got)
        comm.Allreduce(sent, got)
        copy = ones(50_000)
        alone.Allreduce(sent, copy)
        stream.synchronize()
        MPI.COMM_WORLD.Barrier()
        begun = pathlib.Path(sys.argv[0] + ".begun")
        if rank == 1:
            die()
        print("raised", failed(lambda: comm.Allreduce(sent, got)), flush=True)
        if rank == 2:
            while not begun.exists():
                time.sleep(0.001)
            die()
        pair.on(stream).Allreduce(sent, got)
        begun.touch()
        end = time.monotonic() + 0.7
        while time.monotonic() < end:
            alone.Iallreduce(sent, copy).Wait()
        print("raised", failed(stream.synchronize), flush=True)
        """,
        ranks=3,
        SIMNCCL_SLOW="50",
    )
    assert printed.count("raised True") == 3, printed
