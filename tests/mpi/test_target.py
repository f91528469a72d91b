# SPDX-License-Identifier: BSD-3-Clause
"""Operations of a window that the target's engine performs."""

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import random_targets
import ranks
import warpmpi as wm
from random_targets import ACCUMULATE, COMPARE, FETCH, GET, PUT, Target

PROGRAM = ranks.ROOT / "tests" / "random_targets.py"
SIZE = 1000


@pytest.fixture(scope="module")
def comm(world):
    return wm.Comm(world)


def exposed(comm, kind, dtype="f4", size=SIZE):
    return Target(comm, kinds.make(kind, np.zeros(size, dtype)))


@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("own", kinds.KINDS)
def test_put_and_get(comm, kind, own):
    with exposed(comm, kind) as target:
        other = (comm.rank + 1) % comm.size
        values = np.arange(100, dtype="f4") + comm.rank
        target.do(PUT, other, 7, kinds.make(own, values))
        result = kinds.make(own, np.zeros(100, "f4"))
        target.do(GET, other, 7, result=result)
        np.testing.assert_array_equal(kinds.values_of(result), values)
        comm.Barrier()
        got = kinds.values_of(target.array)
        assert (got[7:107] == np.arange(100) + (comm.rank - 1) % comm.size).all()
        assert not got[:7].any() and not got[107:].any()
        comm.Barrier()


@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize(
    "dtype", ["i1", "i4", "f4", "f8", "c8", "c16", "u8"]
)
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


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_counter_gives_each_number_once(comm, kind):
    with exposed(comm, kind, "i8", 1) as target:
        one = np.ones(1, "i8")
        drawn, result = [], np.zeros(1, "i8")
        for _ in range(20):
            target.do(FETCH, 0, 0, one, result, op=MPI.SUM)
            drawn.append(int(result[0]))
        assert drawn == sorted(drawn)
        every = sum(comm.allgather(drawn), [])
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


@pytest.mark.parametrize("used", [[kind] for kind in kinds.KINDS])
def test_random_operations(comm, used):
    random_targets.run(comm, 1, 0, 5, used)


@pytest.mark.programs
@pytest.mark.parametrize("count", [2, 3])
def test_random_operations_between_hosts(count):
    told = ranks.run(PROGRAM, "--plans", 30, "--apart", ranks=count)
    assert f"30 plans, every one right, on {count} ranks" in told
