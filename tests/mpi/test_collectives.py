# SPDX-License-Identifier: BSD-3-Clause
"""Barrier, Bcast and Allreduce; the cases of all collectives."""

import numpy as np
import pytest
from mpi4py import MPI

import cases
import kinds
import warpmpi as wm


@pytest.mark.parametrize(("name", "in_place"), cases.CALLS, ids=cases.id_of)
def test_the_cases_are_those_of_mpi(world, name, in_place):
    """Tests of all collectives have the arguments and values from these."""
    told = f"tests/cases.py has no recipe for {name}:"
    reduces = name in cases.REDUCTIONS
    assert not reduces or name in cases.REDUCED, f"{told} see REDUCED"
    plain = world.Create_cart([world.size], [False])
    try:
        case = cases.Case(plain, name, np.array, world.size - 1, in_place)
    except LookupError as error:
        pytest.fail(f"{told} {error!r}")
    getattr(plain, name)(*case.args)
    case.check()
    plain.Free()


@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("size", [0, 1, 1000, 5_000_000])
def test_bcast(comm, kind, size):
    for root in range(comm.size):
        mine = np.arange(size, dtype=np.float32) * (comm.rank == root)
        buffer = kinds.make(kind, mine)
        comm.Bcast(buffer, root)
        np.testing.assert_array_equal(
            kinds.values_of(buffer), np.arange(size, dtype=np.float32)
        )


def test_bcast_between_different_kinds(comm):
    kind = kinds.KINDS[comm.rank % len(kinds.KINDS)]
    buffer = kinds.make(kind, np.full(1000, comm.rank + 1.0))
    comm.Bcast(buffer, root=comm.size - 1)
    assert (kinds.values_of(buffer) == comm.size).all()


@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("size", [0, 1, 1000, 3_000_000])
def test_allreduce(comm, kind, size):
    mine = np.arange(size, dtype=np.float64) + comm.rank
    out = kinds.make(kind, np.zeros(size))
    comm.Allreduce(kinds.make(kind, mine), out)
    total = np.arange(size) * comm.size + sum(range(comm.size))
    np.testing.assert_array_equal(kinds.values_of(out), total)
    comm.Allreduce(MPI.IN_PLACE, out, op=MPI.MAX)
    np.testing.assert_array_equal(kinds.values_of(out), total)


@pytest.mark.parametrize(
    "dtype", ["int8", "uint16", "int32", "uint64", "float32", "complex64"]
)
def test_allreduce_dtypes(comm, dtype):
    kind = kinds.KINDS[-1]
    out = kinds.make(kind, np.zeros(10, dtype))
    comm.Allreduce(kinds.make(kind, np.arange(10).astype(dtype)), out)
    np.testing.assert_array_equal(
        kinds.values_of(out), (np.arange(10) * comm.size).astype(dtype)
    )


def test_half_precision_is_added(comm):
    half, ours = np.ones(4, np.float16), np.zeros(4, np.float16)
    comm.Allreduce(half, ours)
    assert (ours == comm.size).all()


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_allreduce_refuses_what_mpi_cannot_add(comm, kind):
    def make(count, dtype="f8"):
        return kinds.make(kind, np.zeros(count, dtype))

    with pytest.raises(TypeError):
        comm.Allreduce(make(3), None)
    with pytest.raises(TypeError):
        comm.Bcast(None)
    with pytest.raises(ValueError):
        comm.Allreduce(make(3), make(4))
    with pytest.raises(ValueError):
        comm.Allreduce(make(2, "f4"), make(1))
    ones = kinds.make(kind, np.ones(3))
    comm.Allreduce(MPI.IN_PLACE, ones)
    assert (kinds.values_of(ones) == comm.size).all()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", kinds.GPU_KINDS)
@pytest.mark.parametrize("size", [10, 5_000_000])
def test_ranks_that_give_different_counts_all_hear_of_it(comm, kind, size):
    count = size if comm.rank == 0 else size // 5
    values = kinds.make(kind, np.ones(count))
    for call in (
        lambda: comm.Bcast(values, 0),
        lambda: comm.Bcast(values, comm.size - 1),
        lambda: comm.Allreduce(values, kinds.make(kind, np.zeros(count))),
    ):
        with pytest.raises(MPI.Exception) as raised:
            call()
        assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE
    comm.Barrier()
    same = kinds.make(kind, np.full(3, 1.0 + comm.rank))
    comm.Bcast(same, 0)
    assert (kinds.values_of(same) == 1).all()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", kinds.GPU_KINDS)
