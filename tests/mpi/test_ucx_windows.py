# SPDX-License-Identifier: BSD-3-Clause
"""Windows whose Put and Get go by UCX, on its double (tests/simucx).

The double does a put late, unless a flush asks for it, and a get at once: it
shows what is not in order.
"""

import os

import pytest

import ranks
import ucx_double
from ucx_double import DOUBLE, needs_failures, run, run_unasked

pytestmark = ucx_double.MARKS
FULL = os.environ.get("WARPMPI_TEST_FULL") == "1"

BEGIN = (
    ucx_double.BEGIN
    + """
    RDMA = "rc" in os.environ.get("SIMUCX_TRANSPORTS", "")
    SIZE = 300_000 if RDMA else 2000  # longer ones need RDMA
    double.simucx_live.argtypes = double.simucx_calls.argtypes = (
        ctypes.c_char_p,)

    def opened(kind="d", size=SIZE):
        memory = make(kind, np.zeros(size, np.uint8))
        return wm.Win.Create(memory, 1, comm=comm), memory

    def drawn(seed, size=SIZE):
        return np.random.default_rng(seed).integers(
            0, 255, size, dtype=np.uint8)

    def done():
        return wm.stats()["rma_operations"]
"""
)

ALL = """
    for target in "dh":  # of a rank; of one alone, as else MPI does all
        win, memory = opened(target if comm.rank else "d")
        for turn, ours in enumerate("dh"):
            mine, theirs = drawn([turn, comm.rank]), drawn([turn, other])
            array, into = make(ours, mine), make(ours, mine * 0)
            before = done()
            win.Fence()
            win.Put(array, other)
            win.Fence()
            assert (bytes_of(memory) == theirs).all(), (ours, target)
            win.Get(into[:1500], other, 7)
            win.Fence(MPI.MODE_NOSUCCEED)
            assert (bytes_of(into)[:1500] == mine[7:1507]).all()
            assert not bytes_of(into)[1500:].any()
            assert done() == before + 2, (ours, target)
        for kind, call in enumerate((win.Lock, win.Lock, win.Lock_all)):
            mine = drawn([comm.rank, kind])
            array, into = make("d", mine), make("d", mine * 0)
            call(*([other, (MPI.LOCK_SHARED, MPI.LOCK_EXCLUSIVE)[kind]]
                   if kind < 2 else []))
            win.Put(array, other)
            if kind:
                win.Flush(other)
            win.Get(into, other)  # behind the Put of the same bytes
            win.Unlock(other) if kind < 2 else win.Unlock_all()
            assert (into.numpy() == mine).all(), kind
            comm.Barrier()
        group = comm.Get_group()
        win.Post(group)
        win.Start(group)
        out = win.Rput(make("d", np.full(9, comm.rank + 1, "u1")), other, 70)
        out.Wait()
        request = win.Rget(into[:9], other, 70)
        request.Wait()
        assert (into.numpy()[:9] == comm.rank + 1).all()
        win.Complete()
        win.Wait()
        assert (bytes_of(memory)[70:79] == other + 1).all()
        win.Free()
    # Others are the target's: updates, gaps, and long ones without RDMA.
    win, memory = opened(size=2000)
    vector = MPI.INT64_T.Create_vector(10, 1, 2).Commit()
    one = make("d", np.ones(250, np.int64))
    into = make("d", np.zeros(250, np.int64))
    before = done()
    win.Fence()
    for turn in range(5):
        win.Put(one, other)
        win.Accumulate(one, other, 0, MPI.SUM)
        win.Get(into, other)
        win.Put(one[:10], other, [80, 1, vector])
    win.Fence()
    assert (into.numpy() == 2).all()
    came = memory.numpy().view(np.int64)
    assert (came[10:30:2] == 1).all() and came.sum() == 500 - 10, came.sum()
    assert done() == before + 10
    win.Free()
    win, memory = opened(size=100_000)
    before = done()
    win.Fence()
    win.Put(make("d", drawn(comm.rank, 100_000)), other)
    win.Fence(MPI.MODE_NOSUCCEED)
    assert (memory.numpy() == drawn(other, 100_000)).all()
    assert done() == before + RDMA
    win.Free()
    stats = wm.stats()
    assert stats["rma_failovers"] == 0 and stats["rma_bytes"] > 10 * SIZE
    assert double.simucx_calls(b"late") == 0
    assert double.simucx_live(b"mappings") == double.simucx_live(b"keys") == 0
    win, memory = opened()  # and one is left
    print("right", flush=True)
"""


@pytest.mark.parametrize(
    "transports", [pytest.param("tcp", marks=pytest.mark.long), "rc_mlx5"]
)
def test_put_and_get_of_all_epochs_go_by_ucx(tmp_path, transports):
    """Its double ends a process that leaves a key or a registration."""
    text = (
        ALL
        if transports == "tcp"
        else ALL.replace(
            'b"mappings") == double.simucx_live(b"keys")', 'b"keys")'
        )
    )
    printed = run(
        tmp_path, BEGIN + text, apart=True, SIMUCX_TRANSPORTS=transports
    )
    assert printed.count("right") == 2, printed


def test_unasked_windows_go_by_ucx_with_rdma(tmp_path):
    text = """
    win, memory = opened()
    win.Fence()
    win.Put(make("h", drawn(comm.rank)), other)
    win.Fence()
    assert (memory.numpy() == drawn(other)).all()
    win.Free()
    print("done", done(), flush=True)
    """
    printed = run_unasked(tmp_path, BEGIN + text)
    assert printed.count("done 1") == 2, printed


