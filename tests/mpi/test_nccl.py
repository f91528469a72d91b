# SPDX-License-Identifier: BSD-3-Clause
"""The engine "nccl": collectives between hosts that have one rank each."""

import os
import re
import textwrap

import pytest

import dying
import kinds
import ranks
import simulated_nccl
import warpmpi as wm

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU"),
]

START = """
import ctypes, sys, time
import numpy as np
from mpi4py import MPI
import graphs
import warpmpi as wm
from warpmpi import _core

comm = wm.Comm(MPI.COMM_WORLD)
size, device = comm.size, wm.get_device()

def served():
    return _core._coll_engines()["nccl"]

def ones(count, dtype="float32", value=None):
    values = np.full(count, rank + 1 if value is None else value, dtype)
    return wm.array(values, device=device)

def get(array):
    return np.asarray(array.to("cpu"))
"""


def apart(folder, text, *words, count=2, timeout=60, **environment):
    """Runs a program on ranks that are hosts."""
    return ranks.run_text(
        folder,
        simulated_nccl.APART + START + textwrap.dedent(text),
        *words,
        ranks=count,
        timeout=timeout,
        **simulated_nccl.environment(**environment),
    )


def test_random_calls_in_all_forms():
    """Also of arrays that are not a GPU's, on some ranks or on all."""
    printed = ranks.run(
        ranks.ROOT / "tests" / "random_collectives.py",
        *"--apart --collectives 60 --seed 3 --max-bytes 200000".split(),
        ranks=3,
        **simulated_nccl.environment(),
    )
    assert "every one right" in printed


def test_bits_are_those_of_the_order_of_ranks(tmp_path):
    """In every form and length; and no byte goes twice."""
    apart(
        tmp_path,
        """
        for count, dtype in (
            (2000, "f4"), (100_003, "f4"), (48_000, "f8"), (1_100_003, "f4"),
        ):
            rows = [np.random.default_rng(r).random(count).astype(dtype)
                    for r in range(size)]
            expected = rows[0]
            for row in rows[1:]:
                expected = expected + row
            sent, got = wm.array(rows[rank]), wm.array(0 * rows[0])
            before = served()

            def check():
                assert np.array_equal(get(got), expected)
                got.fill_(0)

            comm.Allreduce(sent, got)
            check()
            comm.Iallreduce(sent, got).Wait()
            check()
            request = comm.Allreduce_init(sent, got)
            for _ in range(2):
                request.Start()
                request.Wait()
                check()
            request.Free()
            stream = wm.Stream(device)
            comm.on(stream).Allreduce(sent, got)
            stream.synchronize()
            check()
            comm.Reduce(sent, got if rank == 0 else None, root=0)
            if rank == 0:
                check()
            assert served() - before == 6, served()
        before = wm.stats()["nccl_bytes"]
        count = 3 * 4096 * size
        comm.Allreduce(ones(count), ones(count))
        assert wm.stats()["nccl_bytes"] - before == (
            2 * (size - 1) * 4 * count // size
        )
        """,
        count=3,
    )


@pytest.mark.skipif(kinds.is_real(), reason="counts the driver's calls")
def test_a_call_on_a_stream_records_one_event(tmp_path):
    """And waits for none on the host or the stream: its own work is there."""
    apart(
        tmp_path,
        """
        import kinds
        stream = wm.Stream(device)
        first, all, sent = ones(256), ones(256 * size), ones(256 * size)
        assert len({first.ptr, all.ptr, sent.ptr}) == 3  # given away
        calls = {
            "Allgather": lambda channel: channel.Allgather(first, all),
            "Bcast": lambda channel: channel.Bcast(first),
            "Allreduce": lambda channel: channel.Allreduce(MPI.IN_PLACE, all),
            "Alltoall": lambda channel: channel.Alltoall(sent, all),
        }
        names = [
            b"EventRecord", b"StreamWaitEvent", b"CtxSynchronize",
            b"MemcpyAsync",  # of the own block
        ]
        counted = kinds.driver().simcuda_calls
        for name, call in calls.items():
            for _ in range(2):
                call(comm.on(stream))
            before = [*map(counted, names)]
            for _ in range(5):
                call(comm.on(stream))
            made = [counted(each) - old for each, old in zip(names, before)]
            assert made == [5, 0, 0, 0], (name, made)
        stream.synchronize()
        """,
    )


