# SPDX-License-Identifier: BSD-3-Clause
"""Persistent collectives, by the GPUs themselves and where MPI does them."""

import gc
import weakref

import numpy as np
import pytest
from mpi4py import MPI

import kinds
import warpmpi as wm
from cases import IN_PLACE, NAMES, Case, init, on_device
from warpmpi._staging import collectives

pytestmark = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="needs a GPU"
)

COUNTED = "ipc_collectives", "staged_collectives"
LACKING = collectives.lacks_persistent()


class Counted:
    """What was counted on this rank meanwhile."""

    def __enter__(self):
        self.before = wm.stats()
        return self

    def __exit__(self, *_):
        after = wm.stats()
        self.went = tuple(after[k] - self.before[k] for k in COUNTED)


@pytest.fixture(scope="module")
def comm(connected):
    ring = connected.Create_cart([connected.size], [connected.size > 2])
    yield ring
    ring.Free()


def run(request, case, scale):
    case.prepare(scale)
    request.Start()
    request.Wait()
    case.check(scale)


@pytest.mark.parametrize("name", NAMES)
def test_gpus_do_it_each_time(comm, name):
    case = Case(comm, name, on_device)
    request = init(comm, name, case)
    assert isinstance(request, wm.Prequest)
    assert request.Test()  # inactive
    for scale in (1, 2, 3):
        with Counted() as counted:
            run(request, case, scale)
        assert counted.went == (1, 0)
    request.Free()
    with pytest.raises(MPI.Exception):
        request.Start()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("host", [0, -1])
@pytest.mark.parametrize("name", NAMES)
def test_a_rank_has_host_memory(comm, name, host):
    alone = comm.rank == host % comm.size
    case = Case(comm, name, np.array if alone else on_device)
    request = init(comm, name, case)
    for scale in (1, 2):
        with Counted() as counted:
            run(request, case, scale)
        assert counted.went == (0, 0 if alone else 1)
    request.Free()


@pytest.mark.skipif(LACKING, reason="MPI has none")
@pytest.mark.parametrize("name", NAMES)
def test_plain_arrays_are_mpis(comm, name):
    case = Case(comm, name, np.array)
    request = init(comm, name, case)
    assert type(request) is MPI.Prequest
    for scale in (1, 2):
        run(request, case, scale)
    request.Free()


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_mpi_has_none(comm, name, host, monkeypatch):
    """Then nonblocking ones stand for them, of any memory."""
    monkeypatch.setattr(collectives, "lacks_persistent", lambda: True)
    make = np.array if host or comm.rank == 1 else on_device
    case = Case(comm, name, make)
    request = init(comm, name, case)
    assert isinstance(request, wm.Prequest)
    for scale in (1, 2):
        run(request, case, scale)
    request.Free()


def test_some_are_mpis(comm, monkeypatch):
    """Begun in a row: the nonblocking ones that stand for them."""
    monkeypatch.setattr(collectives, "lacks_persistent", lambda: True)
    makers = [on_device, np.array, on_device, on_device, np.array, np.array]
    cases = [Case(comm, "Allreduce", make) for make in makers]
    requests = [init(comm, "Allreduce", case) for case in cases]
    for scale in range(1, 4):
        for case in cases:
            case.prepare(scale)
        wm.Prequest.Startall(requests)
        wm.Request.Waitall(requests)
        for case in cases:
            case.check(scale)
    for request in requests:
        request.Free()


@pytest.mark.skipif(wm.get_cuda_device_count() < 2, reason="needs two GPUs")
def test_some_are_of_two_gpus(comm):
    """Those go by MPI, as is found out when they begin."""
    own = wm.get_device()
    other = f"cuda:{(own.ordinal + 1) % wm.get_cuda_device_count()}"
    places = [own, other, own, own, other, other, own]
    sent = [wm.zeros(3, "int32", device=own) for _ in places]
    into = [wm.zeros(3, "int32", device=place) for place in places]
    requests = [
        comm.Allreduce_init(*both) for both in zip(sent, into, strict=True)
    ]
    for turn in range(1, 4):
        for k, array in enumerate(sent):
            array.fill_(turn + k)
        wm.Prequest.Startall(requests)
        wm.Request.Waitall(requests)
        for k, array in enumerate(into):
            assert (array.numpy() == comm.size * (turn + k)).all()
    for request in requests:
        request.Free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", ["device", "mixed"])
