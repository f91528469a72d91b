# SPDX-License-Identifier: BSD-3-Clause
"""Collectives whose payload goes from GPU to GPU."""

import ctypes
import os
import textwrap
from functools import partial

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import ranks
import warpmpi as wm
from cases import REDUCED, REDUCTIONS, TABLE, codes_run, counted

pytestmark = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)


BY_ENGINE = (16 << 20) + 16  # bytes that are too many for a kernel


@pytest.fixture(scope="module")
def comm(connected):
    return connected


@pytest.mark.parametrize("size", [0, 1, 3, 1000, 65_537, 3_000_001])
@pytest.mark.parametrize("kind", kinds.DEVICE_KINDS)
def test_allreduce(comm, kind, size):
    whole = np.arange(size) % 100_003  # sums that float32 has
    mine = whole.astype(np.float32) + comm.rank
    total = whole * comm.size + sum(range(comm.size))
    a = kinds.make(kind, mine)
    b = kinds.make(kind, np.zeros(size, np.float32))
    assert counted(lambda: comm.Allreduce(a, b)) == (1, 0)
    np.testing.assert_array_equal(kinds.values_of(b), total)
    np.testing.assert_array_equal(kinds.values_of(a), mine)
    assert counted(lambda: comm.Allreduce(MPI.IN_PLACE, a)) == (1, 0)
    np.testing.assert_array_equal(kinds.values_of(a), total)


def test_some_are_in_place(comm):
    """Others read what these overwrite."""
    size = 100_003
    mine = np.arange(size, dtype=np.int64) * (comm.rank + 1)
    a, b = wm.array(mine), wm.zeros(size, "int64")
    for first in range(comm.size):
        a.assign(mine)
        if (comm.rank - first) % comm.size % 2 == 0:
            send, result = MPI.IN_PLACE, a
        else:
            send, result = a, b
        assert counted(partial(comm.Allreduce, send, result)) == (1, 0)
        total = np.arange(size) * sum(range(1, comm.size + 1))
        np.testing.assert_array_equal(result.numpy(), total)


@pytest.mark.parametrize("size", [0, 1, 1000, 4_000_003])
@pytest.mark.parametrize("kind", kinds.DEVICE_KINDS)
def test_bcast(comm, kind, size):
    for root in range(comm.size):
        mine = np.arange(size, dtype=np.uint8) * (comm.rank == root)
        buffer = kinds.make(kind, mine)
        assert counted(partial(comm.Bcast, buffer, root)) == (1, 0)
        want = np.arange(size, dtype=np.uint8)
        np.testing.assert_array_equal(kinds.values_of(buffer), want)


OPS = {
    "SUM": np.add,
    "PROD": np.multiply,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
    "LAND": np.logical_and,
    "LOR": np.logical_or,
    "LXOR": np.logical_xor,
}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "int32", "uint64", "float64"]
)
def test_operations(comm, op, dtype):
    kind = np.dtype(dtype).kind
    if (kind == "f" and op[0] in "BL") or (kind == "b" and op[0] != "L"):
        pytest.skip("MPI has it not")
    rng = np.random.default_rng(7)
    every = rng.integers(0, 4, (comm.size, 777)).astype(dtype)
    out = wm.empty(777, dtype)
    mine = wm.array(every[comm.rank])
    done = counted(lambda: comm.Allreduce(mine, out, getattr(MPI, op)))
    assert done == (1, 0)
    want = every[0]
    for other in every[1:]:
        want = OPS[op](want, other).astype(dtype)
    np.testing.assert_array_equal(out.numpy(), want)


def test_the_sum_is_the_same_on_all_ranks(comm):
    """And each time: in the order of the ranks."""
    rng = np.random.default_rng(comm.rank)
    mine = wm.array(rng.standard_normal(200_000).astype(np.float32))
    seen = set()
    for _ in range(3):
        out = wm.empty_like(mine)
        comm.Allreduce(mine, out)
        seen.add(out.numpy().tobytes())
    assert len(seen) == 1
    assert len(set(MPI.COMM_WORLD.allgather(seen.pop()))) == 1


