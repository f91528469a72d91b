# SPDX-License-Identifier: BSD-3-Clause
"""Calls of windows that the engine of the target serves.

Here memory of pools, managed memory and host memory is served; where every
rank is on a host of its own, as test_between_hosts plays, all memory is.
"""

import concurrent.futures
import contextlib
import pathlib
import time

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import ranks
import warpmpi as wm

THREADED = MPI.Query_thread() == MPI.THREAD_MULTIPLE
SIZE = 1000
pytestmark = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="windows of host memory are MPI's"
)
# Below, no rank serves a lock while its program is elsewhere.
locks = pytest.mark.skipif(not THREADED, reason="needs a thread that serves")


@contextlib.contextmanager
def exposed(comm, kind, dtype="f4", size=SIZE):
    """A window, and its memory on this rank; one rank's is of a GPU."""
    if comm.rank == 0 and kind in kinds.HOST_KINDS:
        kind = "pool"
    memory = kinds.make(kind, np.zeros(size, dtype))
    win = wm.Win.Create(memory, np.dtype(dtype).itemsize, comm=comm)
    yield win, memory
    comm.Barrier()
    win.Free()


@contextlib.contextmanager
def attached(comm, size, dtype="f4"):
    """Host memory in a dynamic window, and the address of each rank's."""
    win, memory = wm.Win.Create_dynamic(comm=comm), np.zeros(size, dtype)
    win.Attach(memory)
    yield win, memory, comm.allgather(MPI.Get_address(memory))
    comm.Barrier()
    win.Free()


@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("own", kinds.KINDS)
def test_put_and_get(comm, kind, own):
    before = wm.stats()["served_operations"]
    other = (comm.rank + 1) % comm.size
    with exposed(comm, kind) as (win, memory):
        values = np.arange(100, dtype="f4") + comm.rank
        result = kinds.make(own, np.zeros(100, "f4"))
        win.Fence()
        win.Put(kinds.make(own, values), other, 7)
        win.Fence()
        win.Get(result, other, 7)
        win.Fence()
        np.testing.assert_array_equal(kinds.values_of(result), values)
        if kind in ("pool", "managed") and comm.size > 1:
            assert wm.stats()["served_operations"] == before + 2
        got = kinds.values_of(memory)
        left = (comm.rank - 1) % comm.size
        assert (got[7:107] == np.arange(100) + left).all()
        assert not got[:7].any() and not got[107:].any()


@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("dtype", ["i1", "i4", "f4", "f8", "c8", "c16", "u8"])
def test_accumulate_from_all(comm, kind, dtype):
    """Elements that a device updates at once, and others."""
    with exposed(comm, kind, dtype) as (win, memory):
        given = kinds.make(kind, np.ones(SIZE, dtype))
        win.Fence()
        for rank in range(comm.size):
            for _ in range(3):
                win.Accumulate(given, rank)
        win.Fence()
        assert (kinds.values_of(memory) == 3 * comm.size).all()


@pytest.mark.ranks(2)
@pytest.mark.long
@pytest.mark.parametrize("kind", ["host", "pool"])
def test_an_update_of_several_chunks(comm, kind):
    size = (64 << 20) // 8 + 125
    expected = np.arange(size)
    with exposed(comm, kind, "i8", size) as (win, memory):
        values = kinds.make(kind, expected)
        result = kinds.make(kind, np.zeros(size, "i8"))
        for _ in range(2):
            win.Fence()
            if comm.rank == 0:
                win.Get_accumulate(values, result, 1)
                win.Accumulate(values, 1)
        win.Fence()
        if comm.rank == 0:
            got, times = kinds.values_of(result), 2
        else:
            got, times = kinds.values_of(memory), 4 * (comm.rank == 1)
        np.testing.assert_array_equal(got, times * expected)


@locks
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_counter_gives_each_number_once(comm, kind):
    with exposed(comm, kind, "i8", 1) as (win, _):
        one, result, drawn = np.ones(1, "i8"), np.zeros(1, "i8"), []
        win.Lock_all()
        for _ in range(20):
            win.Fetch_and_op(one, result, comm.size - 1)
            win.Flush(comm.size - 1)
            drawn.append(int(result[0]))
        win.Unlock_all()
        assert drawn == sorted(drawn)
        every = [number for each in comm.allgather(drawn) for number in each]
        assert sorted(every) == list(range(20 * comm.size))


