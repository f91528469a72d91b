# SPDX-License-Identifier: BSD-3-Clause
"""MPI's own collectives on GPU memory, through copies in host memory."""

import contextlib
import weakref

import numpy as np
import pytest
from mpi4py import MPI

import cases
import kinds
import warpmpi as wm
from cases import CALLS, Case, codes_run, id_of, perform
from warpmpi._staging import collectives

needs_gpu = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)
UNTOUCHED = -7.0


class Maker:
    """Makes arrays whose kind differs from rank to rank and call to call."""

    def __init__(self, comm, turn):
        self.turn = comm.rank + turn

    def __call__(self, values, dtype=np.float64):
        kind = kinds.KINDS[self.turn % len(kinds.KINDS)]
        self.turn += 1
        return kinds.make(kind, np.asarray(values, dtype))

    def blank(self, count):
        return self(np.full(count, UNTOUCHED))


# Other descriptions of buffers. Each case gives a call's name and arguments,
# and (buffer, values) pairs that must hold afterwards.


def displaced(comm, gap=1):
    """Counts and displacements with gaps, and where they lie."""
    counts = [rank + 1 for rank in range(comm.size)]
    displs = [
        gap + sum(counts[:rank]) + gap * rank for rank in range(comm.size)
    ]
    return counts, displs, displs[-1] + counts[-1] + gap


def gatherv(comm, make, root):
    counts, displs, length = displaced(comm)
    mine = make(np.full(comm.rank + 1, comm.rank))
    into = make.blank(length)
    expected = np.full(length, UNTOUCHED)
    if comm.rank == root:
        for rank in range(comm.size):
            expected[displs[rank] : displs[rank] + counts[rank]] = rank
    args = mine, [into, counts, displs, MPI.DOUBLE], root
    return "Gatherv", args, [(into, expected)]


def scatter(comm, make, root):
    whole = make(np.arange(2 * comm.size))
    into = make.blank(4)
    expected = np.full(4, UNTOUCHED)
    expected[1:3] = [2 * comm.rank, 2 * comm.rank + 1]
    return "Scatter", (whole, [into, (2, 1)], root), [(into, expected)]


def scatterv(comm, make, root):
    counts, displs, length = displaced(comm)
    whole = make(np.arange(length))
    into = make.blank(comm.rank + 1)
    expected = displs[comm.rank] + np.arange(comm.rank + 1)
    given = [whole, (counts, displs), "d"] if comm.rank == root else None
    return "Scatterv", (given, into, root), [(into, expected)]


def allgather(comm, make, root):
    mine = make(np.full(3, comm.rank + 1))
    into = make.blank(3 * comm.size + 2)
    expected = np.full(3 * comm.size + 2, UNTOUCHED)
    expected[1:-1] = np.repeat(np.arange(comm.size) + 1, 3)
    args = [mine, MPI.DOUBLE], [into, 3, 1, MPI.DOUBLE]
    return "Allgather", args, [(into, expected)]


def allgatherv(comm, make, root):
    counts, displs, length = displaced(comm, 2)
    mine = make(np.full(comm.rank + 1, comm.rank))
    into = make.blank(length)
    expected = np.full(length, UNTOUCHED)
    for rank in range(comm.size):
        expected[displs[rank] : displs[rank] + counts[rank]] = rank
    return "Allgatherv", (mine, [into, (counts, displs)]), [(into, expected)]


def alltoallv(comm, make, root):
    counts = np.array([(comm.rank + rank) % 3 for rank in range(comm.size)])
    displs = 3 * np.arange(comm.size)
    mine = make(np.repeat(np.arange(comm.size) + 10.0 * comm.rank, 3))
    into = make.blank(3 * comm.size)
    expected = np.full(3 * comm.size, UNTOUCHED)
    for rank in range(comm.size):
        value = comm.rank + 10 * rank
        expected[3 * rank : 3 * rank + counts[rank]] = value
    args = [mine, (counts, displs)], [into, counts, 3, MPI.DOUBLE]
    return "Alltoallv", args, [(into, expected)]


