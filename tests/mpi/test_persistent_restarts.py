# SPDX-License-Identifier: BSD-3-Clause
"""Starts of persistent collectives: as the one before, and where they differ.

Where one went from GPU to GPU on all ranks the next begins with one word of
each rank, whether it goes the same way.
"""

import contextlib
import ctypes
import random
import time

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm
from cases import IN_PLACE, NAMES, VARYING, Case, init, on_device
from warpmpi._staging import collectives

pytestmark = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)
LACKING = collectives.lacks_persistent()
simulated = pytest.mark.skipif(
    not hasattr(kinds.driver(), "simcuda_fail"),
    reason="needs the simulated driver",
)


class Repeated:
    """How many starts went the way of the one before meanwhile."""

    def __enter__(self):
        self.before = wm.stats()["repeated_collectives"]
        return self

    def __exit__(self, *_):
        self.count = wm.stats()["repeated_collectives"] - self.before


class Moving:
    """An array that has other memory when it is told to."""

    def __init__(self, *arrays):
        self.arrays = list(arrays)

    def move(self):
        self.arrays.reverse()

    @property
    def __cuda_array_interface__(self):
        return self.arrays[0].__cuda_array_interface__


@pytest.fixture(scope="module")
def comm(connected):
    ring = connected.Create_cart([connected.size], [connected.size > 2])
    yield ring
    ring.Free()


def run(request, case, scale):
    """Start it once; tell whether it was as the one before."""
    case.prepare(scale)
    with Repeated() as repeated:
        request.Start()
        request.Wait()
    case.check(scale)
    return repeated.count


def summing(comm):
    case = Case(
        comm,
        "Allreduce",
        on_device,
        value=lambda source, to, n: np.full(n, source + 1.0),
    )
    return case, init(comm, "Allreduce", case)


@pytest.mark.parametrize("name", NAMES)
def test_each_but_the_first_is_counted(comm, name):
    case = Case(comm, name, on_device)
    request = init(comm, name, case)
    counts = [run(request, case, scale) for scale in range(1, 6)]
    # Others are told of the gaps of an Alltoallw, if any, each time anew: a
    # rank alone has no neighbours.
    alone = comm.size == 1 and name.startswith("Neighbor")
    again = 0 if name.lower().endswith("alltoallw") and not alone else 1
    assert counts == [0, *[again] * 4]
    request.Free()


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(comm, name):
    """Not where others read a copy, which is made for each start."""
    case = Case(comm, name, on_device, in_place=True)
    request = init(comm, name, case)
    counts = [run(request, case, scale) for scale in range(1, 5)]
    assert counts[0] == 0
    assert len(set(counts[1:])) == 1
    assert len(set(comm.allgather(counts[1]))) == 1
    if name in ("Allreduce", "Reduce", "Allgather", "Scatter"):
        assert counts[1] == 1
    request.Free()


@pytest.mark.ranks(2)
def test_gaps_are_told_each_time(comm):
    column = MPI.DOUBLE.Create_vector(3, 1, 2).Commit()
    sent = on_device(np.zeros(6))
    into = on_device(np.zeros(3 * comm.size))
    request = comm.Allgather_init([sent, 1, column], into)
    ranks = np.repeat(np.arange(comm.size) + 1.0, 3)
    with Repeated() as repeated:
        for scale in range(1, 5):
            sent.fill_(scale * (comm.rank + 1.0))
            request.Start()
            request.Wait()
            assert (into.numpy() == scale * ranks).all()
    assert repeated.count == 0
    request.Free()
    column.Free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("culprit", [0, -1])
@pytest.mark.parametrize(
    "name", [name for name in NAMES if not name.endswith(VARYING)]
)
def test_an_array_moves(comm, name, culprit):
    """MPI does that start; then they go on as before."""
    case = Case(comm, name, on_device)
    other = on_device(case.empty)
    receives = [k for k, given in enumerate(case.args) if given is case.into]
    moving = Moving(case.into, other)
    for k in receives:
        case.args[k] = moving
    request = init(comm, name, case)
    assert [run(request, case, scale) for scale in (1, 2)] == [0, 1]
    moves = comm.rank == culprit % comm.size and bool(receives)
    any_moves = any(comm.allgather(moves))
    if moves:
        moving.move()
        case.into, kept = other, case.into
    assert run(request, case, 3) == (not any_moves)
    if moves:
        case.into = kept
        moving.move()
    assert run(request, case, 4) == (not any_moves)
    assert [run(request, case, scale) for scale in (5, 6)] == [1, 1]
    request.Free()