@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("dtype", ["i4", "i8", "u1"])
@pytest.mark.parametrize("place", [3, 13])
def test_compare_and_swap(comm, kind, dtype, place):
    """One rank gets in, also where the element is off its size."""
    unit = np.dtype(dtype).itemsize
    with exposed(comm, kind, "u1", 64) as (win, memory):
        mine = np.full(1, comm.rank + 1, dtype)
        was, free = np.zeros(1, dtype), np.zeros(1, dtype)
        win.Fence()
        win.Compare_and_swap(mine, free, was, comm.size - 1, place)
        win.Fence()
        every = comm.allgather(int(was[0]))
        winner = every.index(0) + 1
        assert every.count(0) == 1
        assert set(every) == {0, winner} or comm.size == 1
        if comm.rank == comm.size - 1:
            got = kinds.values_of(memory)[place : place + unit]
            assert got.view(dtype)[0] == winner


@locks
@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("count", [3, 100_000])
def test_bounds_are_the_targets(comm, kind, count):
    """An operation beyond them changes nothing, and the next one works."""
    other = (comm.rank + 1) % comm.size
    values = kinds.make(kind, np.ones(count, "f4"))
    result = kinds.make(kind, np.zeros(count, "f4"))
    with attached(comm, count + 1) as (win, _, addresses):
        win.Lock_all()
        for call in (
            lambda at: win.Rput(values, other, at),
            lambda at: win.Rget(result, other, at),
            lambda at: win.Raccumulate(values, other, at),
            lambda at: win.Rget_accumulate(values, result, other, at),
            lambda at: win.Rget_accumulate(None, result, other, at, MPI.NO_OP),
        ):
            for at in (8, 4 * count + 4, 2**60):
                with pytest.raises(MPI.Exception, match="target_disp") as told:
                    call(addresses[other] + at).Wait()
                assert told.value.Get_error_class() == MPI.ERR_RMA_RANGE
        win.Get(result, other, addresses[other] + 4)
        win.Unlock_all()
        assert not kinds.values_of(result).any()


@locks
def test_a_flush_tells_of_errors_that_nobody_waits_for(comm):
    other = (comm.rank + 1) % comm.size
    one = np.ones(1, "f4")
    with attached(comm, SIZE) as (win, memory, addresses):
        end = addresses[other] + 4 * SIZE
        win.Lock_all()
        win.Put(one, other, end)
        win.Put(one, other, addresses[other])
        with pytest.raises(MPI.Exception, match="target_disp"):
            win.Flush(other)
        win.Flush(other)
        request = win.Rput(one, other, end + 4)
        win.Flush_all()
        win.Unlock_all()
        with pytest.raises(MPI.Exception, match="target_disp"):
            request.Wait()
        comm.Barrier()
        assert memory[0] == 1


@locks
def test_a_gap_beyond_the_bounds(comm):
    """A request with impossible gaps is refused in test_comm_layer.py."""
    other = (comm.rank + 1) % comm.size
    values = np.ones(4, "f4")
    with attached(comm, 10) as (win, memory, addresses):
        win.Lock_all()
        at = addresses[other]
        for begin, *vector in (
            (at, 4, 1, 4),
            (at, 4, 1, -1),
            (at + 8, 2, 2, 7),
            (at, 4, 1, 2**30),
        ):
            gaps = MPI.FLOAT.Create_vector(*vector).Commit()
            with pytest.raises(MPI.Exception, match="target_disp"):
                win.Raccumulate(values, other, [begin, 1, gaps]).Wait()
            gaps.Free()
        gaps = MPI.FLOAT.Create_vector(4, 1, -3).Commit()
        win.Accumulate(values, other, [at + 36, 1, gaps])
        gaps.Free()
        win.Unlock_all()
        comm.Barrier()
        assert memory.tolist() == [1, 0, 0, 1, 0, 0, 1, 0, 0, 1]


@locks
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_an_exclusive_lock_lets_one_in(comm, kind):
    with exposed(comm, kind, "i8", 1) as (win, memory):
        value = np.zeros(1, "i8")
        for _ in range(10):
            win.Lock(0)
            win.Get(value, 0)
            win.Flush(0)
            value += 1
            win.Put(value, 0)
            win.Unlock(0)
        comm.Barrier()
        if comm.rank == 0:
            assert kinds.values_of(memory)[0] == 10 * comm.size


