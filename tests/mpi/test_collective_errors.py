# SPDX-License-Identifier: BSD-3-Clause
"""MPI's errors of collectives say in which call, and what was expected."""

import sys

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import ranks
import warpmpi as wm
from cases import FORMS, REDUCTIONS, begun, called

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="exceptions have no notes"
)


def started(*args):
    """Begins a call; an MPI without persistent calls looks at their Start."""
    request = begun(*args)
    if args[2] == "_init":
        request.Start()


def is_told(call, kind, words):
    with pytest.raises(MPI.Exception) as raised:
        call()
    assert raised.value.Get_error_class() == kind
    (note,) = raised.value.__notes__
    assert words in note, note


@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("form", ["", "I"])
def test_a_root_that_is_none(comm, kind, form):
    array = kinds.make(kind, np.zeros(comm.size))
    name = "Igather" if form else "Gather"
    words = f"{name}: root={comm.size} is not a rank of this communicator"
    is_told(
        lambda: getattr(comm, name)(array, array, root=comm.size),
        MPI.ERR_ROOT,
        f"{words}: use 0 to {comm.size - 1}",
    )


@pytest.mark.parametrize("kind", ["host", kinds.KINDS[-1]])
@pytest.mark.parametrize("name", ["Allreduce", "Scan", "Iallreduce"])
def test_an_op_that_mpi_does_not_have(comm, kind, name):
    array, into = (kinds.make(kind, np.zeros(3)) for _ in range(2))
    is_told(
        lambda: getattr(comm, name)(array, into, MPI.BAND),
        MPI.ERR_OP,
        f"{name}: op: MPI does not compute this op with elements of this type",
    )
    comm.Barrier()