@pytest.mark.ranks(2)
def test_gpus_and_hosts_together(comm):
    """Who has no GPU memory has the others go through the host."""
    for on_host in range(comm.size):
        place = "cpu" if comm.rank == on_host else wm.get_device()
        for size in (5, 100_000):
            a = wm.full(size, comm.rank + 1.0, device=place)
            out = wm.empty(size, "float64", device=place)
            done = counted(lambda a=a, b=out: comm.Allreduce(a, b))
            assert done == (0, comm.rank != on_host)
            assert (out.numpy() == sum(range(1, comm.size + 1))).all()
            done = counted(lambda a=a: comm.Bcast(a, comm.size - 1))
            assert done == (0, comm.rank != on_host)
            assert (a.numpy() == comm.size).all()


@pytest.mark.ranks(2)
@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
def test_a_rank_that_fails_is_told_of(comm, fail):
    """All raise, and the next one is right."""
    a, out = wm.ones(1000, "int32"), wm.empty(1000, "int32")
    long = wm.empty(BY_ENGINE, "uint8")
    longer = wm.empty(long.size * comm.size, "uint8")
    calls = [
        ("LaunchKernel", lambda: comm.Allreduce(a, out)),
        ("LaunchKernel", lambda: comm.Allreduce(MPI.IN_PLACE, out)),
        ("MemcpyAsync", lambda: comm.Scatter(longer, long, 0)),
        ("LaunchKernel", lambda: comm.Allgather(long, longer)),
    ]
    for name, call in calls:
        call()
        if comm.rank == 1:
            fail(name)
        with pytest.raises(wm.CudaError) as caught:
            call()
        if comm.rank != 1:
            assert "rank 1 failed in this collective" in str(caught.value)
            assert name in str(caught.value)
        comm.Allreduce(a, out)
        assert (out.numpy() == comm.size).all()


@pytest.mark.ranks(2)
@pytest.mark.skipif(
    kinds.is_real() or os.environ.get("SIMCUDA_MODE") != "lazy",
    reason="needs kernels that wait until they are asked for",
)
@pytest.mark.parametrize("call", ["Allreduce", "Allgather", "Iallreduce"])
def test_a_stream_that_fails_is_found(comm, fail, call):
    """Also where its kernel is to tell when it has ended."""
    a = wm.ones(100, "int32")
    out = wm.empty(100 * (comm.size if call == "Allgather" else 1), "int32")

    def make():
        request = getattr(comm, call)(a, out)
        if request is not None:
            request.Wait()

    def make_until_found():
        for _ in range(20):  # it may tell that before anybody looks
            if comm.rank == 0:
                fail("StreamQuery")
            make()

    make()
    with pytest.raises(wm.CudaError, match="StreamQuery"):
        make_until_found()
    make()


def enqueued(call):
    """How many kernels, and how many copies."""
    count = kinds.driver().simcuda_calls
    count.restype = ctypes.c_long
    names = b"LaunchKernel", b"MemcpyAsync"
    before = [count(name) for name in names]
    call()
    return tuple(
        count(name) - n for name, n in zip(names, before, strict=True)
    )


@pytest.mark.parametrize("skip", [0, 4, 1])
@pytest.mark.parametrize("nbytes", [1, 8, 37, 5000, 65_536, 1_000_003])
def test_short_blocks_share_a_kernel(comm, nbytes, skip):
    """Wherever they begin, and with nothing around them."""
    rng = np.random.default_rng(comm.rank)
    mine = rng.integers(0, 256, nbytes, np.uint8)
    every = np.concatenate(MPI.COMM_WORLD.allgather(mine))
    a = wm.zeros(nbytes + skip, "uint8")
    out = wm.full(every.size + skip + 1, 7, "uint8")
    a[skip:].assign(mine)

    def gather():
        comm.Allgather(a[skip:], out[skip:-1])

    if kinds.is_real():
        gather()
    else:
        assert enqueued(gather) == ((1, 0) if comm.size > 1 else (0, 1))
    np.testing.assert_array_equal(out.numpy()[skip:-1], every)
    assert (out.numpy()[:skip] == 7).all()
    assert out.numpy()[-1] == 7