FAILS = """
    for call in (b"put_nbx", b"get_nbx", b"ep_flush_nbx", b"ep_rkey_unpack",
                 b"mem_map", b"rkey_pack"):
        before = wm.stats()
        if call in (b"mem_map", b"rkey_pack"):
            double.simucx_fail(call, 1, -3)
        win, memory = opened()
        if call not in (b"mem_map", b"rkey_pack"):
            double.simucx_fail(call, 1, -3)
        into = make("d", np.zeros(SIZE, np.uint8))
        win.Fence()
        for turn in range(3):
            mine, theirs = drawn([turn, comm.rank]), drawn([turn, other])
            win.Put(make("d", mine), other)
            win.Get(into, other)
            win.Fence()
            assert (memory.numpy() == theirs).all(), call
            assert (into.numpy() == mine).all(), call
            win.Fence()
        win.Free()
        counts = [wm.stats()[name] - before[name] for name in (
            "rma_failovers", "rma_operations", "served_operations")]
        print(call.decode(), *counts, flush=True)
"""


def test_what_ucx_fails_the_targets_engine_does(tmp_path):
    printed = run(tmp_path, BEGIN + FAILS, apart=True)
    for told in (
        "put_nbx 1 0 6",
        "get_nbx 1 1 5",
        "ep_flush_nbx 1 1 5",
        "ep_rkey_unpack 1 0 6",
        "mem_map 0 0 6",
        "rkey_pack 0 0 6",
    ):
        assert printed.count(told) == 2, (told, printed)


LOSES = """
    win, memory = opened()
    win.Fence()
    if comm.rank == 0:
        double.simucx_fail(b"ep_flush_nbx", -1, -3)
        win.Put(make("d", drawn(0)), 1)
    try:
        win.Fence()
    except Exception as error:
        print("told", comm.rank, error, flush=True)
    os._exit(0)
"""


@pytest.mark.long
def test_a_put_that_may_not_have_arrived_is_an_error(tmp_path):
    """The engine cannot do it again, as it might arrive later than others."""
    printed = run(tmp_path, BEGIN + LOSES, apart=True, died=True)
    assert "told 0 UCX: Input/output error" in printed, printed
    assert "told 1" in printed, printed


DIES = """
    for each in (MPI.COMM_WORLD, comm):
        each.Set_errhandler(MPI.ERRORS_RETURN)
    win, memory = opened(size=9_000_000)
    array = make("d", np.zeros(9_000_000, np.uint8))
    win.Fence()
    if comm.rank == 1:
        if {origin}:
            double.simucx_fail(b"piece", 30, 137)
            win.Put(array, 0)
            win.Fence()
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    if {origin}:  # without progress: what the other has put is in sockets
        time.sleep(1)
    began, names = time.monotonic(), []
    calls = [] if {origin} else [lambda: win.Put(array, 1),
                                 lambda: win.Get(array, 1)]
    for call in (*calls, *([] if {origin} else [win.Fence]), win.Free):
        try:
            call()
        except MPI.Exception as error:
            names.append(MPI.Get_error_string(error.Get_error_class()))
    del memory, array
    for _ in range(20):
        time.sleep(0.01)
        comm.Iprobe(0)
    print("told", any("PROC_FAILED" in name for name in names),
          time.monotonic() - began < 10, names, flush=True)
    os._exit(0)
"""


@needs_failures
@pytest.mark.parametrize("origin", [True, False])
def test_a_rank_that_dies_in_a_put(tmp_path, origin):
    printed = run(
        tmp_path,
        BEGIN + DIES.format(origin=origin),
        apart=True,
        flags=("--with-ft", "ulfm"),
        died=True,
        SIMUCX_TRANSPORTS="rc_mlx5",
        MPI4PY_RC_THREAD_LEVEL="single" if origin else "multiple",
    )
    assert "told True True" in printed, printed


IN_PHASES = """
    for each in (MPI.COMM_WORLD, comm):
        each.Set_errhandler(MPI.ERRORS_RETURN)
    if comm.rank == 1:
        double.simucx_fail(b"{call}", 1, 137)
    began, error = time.monotonic(), None
    try:
        win, memory = opened()
        into = make("d", np.zeros(SIZE, np.uint8))
        for _ in range(2):
            win.Fence()
            win.Put(make("d", drawn(comm.rank)), other)
            win.Get(into, other)
        win.Fence(MPI.MODE_NOSUCCEED)
        win.Free()
    except MPI.Exception as caught:
        error = MPI.Get_error_string(caught.Get_error_class())
    # The other rank may have ended its part of Free.
    told = "PROC_FAILED" in (error or "") or "{call}" == "mem_unmap"
    print("told", told, time.monotonic() - began < 10, error, flush=True)
    os._exit(0)
"""


@needs_failures
@pytest.mark.long
@pytest.mark.parametrize(
    "call",
    "mem_map ep_rkey_unpack put_nbx get_nbx ep_flush_nbx mem_unmap".split(),
)
def test_a_rank_that_dies_in_each_phase(tmp_path, call):
    printed = run(
        tmp_path,
        BEGIN + IN_PHASES.format(call=call),
        apart=True,
        flags=("--with-ft", "ulfm"),
        died=True,
    )
    assert "told True True" in printed, printed


@pytest.mark.parametrize("count, apart, plans", [(2, 1, 8), (4, 2, 4)])
def test_random_windows_by_ucx(count, apart, plans):
    plans *= 10 if FULL else 1
    told = ranks.run(
        ranks.ROOT / "tests" / "random_windows.py",
        "--plans",
        plans,
        "--apart",
        apart,
        ranks=count,
        SIMUCX_TRANSPORTS="tcp" if apart == 1 else "rc_mlx5",
        **DOUBLE,
    )
    assert f"{plans} plans, every one right, on {count} ranks" in told