@pytest.mark.parametrize("how", ["Start", "Startall", "stock"])
def test_ranks_start_them_in_different_orders(comm, how, kind):
    """As MPI allows of persistent ones; others come between."""
    device = kind == "device" or comm.rank > 0
    make = on_device if device else np.array
    names = NAMES * 2
    cases = [Case(comm, name, make) for name in names]
    requests = [
        init(comm, name, case) for name, case in zip(names, cases, strict=True)
    ]
    total = on_device(np.zeros(2))
    for scale in (1, 2):
        for case in cases:
            case.prepare(scale)
        mine = requests if comm.rank % 2 else requests[::-1]
        between = comm.Iallreduce(on_device(np.ones(2)), total)
        if how == "Startall":
            wm.Prequest.Startall(mine)
        elif how == "stock":
            MPI.Prequest.Startall(mine)
        else:
            for request in mine:
                request.Start()
        if how == "stock":
            MPI.Request.Waitall([*mine, between])
        else:
            wm.Request.Waitall([between, *mine])
        for case in cases:
            case.check(scale)
        assert (kinds.values_of(total) == comm.size).all()
    for request in requests:
        request.Free()


@pytest.mark.ranks(2)
def test_beside_messages(comm):
    """Of both kinds in one list."""
    case = Case(comm, "Allreduce", on_device)
    out, into = on_device(np.full(4, 1.0 * comm.rank)), on_device(np.zeros(4))
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    requests = [
        comm.Send_init(out, right),
        init(comm, "Allreduce", case),
        comm.Recv_init(into, left),
    ]
    for scale in (1, 2):
        case.prepare(scale)
        wm.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
        case.check(scale)
        assert (kinds.values_of(into) == left).all()
    for request in requests:
        request.Free()


def test_one_of_many_cannot_begin(comm):
    """Those before it have begun, those behind it have not."""
    makers = [on_device, np.array, on_device, on_device, on_device]
    cases = [Case(comm, "Allreduce", make) for make in makers]
    requests = [init(comm, "Allreduce", case) for case in cases]
    twice = [*requests[:4], requests[2], requests[4]]
    for scale in range(1, 4):
        for case in cases:
            case.prepare(scale)
        with pytest.raises(MPI.Exception) as raised:
            wm.Prequest.Startall(twice)
        assert raised.value.Get_error_class() == MPI.ERR_REQUEST
        wm.Request.Waitall(requests)
        for case in cases[:4]:
            case.check(scale)
        with pytest.raises(AssertionError):
            cases[4].check(scale)
        run(requests[4], cases[4], scale)
    for request in requests:
        request.Free()


@pytest.mark.ranks(2)
def test_a_rank_is_ahead(comm):
    """The others start it when they come."""
    case = Case(comm, "Bcast", on_device)
    request = init(comm, "Bcast", case)
    token = np.zeros(1)
    for scale in range(1, 20):
        case.prepare(scale)
        if comm.rank == 1:
            comm.Recv(token, 0)
        request.Start()
        if comm.rank == 0:
            comm.Send(token, 1)
        request.Wait()
        case.check(scale)
    request.Free()


def test_misuse_is_answered(comm):
    case = Case(comm, "Allreduce", on_device)
    request = init(comm, "Allreduce", case)
    case.prepare(1)
    comm.Barrier()
    request.Start()
    if comm.size > 1:
        comm.Barrier()
    for call in (request.Start, request.Free):
        with pytest.raises(MPI.Exception) as raised:
            call()
        assert raised.value.Get_error_class() == MPI.ERR_REQUEST
    request.Wait()
    request.Wait()
    case.check(1)
    for call in (request.Pready, request.Parrived):
        with pytest.raises(MPI.Exception):
            call(0)
    request.Free()
    with pytest.raises(MPI.Exception):
        request.Free()
    assert not request