@pytest.mark.ranks(2)
@pytest.mark.parametrize("size", [1, 37, 300_000, 1_000_001])
@pytest.mark.parametrize("in_place", [False, True])
def test_results_are_written_to_all(comm, size, in_place):
    """By one kernel on each rank that has a part, long or in place."""
    mine = np.arange(size, dtype=np.float64) + comm.rank
    a, out = wm.array(mine), wm.empty(size, "float64")
    send, result = (MPI.IN_PLACE, a) if in_place else (a, out)
    total = np.arange(size) * comm.size + sum(range(comm.size))

    def reduce():
        comm.Allreduce(send, result)

    if kinds.is_real():
        reduce()
    else:
        kernels, copies = enqueued(reduce)
        assert copies == 0
        assert kernels == 1 or (in_place and kernels == 0 and size < 100)
    np.testing.assert_array_equal(result.numpy(), total)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("call", ["Allreduce", "Iallreduce", "Bcast"])
def test_what_others_write_is_waited_for(comm, call):
    """A rank's own work on memory comes before what others write there."""
    stream = wm.Stream()
    size = 500_000
    values = np.arange(float(size)) * (comm.rank + 1)
    for turn in range(comm.size):
        root = (turn + 1) % comm.size
        factor = root + 1 if call == "Bcast" else sum(range(comm.size + 1))
        a, b = wm.array(values), wm.empty(size)
        if comm.rank == root:
            b.assign(a)
        wm.synchronize_device(wm.get_device())
        if comm.rank == turn:
            b.fill_(7, blocking=False, stream=stream)
        if call == "Bcast":
            comm.Bcast(b, root)
        else:  # in place on one, so that each has a part
            sent = MPI.IN_PLACE if comm.rank == root else a
            request = getattr(comm, call)(sent, b)
            if request is not None:
                request.Wait()
        wm.synchronize_device(wm.get_device())
        np.testing.assert_array_equal(b.numpy(), np.arange(size) * factor)


@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
@pytest.mark.parametrize("odd", [0, 1])
def test_long_blocks_share_a_kernel(comm, odd):
    """Unless they are byte by byte, or there is one alone."""
    a = wm.full(BY_ENGINE + odd, comm.rank + 1, "uint8")[odd:]
    out = wm.empty(BY_ENGINE * comm.size, "uint8")
    expected = (1, 0) if odd == 0 and comm.size > 1 else (0, comm.size)
    assert enqueued(lambda: comm.Allgather(a, out)) == expected
    for rank in range(comm.size):
        part = out.numpy()[rank * BY_ENGINE :][:BY_ENGINE]
        assert (part == rank + 1).all()


@pytest.mark.ranks(2)
def test_ranks_that_disagree(comm):
    a, out = wm.ones(10, "int32"), wm.empty(10, "int32")
    count = 10 if comm.rank else 9
    with pytest.raises(MPI.Exception, match="gives 36 bytes"):
        comm.Allreduce([a, count, MPI.INT], [out, count, MPI.INT])
    with pytest.raises(TypeError, match="another element type"):
        comm.Allreduce(
            a if comm.rank else wm.ones(10, "float32"),
            out if comm.rank else wm.ones(10, "float32"),
        )
    comm.Allreduce(a, out)
    assert (out.numpy() == comm.size).all()


@pytest.mark.parametrize("size", [0, 1, 1000, 70_003])
@pytest.mark.parametrize("kind", kinds.DEVICE_KINDS)
def test_reduce_scatter_block_in_place(comm, kind, size):
    """The first block is what others read until all have."""
    mine = np.arange(size * comm.size, dtype=np.float64) * (comm.rank + 1)
    total = np.arange(size * comm.size) * sum(range(1, comm.size + 1))
    a = kinds.make(kind, mine)
    done = counted(lambda: comm.Reduce_scatter_block(MPI.IN_PLACE, a))
    assert done == (1, 0)
    found = kinds.values_of(a)
    first = comm.rank * size
    np.testing.assert_array_equal(found[:size], total[first : first + size])
    np.testing.assert_array_equal(found[size:], mine[size:])