@pytest.mark.skipif(kinds.is_real(), reason="the driver's calls fail")
def test_a_call_whose_end_cannot_be_recorded_is_waited_for(tmp_path):
    """As other ranks have the call, too: no rank raises."""
    apart(
        tmp_path,
        """
        stream, cuda = wm.Stream(device), ctypes.CDLL(
            os.environ["WARPMPI_CUDA_DRIVER"])
        sent, got, many = ones(5000), ones(5000), ones(2 * 5000)
        channel = comm.on(stream)
        rows = (channel.Allreduce, sent, got, 1), (
            channel.Allgather, sent, many, 1), (
            channel.Iallreduce, sent, got, 2)
        for call, first, second, record in rows:
            for nth in range(record + 1):
                second.fill_(0)
                wm.get_device().synchronize()
                if rank == 1 and nth:
                    cuda.simcuda_fail(b"EventRecord", nth, 0)
                request = call(first, second)
                cuda.simcuda_fail(b"EventRecord", 0, 0)
                if request is not None:
                    request.Wait()
                stream.synchronize()
                assert get(second).sum() == 3 * 5000, (call, nth)
        """,
    )


def test_prefixes_are_passed_along_the_ranks(tmp_path):
    """Each vector leaves a rank once, if it is long; same bits as else."""
    apart(
        tmp_path,
        """
        stream = wm.Stream(device)
        for count, dtype in (2000, "f4"), (400_003, "f4"), (50_001, "f2"):
            rows = [np.random.default_rng(r).random(count).astype(dtype)
                    for r in range(size)]
            long = dtype == "f4" and count > 2000
            for name in "Scan", "Exscan":
                ranks = range(rank + (name == "Scan"))
                total = np.zeros(count, "f4")
                for r in ranks:
                    total = total + rows[r].astype("f4")
                total = total.astype(dtype)
                before = wm.stats()["nccl_bytes"]
                sent, got = wm.array(rows[rank]), wm.array(rows[rank])
                getattr(comm, name)(sent, got)
                if len(ranks):
                    assert np.array_equal(get(got), total), (name, dtype)
                left = wm.stats()["nccl_bytes"] - before
                others = size - rank - 1
                assert left == sent.nbytes * (
                    min(others, 1) if long else others
                )
                getattr(comm.on(stream), name)(MPI.IN_PLACE, sent)
                stream.synchronize()
                if len(ranks):
                    assert np.array_equal(get(sent), total), (name, dtype)
        assert served() == 12
        """,
        count=3,
    )


def test_graphs_replay_and_outlive_their_communicator(tmp_path):
    apart(
        tmp_path,
        """
        other = wm.Comm(MPI.COMM_WORLD.Dup())
        stream = wm.Stream(device)
        sent, got = ones(50_000), ones(50_000)
        first, all = ones(3000), ones(3000 * size)
        try:  # CUDA lets no capture open it
            with graphs.capture(stream) as made:
                other.on(stream).Allreduce(sent, got)
            raise AssertionError("not refused")
        except RuntimeError as error:
            assert "before the capture" in str(error), error
        other.on(stream).Allgather(first, all)
        with graphs.capture(stream) as made:
            other.on(stream).Allreduce(sent, got)
            other.on(stream).Allgather(first, all)
        for _ in range(200):
            made[0].launch(stream)
        stream.synchronize()
        total = size * (size + 1) // 2
        assert (get(got) == total).all()
        assert (get(all) == np.repeat(np.arange(size) + 1, 3000)).all()
        other.Free()
        wm.Comm(MPI.COMM_WORLD.Dup()).Free()  # drops what nobody uses
        sent.fill_(2)
        device.synchronize()
        made[0].launch(stream)
        stream.synchronize()
        assert (get(got) == 2 * size).all()
        made[0].free()
        comm.Barrier()
        """,
    )


