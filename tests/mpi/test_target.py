# SPDX-License-Identifier: BSD-3-Clause
"""Operations of a window that the target's engine performs."""

import concurrent.futures
import pathlib
import textwrap
import time

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import random_targets
import ranks
import warpmpi as wm
from random_targets import (
    ACCUMULATE,
    COMPARE,
    COMPLETE,
    FETCH,
    GET,
    POST,
    PUT,
    Target,
)
from warpmpi import _core

PROGRAM = ranks.ROOT / "tests" / "random_targets.py"
SIZE = 1000

needs_gpu = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="windows of host memory are MPI's"
)


@pytest.fixture(scope="module")
def comm(world):
    return wm.Comm(world)


def exposed(comm, kind, dtype="f4", size=SIZE):
    return Target(comm, kinds.make(kind, np.zeros(size, dtype)))


@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("own", kinds.KINDS)
def test_put_and_get(comm, kind, own):
    before = wm.stats()["served_operations"]
    with exposed(comm, kind) as target:
        other = (comm.rank + 1) % comm.size
        values = np.arange(100, dtype="f4") + comm.rank
        target.do(PUT, other, 7, kinds.make(own, values))
        result = kinds.make(own, np.zeros(100, "f4"))
        target.do(GET, other, 7, result=result)
        np.testing.assert_array_equal(kinds.values_of(result), values)
        comm.Barrier()
        assert wm.stats()["served_operations"] == before + 2
        got = kinds.values_of(target.array)
        assert (
            got[7:107] == np.arange(100) + (comm.rank - 1) % comm.size
        ).all()
        assert not got[:7].any() and not got[107:].any()
        comm.Barrier()


@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("dtype", ["i1", "i4", "f4", "f8", "c8", "c16", "u8"])
def test_accumulate_from_all(comm, kind, dtype):
    """Elements that a device updates at once, and others."""
    with exposed(comm, kind, dtype) as target:
        given = kinds.make(kind, np.ones(SIZE, dtype))
        for rank in range(comm.size):
            for _ in range(3):
                target.begin(
                    ACCUMULATE, rank, 0, given, op=MPI.SUM, requested=False
                )
        target.flush()
        comm.Barrier()
        assert (kinds.values_of(target.array) == 3 * comm.size).all()
        comm.Barrier()


PAIR = np.dtype([("value", "f8"), ("place", "i4")], align=True)
LONG_PAIR = np.dtype([("value", "g"), ("place", "i4")], align=True)
RARE = {  # elements that no GPU updates at once
    "long double": (np.dtype("g"), MPI.LONG_DOUBLE, MPI.SUM),
    "pair": (PAIR, MPI.DOUBLE_INT, MPI.MINLOC),
    "long pair": (LONG_PAIR, MPI.LONG_DOUBLE_INT, MPI.MINLOC),
}


@needs_gpu
@pytest.mark.parametrize("kind", ["device", "pool", "host"])
@pytest.mark.parametrize("size", [11, 30_000, 150_000])
@pytest.mark.parametrize("elements", RARE)
def test_elements_that_no_gpu_updates(comm, kind, elements, size):
    """Those that only MPI knows are computed by MPI, on the host."""
    dtype, datatype, op = RARE[elements]
    given, before, memory = (np.zeros(size, dtype) for _ in range(3))
    memory = kinds.make(
        kind if comm.rank > 0 else "device", memory.view("u1")
    )
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


@needs_gpu
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


@pytest.mark.ranks(2)
@pytest.mark.long
@pytest.mark.parametrize("kind", ["host", "device"])
def test_an_update_of_several_chunks(comm, kind):
    size = (64 << 20) // 8 + 125
    with exposed(comm, kind, "i8", size) as target:
        if comm.rank == 0:
            values = kinds.make(kind, np.arange(size))
            result = kinds.make(kind, np.zeros(size, "i8"))
            for _ in range(2):
                target.begin(
                    FETCH, 1, 0, values, result, op=MPI.SUM, requested=False
                )
                target.begin(
                    ACCUMULATE, 1, 0, values, op=MPI.SUM, requested=False
                )
                target.flush()
        comm.Barrier()
        expected = np.arange(size)
        if comm.rank == 0:
            np.testing.assert_array_equal(
                kinds.values_of(result), 2 * expected
            )
        elif comm.rank == 1:
            np.testing.assert_array_equal(
                kinds.values_of(target.array), 4 * expected
            )
        comm.Barrier()


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_counter_gives_each_number_once(comm, kind):
    with exposed(comm, kind, "i8", 1) as target:
        one = np.ones(1, "i8")
        drawn, result = [], np.zeros(1, "i8")
        for _ in range(20):
            target.do(FETCH, 0, 0, one, result, op=MPI.SUM)
            drawn.append(int(result[0]))
        assert drawn == sorted(drawn)
        every = [number for each in comm.allgather(drawn) for number in each]
        assert sorted(every) == list(range(20 * comm.size))