def test_arguments_by_name(comm):
    case = Case(comm, "Allreduce", on_device)
    sent, into = case.args[:2]
    with Counted() as counted:
        request = comm.Allreduce_init(
            recvbuf=into, sendbuf=[sent, MPI.DOUBLE], info=MPI.INFO_NULL
        )
        run(request, case, 2)
        request.Free()
        request = comm.Allreduce_init(sent, into, MPI.SUM, MPI.INFO_NULL)
        run(request, case, 3)
        request.Free()
    assert counted.went == (2, 0)
    with pytest.raises(TypeError):
        comm.Allreduce_init(sent, into, MPI.SUM, MPI.INFO_NULL, 5)


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(comm, name):
    case = Case(comm, name, on_device, in_place=True)
    request = init(comm, name, case)
    for scale in (1, 2):
        with Counted() as counted:
            run(request, case, scale)
        assert counted.went == (1, 0)
    request.Free()


def test_an_operation_of_the_programs_own(comm):
    """MPI computes it."""

    def add(a, b, _):
        left, right = (np.frombuffer(each, float) for each in (a, b))
        right += left

    op = MPI.Op.Create(add, commute=True)
    case = Case(comm, "Allreduce", on_device)
    request = comm.Allreduce_init(*case.args[:2], op)
    with Counted() as counted:
        run(request, case, 2)
    assert counted.went == (0, 1)
    request.Free()
    op.Free()


def test_halves(comm):
    sent, into = wm.ones(5, np.float16), wm.zeros(5, np.float16)
    request = comm.Allreduce_init(sent, into)
    for _ in range(2):
        request.Start()
        request.Wait()
        assert (into.numpy() == comm.size).all()
    request.Free()


def test_more_than_there_is_room_for(comm):
    """Those beyond go through the host."""
    cases = [Case(comm, "Allreduce", on_device) for _ in range(250)]
    requests = [init(comm, "Allreduce", case) for case in cases]
    for case in cases:
        case.prepare(2)
    with Counted() as counted:
        wm.Prequest.Startall(requests)
        wm.Request.Waitall(requests)
    for case in cases:
        case.check(2)
    direct, staged = counted.went
    assert direct > 100
    assert direct + staged == len(cases)
    for request in requests:
        request.Free()
    comm.Barrier()
    request = init(comm, "Allreduce", cases[0])
    with Counted() as counted:
        run(request, cases[0], 3)
    assert counted.went == (1, 0)
    request.Free()


@pytest.mark.parametrize("freed", [False, True])
def test_arrays_live_as_long_as_the_request(comm, freed):
    case = Case(comm, "Allreduce", lambda a: wm.array(a))
    arrays = [weakref.ref(case.sent), weakref.ref(case.into)]
    request = init(comm, "Allreduce", case)
    run(request, case, 1)
    del case
    gc.collect()
    assert all(each() is not None for each in arrays)
    if freed:
        request.Free()
    else:
        del request
    gc.collect()
    assert all(each() is None for each in arrays)


@pytest.mark.ranks(2)
def test_dropped_while_under_way(comm):
    case = Case(comm, "Allreduce", on_device)
    request = init(comm, "Allreduce", case)
    case.prepare(2)
    if comm.rank == 0:
        request.Start()
        del request
    comm.Barrier()
    if comm.rank != 0:
        request.Start()
        request.Wait()
        case.check(2)
    comm.Barrier()


def test_its_communicator_is_freed(comm):
    other = comm.Dup()
    case = Case(other, "Allreduce", on_device)
    request = init(other, "Allreduce", case)
    other.Free()
    run(request, case, 2)
    request.Free()


@pytest.mark.ranks(2)
def test_ranks_differ(comm):
    """Told at the start, and it can be started again."""
    short = comm.rank == 0
    case = Case(comm, "Allreduce", on_device)
    sent = case.sent[:2] if short else case.sent
    into = case.into[:2] if short else case.into
    request = comm.Allreduce_init(sent, into)
    for _ in range(2):
        request.Start()
        with pytest.raises(MPI.Exception, match="all must give the same"):
            request.Wait()
    request.Free()
    if not LACKING:  # else nothing is asked before they start
        with pytest.raises(TypeError, match="different collectives"):
            init(comm, "Scan" if short else "Allreduce", case)