def test_arguments_that_all_ranks_refuse_leave_it_whole(tmp_path):
    apart(
        tmp_path,
        """
        stream, got = wm.Stream(device), ones(5000)
        channel = comm.on(stream)
        channel.Allreduce(ones(5000), got)
        for call in channel.Allreduce, comm.Allreduce, comm.Iallreduce:
            try:
                channel.Allreduce(np.ones(5000, "f4"), got)
                raise AssertionError("not refused")
            except TypeError:
                pass
            got.fill_(0)
            request = call(ones(5000), got)
            if request is not None:
                request.Wait()
            stream.synchronize()
            assert (get(got) == size * (size + 1) // 2).all()
        """,
    )


def test_checked_calls_on_streams_are_compared(tmp_path):
    """Between hosts, where NCCL tells no rank of another one's counts."""
    apart(
        tmp_path,
        """
        stream, got = wm.Stream(device), ones(5000)
        channel = comm.on(stream)
        for _ in range(2):
            for sent in ones(5000 + rank), [ones(5000), None][rank]:
                try:
                    channel.Allreduce(sent, ones(5000 + rank))
                    raise AssertionError("not refused")
                except (TypeError, ValueError) as error:
                    told = str(error)
                    assert "rank 1" in told or rank == 1, told
            channel.Allreduce(ones(5000), got)
            stream.synchronize()
            assert (get(got) == size * (size + 1) // 2).all()
        """,
        WARPMPI_CHECK="1",
    )


@pytest.mark.long
def test_a_late_rank_that_refuses_as_well_is_waited_for(tmp_path):
    apart(
        tmp_path,
        """
        stream, got = wm.Stream(device), ones(5000)
        channel = comm.on(stream)
        channel.Allreduce(ones(5000), got)
        if rank == 1:
            time.sleep(7)
        try:
            channel.Allreduce(np.ones(5000, "f4"), got)
            raise AssertionError("not refused")
        except TypeError:
            pass
        channel.Allreduce(ones(5000), got)
        stream.synchronize()
        assert (get(got) == size * (size + 1) // 2).all()
        """,
    )


CAPTURES = """
stream, sent, got = wm.Stream(device), ones(5000), ones(5000)
other = wm.Comm(MPI.COMM_WORLD.Dup())
other.on(stream).Allreduce(sent, got)
wrong = np.ones(5000, "f4"), got

def capture(*wrong, comm=other, stream=stream):
    with graphs.capture(stream) as made:
        try:
            comm.on(stream).Allreduce(*(wrong or (sent, got)))
        except TypeError:
            assert wrong
    return made[0]
"""


def test_a_captured_call_that_one_rank_refuses_ends_the_graphs(tmp_path):
    """Nobody sees that NCCL waits: the others learn it, and give it time.

    Also those of a rank that has captured less, and if one of two captures
    again. An older graph goes on, in which ranks are as late.
    """
    text = """
    own = dict(comm=wm.Comm(MPI.COMM_WORLD.Dup()), stream=wm.Stream(device))
    own["comm"].on(own["stream"]).Allreduce(sent, got)
    older = capture(**own)
    unused = capture(*wrong[: 2 * rank], **own)
    for _ in range(rank):
        capture().free()
    for turn in range(3):  # rank 2 refuses it after rank 1, which has it then
        if turn == max(rank, 1) - 1 or turn == 2 and rank == 1:
            graph = capture(*wrong[: 2 * (rank > 0 and turn < 2)])
        MPI.COMM_WORLD.Barrier()
    if rank == 0:
        older.launch(own["stream"])
        graph.launch(stream)
    begun = time.monotonic()
    try:
        while time.monotonic() < begun + 15:
            stream.synchronize()
            time.sleep(0.1)
    except (RuntimeError, MPI.Exception) as error:
        told = f"{error} {getattr(error, '__notes__', '')}"
        print(rank, "refused a collective" in told, "sendbuf" in told)
    assert time.monotonic() < begun + 10
    if rank > 0:  # now: rank 0 can launch nothing before its graph has ended
        older.launch(own["stream"])
    graph.free()
    comm.on(stream).Allreduce(sent, got)
    older.launch(own["stream"])
    own["stream"].synchronize()
    own["comm"].on(own["stream"]).Allreduce(sent, got)
    own["stream"].synchronize()
    stream.synchronize()
    assert (get(got) == size * (size + 1) // 2).all()
    """
    printed = apart(tmp_path, CAPTURES + textwrap.dedent(text), count=3)
    found = sorted(line for line in printed.splitlines() if "True" in line)
    assert found == [f"{rank} True True" for rank in range(3)], printed