@pytest.mark.parametrize(
    "name", [name for name in REDUCTIONS if "scatter" not in name]
)
def test_what_is_sent_and_received_overlap(comm, name):
    """Others read it before it is written, as in place."""
    size = 100_003
    for offset in (1, size - 1):
        a = wm.array(np.arange(2.0 * size) * (comm.rank + 1))
        send, into = a[:size], a[offset : offset + size]
        done = counted(partial(getattr(comm, name), send, into))
        assert done == (1, 0)
        ranks = len(REDUCED[name](range(comm.size), comm.rank))
        if ranks and (comm.rank == 0 or not TABLE[name].to_root):
            right = np.arange(size) * sum(range(1, ranks + 1))
            np.testing.assert_array_equal(into.numpy(), right)


def test_on_a_stream_in_place_and_of_halves(comm):
    stream = wm.Stream()
    channel = comm.on(stream)
    ranks = sum(range(1, comm.size + 1))
    for size in (10, 300_001):
        mine = np.arange(size * comm.size, dtype=np.float64) * (comm.rank + 1)
        a, b = wm.array(mine), wm.full(size, comm.rank + 1, "float16")
        channel.Reduce_scatter_block(MPI.IN_PLACE, a)
        channel.Allreduce(MPI.IN_PLACE, b)
        stream.synchronize()
        right = np.arange(size * comm.size)[comm.rank * size :][:size] * ranks
        np.testing.assert_array_equal(a.numpy()[:size], right)
        assert (b.numpy() == ranks).all()


# Of a block, or None: (list, first element, elements of a block).
COUNTED = {
    "count": (lambda a, n: [a, n], 0),
    "count and type": (lambda a, n: [a, n, MPI.DOUBLE], 0),
    "pair": (lambda a, n: [a, (n, 2)], 2),
    "pair and type": (lambda a, n: (a, (n, 2), MPI.DOUBLE), 2),
    "all of it": (lambda a, n: [a, n, 2, MPI.DOUBLE], 2),
    "no count": (lambda a, n: [a, (None, 2), MPI.DOUBLE], 2),
    "type": (lambda a, n: [a, "d"], 0),
    "NumPy's number": (lambda a, n: [a, np.int32(n)], 0),
}


@pytest.mark.parametrize("form", COUNTED)
@pytest.mark.parametrize("number", [1, 1000])
def test_counts_are_of_a_block(comm, form, number):
    make, first = COUNTED[form]
    size, rank = comm.size, comm.rank
    room = first + number * size
    if form in ("count", "count and type", "pair", "all of it"):
        room += 3

    def of(values, where=first):
        """GPU memory of the room, with these from there on."""
        array = np.full(room, -1.0)
        array[where : where + len(values)] = values
        return wm.array(array)

    def held(array):
        found = array.numpy()
        assert (found[:first] == -1).all()
        assert (found[first + number * size :] == -1).all()
        return found[first : first + number * size].reshape(size, number)

    block = np.arange(number) + 1000.0 * rank
    each = np.arange(number * size).reshape(size, number) + 7.0 * rank
    ranks = np.arange(size)[:, None]
    into = of([])
    done = counted(lambda: comm.Allgather(wm.array(block), make(into, number)))
    assert done == (1, 0)
    all_blocks = np.arange(number) + 1000.0 * ranks
    np.testing.assert_array_equal(held(into), all_blocks)
    for root in range(size):
        into, out = of([]), wm.empty(number)
        given = make(into, number) if rank == root else None
        mine = wm.array(block)
        done = counted(partial(comm.Gather, mine, given, root))
        assert done == (1, 0)
        if rank == root:
            np.testing.assert_array_equal(held(into), all_blocks)
        given = make(of(each.ravel()), number) if rank == root else None
        assert counted(partial(comm.Scatter, given, out, root)) == (1, 0)
        right = np.arange(number * size).reshape(size, number) + 7.0 * root
        np.testing.assert_array_equal(out.numpy(), right[rank])
    sent, into = of(each.ravel()), of([])
    done = counted(
        lambda: comm.Alltoall(make(sent, number), make(into, number))
    )
    assert done == (1, 0)
    right = np.arange(number) + rank * number + 7.0 * ranks
    np.testing.assert_array_equal(held(into), right)
    out = wm.empty(number)
    done = counted(lambda: comm.Reduce_scatter_block(make(sent, number), out))
    assert done == (1, 0)
    np.testing.assert_array_equal(out.numpy(), right.sum(0))