def alltoallw(comm, make, root):
    size = comm.size
    types = [(MPI.DOUBLE, pairs())[rank % 2] for rank in range(size)]
    mine = make(np.arange(4 * size) + 100.0 * comm.rank)
    into = make.blank(4 * size)
    starts = [32 * rank for rank in range(size)]
    ones = [1 + (comm.rank % 2 == 0) for rank in range(size)]
    twos = [1 + (types[rank] is MPI.DOUBLE) for rank in range(size)]
    send = [mine, (twos, starts), types]
    kind = (MPI.DOUBLE, pairs())[comm.rank % 2]
    receive = [into, ones, starts, [kind] * size]
    expected = np.full(4 * size, UNTOUCHED)
    for rank in range(size):
        # Two elements, taken and put down side by side or apart.
        taken = [0, 1] if comm.rank % 2 == 0 else [0, 2]
        put = [0, 1] if comm.rank % 2 == 0 else [0, 2]
        for source, place in zip(taken, put, strict=True):
            value = 100 * rank + 4 * comm.rank + source
            expected[4 * rank + place] = value
    return "Alltoallw", (send, receive), [(into, expected)]


_pairs = []


def pairs():
    """A datatype of two doubles with a gap between them."""
    if not _pairs:
        _pairs.append(MPI.DOUBLE.Create_vector(2, 1, 2).Commit())
    return _pairs[0]


def allreduce(comm, make, root):
    mine = make(np.full(4, comm.rank + 1))
    into = make.blank(4)
    total = sum(range(comm.size + 1))
    args = [mine, (2, 1)], [into, (2, 2)]
    return "Allreduce", args, [(into, [UNTOUCHED, UNTOUCHED, total, total])]


def reduce_scatter_block_in_place(comm, make, root):
    mine = make(np.arange(2 * comm.size))
    args = None, [mine, 2, MPI.DOUBLE]
    first = comm.size * np.array([2 * comm.rank, 2 * comm.rank + 1])
    return "Reduce_scatter_block", args, [(mine, first)]


CASES = [
    gatherv,
    scatter,
    scatterv,
    allgather,
    allgatherv,
    alltoallv,
    alltoallw,
    allreduce,
    reduce_scatter_block_in_place,
]
FORMS = ["blocking", "stock", "ours", "persistent"]


def carry_out(comm, form, name, args):
    """Make the call in one of its forms; returns once it has ended."""
    if form in ("blocking", "persistent"):
        perform(comm, name, "" if form == "blocking" else "_init", *args)
    else:
        kind = MPI.Request if form == "stock" else wm.Request
        kind.Waitall([cases.begun(comm, name, "I", *args)])