@pytest.mark.long
def test_graphs_that_all_have_freed_wait_for_nobody(tmp_path):
    """As one rank could not capture; then calls go without a graph."""
    text = """
    capture(*wrong[: 2 * rank]).free()
    for _ in range(7):
        other.on(stream).Allreduce(sent, got)
        stream.synchronize()
        time.sleep(1)
    """
    apart(tmp_path, CAPTURES + textwrap.dedent(text))


@pytest.mark.long
def test_captured_calls_that_all_refuse_leave_it_whole(tmp_path):
    """Or one that captures again, also long after: the others were late."""
    text = """
    for refused in wrong, wrong[: 2 * rank]:
        capture(*refused).free()
        graph = capture()
        time.sleep(6 * rank)
        graph.launch(stream)
        stream.synchronize()
        graph.free()
    other = wm.Comm(MPI.COMM_WORLD.Dup())
    other.on(stream).Allreduce(sent, got)
    time.sleep(7 * (1 - rank))
    graph = capture(*wrong[: 2 * rank])
    time.sleep(1 - rank)  # the progress thread looks
    MPI.COMM_WORLD.Barrier()
    if rank == 1:
        graph.free()
        graph = capture()
    graph.launch(stream)
    stream.synchronize()
    """
    apart(tmp_path, CAPTURES + textwrap.dedent(text))


@dying.needs_ulfm
def test_arguments_that_one_rank_refuses_revoke_it(tmp_path):
    text = """
    comm, stream, got = made(), wm.Stream(device), ones(5000)
    channel = comm.on(stream)
    channel.Allreduce(ones(5000), got)
    begun = time.monotonic()
    try:
        channel.Allreduce(np.ones(5000, "f4") if last else ones(5000), got)
        stream.synchronize()
        print("no error")
    except TypeError:
        assert last
        try:  # asks on the communicator that ranks exchange headers on
            comm.Iallreduce(ones(9000), ones(9000)).Wait()
            print("no error")
        except MPI.Exception:
            pass
    except MPI.Exception as error:
        assert not last and error.Get_error_class() == MPI.ERR_REVOKED
    assert time.monotonic() - begun < 10
    plain.Barrier()
    left = comm.Shrink()
    left.Allreduce(ones(5000), got)
    plain.Barrier()
    print("right", (np.asarray(got.to("cpu")) == 3).all(), flush=True)
    """
    printed = dying.run_text(
        tmp_path,
        simulated_nccl.APART + textwrap.dedent(DEATH + text),
        **simulated_nccl.environment(SIMCUDA_MODE="lazy"),
    )
    assert printed.count("right True") == 2, printed


@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2
    or "WARPMPI_CUDA_DRIVER" not in os.environ,
    reason="needs two cores, and the simulated NCCL",
)
@pytest.mark.parametrize("wrapper", [[], ["sh", "-c", 'exec "$@"', "sh"]])
def test_threads_of_nccl_have_the_cores_of_the_launcher(tmp_path, wrapper):
    """Though it binds each rank to one core."""
    text = """
    launchers = os.sched_getaffinity(0)
    own = {min(launchers)}
    os.sched_setaffinity(0, own)
    comm.Allreduce(ones(5000), ones(5000))
    assert os.sched_getaffinity(0) == own
    theirs = [
        os.sched_getaffinity(int(thread))
        for thread in os.listdir("/proc/self/task")
        if open(f"/proc/self/task/{thread}/comm").read() == "NCCL\\n"
    ]
    assert served() == 1 and len(theirs) >= 2
    assert all(cores == launchers for cores in theirs), theirs
    """
    apart(tmp_path, text, wrapper=wrapper)