def test_more_blocks_than_there_are_elements(comm):
    """Which mpi4py passes on: nobody reads or writes beyond the end."""
    short = wm.zeros(10 * comm.size - 1)
    with pytest.raises(ValueError, match="recvbuf"):
        comm.Allgather(wm.ones(10), [short, 10])
    assert (short.numpy() == 0).all()
    long = wm.zeros(10 * comm.size)
    # Others could be in MPI's call, which all ranks refused: once by that.
    for direct in 0, 1:
        done = counted(lambda: comm.Allgather(wm.ones(10), long))
        assert done == (direct, 1 - direct)
        assert (long.numpy() == 1).all()


def test_host_arrays_with_counts(comm):
    """Short ones, which go without MPI."""
    for number in (1, 7):
        into = np.full(number * comm.size + 2, -1.0)
        comm.Allgather(np.full(number, comm.rank + 0.5), [into, (number, 1)])
        right = np.repeat(np.arange(comm.size) + 0.5, number)
        np.testing.assert_array_equal(into[1:-1], right)
        assert into[0] == into[-1] == -1


WITHOUT_IPC = """
    import numpy as np
    import warpmpi as wm
    from mpi4py import MPI

    for made in MPI.COMM_WORLD, MPI.COMM_SELF:
        comm = wm.Comm(made)
        a, b = wm.ones(5), wm.zeros(5)
        comm.Allreduce(a, b)
        assert (b.numpy() == comm.size).all()
        comm.Scan(a, b)
        assert (b.numpy() == comm.rank + 1).all()
        comm.Bcast(b)
        assert (b.numpy() == 1).all()
    assert wm.stats()["ipc_collectives"] == 0
"""


@pytest.mark.programs
@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
def test_memory_that_cannot_be_exported_goes_through_the_host():
    text = textwrap.dedent(WITHOUT_IPC)
    ranks.run("-c", text, ranks=2, SIMCUDA_IPC="0")


UNMAPPED = """
    import ctypes
    import os
    import numpy as np
    from mpi4py import MPI
    import warpmpi as wm

    comm = wm.Comm(MPI.COMM_WORLD)
    fail = ctypes.CDLL(os.environ["WARPMPI_CUDA_DRIVER"]).simcuda_fail
    fail.argtypes = ctypes.c_char_p, ctypes.c_long, ctypes.c_int
    values = np.arange(400.0) + 1000 * comm.rank  # both have a part
    array = wm.zeros(800)[::2] if {strided} else wm.zeros(400)
    array.assign(values)
    comm.Barrier()
    if comm.rank == 1:
        fail(b"IpcOpenMemHandle", 1, 0)
    request = comm.{name}(MPI.IN_PLACE, array)
    if request is not None:
        request.Wait()
    MPI.COMM_WORLD.{plain}(MPI.IN_PLACE, values)
    assert (array.numpy() == values).all(), (comm.rank, array.numpy())
    assert wm.stats()["staged_collectives"] == 1
"""


@pytest.mark.programs
@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("name", ["Alltoall", "Ialltoall", "Allreduce"])
def test_in_place_where_one_cannot_map(tmp_path, name, strided):
    """The host has what was sent."""
    plain = name.removeprefix("I").capitalize()
    text = UNMAPPED.format(name=name, plain=plain, strided=strided)
    ranks.run_text(tmp_path, text)


@pytest.mark.parametrize("name", ["Alltoallv", "Alltoallw", "Ialltoallv"])
def test_counts_are_read_without_python(comm, name):
    ranks = range(comm.size)
    a = wm.array(np.arange(comm.size * 3.0) + comm.rank)
    b = wm.zeros(comm.size * 3)
    counts, displs = [3] * comm.size, [3 * rank for rank in ranks]
    lists = [(counts, displs)]
    if name == "Alltoallw":
        lists = [counts, [24 * rank for rank in ranks]]
        lists.append([MPI.DOUBLE] * comm.size)

    def call():
        getattr(comm, name)([a, *lists], [b, *lists])

    call()  # loads kernels
    assert codes_run(call) == ["call"]