def check(pairs):
    for buffer, expected in pairs:
        if expected is not None:
            got = kinds.values_of(buffer)
            np.testing.assert_array_equal(got[: len(expected)], expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("turn", [2, 3])
def test_collective(comm, case, form, turn):
    root = (turn + 1) % comm.size
    name, args, expected = case(comm, Maker(comm, turn), root)
    carry_out(comm, form, name, args)
    check(expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("name", "in_place"), CALLS, ids=id_of)
@pytest.mark.parametrize("turn", [2, 3])
def test_each_collective(comm, name, in_place, form, turn):
    """Neighbours that are not there write nothing."""
    near = comm.Create_cart([comm.size], [False])
    root = (turn + 1) % comm.size
    case = Case(near, name, Maker(comm, turn), root, in_place)
    carry_out(near, form, name, case.args)
    case.check()
    near.Free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("form", FORMS)
def test_between_groups(comm, form):
    low = comm.rank < comm.size // 2
    half = comm.Split(low)
    inter = half.Create_intercomm(0, comm, comm.size // 2 if low else 0)
    make, far = Maker(comm, 2), inter.remote_size
    other = 20.0 if low else 10.0
    mine = make(np.full(2, 10.0 if low else 20.0))
    every = make.blank(2 * far)
    carry_out(inter, form, "Allgather", (mine, every))
    check([(every, np.full(2 * far, other))])
    total = make.blank(2)
    carry_out(inter, form, "Allreduce", (mine, total))
    check([(total, np.full(2, other * far))])
    root = MPI.PROC_NULL if low else 0
    if low and half.rank == 0:
        root = MPI.ROOT
    buffer = make(np.full(3, 5.0 if root == MPI.ROOT else UNTOUCHED))
    carry_out(inter, form, "Bcast", (buffer, root))
    idle = low and half.rank > 0
    check([(buffer, np.full(3, UNTOUCHED if idle else 5.0))])
    # The root's group gives nothing, the other receives nothing.
    into = make.blank(2 * far)
    carry_out(inter, form, "Gather", (mine, into, root))
    gathers = root == MPI.ROOT
    check([(into, np.full(2 * far, other if gathers else UNTOUCHED))])
    inter.Free()
    half.Free()


@needs_gpu
@pytest.mark.parametrize(
    "dtype", ["int8", "uint16", "int64", "complex64", "?"]
)
def test_elements_that_mpi_finds_itself(comm, dtype):
    mine = kinds.make("device", np.ones(3, dtype))
    into = np.zeros(3 * comm.size, dtype)
    comm.Allgather(mine, into)
    assert into.all()
    back = kinds.make("device", np.zeros(3, dtype))
    op = MPI.LOR if dtype == "?" else MPI.PROD
    comm.Reduce(mine, back, op)
    assert kinds.values_of(back).all() == (comm.rank == 0)


@needs_gpu
def test_elements_that_mpi_does_not_know(comm):
    half = kinds.make("device", np.ones(4, np.float16))
    into = kinds.make("device", np.zeros(4, np.float16))
    with contextlib.suppress(KeyError, ValueError, TypeError, MPI.Exception):
        comm.Scan(half, into)  # as for a NumPy array of them
    comm.Allgather([half, MPI.BYTE], np.zeros(8 * comm.size, np.uint8))


@needs_gpu
def test_a_column_by_datatype(comm):
    values = np.full((6, 8), UNTOUCHED)
    matrix = kinds.make("device", values.ravel())
    column = MPI.DOUBLE.Create_vector(6, 1, 8).Create_resized(0, 8).Commit()
    for place in range(8):
        request = comm.Ibcast([matrix, (1, place), column], 0)
        request.Wait()
    mine = kinds.make("device", np.arange(6.0) + comm.rank)
    into = kinds.make("device", np.full(6 * comm.size + 1, UNTOUCHED))
    wide = MPI.DOUBLE.Create_vector(6, 1, comm.size).Create_resized(0, 8)
    wide.Commit()
    comm.Allgather(mine, [into, 1, wide])
    got = kinds.values_of(into)
    for rank in range(comm.size):
        assert (got[rank:-1][:: comm.size] == np.arange(6.0) + rank).all()
    assert got[-1] == UNTOUCHED
    assert (kinds.values_of(matrix) == UNTOUCHED).all()
    column.Free()
    wide.Free()


@needs_gpu
@pytest.mark.parametrize("waitall", [MPI.Request.Waitall, wm.Request.Waitall])
def test_two_calls_into_halves_of_one_array(comm, waitall):
    """Neither writes back what it found in the other's half."""
    size = comm.size
    both = kinds.make("device", np.full(2 * size, UNTOUCHED))
    mine = kinds.make("device", np.full(1, comm.rank + 1.0))
    twice = kinds.make("device", np.full(1, 10.0 * (comm.rank + 1)))
    requests = [
        comm.Iallgather(mine, [both, (1, 0)]),
        comm.Iallgather(twice, [both, (1, size)]),
    ]
    waitall(requests)
    ranks = np.arange(size) + 1.0
    check([(both, np.concatenate([ranks, 10 * ranks]))])


@needs_gpu
@pytest.mark.parametrize("waitall", [MPI.Request.Waitall, wm.Request.Waitall])
def test_requests_in_a_mix_with_messages(comm, waitall):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    values = kinds.make("device", np.full(50_000, comm.rank + 1.0))
    received = kinds.make("device", np.zeros(50_000))
    host = np.zeros(3)
    total = kinds.make("pool", np.zeros(50_000))
    requests = [
        comm.Irecv(received, left),
        comm.Iallreduce(values, total),
        comm.Isend(values, right),
        comm.Iallreduce(np.ones(3), host),
        comm.Ibarrier(),
    ]
    waitall(requests)
    check([(received, np.full(50_000, left + 1.0))])
    check([(total, np.full(50_000, sum(range(comm.size + 1))))])
    assert (host == comm.size).all()


@needs_gpu
def test_persistent_call_sends_what_is_there_when_it_starts(comm):
    mine = kinds.make("device", np.zeros(4))
    total = kinds.make("device", np.zeros(4))
    buffer = kinds.make("device", np.zeros(2))
    try:
        sums = comm.Allreduce_init(mine, total)
    except NotImplementedError:
        pytest.skip("this MPI has no persistent collectives")
    message = comm.Recv_init(buffer, comm.rank)
    for turn in range(3):
        mine.fill_(turn + comm.rank)
        wm.Prequest.Startall([message, sums])
        comm.Send(np.full(2, float(turn)), comm.rank)
        with pytest.raises(MPI.Exception):
            sums.Start()
        with pytest.raises(MPI.Exception):
            sums.Free()
        (MPI.Request, wm.Request)[turn % 2].Waitall([sums, message])
        expected = turn * comm.size + sum(range(comm.size))
        check([(total, np.full(4, expected)), (buffer, np.full(2, turn))])
    sums.Free()
    message.Free()
    with pytest.raises(MPI.Exception):
        sums.Start()


@needs_gpu
def test_a_request_that_is_dropped_ends_nevertheless(comm):
    into = kinds.make("device", np.zeros(3 * comm.size))
    comm.Iallgather(kinds.make("device", np.ones(3)), into)
    comm.Barrier()
    for _ in range(2000):
        if kinds.values_of(into).all():
            break
        comm.Iprobe()
    assert kinds.values_of(into).all()


@needs_gpu
def test_counted(comm):
    mine = kinds.make("device", np.ones(100))
    into = kinds.make("device", np.zeros(100))
    wm.reset_stats()
    comm.Scan(np.ones(100), np.zeros(100))
    assert wm.stats()["staged_collectives"] == 0
    comm.Iscan(mine, np.zeros(100)).Wait()
    comm.Iscan(np.ones(100), into).Wait()
    counted = wm.stats()
    assert counted["staged_collectives"] == 2
    assert counted["staged_bytes"] == 2 * 800
    comm.Reduce(np.ones(3), into if comm.rank else np.ones(3))
    assert wm.stats()["staged_collectives"] == 2  # its buffer does not matter


def test_host_arrays_are_mpi4py_s_own_business(comm):
    request = comm.Iallreduce(np.ones(3), np.zeros(3))
    assert type(request) is MPI.Request
    request.Wait()


KEEPING = ["Allgather", "Allgatherv"]
KEEPING += [name for name in cases.REDUCTIONS if name != "Reduce_scatter"]


def begun(comm, name, form):
    """A request over arrays that nobody else has, and what tells of them."""
    gathers, one = "gather" in name, "block" in name
    mine = np.ones(comm.size, np.uint8)
    into = bytearray(comm.size**2 if gathers else 1 if one else comm.size)
    sides = [mine, MPI.UINT8_T], [into, MPI.UINT8_T]
    request = cases.begun(comm, name, form, *sides)
    ours = form == "_init" and collectives.lacks_persistent()
    assert isinstance(request, MPI.Request)
    assert isinstance(request, wm.Request) == ours
    return request, weakref.ref(mine), into


@pytest.mark.parametrize("name", KEEPING)
def test_requests_of_host_arrays_keep_them(comm, name):
    """Also those that mpi4py's own do not keep."""
    request, alive, into = begun(comm, name, "I")
    assert alive() is not None
    with pytest.raises(BufferError):
        into.extend(b"more")
    MPI.Request.Waitall([request])
    assert alive() is None
    into.extend(b"more")


@pytest.mark.parametrize("name", KEEPING)
def test_persistent_requests_of_host_arrays_keep_them(comm, name):
    request, alive, into = begun(comm, name, "_init")
    for _ in range(2):
        request.Start()
        request.Wait()
        assert alive() is not None
    request.Free()
    del request
    assert alive() is None
    into.extend(b"more")


def test_temporaries_are_reduced(comm):
    requests = [
        comm.Iallreduce(
            wm.full(1000, 1.0, device="cpu"), np.zeros(1000), op=MPI.SUM
        )
        for _ in range(20)
    ]
    total = np.empty(1000)
    requests.append(comm.Iallreduce(wm.full(1000, 2.0, device="cpu"), total))
    rubbish = [np.full(1000, np.nan) for _ in range(100)]
    MPI.Request.Waitall(requests)
    assert len(rubbish) == 100 and (total == 2.0 * comm.size).all()


@needs_gpu
def test_bad_buffers(comm):
    array = kinds.make("device", np.zeros(8))
    host = np.zeros(8 * comm.size)
    column = wm.zeros((4, 4))[:, 0]
    kind = MPI.DOUBLE.Create_vector(2, 1, 2).Commit()
    for call, error, text in (
        (lambda: comm.Scan([array, 9], host), ValueError, "sendbuf: bytes"),
        (lambda: comm.Scan(host, [array, (4, 5)]), ValueError, "recvbuf: byt"),
        (lambda: comm.Scan([array, (4, 9)], host), ValueError, "out of|bytes"),
        (lambda: comm.Scan([array, -1], host), ValueError, "negative"),
        (lambda: comm.Scan([array, 1, 2, 3, 4], host), ValueError, "items"),
        (lambda: comm.Scan([array, "no such type"], host), KeyError, "no su"),
        (lambda: comm.Scan([array, MPI.DATATYPE_NULL], host), None, ".*"),
        (lambda: comm.Scan([column, 1, kind], host), ValueError, "contiguo"),
        (lambda: comm.Alltoallw(column, host), ValueError, "contiguous"),
        (lambda: comm.Scan(array, host, root=1), TypeError, ".*"),
        (lambda: comm.Gather(array, host, comm.size), MPI.Exception, ".*"),
        (lambda: comm.Gather(array, host, "0"), TypeError, ".*"),
        (lambda: comm.Allgatherv(array, [array, [1] * 99]), ValueError, ".*"),
        (lambda: comm.Alltoallw([array, 1], [array, 1]), Exception, ".*"),
    ):
        with pytest.raises(error or Exception, match=text):
            call()
    comm.Barrier()


@needs_gpu
@pytest.mark.ranks(2)
def test_status_tells_nothing_of_a_collective(comm):
    status = MPI.Status()
    array = kinds.make("device", np.zeros(8))
    comm.Ibcast(array).Wait(status)
    assert status.error == MPI.SUCCESS
    assert not status.cancelled


@needs_gpu
def test_a_datatype_of_which_mpi_tells_no_constructor(comm):
    """A short, a gap of two bytes and an int: the gap stays as it was."""
    pairs = np.zeros(3, [("value", "i2"), ("gap", "i2"), ("index", "i4")])
    pairs["value"], pairs["gap"], pairs["index"] = 1, 2, [3, 4, 5]
    a = kinds.make("device", pairs.view(np.uint8))
    b = kinds.make("device", np.full(24 * comm.size, 255, np.uint8))
    comm.Allgather([a, 3, MPI.SHORT_INT], [b, 3, MPI.SHORT_INT])
    pairs["gap"] = -1
    expected = np.tile(pairs.view(np.uint8), comm.size)
    np.testing.assert_array_equal(kinds.values_of(b), expected)


@needs_gpu
@pytest.mark.parametrize(
    "name", ["Allreduce", "Bcast", "Gather", "Alltoallv", "Reduce_scatter"]
)
def test_no_python_runs_for_arrays_of_gpus(comm, name):
    """The first rank has host memory, so MPI does the call."""
    size = comm.size
    kind = "host" if comm.rank == 0 and size > 1 else "device"
    a = kinds.make(kind, np.arange(2.0 * size) + comm.rank)
    b = kinds.make(kind, np.zeros(2 * size))
    lists = [2] * size, [2 * rank for rank in range(size)]
    call = {
        "Allreduce": lambda: comm.Allreduce(a, b),
        "Bcast": lambda: comm.Bcast(a),
        "Gather": lambda: comm.Gather([a, 2], b if comm.rank == 0 else None),
        "Alltoallv": lambda: comm.Alltoallv([a, lists], [b, lists]),
        "Reduce_scatter": lambda: comm.Reduce_scatter(a, [b, 2], lists[0]),
    }[name]
    call()  # the first one may warn of MPI's thread level
    assert codes_run(call) == ["<lambda>"]
    ranks, own = np.arange(size), np.arange(2.0 * size)
    expected = {
        "Allreduce": own * size + sum(ranks),
        "Bcast": own,
        "Gather": (ranks[:, None] + [0.0, 1.0]).ravel(),
        "Alltoallv": (ranks[:, None] + 2.0 * comm.rank + [0, 1]).ravel(),
        "Reduce_scatter": own[2 * comm.rank :][:2] * size + sum(ranks),
    }[name]
    if name == "Gather" and comm.rank > 0:
        return
    result = kinds.values_of(a if name == "Bcast" else b)[: expected.size]
    np.testing.assert_array_equal(result, expected)


@needs_gpu
def test_an_error_of_mpis_own_tells_its_cause(comm):
    """The core's own call of MPI, and a rank that mpi4py serves."""
    kind = "host" if comm.rank == 0 and comm.size > 1 else "device"
    a = kinds.make(kind, np.arange(4.0))
    b = kinds.make(kind, np.zeros(4))
    with pytest.raises(MPI.Exception) as caught:
        comm.Allreduce(a, b, op=MPI.BXOR)
    assert caught.value.Get_error_class() == MPI.ERR_OP
    if hasattr(caught.value, "__notes__"):
        assert (
            "Allreduce: op: MPI does not compute" in caught.value.__notes__[0]
        )
    comm.Allreduce(a, b)
    np.testing.assert_array_equal(kinds.values_of(b), comm.size * np.arange(4))


@needs_gpu
@pytest.mark.parametrize("nonblocking", [False, True])
def test_what_mpi_overwrites_is_not_copied_to_it(comm, nonblocking):
    on_host = comm.rank == 0 and comm.size > 1
    kind = "host" if on_host else "device"
    a = kinds.make(kind, np.arange(100.0))
    b = kinds.make(kind, np.zeros(100))
    before = wm.stats()
    if nonblocking:
        comm.Iallreduce(a, b).Wait()
    else:
        comm.Allreduce(a, b)
    after = wm.stats()
    staged = after["staged_collectives"] - before["staged_collectives"]
    assert staged == (comm.size > 1 and not on_host)
    assert after["staged_bytes"] - before["staged_bytes"] == staged * 1600