def test_a_call_behind_one_whose_array_is_moved(tmp_path):
    """NCCL's calls start in the program's order, whatever they wait for."""
    apart(
        tmp_path,
        """
        count = 5000
        comm.Allreduce(ones(count), ones(count))
        host = np.full(count, rank + 1.0, "f4")
        got, into, other = np.zeros(count, "f4"), ones(count), ones(count)
        stream = wm.Stream(device)
        for i in range(3):
            sent = host if (rank + i) % 2 else ones(count)
            received = got if (rank + i) % 2 else into
            request = comm.Iallreduce(sent, received)
            comm.Allreduce(ones(count, value=5), other)
            assert (get(other) == 5 * size).all()
            second = comm.Iallreduce(sent, received)
            comm.on(stream).Allreduce(ones(count, value=7), other)
            stream.synchronize()
            assert (get(other) == 7 * size).all()
            MPI.Request.Waitall([request, second])
            total = size * (size + 1) // 2
            assert (np.asarray(received if (rank + i) % 2 else get(received))
                    == total).all()
        assert wm.stats()["moved_collectives"] > 0
        """,
    )


def test_nonblocking_calls_wait_on_the_gpu_for_no_program(tmp_path):
    """Ranks synchronize it, or begin calls in other orders; in new classes."""
    apart(
        tmp_path,
        """
        comms = [wm.Comm(MPI.COMM_WORLD.Dup()) for _ in range(2)]
        for each in comms:
            each.Bcast(ones(2000))  # opens it
            each.Allreduce(ones(2000), ones(2000))
        for count in 2000, 500_000:
            before = served()
            sent, got = [[ones(count) for _ in comms] for _ in range(2)]
            rows = list(zip(comms, sent, got))
            begun = [comms[0].Ibcast(sent[0], root=1)] if rank == 0 else []
            time.sleep(0.2)  # the progress thread would start it
            device.synchronize()
            comm.Sendrecv_replace(np.zeros(1), 1 - rank, source=1 - rank)
            if rank == 1:
                begun = [comms[0].Ibcast(sent[0], root=1)]
            MPI.Request.Waitall(begun)
            for array in sent + got:
                array.__cuda_array_interface__  # from now on in unnamed use
            begun = [
                each.Iallreduce(*row) for each, *row in rows[:: 1 - 2 * rank]
            ]
            MPI.Request.Waitall(begun)
            assert [get(one).max() for one in got] == [4, 3]
            assert [get(one).min() for one in got] == [4, 3]
            assert served() - before == 3
        """,
    )


def test_a_call_of_a_new_class_waits_for_no_later_work(tmp_path):
    """Of its arrays' stream, which may wait for what follows elsewhere."""
    apart(
        tmp_path,
        """
        one, other = [wm.Comm(MPI.COMM_WORLD.Dup()) for _ in range(2)]
        stream = wm.Stream(device)
        for each in one, other:
            each.Bcast(ones(2000))  # opens it
            each.on(stream).Allreduce(ones(2000), ones(2000))

        class OnStream:
            def __init__(self, array):
                self.__cuda_array_interface__ = {
                    **array.__cuda_array_interface__,
                    "stream": stream.cuda_stream,
                }

        def later():
            other.on(stream).Allreduce(x, y)

        sent, got, x, y = [ones(500_000) for _ in range(4)]
        sent.fill_(0)
        both = OnStream(sent), OnStream(got)
        later()  # warm
        stream.synchronize()
        comm.Barrier()
        if rank == 0:
            sent.fill_(7)
            request = one.Iallreduce(*both)
            later()
            request.Wait()
        else:
            one.Iallreduce(*both).Wait()
            later()
        stream.synchronize()
        assert (get(got) == 7).all(), get(got)
        assert (get(y) == 3).all()
        """,
    )