@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("dtype", ["i4", "i8", "u1"])
def test_compare_and_swap(comm, kind, dtype):
    """One rank gets in."""
    with exposed(comm, kind, dtype, 4) as target:
        mine = np.full(1, comm.rank + 1, dtype)
        was = np.zeros(1, dtype)
        target.do(
            COMPARE, 0, 3, mine, was, compare=np.zeros(1, dtype).tobytes()
        )
        every = comm.allgather(int(was[0]))
        assert every.count(0) == 1
        assert set(every) == {0, every.index(0) + 1} or comm.size == 1
        if comm.rank == 0:
            assert kinds.values_of(target.array)[3] == every.index(0) + 1
        comm.Barrier()


@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("count", [3, 100_000])
def test_bounds_are_the_targets(comm, kind, count):
    """An operation beyond them changes nothing, and the next one works."""
    other = (comm.rank + 1) % comm.size
    values = kinds.make(kind, np.ones(count, "f4"))
    result = kinds.make(kind, np.zeros(count, "f4"))
    with exposed(comm, kind, size=count + 1) as target:
        for call in (
            lambda at: target.begin(PUT, other, at, values),
            lambda at: target.begin(GET, other, at, result=result),
            lambda at: target.begin(ACCUMULATE, other, at, values, op=MPI.SUM),
            lambda at: target.begin(
                FETCH, other, at, values, result, op=MPI.SUM
            ),
            lambda at: target.begin(
                FETCH, other, at, result=result, op=MPI.NO_OP
            ),
        ):
            for at in (2, count + 1, 2**60):
                with pytest.raises(MPI.Exception, match="target_disp") as told:
                    call(at).Wait()
                assert told.value.Get_error_class() == MPI.ERR_RMA_RANGE
        target.do(GET, other, 1, result=result)
        assert not kinds.values_of(result).any()
        comm.Barrier()


def test_a_flush_tells_of_errors_that_nobody_waits_for(comm):
    other = (comm.rank + 1) % comm.size
    one = np.ones(1, "f4")
    with exposed(comm, "host") as target:
        target.begin(PUT, other, SIZE, one, requested=False)
        target.begin(PUT, other, 0, one, requested=False)
        with pytest.raises(MPI.Exception, match="target_disp"):
            target.flush(other)
        target.flush(other)
        target.begin(PUT, other, SIZE + 1, one)
        target.flush()
        comm.Barrier()
        assert target.array[0] == 1


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_gap_beyond_the_bounds(comm, kind):
    other = (comm.rank + 1) % comm.size
    values = np.ones(4, "f4")
    with exposed(comm, kind, size=10) as target:
        for parts in (
            [(0, 4, ((4, 16),))],
            [(0, 4, ((4, -4),))],
            [(0, 8, ()), (36, 8, ())],
            [(0, 4, ((2**40, 2**40),))],
            [(0, 4, ((2, 2**62), (2, 2**62)))],
            [(0, 4, ())],
            [(0, -4, ((4, 4),))],
            [(0, 2, ((8, 2),))],
        ):
            with pytest.raises((MPI.Exception, ValueError)):
                target.do(
                    ACCUMULATE, other, 0, values, op=MPI.SUM, parts=parts
                )
        target.do(
            ACCUMULATE,
            other,
            9,
            values,
            op=MPI.SUM,
            parts=[(0, 4, ((4, -12),))],
        )
        comm.Barrier()
        got = kinds.values_of(target.array)
        assert got.tolist() == [1, 0, 0, 1, 0, 0, 1, 0, 0, 1]
        comm.Barrier()


def test_wrong_arguments_are_told_at_once(comm):
    with exposed(comm, "host", "i4") as target:
        with pytest.raises(MPI.Exception, match="target_rank=-5"):
            target.begin(PUT, -5, 0, np.ones(1, "i4"))
        with pytest.raises(MPI.Exception, match="one element"):
            target.begin(COMPARE, 0, 0, np.ones(2, "i4"), np.zeros(2, "i4"))
        comm.Barrier()


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_an_exclusive_lock_lets_one_in(comm, kind):
    with exposed(comm, kind, "i8", 1) as target:
        value = np.zeros(1, "i8")
        for _ in range(10):
            target.lock(0)
            target.do(GET, 0, 0, result=value)
            value += 1
            target.begin(PUT, 0, 0, value, requested=False)
            target.unlock(0)
        comm.Barrier()
        if comm.rank == 0:
            assert kinds.values_of(target.array)[0] == 10 * comm.size
        comm.Barrier()