@pytest.mark.ranks(2)
@pytest.mark.skipif(
    not hasattr(kinds.driver(), "simcuda_fail"),
    reason="needs the simulated driver",
)
@pytest.mark.parametrize("call", ["MemcpyAsync", "LaunchKernel"])
def test_a_rank_fails(comm, fail, call):
    """All hear of it, and it can be started again."""
    # Of the first rank one copy, which is no kernel's.
    name = "Allreduce" if call == "LaunchKernel" else "Scan"
    case = Case(comm, name, on_device)
    request = init(comm, name, case)
    run(request, case, 1)
    case.prepare(2)
    if comm.rank == 0:
        fail(call)
    request.Start()
    with pytest.raises(wm.CudaError):
        request.Wait()
    run(request, case, 3)
    request.Free()


@pytest.mark.ranks(2)
@pytest.mark.skipif(
    not hasattr(kinds.driver(), "simcuda_fail"),
    reason="needs the simulated driver",
)
def test_one_cannot_be_made(comm, fail):
    """All raise, and can make it then."""
    case = Case(comm, "Allreduce", on_device)
    if comm.rank == 0:
        case.args = [kinds.make("pool", np.zeros(3)) for _ in "ab"]
        fail("PointerGetAttributes")
    with pytest.raises(wm.CudaError):
        init(comm, "Allreduce", case)
    case = Case(comm, "Allreduce", on_device)
    request = init(comm, "Allreduce", case)
    run(request, case, 2)
    request.Free()


@pytest.mark.ranks(2)
def test_an_array_has_other_memory(comm):
    """It is looked at again, by MPI: the ranks go on together."""

    class Moving:
        def __init__(self, *arrays):
            self.arrays = list(arrays)

        @property
        def __cuda_array_interface__(self):
            return self.arrays[0].__cuda_array_interface__

    case = Case(comm, "Allreduce", on_device)
    other = on_device(np.zeros(3))
    moving = Moving(case.into, other)
    request = comm.Allreduce_init(case.sent, moving)
    run(request, case, 1)
    if comm.rank == 0:
        moving.arrays.reverse()
    case.prepare(2)
    request.Start()
    request.Wait()
    if comm.rank == 0:
        assert (kinds.values_of(other) == 2 * case.want).all()
        moving.arrays.reverse()
    else:
        case.check(2)
    run(request, case, 3)
    request.Free()


def test_nothing_stays_behind(comm):
    case = Case(comm, "Allreduce", on_device)
    request = init(comm, "Allreduce", case)
    run(request, case, 1)
    # All ranks have a context there before any looks, and keep it.
    assert wm.get_device("cuda:0").free_memory > 0
    comm.Barrier()
    used = wm.get_device("cuda:0").free_memory
    for turn in range(30):
        run(request, case, turn)
        other = init(comm, "Allreduce", case)
        run(other, case, turn)
        other.Free()
    assert wm.get_device("cuda:0").free_memory == used
    request.Free()


@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("name", ["Alltoallw", "Alltoall", "Allgather"])
def test_datatypes_are_freed_before_it_starts(comm, name, kind):
    """MPI keeps them until the request is freed."""
    size = comm.size
    every_other = MPI.DOUBLE.Create_vector(3, 1, 2).Commit()
    each = MPI.DOUBLE.Create_vector(3, 1, 2).Create_resized(0, 48).Commit()
    out = kinds.make(kind, np.arange(6.0 * size) + 100 * comm.rank)
    into = kinds.make(kind, np.full(6 * size, -1.0))
    if name == "Alltoallw":
        places = [1] * size, [48 * i for i in range(size)]
        types = [every_other] * size
        args = [out, *places, types], [into, *places, types]
    else:
        args = [out, 1, each], [into, 1, each]
    try:
        request = getattr(comm, f"{name}_init")(*args)
    except NotImplementedError:
        pytest.skip("this MPI has no persistent collectives")
    every_other.Free()
    each.Free()
    others = [MPI.INT.Create_vector(2, 1, 5).Commit() for _ in range(9)]
    for _ in range(2):
        request.Start()
        request.Wait()
        got = kinds.values_of(into).reshape(size, 3, 2)
        for rank in range(size):
            first = 100 * rank + (0 if name == "Allgather" else 6 * comm.rank)
            assert got[rank, :, 0].tolist() == [first, first + 2, first + 4]
            assert (got[rank, :, 1] == -1).all()
    request.Free()
    for other in others:
        other.Free()