DEATH = """
    device = wm.get_device()
    nccl = ctypes.CDLL("libnccl.so.2")
    plain = wm.Comm(MPI.COMM_WORLD)
    last = plain.rank == plain.size - 1

    def ones(count):
        return wm.array(np.full(count, rank + 1.0, "f4"), device=device)

    def made():
        comm = wm.Comm(MPI.COMM_WORLD.Dup())
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        return comm

    def check(name, comm, call):
        begun = time.monotonic()
        try:
            call()
            wrong.append((name, "no error"))
        except MPI.Exception as error:
            told = MPI.Get_error_string(error.Get_error_class())
            if "PROC_FAILED" not in told:
                wrong.append((name, told))
        except Exception as error:
            wrong.append((name, repr(error)))
        if time.monotonic() - begun > 10:
            wrong.append((name, "late"))

    def live():  # aborts of NCCL may return late
        end = time.monotonic() + 10
        while nccl.simnccl_live(b"communicators") and time.monotonic() < end:
            time.sleep(0.01)
        return nccl.simnccl_live(b"communicators")

    def go_on(comm):
        left = comm.Shrink()
        got = ones(5000)
        left.Allreduce(ones(5000), got)
        total = left.size * (left.size + 1) // 2
        assert (np.asarray(got.to("cpu")) == total).all()
        comm.Free()
        left.Free()
        wm.Comm(MPI.COMM_SELF.Dup()).Free()  # drops what nobody uses

    wrong = []
"""


@dying.needs_ulfm
def test_a_rank_dies_inside_calls_of_all_forms(tmp_path):
    """The others raise, shrink and go on, and nothing stays in NCCL."""
    text = """
    streams = [wm.Stream(device) for _ in range(3)]
    sent, got = ones(50_000), [ones(50_000) for _ in range(6)]
    comms = [made() for _ in got]
    for comm, into in zip(comms, got):
        comm.Allreduce(sent, into)
    request = comms[2].Allreduce_init(sent, got[2])
    request.Start()
    request.Wait()
    with graphs.capture(streams[2]) as replay:
        comms[5].on(streams[2]).Allreduce(sent, got[5])
    replay[0].launch(streams[2])
    streams[2].synchronize()

    def on_stream():
        comms[3].on(streams[0]).Allreduce(sent, got[3])
        streams[0].synchronize()

    def replayed():
        replay[0].launch(streams[2])
        streams[2].synchronize()

    def persistent():
        request.Start()
        request.Wait()

    calls = [
        lambda: comms[0].Allreduce(sent, got[0]),
        lambda: comms[1].Iallreduce(sent, got[1]).Wait(),
        persistent,
        on_stream,
        lambda: comms[4].on(streams[1]).Iallreduce(sent, got[4]).Wait(),
        replayed,
    ]
    plain.Barrier()
    if last:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    for i, (comm, call) in enumerate(zip(comms, calls)):
        check(i, comm, call)
    replay[0].free()
    request.Free()
    for comm in comms:
        go_on(comm)
    print("wrong", wrong, flush=True)
    print("live", live(), flush=True)
    """
    printed = dying.run_text(
        tmp_path,
        simulated_nccl.APART + textwrap.dedent(DEATH + text),
        ranks=3,
        **simulated_nccl.faulty(tmp_path),
    )
    assert printed.count("wrong []") == 2, printed
    assert printed.count("live 0") == 2, printed


@dying.needs_ulfm
@pytest.mark.skipif(kinds.is_real(), reason="spoils a capture on purpose")
def test_a_failure_as_a_call_of_a_new_class_begins_is_told(tmp_path):
    """A GPU cannot be synchronized for an array while work is captured."""
    text = """
    comm, stream = made(), wm.Stream(device)
    comm.Bcast(ones(2000))  # opens it
    sent, got = ones(500_000), ones(500_000)
    for array in sent, got:
        array.__cuda_array_interface__  # from now on in unnamed use
    if last:
        graphs.begin(stream)
    request = comm.Iallreduce(sent, got)
    if last:
        graphs.end(stream)
    try:
        request.Wait()
    except Exception as error:
        print("raised", rank, error, flush=True)
    plain.Barrier()
    """
    printed = dying.run_text(
        tmp_path,
        simulated_nccl.APART + textwrap.dedent(DEATH + text),
        timeout=30,
        **simulated_nccl.environment(SIMCUDA_MODE="lazy"),
    )
    assert len(re.findall(r"raised \d", printed)) == 2, printed