@pytest.mark.parametrize("kind", kinds.GPU_KINDS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_reduction_into_what_it_reads_is_refused(comm, kind, form, name):
    """On a GPU, as MPI refuses it in host memory; others send a copy."""
    array = kinds.make(kind, np.ones(comm.size))
    sent, received = array, array
    if "scatter" in name:
        received = [array, 1, MPI.DOUBLE]
    on = wm.Comm(MPI.COMM_SELF) if name == "Reduce" else comm
    is_told(
        lambda: started(on, name, form, sent, received),
        MPI.ERR_BUFFER,
        "give MPI.IN_PLACE",
    )
    comm.Barrier()
    assert (kinds.values_of(array) == 1).all()


@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_two_element_types_are_named(comm, kind, form, name):
    sent = kinds.make(kind, np.ones(comm.size, "f8"))
    received = kinds.make(kind, np.ones(comm.size, "f4"))
    on = wm.Comm(MPI.COMM_SELF) if name == "Reduce" else comm
    if wm.is_cuda_available() or kind != "host":
        words = ": sendbuf is of float64, and recvbuf of float32: give both"
    else:
        words = "mismatch"  # mpi4py's own
    with pytest.raises(ValueError, match=words):
        started(on, name, form, sent, received)
    with pytest.raises(ValueError, match=words):
        started(on, name, form, [sent, MPI.DOUBLE], [received, "f"])


@pytest.mark.skipif(not wm.is_cuda_available(), reason="a stream is a GPU's")
def test_two_element_types_on_a_stream_are_named(world):
    comm = wm.Comm(world).Dup()
    channel = comm.on(wm.Stream())
    sent, received = wm.ones(3), wm.ones(3, "bfloat16")
    with pytest.raises(ValueError, match=r"float64, and recvbuf of bfloat16"):
        channel.Allreduce(sent, received)
    comm.Free()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("op", [MPI.SUM, wm.AVG])
@pytest.mark.parametrize("other", ["float64", "bfloat16"])
def test_types_that_mpi_lacks_are_named(comm, device, op, other):
    if device == "cuda" and not wm.is_cuda_available():
        pytest.skip("no GPU")
    sent = wm.ones(3, "float16", device=device)
    received = wm.ones(3, other, device=device)
    words = f": sendbuf is of float16, and recvbuf of {other}: give both"
    for form in FORMS:
        with pytest.raises(ValueError, match=words):
            started(comm, "Allreduce", form, sent, received, op)


def apart(array, begin, size):
    """Blocks of two for each rank, with a gap of two after each."""
    displs = [begin + 4 * rank for rank in range(size)]
    return [array, [2] * size, displs, MPI.DOUBLE]


OVERLAPS = {  # sent and received, of an array of 4 for each of n ranks
    "Allreduce": lambda a, n: (a[:3], a[2:5]),
    "Scan": lambda a, n: (a[1:4], a[:3]),
    "Reduce_scatter_block": lambda a, n: (a[:n], a[n - 1 : n]),
    "Allgather": lambda a, n: (a[1:3], a[: 2 * n]),
    "Alltoall": lambda a, n: (a, a),
    "Alltoallv": lambda a, n: (apart(a, 0, n), apart(a, 1, n)),
}


@pytest.mark.skipif(not wm.is_cuda_available(), reason="a stream is a GPU's")
@pytest.mark.parametrize("name", OVERLAPS)
def test_overlaps_on_a_stream_are_refused(world, name):
    comm = wm.Comm(world).Dup()
    array = wm.zeros(4 * comm.size)
    sent, received = OVERLAPS[name](array, comm.size)
    stream = wm.Stream()
    is_told(
        lambda: getattr(comm.on(stream), name)(sent, received),
        MPI.ERR_BUFFER,
        f"{name}: sendbuf and recvbuf are the same memory, or overlap: give",
    )
    comm.Free()


@pytest.mark.skipif(not wm.is_cuda_available(), reason="a stream is a GPU's")
def test_blocks_of_one_array_on_a_stream_need_not_overlap(world):
    comm = wm.Comm(world).Dup()
    stream, rank, size = wm.Stream(), comm.rank, comm.size
    array = wm.full(4 * size, float(rank))
    comm.on(stream).Alltoallv(apart(array, 0, size), apart(array, 2, size))
    stream.synchronize()
    blocks = array.numpy().reshape(size, 2, 2)
    assert (blocks[:, 0] == rank).all()
    assert (blocks[:, 1] == np.arange(size)[:, None]).all()
    own = slice(2 * rank, 2 * rank + 2)  # in its place, as with NCCL
    array = wm.full(2 * size, rank + 1.0)
    comm.on(stream).Allgather(array[own], array)
    stream.synchronize()
    wanted = np.repeat(np.arange(size) + 1, 2)
    assert (array.numpy() == wanted).all()
    array.fill_(rank + 2.0)
    comm.on(stream).Allgatherv(array[own], array)
    stream.synchronize()
    assert (array.numpy() == wanted + 1).all()
    comm.Free()


@pytest.mark.programs
@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
def test_a_reduction_into_what_it_reads_is_refused_across_hosts(tmp_path):
    program = """
        import os
        from mpi4py import MPI
        import warpmpi as wm
        os.environ["WARPMPI_HOST"] = f"host {MPI.COMM_WORLD.rank}"
        comm = wm.Comm(MPI.COMM_WORLD)
        array = wm.ones(3, device="cuda")
        for call in comm.Allreduce, comm.Iallreduce:
            try:
                call(array, array)
            except MPI.Exception as error:
                assert error.Get_error_class() == MPI.ERR_BUFFER
                assert "give MPI.IN_PLACE" in error.__notes__[0]
            else:
                raise AssertionError(call)
        into = wm.zeros(3, device="cuda") if comm.rank == 0 else array
        comm.Reduce(array, into)  # at the root alone it matters
        assert comm.rank > 0 or (into.numpy() == 2).all()
    """
    ranks.run_text(tmp_path, program)


@pytest.mark.parametrize("kind", ["host", kinds.KINDS[-1]])
@pytest.mark.parametrize("op", [MPI.REPLACE, MPI.NO_OP])
def test_ops_of_windows_are_none_of_collectives(comm, kind, op):
    for name in [
        called(name, form) for name in REDUCTIONS for form in FORMS[:2]
    ]:
        count = 3 * comm.size if "scatter" in name else 3
        array, into = (kinds.make(kind, np.ones(n)) for n in (count, 3))
        is_told(
            lambda: getattr(comm, name)(array, into, op=op),  # noqa: B023
            MPI.ERR_OP,
            f"{name}: op: MPI",
        )
    comm.Barrier()


def test_a_datatype_that_is_not_committed(comm):
    column = MPI.DOUBLE.Create_vector(2, 1, 2)
    matrix = np.zeros(4)
    is_told(
        lambda: comm.Ibcast([matrix, 1, column]),
        MPI.ERR_TYPE,
        "Ibcast: a datatype is",
    )
    column.Free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", kinds.GPU_KINDS)
@pytest.mark.parametrize("count", [4, 100_000])
def test_ranks_with_different_ops(comm, kind, count):
    send, into = (kinds.make(kind, np.ones(count)) for _ in "ab")
    op = MPI.SUM if comm.rank == 0 else MPI.MAX
    is_told(
        lambda: comm.Allreduce(send, into, op),
        MPI.ERR_OP,
        "rank 1 gives another op than rank 0: all must give the same",
    )
    comm.Allreduce(send, into)
    assert (kinds.values_of(into) == comm.size).all()


# What MPI refuses before it sends anything.
REFUSED = {
    "a root": lambda comm, x, y: comm.Bcast(x, comm.size + 1),
    "a root of Gather": lambda comm, x, y: comm.Gather(x, y, root=-7),
    "no type": lambda comm, x, y: comm.Bcast([x, 1, MPI.DATATYPE_NULL]),
    "no op": lambda comm, x, y: comm.Allreduce(x, y, MPI.OP_NULL),
    "an op of windows": lambda comm, x, y: comm.Scan(x, y, MPI.REPLACE),
    "a root begun": lambda comm, x, y: comm.Ibcast(x, comm.size + 1),
    "an op begun": lambda comm, x, y: comm.Iallreduce(x, y, MPI.NO_OP),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", ["host", *kinds.GPU_KINDS[:1]])
@pytest.mark.parametrize("name", REFUSED)
def test_whom_mpi_refuses_may_call_again(comm, kind, name):
    """The other ranks are in the call, and the next one serves."""
    x, y = (kinds.make(kind, np.ones(8)) for _ in "xy")
    for bad in range(comm.size):
        if comm.rank == bad:
            with pytest.raises((MPI.Exception, ValueError)):
                REFUSED[name](comm, x, y)
        for _ in range(3):
            comm.Allreduce(x, y)
            assert (kinds.values_of(y) == comm.size).all()
            comm.Bcast(x, 0)
            comm.Iallreduce(x, y).Wait()


MPI_ALONE = """
    import numpy as np
    from mpi4py import MPI
    import kinds
    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    for bad in range(comm.size):
        kind = "host" if comm.rank == bad else kinds.GPU_KINDS[0]
        x, y = (kinds.make(kind, np.ones(8)) for _ in "xy")
        for _ in range(2):
            comm.Allreduce(x, y)
            comm.Barrier()
        try:
            comm.Bcast(x, comm.size + 1 if comm.rank != bad else 0)
        except (MPI.Exception, ValueError):
            comm.Bcast(x, 0)  # in its place
        comm.Barrier()
        comm.Allreduce(x, y)
        assert (kinds.values_of(y) == comm.size).all()
    print("right", flush=True)
"""


@pytest.mark.programs
@pytest.mark.skipif(not kinds.GPU_KINDS, reason="needs a GPU")
def test_ranks_where_mpi_does_all_collectives(tmp_path):
    """Nobody counts them, whatever the memory of a rank."""
    printed = ranks.run_text(tmp_path, MPI_ALONE, WARPMPI_ENGINES="mpi")
    assert printed.count("right") == 2, printed


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", ["host", kinds.KINDS[-1]])
@pytest.mark.parametrize("name", ["Allgather", "Alltoall", "Scan"])
@pytest.mark.parametrize("begins", [False, True], ids=["at once", "begun"])
def test_who_was_refused_may_call_again(comm, kind, name, begins):
    count = 4 * comm.size
    each = 4 if name == "Allgather" else count
    sent, into = (kinds.make(kind, np.ones(n)) for n in (each, count))
    call = getattr(comm, f"I{name.lower()}" if begins else name)
    if comm.rank == 0:
        with pytest.raises((TypeError, ValueError, KeyError)):
            call(sent, [into, count, "no such code"])
    for _ in range(3):
        request = call(sent, into)
        if begins:
            request.Wait()
    highest = comm.rank + 1 if name == "Scan" else 1
    assert (kinds.values_of(into) == highest).all()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", kinds.GPU_KINDS)
def test_ranks_that_do_not_fit(comm, kind):
    """All hear of it, where the ranks are of one host."""
    array = kinds.make(kind, np.zeros(2 if comm.rank == 0 else 3))
    into = kinds.make(kind, np.zeros(2 * comm.size))
    is_told(
        lambda: comm.Gather(array, into),
        MPI.ERR_TRUNCATE,
        "rank 0 gives 16 bytes for each rank, rank 1 gives 24",
    )


@pytest.mark.ranks(2)
def test_host_arrays_that_do_not_fit(comm):
    """MPI, whose call it is, tells the root."""
    array = np.zeros(200 if comm.rank == 0 else 300)
    own = comm.Dup()  # on which messages are left
    if comm.rank == 0:
        into = np.zeros(200 * comm.size)
        is_told(
            lambda: own.Gather(array, into),
            MPI.ERR_TRUNCATE,
            "Gather: a rank sends more than another rank receives",
        )
    else:
        own.Gather(array, None)