@pytest.mark.ranks(2)
def test_detaching_waits_for_no_lock(comm):
    """But for the requests on that memory; later ones are refused."""
    with exposed(comm, "host") as target:
        if comm.rank == 0:
            target.lock(0)
        comm.Barrier()
        if comm.rank == 1:
            waits = _core._target_lock(target.core, 0, True)
        comm.Barrier()
        if comm.rank == 0:
            _core._target_detach(target.core, 0)
            with pytest.raises(MPI.Exception, match="was not attached"):
                _core._target_detach(target.core, 0)
            target.unlock(0)
        if comm.rank == 1:
            waits.Wait()
            with pytest.raises(MPI.Exception, match="target_disp"):
                target.do(PUT, 0, 0, np.ones(1, "f4"))
            target.unlock(0)
        comm.Barrier()


@pytest.mark.ranks(2)
def test_a_shared_lock_lets_all_in(comm):
    with exposed(comm, "host") as target:
        target.lock(0, False)
        comm.Barrier()  # each has it
        target.unlock(0)
        with pytest.raises(MPI.Exception, match="Unlock without Lock") as told:
            target.unlock(0)
        assert told.value.Get_error_class() == MPI.ERR_RMA_SYNC
        comm.Barrier()
        if comm.rank == 1:
            target.lock(0)
        comm.Barrier()
        if comm.rank == 0:
            waits = _core._target_lock(target.core, 0, False)
            assert not waits.Test()
        comm.Barrier()
        if comm.rank == 1:
            target.unlock(0)
        if comm.rank == 0:
            waits.Wait()
            target.unlock(0)


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_rank_tells_behind_its_operations(comm, kind):
    """Post, Start, Complete and Wait around a ring."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    values = kinds.make(kind, np.ones(SIZE, "f4"))
    with exposed(comm, kind) as target:
        for turn in range(1, 6):
            target.tell(left, POST)
            target.hear(right, POST)
            for _ in range(3):
                target.begin(
                    ACCUMULATE, right, 0, values, op=MPI.SUM, requested=False
                )
            target.tell(right, COMPLETE)
            target.hear(left, COMPLETE)
            assert (kinds.values_of(target.array) == 3 * turn).all()


@pytest.mark.ranks(2)
@pytest.mark.skipif(
    not wm.is_cuda_available() or kinds.is_real(),
    reason="needs the simulated driver",
)
@pytest.mark.parametrize("call", ["cuLaunchKernel", "cuEventRecord"])
@pytest.mark.parametrize("size", [10, 100_000])
def test_the_origin_hears_of_the_targets_failure(comm, fail, call, size):
    """And the next operation is performed."""
    values = np.ones(size, "f4")
    result = np.zeros(size, "f4")
    with exposed(comm, "device", size=size) as target:
        target.begin(ACCUMULATE, comm.rank, 0, values, op=MPI.SUM).Wait()
        for begin in (
            lambda: target.begin(ACCUMULATE, 1, 0, values, op=MPI.SUM),
            lambda: target.begin(FETCH, 1, 0, values, result, op=MPI.SUM),
        ):
            comm.Barrier()
            if comm.rank == 1:
                fail(call)
            comm.Barrier()
            if comm.rank == 0:
                with pytest.raises(wm.CudaError, match=call):
                    begin().Wait()
                begin().Wait()
            comm.Barrier()


@pytest.mark.ranks(2)
@pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE,
    reason="then a target serves in its own calls alone",
)
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_target_that_calls_nothing_serves(comm, world, kind, tmp_path):
    done = pathlib.Path(world.bcast(str(tmp_path / "done")))
    values = kinds.make(kind, np.ones(SIZE, "f4"))
    result = kinds.make(kind, np.zeros(SIZE, "f4"))
    with exposed(comm, kind) as target:
        comm.Barrier()
        if comm.rank == 0:
            target.do(PUT, 1, 0, values)
            target.do(FETCH, 1, 0, values, result, op=MPI.SUM)
            assert (kinds.values_of(result) == 1).all()
            done.touch()
        while not done.exists():
            time.sleep(0.001)
        comm.Barrier()


@pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="needs threads"
)
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_threads_of_one_origin(comm, kind):
    with exposed(comm, kind, "i8", 4) as target:

        def count(thread):
            one = np.ones(1, "i8")
            drawn = np.zeros(1, "i8")
            last = -1
            for _ in range(20):
                target.do(FETCH, 0, thread, one, drawn, op=MPI.SUM)
                assert drawn[0] > last
                last = int(drawn[0])

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(count, range(4)))
        comm.Barrier()
        if comm.rank == 0:
            got = kinds.values_of(target.array)
            assert (got == 20 * comm.size).all()
        comm.Barrier()


def test_the_communicator_is_freed_first(world):
    plain = world.Dup()
    comm = wm.Comm(plain)
    target = exposed(comm, "host")
    other = (comm.rank + 1) % comm.size
    plain.Free()
    with target:
        target.do(PUT, other, 0, np.ones(SIZE, "f4"))


@pytest.mark.parametrize("used", [[kind] for kind in kinds.KINDS])
def test_random_operations(comm, used):
    random_targets.run(comm, 1, 0, 5, used)


@pytest.mark.programs
@pytest.mark.parametrize("count", [2, 3])
def test_random_operations_between_hosts(count):
    told = ranks.run(PROGRAM, "--plans", 30, "--apart", ranks=count)
    assert f"30 plans, every one right, on {count} ranks" in told


@pytest.mark.programs
@needs_gpu
def test_windows_between_hosts():
    """What this file tests of windows, where the engines do all of it."""
    text = """
        import os, sys
        rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
        os.environ["WARPMPI_HOST"] = f"host {rank}"
        sys.path[:0] = ["tests", "tests/mpi"]
        import pytest
        words = "-q -p no:cacheprovider tests/mpi/test_target.py -k".split()
        sys.exit(pytest.main([*words, "rare or no_gpu"]))
    """
    printed = ranks.run("-c", textwrap.dedent(text), ranks=2, timeout=200)
    assert " passed" in printed


DIES = """
    import os, signal, sys, time
    sys.path.insert(0, "tests")
    import numpy as np
    from mpi4py import MPI
    os.environ["WARPMPI_HOST"] = f"host {MPI.COMM_WORLD.rank}"
    import warpmpi as wm
    from random_targets import ACCUMULATE, FETCH, GET, PUT, Target

    MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
    comm = wm.Comm(MPI.COMM_WORLD)
    size = int(sys.argv[1])
    values, result = wm.ones(size, "f4"), wm.zeros(size, "f4")
    target = Target(comm, wm.zeros(size, "f4"))
    target.do(PUT, 1, 0, values)
    if comm.rank == 1:
        target.lock(0)  # and dies with it
        target.lock(2, False)
    comm.Barrier()
    if comm.rank == 1:
        comm.Recv(np.zeros(1), 0)
        target.begin(PUT, 0, 0, values)
        target.begin(FETCH, 2, 0, values, result, op=MPI.SUM)
        os.kill(os.getpid(), signal.SIGKILL)
    if comm.rank == 0:
        comm.Send(np.zeros(1), 1)
    for call in (
        lambda: target.do(PUT, 1, 0, values),
        lambda: target.do(GET, 1, 0, result=result),
        lambda: target.do(FETCH, 1, 0, values, result, op=MPI.SUM),
        lambda: target.lock(1),
        lambda: target.hear(1, 0),
        lambda: (
            target.begin(PUT, 1, 0, values, requested=False),
            target.flush(1),
        ),
    ):
        try:
            for _ in range(1000):
                call()
            print("no error", flush=True)
        except MPI.Exception as error:
            assert "PROC_FAILED" in error.Get_error_string(), error
    other = 2 - comm.rank
    target.lock(other)
    target.do(GET, other, 0, result=result)
    target.do(PUT, other, 0, values)
    target.unlock(other)
    target.do(GET, other, 0, result=result)
    assert (result.numpy() == 1).all()
    print("went on", flush=True)
    time.sleep(5)
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
    import sys
    sys.path.insert(0, "tests")
    import numpy as np
    from mpi4py import MPI
    import warpmpi as wm
    from random_targets import PUT, Target

    comm = wm.Comm(MPI.COMM_WORLD)
    target = Target(comm, np.zeros(4))
    target.begin(PUT, 1 - comm.rank, 0, np.ones(4), requested=False)
    target.flush()
    comm.Barrier()
    print("left", flush=True)
"""


@pytest.mark.programs
@pytest.mark.parametrize("check", ["", "1"])
def test_a_target_that_nobody_ends(tmp_path, check):
    told = ranks.run_text(tmp_path, LEFT, WARPMPI_CHECK=check)
    assert told.split() == ["left", "left"]