@dying.needs_ulfm
def test_a_rank_dies_while_another_is_blocked_in_nccl(tmp_path):
    """As where the queue of launches is full: then only an abort helps."""
    text = """
    comm, stream = made(), wm.Stream(device)
    comm.Allreduce(ones(5000), ones(5000))
    plain.Barrier()
    if last:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    nccl.simnccl_block(b"Broadcast", 1)
    check("blocked", comm, lambda: comm.on(stream).Bcast(ones(5000)))
    stream.synchronize()
    go_on(comm)
    print("wrong", wrong, "live", live(), flush=True)
    """
    printed = dying.run_text(
        tmp_path,
        simulated_nccl.APART + textwrap.dedent(DEATH + text),
        **simulated_nccl.environment(SIMCUDA_MODE="lazy"),
    )
    assert printed.count("wrong [] live 0") == 1, printed


@dying.needs_ulfm
def test_a_rank_dies_while_the_communicator_is_made(tmp_path):
    text = """
    comm = made()
    plain.Barrier()
    if last:
        end = lambda: os.kill(os.getpid(), signal.SIGKILL)
        threading.Timer(0.15, end).start()
    check("open", comm, lambda: comm.Allreduce(ones(5000), ones(5000)))
    go_on(comm)
    print("wrong", wrong, "live", live(), flush=True)
    """
    printed = dying.run_text(
        tmp_path,
        simulated_nccl.APART + textwrap.dedent(DEATH + text),
        ranks=3,
        **simulated_nccl.environment(SIMNCCL_SLOW="400", SIMCUDA_MODE="lazy"),
    )
    assert printed.count("wrong [] live 0") == 2, printed


@pytest.mark.parametrize(
    "name", ["CommInitRankConfig", "Meet", "CommSplit", "Send"]
)
def test_a_rank_that_cannot_open_it_leaves_the_calls_to_mpi(tmp_path, name):
    """And a call on a stream says what is missing."""
    if "WARPMPI_CUDA_DRIVER" not in os.environ:
        pytest.skip("needs the simulated NCCL")
    text = """
    nccl = ctypes.CDLL("libnccl.so.2")
    got = ones(5000)
    comm.Allreduce(ones(5000), got)
    assert (get(got) == size * (size + 1) // 2).all()
    assert served() == 0
    try:
        comm.on(wm.Stream(device)).Allreduce(ones(5000), got)
    except RuntimeError as error:
        print("raised", rank, error, flush=True)
    comm.Barrier()
    print("live", nccl.simnccl_live(b"communicators"), flush=True)
    """
    printed = apart(
        tmp_path,
        text,
        SIMNCCL_FAIL=f"{name}:-1:3",
        SIMNCCL_FAIL_RANK="1",
    )
    raised = [line for line in printed.splitlines() if "raised" in line]
    assert len(raised) == 2, printed
    heard = "another rank could not make", "communicator has ended"
    assert any(text in r for r in raised for text in heard), printed
    assert any("failed: " in line for line in raised), printed
    assert printed.count("live 0") == 2, printed


def test_ranks_whose_versions_differ(tmp_path):
    text = """
    try:
        comm.on(wm.Stream(device)).Allreduce(ones(5000), ones(5000))
    except RuntimeError as error:
        print("raised", error, flush=True)
    """
    if "WARPMPI_CUDA_DRIVER" not in os.environ:
        pytest.skip("needs the simulated NCCL")
    version = "os.environ['SIMNCCL_VERSION'] = ['22809', '22703'][rank]\n"
    printed = apart(tmp_path, version + textwrap.dedent(text))
    assert printed.count("rank 0 has NCCL 2.28, and rank 1 2.27: ") == 2
    old = "os.environ['SIMNCCL_VERSION'] = ['22809', '21903'][rank]\n"
    printed = apart(tmp_path, old + textwrap.dedent(text))
    assert printed.count("is NCCL 2.19: install NCCL 2.20 or newer") == 2