@pytest.mark.ranks(2)
@simulated
@pytest.mark.parametrize("side", [0, 1])
def test_a_stream_is_captured(comm, side):
    """No error but in that start, and on all ranks."""
    capture = kinds.driver().simcuda_capture
    capture.argtypes = ctypes.c_void_p, ctypes.c_int
    arrays = [kinds.make("foreign", np.ones(4)) for _ in "ab"]
    request = comm.Allreduce_init(*arrays)
    stream = arrays[side].stream.cuda_stream

    def start():
        request.Start()
        request.Wait()

    # The first go through the host while freed memory is mapped at the
    # addresses, which the progress thread does not close.
    for _ in range(100):
        with Repeated() as repeated:
            start()
        if repeated.count == 1:
            break
    assert repeated.count == 1
    for _ in range(2):
        culprit = comm.rank == comm.size - 1
        if culprit:
            capture(stream, 1)
        with pytest.raises(RuntimeError if culprit else wm.CudaError):
            start()
        if culprit:
            capture(stream, 0)
        arrays[0].assign(np.full(4, comm.rank + 1.0))
        for turn in range(3):
            with Repeated() as repeated:
                start()
            assert repeated.count == min(turn, 1)
            want = comm.size * (comm.size + 1) / 2
            assert (arrays[1].numpy() == want).all()
    request.Free()


@pytest.mark.ranks(2)
@simulated
@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("name", ["Allreduce", "Alltoall", "Bcast"])
def test_any_call_of_the_driver_fails(comm, name, busy):
    """All hear of it or none does, and the next starts are right."""
    fail = kinds.driver().simcuda_fail
    fail.argtypes = ctypes.c_char_p, ctypes.c_long, ctypes.c_int
    case = Case(comm, name, on_device)
    request = init(comm, name, case)
    assert [run(request, case, scale) for scale in (1, 2)] == [0, 1]
    failures = 0
    with kinds.uncollected():
        for call in range(1, 41):
            case.prepare(3)
            comm.Barrier()
            if comm.rank == comm.size - 1:
                if busy:  # for 20 ms
                    case.into.fill_(0.0, blocking=False)
                fail(None, call, 0)
            raised = False
            try:
                request.Start()
                request.Wait()
            except wm.CudaError:
                raised = True
            fail(None, 0, 0)
            outcomes = comm.allgather(raised)
            assert len(set(outcomes)) == 1, (call, outcomes)
            failures += raised
            if not raised and case.want is not case.empty:
                case.check(3)
            run(request, case, 4)
            assert run(request, case, 5) == 1
    assert failures > 0
    request.Free()


@pytest.mark.ranks(2)
@simulated
def test_what_cannot_begin_again_begins_anew(comm, fail):
    """What failed the first time is done by then."""
    case, request = summing(comm)
    assert [run(request, case, scale) for scale in (1, 2)] == [0, 1]
    case.prepare(3)
    comm.Barrier()
    if comm.rank == 0:
        # Which takes 20 ms, and others wait for.
        wm.asarray(case.sent).assign(3 * case.values, blocking=False)
        fail("StreamWaitEvent")
    with Repeated() as repeated:
        request.Start()
        request.Wait()
    case.check(3)
    assert repeated.count == 0
    assert run(request, case, 4) == 1
    request.Free()


@pytest.mark.ranks(2)
def test_many_starts_in_any_order(comm):
    """Ranks are late, start others first, and now and then differ."""
    same = random.Random(5)
    mine = random.Random(comm.rank)
    names = ["Allreduce", "Bcast", "Alltoall", "Reduce_scatter_block", "Scan"]
    cases = [Case(comm, name, on_device) for name in names]
    others, movings = [], []
    for case in cases:
        others.append(on_device(case.empty))
        movings.append(Moving(case.into, others[-1]))
        case.args = [
            movings[-1] if given is case.into else given for given in case.args
        ]
    requests = [
        init(comm, name, case) for name, case in zip(names, cases, strict=True)
    ]
    with Repeated() as repeated:
        for scale in range(1, 201):
            moved = [k for k in range(len(names)) if same.random() < 0.1]
            moved = [k for k in moved if mine.random() < 0.5]
            for k in moved:
                movings[k].move()
                cases[k].into, others[k] = others[k], cases[k].into
            for case in cases:
                case.prepare(scale)
            order = list(range(len(names)))
            mine.shuffle(order)
            together = mine.randrange(len(order) + 1)
            wm.Prequest.Startall([requests[k] for k in order[:together]])
            for k in order[together:]:
                if mine.random() < 0.05:
                    time.sleep(mine.random() * 2e-3)
                requests[k].Start()
            mine.shuffle(order)
            if mine.random() < 0.5:
                wm.Request.Waitall([requests[k] for k in order])
            else:
                for k in order:
                    requests[k].Wait()
            for case in cases:
                case.check(scale)
            for k in moved:
                movings[k].move()
                cases[k].into, others[k] = others[k], cases[k].into
    assert len(names) * 100 < repeated.count < len(names) * 199
    for request in requests:
        request.Free()


@pytest.mark.ranks(2)
def test_a_rank_is_late(comm):
    """What others give is not read, nor written over, before it has come."""
    case, request = summing(comm)
    late = comm.size - 1
    for scale in range(1, 5):
        case.prepare(scale)
        comm.Barrier()
        if comm.rank == late:
            time.sleep(0.02)
            assert (kinds.values_of(case.into) == case.empty).all()
            case.prepare(10 * scale)
        request.Start()
        if comm.rank != late:
            assert not request.Test()
        request.Wait()
        got = kinds.values_of(case.into)
        total = scale * (comm.size * (comm.size + 1) / 2 + 9 * (late + 1))
        assert (got == total).all()
    request.Free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("again", [False, True])