@pytest.mark.parametrize("size", [10, 500_000])
@pytest.mark.parametrize(
    "names",
    [("Barrier", "Bcast"), ("Allreduce", "Barrier"), ("Bcast", "Allreduce")],
)
def test_ranks_in_different_collectives_all_hear_of_it(
    comm, kind, size, names
):
    values = kinds.make(kind, np.ones(size))
    calls = {
        "Barrier": comm.Barrier,
        "Bcast": lambda: comm.Bcast(values),
        "Allreduce": lambda: comm.Allreduce(MPI.IN_PLACE, values),
    }
    mine = names[comm.rank % 2]
    with pytest.raises(TypeError, match="different collectives") as raised:
        calls[mine]()
    assert all(name in str(raised.value) for name in names)
    assert f"this rank is in {mine}:" in str(raised.value)
    for call in calls.values():
        call()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", kinds.GPU_KINDS)
@pytest.mark.parametrize("size", [10, 500_000])
def test_ranks_that_give_different_roots_all_hear_of_it(comm, kind, size):
    array = kinds.make(kind, np.ones(size))
    with pytest.raises(MPI.Exception) as raised:
        comm.Bcast(array, comm.rank)
    assert raised.value.Get_error_class() == MPI.ERR_ROOT
    comm.Bcast(array, 1)


def test_memory_both_sent_and_received_is_explained(comm):
    values = np.ones(3)
    try:
        comm.Allreduce(values, values)  # not every MPI looks
    except MPI.Exception as error:
        if hasattr(error, "__notes__"):  # Python 3.11
            assert "give MPI.IN_PLACE" in error.__notes__[0]


def test_bcast_refuses_an_unknown_root(comm):
    with pytest.raises(MPI.Exception):
        comm.Bcast(np.zeros(1), root=comm.size)
    with pytest.raises(MPI.Exception):
        comm.Bcast(np.zeros(1), root=-1)


def test_messages_go_on_while_a_rank_is_in_a_barrier(comm):
    if comm.size < 2 or not wm.is_cuda_available():
        pytest.skip("needs two ranks and a GPU")
    if comm.rank == 0:
        request = comm.Isend(kinds.make("device", np.ones(100_000)), 1, 2)
        comm.Barrier()
        request.Wait()
    elif comm.rank == 1:
        buffer = np.zeros(100_000)
        comm.Recv(buffer, 0, 2)
        comm.Barrier()
        assert (buffer == 1).all()
    else:
        comm.Barrier()


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_column_is_broadcast(comm, kind):
    column = MPI.DOUBLE.Create_vector(6, 1, 8).Create_resized(0, 8).Commit()
    matrix = kinds.make(kind, np.full(48, float(comm.rank)))
    comm.Bcast([matrix, (2, 3), column], 0)
    expected = np.full((6, 8), float(comm.rank))
    expected[:, 3:5] = 0
    np.testing.assert_array_equal(
        kinds.values_of(matrix).reshape(6, 8), expected
    )
    column.Free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", kinds.GPU_KINDS)
@pytest.mark.parametrize("size", [10, 3_000_000])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    "types",
    [("float32", "float64"), ("float32", "int32"), ("int64", "uint64")],
)
def test_ranks_that_give_different_types_all_hear_of_it(
    comm, kind, types, in_place, size
):
    dtype = types[comm.rank % 2]
    mine = kinds.make(kind, np.ones(size, dtype))
    into = kinds.make(kind, np.ones(size, dtype))
    words = "rank 1 gives another element type than rank 0 "
    words += rf"\({types[1]}, not {types[0]}\)"
    with pytest.raises(TypeError, match=words):
        comm.Allreduce(MPI.IN_PLACE if in_place else mine, into)
    comm.Allreduce(kinds.make(kind, np.ones(3, "i8")), np.zeros(3, "i8"))
