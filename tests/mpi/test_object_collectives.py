# SPDX-License-Identifier: BSD-3-Clause
"""Lower-case collectives in which one rank has nothing that can be sent."""

import pytest
from mpi4py import MPI

import warpmpi as wm


@pytest.fixture(scope="module")
def comm(world):
    return wm.Comm(world)


def refuse(*_):
    raise TypeError("no pickle of this")


class Stubborn:
    __reduce__ = __reduce_ex__ = refuse


CALLS = {
    "bcast": lambda comm, obj, root: comm.bcast(obj, root),
    "gather": lambda comm, obj, root: comm.gather(obj, root=root),
    "allgather": lambda comm, obj, root: comm.allgather(obj),
    "scatter": lambda comm, obj, root: comm.scatter([obj] * comm.size, root),
    "alltoall": lambda comm, obj, root: comm.alltoall([obj] * comm.size),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("culprit", [0, MPI.COMM_WORLD.size - 1])
@pytest.mark.parametrize("name", CALLS)
def test_what_cannot_be_pickled_is_told_to_its_receivers(comm, name, culprit):
    root = comm.size - 1 - culprit if name == "gather" else culprit
    call = CALLS[name]
    obj = Stubborn() if comm.rank == culprit else comm.rank
    if comm.rank == culprit:
        with pytest.raises(TypeError, match="no pickle of this"):
            call(comm, obj, root)
    elif name == "gather" and comm.rank != root:
        assert call(comm, obj, root) is None
    else:
        told = f"rank {culprit} could not send its part of this {name}: Type"
        with pytest.raises(RuntimeError, match=told):
            call(comm, obj, root)
    assert comm.allgather(comm.rank) == list(range(comm.size))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("length", [1, MPI.COMM_WORLD.size + 1])
@pytest.mark.parametrize("name", ["scatter", "alltoall"])
def test_a_list_of_the_wrong_length_is_told(comm, name, length):
    culprit = comm.size - 1
    items = [1] * (length if comm.rank == culprit else comm.size)
    rest = (culprit,) if name == "scatter" else ()
    error = ValueError if comm.rank == culprit else RuntimeError
    with pytest.raises(error):
        getattr(comm, name)(items, *rest)
    assert comm.bcast(comm.rank, 1) == 1


@pytest.mark.ranks(2)
def test_all_ranks_fail(comm):
    with pytest.raises(TypeError, match="no pickle of this"):
        comm.allgather(Stubborn())
    assert comm.alltoall([comm.rank] * comm.size) == list(range(comm.size))


@pytest.mark.ranks(2)
def test_what_cannot_be_unpickled_is_left_as_it_is(comm):
    class Bomb:
        def __reduce__(self):
            return int, ("no number",)

    with pytest.raises(ValueError, match="no number"):
        comm.bcast(Bomb() if comm.rank == 0 else None, 0)
    assert comm.scatter([3] * comm.size) == 3