def test_dropped_while_under_way(comm, again):
    """Of a start as the one before, or of one that differs."""
    case = Case(comm, "Allreduce", on_device)
    moving = Moving(case.into, on_device(case.empty))
    request = comm.Allreduce_init(case.sent, moving)
    assert [run(request, case, scale) for scale in (1, 2)] == [0, 1]
    case.prepare(3)
    comm.Barrier()
    if comm.rank == 0:
        if not again:
            moving.move()
        request.Start()
        del request
    comm.Barrier()
    if comm.rank != 0:
        with Repeated() as repeated:
            request.Start()
            request.Wait()
        case.check(3)
        assert repeated.count == again
    comm.Barrier()


@pytest.mark.ranks(2)
def test_who_differed_is_gone_already(comm):
    """A root of MPI's does not wait, and others look when its slot is closed.

    They must not take that for the word that it went the same way.
    """
    case = Case(comm, "Bcast", on_device)
    moving = Moving(case.sent, on_device(3 * case.values))
    if comm.rank == 0:
        case.args[0] = moving
    request = init(comm, "Bcast", case)
    assert [run(request, case, scale) for scale in (1, 2)] == [0, 1]
    case.prepare(3)
    plain = MPI.COMM_WORLD
    if comm.rank == 0:
        moving.move()
        request.Start()
        request.Wait()
        request.Free()
        # What is freed goes when another is made, or freed.
        for _ in range(2):
            alone = wm.Comm(MPI.COMM_SELF.Dup())
            alone.Barrier()
            alone.Free()
    plain.Barrier()
    if comm.rank != 0:
        assert run(request, case, 3) == 0
        request.Free()
    comm.Barrier()


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    "differs", [None, "moved", pytest.param("failed", marks=simulated)]
)
def test_freed_memory_is_given_back(comm, request, differs):
    """Though others, who have mapped it, have not freed their requests."""
    fail = differs == "failed" and request.getfixturevalue("fail")
    nbytes = 8 << 20
    sent, into = (kinds.make("foreign", np.ones(nbytes // 8)) for _ in "ab")
    moving = Moving(into, wm.empty(nbytes // 8))
    request = comm.Allreduce_init(sent, moving)
    for turn in range(6):
        comm.Barrier()
        differing = differs and turn in (2, 4) and comm.rank == 0
        gate = kinds.Gate() if differing and fail else None
        if gate:
            gate.stop(sent.stream)
            fail("StreamWaitEvent")
        elif differing:
            moving.move()
        with Repeated() as repeated:
            request.Start()
            if gate:
                gate.open()
            request.Wait()
        if differing and not fail:
            moving.move()
        if turn in (2, 4):
            assert repeated.count == (not differs)
    device = wm.get_device("cuda:0")
    assert device.free_memory > 0  # all have a context there
    comm.Barrier()
    before = device.free_memory
    if comm.rank == 0:
        request.Free()
        sent.free()
        into.free()
    for _ in range(3):
        comm.Barrier()  # gives notice, and heeds it
    if comm.rank == 0:
        assert device.free_memory - before >= 2 * nbytes
    else:
        request.Free()
    comm.Barrier()


@pytest.mark.ranks(2)
def test_mappings_that_were_closed_are_opened_anew(comm):
    """Memory that is short closes them between starts."""
    case, request = summing(comm)
    arrays = [kinds.make("foreign", np.ones(4)) for _ in "ab"]
    other = comm.Allreduce_init(*arrays)
    assert [run(request, case, scale) for scale in (1, 2)] == [0, 1]
    for _ in range(2):
        other.Start()
        other.Wait()
    closed = wm.stats()["mappings_closed"]
    late = time.monotonic() + 20
    while wm.stats()["mappings_closed"] == closed:
        assert time.monotonic() < late
        time.sleep(0.01)  # not while another thread is in our code
        with contextlib.suppress(MemoryError):
            wm.empty(1 << 50, np.uint8)
    comm.Barrier()
    for count in 0, 1:
        with Repeated() as repeated:
            other.Start()
            other.Wait()
        assert repeated.count == count
        assert (arrays[1].numpy() == comm.size).all()
    assert run(request, case, 3) in (0, 1)
    assert run(request, case, 4) == 1
    request.Free()
    other.Free()


@pytest.mark.ranks(2)
@simulated
def test_a_barrier_row_is_used_again(comm, fail):
    """What failed there is nothing to those who come after."""
    for turn in range(4):
        case, request = summing(comm)
        assert [run(request, case, scale) for scale in (1, 2, 3)] == [0, 1, 1]
        for failing in range(turn % 3):
            case.prepare(4)
            comm.Barrier()
            if comm.rank == failing % comm.size:
                fail("LaunchKernel")
            with pytest.raises(wm.CudaError):
                request.Start()
                request.Wait()
            if failing:
                counts = [run(request, case, k) for k in (5, 6, 7)]
                assert counts == [0, 1, 1]
        request.Free()
        comm.Barrier()