@locks
@pytest.mark.ranks(2)
def test_detaching_waits_for_no_lock(comm):
    """But for the requests on that memory; later ones are refused."""
    with attached(comm, SIZE) as (win, memory, addresses):
        if comm.rank == 0:
            win.Lock(0)
        comm.Barrier()
        if comm.rank == 0:
            win.Detach(memory)
            with pytest.raises(MPI.Exception, match="was not attached"):
                win.Detach(memory)
            win.Unlock(0)
        elif comm.rank == 1:
            win.Lock(0)
            win.Put(np.ones(1, "f4"), 0, addresses[0])
            with pytest.raises(MPI.Exception, match="target_disp"):
                win.Unlock(0)


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_rank_tells_behind_its_operations(comm, kind):
    """Post, Start, Complete and Wait around a ring."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    values = kinds.make(kind, np.ones(SIZE, "f4"))
    everyone = comm.Get_group()
    before, behind = everyone.Incl([left]), everyone.Incl([right])
    with exposed(comm, kind) as (win, memory):
        for turn in range(1, 6):
            win.Post(before)
            win.Start(behind)
            for _ in range(3):
                win.Accumulate(values, right)
            win.Complete()
            win.Wait()
            assert (kinds.values_of(memory) == 3 * turn).all()
    for group in (everyone, before, behind):
        group.Free()


@locks
@pytest.mark.ranks(2)
@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
@pytest.mark.parametrize("call", ["cuLaunchKernel", "cuEventRecord"])
@pytest.mark.parametrize("size", [10, 100_000])
def test_the_origin_hears_of_the_targets_failure(comm, fail, call, size):
    """And the next operation is performed."""
    values, result = np.ones(size, "f4"), np.zeros(size, "f4")
    with exposed(comm, "pool", size=size) as (win, _):
        win.Lock_all()
        for begin in (
            lambda: win.Raccumulate(values, 1),
            lambda: win.Rget_accumulate(values, result, 1),
        ):
            if comm.rank == 0:
                begin().Wait()
            comm.Barrier()
            if comm.rank == 1:
                fail(call)
            comm.Barrier()
            if comm.rank == 0:
                with pytest.raises(wm.CudaError, match=call):
                    begin().Wait()
                begin().Wait()
            comm.Barrier()
        win.Unlock_all()


@locks
@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_target_that_calls_nothing_serves(comm, world, kind, tmp_path):
    done = pathlib.Path(world.bcast(str(tmp_path / "done")))
    values = kinds.make(kind, np.ones(SIZE, "f4"))
    result = kinds.make(kind, np.zeros(SIZE, "f4"))
    with exposed(comm, kind) as (win, _):
        comm.Barrier()
        if comm.rank == 0:
            win.Lock(1)
            win.Put(values, 1)
            win.Get_accumulate(values, result, 1)
            win.Unlock(1)
            assert (kinds.values_of(result) == 1).all()
            done.touch()
        while not done.exists():
            time.sleep(0.001)


@locks
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_threads_of_one_origin(comm, kind):
    with exposed(comm, kind, "i8", 4) as (win, memory):

        def count(thread):
            one, drawn, last = np.ones(1, "i8"), np.zeros(1, "i8"), -1
            for _ in range(20):
                win.Fetch_and_op(one, drawn, 0, thread)
                win.Flush(0)
                assert drawn[0] > last
                last = int(drawn[0])

        win.Lock_all()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(count, range(4)))
        win.Unlock_all()
        comm.Barrier()
        if comm.rank == 0:
            assert (kinds.values_of(memory) == 20 * comm.size).all()


def test_the_communicator_is_freed_first(world):
    plain = world.Dup()
    comm = wm.Comm(plain)
    memory = kinds.make("pool", np.zeros(SIZE, "f4"))
    win = wm.Win.Create(memory, 4, comm=comm)
    other = (comm.rank + 1) % comm.size
    plain.Free()
    win.Fence()
    win.Put(np.ones(SIZE, "f4"), other)
    win.Fence()
    assert kinds.values_of(memory).all()
    win.Free()


PAIR = np.dtype([("value", "f8"), ("place", "i4")], align=True)
LONG_PAIR = np.dtype([("value", "g"), ("place", "i4")], align=True)
RARE = {  # elements that no GPU updates at once
    "long double": (np.dtype("g"), MPI.LONG_DOUBLE, MPI.SUM),
    "pair": (PAIR, MPI.DOUBLE_INT, MPI.MINLOC),
    "long pair": (LONG_PAIR, MPI.LONG_DOUBLE_INT, MPI.MINLOC),
}


@locks
@pytest.mark.parametrize("kind", ["device", "pool", "host"])
@pytest.mark.parametrize("size", [11, 30_000, 150_000])
@pytest.mark.parametrize("elements", RARE)
def test_elements_that_no_gpu_updates(comm, kind, elements, size):
    """Those that only MPI knows are computed by MPI, on the host."""
    dtype, datatype, op = RARE[elements]
    given, before, memory = (np.zeros(size, dtype) for _ in range(3))
    memory = kinds.make(kind if comm.rank > 0 else "device", memory.view("u1"))
    if dtype.names:
        given["value"], given["place"] = np.arange(size) % 7 - 9, comm.rank
    else:
        given[:] = np.arange(size)
    win = wm.Win.Create(memory, dtype.itemsize, comm=comm)
    win.Lock_all()
    for rank in range(comm.size):
        win.Accumulate([given, datatype], rank, None, op)
        win.Get_accumulate([given, datatype], [before, datatype], rank, op=op)
        win.Flush(rank)
        if dtype.names:
            assert (before["value"] == given["value"]).all()
        else:
            times = before[1]
            assert 1 <= times < 2 * comm.size
            assert (before == times * given).all() or kind != "device"
    win.Unlock_all()
    comm.Barrier()
    got = kinds.values_of(memory).view(dtype)
    if dtype.names:
        assert (got["value"] == given["value"]).all()
        assert not got["place"].any()
    else:
        assert (got == 2 * comm.size * given).all()
    comm.Barrier()
    win.Free()


@pytest.mark.parametrize("kind", ["device", "host"])
@pytest.mark.parametrize("size", [7, 40_000])
def test_rare_elements_with_gaps(comm, kind, size):
    memory = kinds.make(
        kind if comm.rank > 0 else "device", np.zeros(32 * size, "u1")
    )
    win = wm.Win.Create(memory, 16, comm=comm)
    spread = MPI.LONG_DOUBLE.Create_vector(size, 1, 2).Commit()
    pairs = MPI.DOUBLE_INT.Create_vector(size, 1, 2).Commit()
    given = np.arange(size).astype("g")
    win.Fence()
    for rank in range(comm.size):
        win.Accumulate(given, rank, [0, 1, spread])
    win.Fence()
    got = kinds.values_of(memory).view("g")
    assert (got[::2] == comm.size * given).all()
    assert not got[1::2].any()
    cut = np.zeros(2 * size, PAIR)
    with pytest.raises(ValueError, match="no whole elements"):
        win.Accumulate([cut, 1, pairs], 0, [0, 1, pairs], MPI.MINLOC)
    win.Fence()
    win.Free()
    spread.Free()
    pairs.Free()


@pytest.mark.programs
def test_between_hosts():
    """The tests of this file, where the engines serve all memory."""
    ranks.run_tests_between_hosts(__file__, "-m", "not programs and not long")


DIES = """
    import contextlib, os, signal, sys, time
    import numpy as np
    from mpi4py import MPI
    os.environ["WARPMPI_HOST"] = f"host {MPI.COMM_WORLD.rank}"
    import warpmpi as wm

    MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
    comm = wm.Comm(MPI.COMM_WORLD)
    size = int(sys.argv[1])
    values, result = wm.ones(size, "f4"), wm.zeros(size, "f4")
    win = wm.Win.Create(wm.zeros(size, "f4"), 4, comm=comm)
    if comm.rank == 1:
        win.Lock(0)  # and dies with it
        win.Lock(2, MPI.LOCK_SHARED)
    comm.Barrier()
    if comm.rank == 1:
        comm.Recv(np.zeros(1), 0)
        win.Put(values, 0)
        win.Get_accumulate(values, result, 2)
        os.kill(os.getpid(), signal.SIGKILL)
    if comm.rank == 0:
        comm.Send(np.zeros(1), 1)

    def fails(call):
        end = time.monotonic() + 20  # rank 1 may die late
        try:
            while time.monotonic() < end:
                call()
            print("no error", flush=True)
        except MPI.Exception as error:
            assert "PROC_FAILED" in error.Get_error_string(), error

    other = 2 - comm.rank
    fails(lambda: (win.Lock(1), win.Unlock(1)))
    win.Lock(other)
    win.Put(values, other)
    win.Get(result, other)
    win.Unlock(other)
    assert (result.numpy() == 1).all()
    group = comm.Get_group()
    win.Post(group.Incl([1]))
    fails(win.Wait)
    print("went on", flush=True)
    with contextlib.suppress(MPI.Exception):  # the other needs this one
        comm.Sendrecv(np.zeros(1), other, recvbuf=np.zeros(1), source=other)
    os._exit(0)
"""


@pytest.mark.programs
@pytest.mark.skipif(
    not MPI.Get_library_version().startswith("Open MPI v5"),
    reason="needs Open MPI 5",
)
@pytest.mark.parametrize("size", [10, 300_000])
def test_a_rank_that_died(tmp_path, size):
    """Its operations end in an error, and those of the others go on."""
    told = ranks.run_text(
        tmp_path,
        DIES,
        size,
        ranks=3,
        flags=("--with-ft", "ulfm"),
        died=True,
    )
    assert told.count("went on") == 2, told
    assert "no error" not in told


LEFT = """
    import os
    import numpy as np
    from mpi4py import MPI
    os.environ["WARPMPI_HOST"] = f"host {MPI.COMM_WORLD.rank}"
    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    win = wm.Win.Create(wm.zeros(4), 4, comm=comm)
    win.Fence()
    win.Put(np.ones(4, "f4"), 1 - comm.rank)
    win.Fence()
    print("left", flush=True)
"""


@pytest.mark.programs
@pytest.mark.parametrize("check", ["", "1"])
def test_a_target_that_nobody_ends(tmp_path, check):
    told = ranks.run_text(tmp_path, LEFT, WARPMPI_CHECK=check)
    assert told.split() == ["left", "left"]