def test_an_opening_that_is_refused_leaves_nothing(tmp_path):
    """No thread and no socket of NCCL's; meanwhile others ask for the why."""
    text = """
    import os, threading
    os.environ["NCCL_HOSTID"] = "one"
    device = "cuda:0"
    array, stream = ones(5000), wm.Stream(device)

    def left():
        return [len(os.listdir("/proc/self/" + of)) for of in ("task", "fd")]

    def refused(count):
        for _ in range(count):
            try:
                comm.on(stream).Allreduce(array, ones(5000))
                raise AssertionError("not refused")
            except RuntimeError as error:
                assert "use one GPU" in str(error), error

    def ask():
        while not done:
            reason = wm.transport(comm, "Allreduce").reason
            assert "use one GPU" in reason, reason

    refused(3)
    time.sleep(0.5)  # threads that have returned leave the list a little later
    before, done = left(), []
    refused(10)
    end = time.monotonic() + 10
    while left() != before and time.monotonic() < end:
        time.sleep(0.01)
    assert left() == before, (left(), before)
    thread = threading.Thread(target=ask)
    thread.start()
    refused(100)
    done.append(True)
    thread.join()
    """
    if "WARPMPI_CUDA_DRIVER" not in os.environ:
        pytest.skip("needs the simulated NCCL")
    apart(tmp_path, text)


def test_the_doctor_tells_what_serves_between_hosts():
    text = """
    import sys
    words = [sys.executable, "-m", "warpmpi", "doctor"]
    os.execv(sys.executable, words)
    """
    printed = ranks.run(
        "-c",
        simulated_nccl.APART + textwrap.dedent(text),
        **simulated_nccl.environment(),
    )
    lines = printed.splitlines()
    (found,) = (line for line in lines if line.startswith("NCCL "))
    assert re.search(r" 2\.\d+\.\d+, .*libnccl\.so", found), printed
    assert "Allreduce of all ranks: by nccl" in " ".join(printed.split())


def test_engines_are_ruled_out_on_all_ranks_alike(tmp_path):
    text = """
    comm.Allreduce(ones(5000), ones(5000))
    assert served() == 0
    try:
        comm.on(wm.Stream(device)).Allreduce(ones(5000), ones(5000))
    except ValueError as error:
        print("raised", error, flush=True)
    """
    printed = apart(tmp_path, text, WARPMPI_ENGINES="copies,kernels")
    told = 'on a stream between hosts has no engine (engine "nccl": ruled out'
    assert printed.count(f"raised Allreduce {told}") == 2, printed
    text = """
    import os
    os.environ["WARPMPI_ENGINES"] = {setting}
    import warpmpi as wm
    from mpi4py import MPI
    try:
        wm.Comm(MPI.COMM_WORLD)
    except (RuntimeError, ValueError) as error:
        print("raised", error, flush=True)
    """
    told = {
        "'nccl,copy'": "WARPMPI_ENGINES=nccl,copy is not a known value",
        "['nccl', 'copies'][MPI.COMM_WORLD.rank]": "WARPMPI_ENGINES is nccl "
        "on rank 0 and copies on rank 1",
    }
    for setting, words in told.items():
        program = "    from mpi4py import MPI\n" + text.format(setting=setting)
        printed = ranks.run("-c", textwrap.dedent(program))
        assert printed.count(words) == 2, printed


def test_short_calls_are_mpis_unless_it_is_ruled_out(tmp_path):
    text = """
    for count in (16383, 16384):
        got = ones(count)
        comm.Allreduce(ones(count), got)
        assert (get(got) == 3).all()
        print("served", count, served(), flush=True)
    """
    for setting, short in (("nccl,mpi", 0), ("nccl", 1)):
        printed = apart(tmp_path, text, WARPMPI_ENGINES=setting)
        assert printed.count(f"served 16383 {short}") == 2
        assert printed.count(f"served 16384 {short + 1}") == 2
